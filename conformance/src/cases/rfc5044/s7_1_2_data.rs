//! RFC 5044 section 7.1.2: acceptance, rejection and Private Data.

use crate::script::Action::{self, *};
use crate::script::{
    Case, Condition, FrameChanges, Setup, Stag, StartupCheck, To, may, must, private_data,
    read_request, should,
};
use crate::wire::startup::R;

const DATA: &[u8] = b"what the application has to say";

pub(super) fn cases() -> Vec<Case> {
    [rejections(), private()].concat()
}

fn rejections() -> Vec<Case> {
    vec![
        should(
            "mpa/5044-7.1.2/30",
            &["5044-7.1.2-05"],
            "A request that the application does not accept is answered with R=1.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default().reject(b"")),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(true)),
        ]),
        may(
            "mpa/5044-7.1.2/31",
            &["5044-7.1.2-06"],
            "A Reply Frame that rejects carries the application's Private Data.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default().reject(DATA)),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(true)),
            CheckStartup(StartupCheck::PrivateData(DATA)),
        ]),
        // The ULP may close the TCP connection or use it for other purposes. A peer cannot observe
        // whether MPA or the ULP sent a FIN, so the case does not check whether TCP stays open. It
        // checks that MPA has ended, and that no reset overtakes the Reply.
        must(
            "mpa/5044-7.1.2/32",
            &["5044-7.1.2-07"],
            "A Responder that rejected has left MPA: its Reply is complete, and it answers no FPDU. Only its application may close TCP.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default().reject(DATA)),
            ExpectStartup,
            Operate,
            an_fpdu(),
            QuietOrEnd,
        ]),
        should(
            "mpa/5044-7.1.2/33",
            &["5044-7.1.2-08"],
            "A request that the application accepts is answered with R=0.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default()),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(false)),
        ]),
        must(
            "mpa/5044-7.1.2/34",
            &["5044-7.1.2-13"],
            "A rejected Initiator has left MPA: it sends no FPDU and no Terminate, and answers none. Only its application may close TCP.",
        )
        .target_initiates()
        .steps([
            Propose(Setup::default().frame_changes(FrameChanges::private_data(5).and_flags(R))),
            // The target has processed the rejection now. Bytes that arrive together with a Reply
            // might count as a part of the Reply.
            ReceivesPrivateData(private_data(5)),
            an_fpdu(),
            QuietOrEnd,
        ]),
    ]
}

/// Sends a message that an endpoint in Full Operation would answer.
fn an_fpdu() -> Action {
    Send(vec![read_request(Stag::Is(0), To::Is(0), 0)])
}

fn private() -> Vec<Case> {
    let most = 508;
    vec![
        may(
            "mpa/5044-7.1.2/40",
            &["5044-7.1.2-02"],
            "A Request Frame may have as much Private Data as fits, and the Responder's application gets all of it.",
        )
        .target_responds()
        .steps([
            Require(Condition::PrivateDataOf(most)),
            Establish(Setup::default().frame_changes(FrameChanges::private_data(most))),
            ReceivesPrivateData(private_data(most)),
            Ping,
        ]),
        may(
            "mpa/5044-7.1.2/41",
            &["5044-7.1.2-09"],
            "A Reply Frame that accepts may have as much Private Data as fits, and the Initiator's application gets all of it.",
        )
        .target_initiates()
        .steps([
            Require(Condition::PrivateDataOf(most)),
            Establish(Setup::default().frame_changes(FrameChanges::private_data(most))),
            ReceivesPrivateData(private_data(most)),
            Ping,
        ]),
        may(
            "mpa/5044-7.1.2/42",
            &["5044-7.1.2-02", "5044-7.1.2-09"],
            "The target's frame carries the Private Data of its application.",
        )
        .steps([
            Establish(Setup::default().private_data(DATA)),
            CheckStartup(StartupCheck::PrivateData(DATA)),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.2/43",
            &["5044-7.1.2-20"],
            "A Reply Frame with 300 bytes of Private Data, which may be more than the application accepts, does not harm the endpoint.",
        )
        .target_initiates()
        .dangerous()
        .steps([
            Propose(Setup::default().frame_changes(FrameChanges::private_data(300))),
            Establish(Setup::default()),
            Ping,
        ]),
    ]
}

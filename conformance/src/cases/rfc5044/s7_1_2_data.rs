//! RFC 5044 section 7.1.2: acceptance, rejection and Private Data.

use crate::script::Action::{self, *};
use crate::script::{
    Case, Condition, Setup, Stag, StartupCheck, To, Twist, may, must, private_data, read_request,
    should,
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
            "A Reply Frame that rejects has the application's Private Data.",
        )
        .target_responds()
        .steps([
            Propose(Setup::default().reject(DATA)),
            ExpectStartup,
            CheckStartup(StartupCheck::Rejected(true)),
            CheckStartup(StartupCheck::PrivateData(DATA)),
        ]),
        // "The ULP may close TCP or use the connection for other purposes": that TCP stays open cannot be asked for, as a peer does
        // not see whose FIN it is. That MPA is left, and not by a reset that overtakes the Reply, can.
        must(
            "mpa/5044-7.1.2/32",
            &["5044-7.1.2-07"],
            "A Responder that rejected is out of MPA: the Reply comes whole, and nothing answers an FPDU. Only its application may close TCP.",
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
            "An Initiator that was rejected is out of MPA: it sends no FPDU and no Terminate, and answers none. Only its application may close TCP.",
        )
        .target_initiates()
        .steps([
            Propose(Setup::default().twist(Twist::private_data(5).and_flags(R))),
            // It knows by now: what comes close behind a Reply, it may take for a part of that.
            Told(private_data(5)),
            an_fpdu(),
            QuietOrEnd,
        ]),
    ]
}

/// What an endpoint in Full Operation answers.
fn an_fpdu() -> Action {
    Send(vec![read_request(Stag::Is(0), To::Is(0), 0)])
}

fn private() -> Vec<Case> {
    let most = 508;
    vec![
        may(
            "mpa/5044-7.1.2/40",
            &["5044-7.1.2-02"],
            "A Request Frame may have as much Private Data as fits: the Responder's application gets all of it.",
        )
        .target_responds()
        .steps([
            Require(Condition::PrivateDataOf(most)),
            Establish(Setup::default().twist(Twist::private_data(most))),
            Told(private_data(most)),
            Ping,
        ]),
        may(
            "mpa/5044-7.1.2/41",
            &["5044-7.1.2-09"],
            "A Reply Frame that accepts may have as much Private Data as fits: the Initiator's application gets all of it.",
        )
        .target_initiates()
        .steps([
            Require(Condition::PrivateDataOf(most)),
            Establish(Setup::default().twist(Twist::private_data(most))),
            Told(private_data(most)),
            Ping,
        ]),
        may(
            "mpa/5044-7.1.2/42",
            &["5044-7.1.2-02", "5044-7.1.2-09"],
            "The target's frame has its application's Private Data.",
        )
        .steps([
            Establish(Setup::default().private_data(DATA)),
            CheckStartup(StartupCheck::PrivateData(DATA)),
            Ping,
        ]),
        must(
            "mpa/5044-7.1.2/43",
            &["5044-7.1.2-20"],
            "A Reply Frame with 300 bytes of Private Data, which may be more than the application takes, leaves the endpoint in order.",
        )
        .target_initiates()
        .dangerous()
        .steps([
            Propose(Setup::default().twist(Twist::private_data(300))),
            Establish(Setup::default()),
            Ping,
        ]),
    ]
}

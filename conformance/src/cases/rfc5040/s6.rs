//! RFC 5040 section 6: limits on outstanding Reads, and the end of a stream.

use super::*;
use crate::script::{Condition, may, must, should, terminate};
use crate::wire::fpdu::CrcField;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = limits();
    cases.extend(teardown());
    cases
}

fn limits() -> Vec<Case> {
    vec![
        must(
            "rdmap/5040-6.1/1",
            &["5040-6.1-01"],
            "In RDMA mode, only RDMA Messages are sent.",
        )
        .steps(every_kind(&[
            Rule::DdpHeader,
            Rule::DdpVersion,
            Rule::RdmapVersion,
            Rule::Opcode,
            Rule::TaggedFlag,
            Rule::QueueNumber,
        ]))
        .steps([Quiet]),
        must(
            "rdmap/5040-6.1/4",
            &["5040-6.1-04"],
            "If one Read is agreed, the next Read Request comes after the answer to the previous one.",
        )
        .steps([Establish(Setup::default().depths(16, 1))])
        .steps((1..=4).map(|n| Post(Post::read(STAG, TO * n, 8))))
        .steps((1..=4).flat_map(|n| {
            [
                wants_read(TO * n, 8),
                Quiet,
                Send(vec![answer_read(n as usize - 1, 8)]),
                completes("read"),
            ]
        })),
        must(
            "rdmap/5040-6.1/5",
            &["5040-6.1-04"],
            "If four Reads are agreed, no fifth Read Request comes before an answer.",
        )
        .steps([Establish(Setup::default().depths(16, 4))])
        .steps((1..=6).map(|n| Post(Post::read(STAG, TO * n, 8))))
        .steps((1..=4).map(|n| wants_read(TO * n, 8)))
        .steps([
            Quiet,
            Send(vec![answer_read(0, 8)]),
            wants_read(TO * 5, 8),
            Quiet,
            Send(vec![answer_read(1, 8), answer_read(2, 8)]),
            wants_read(TO * 6, 8),
        ]),
        must(
            "rdmap/5040-6.1/8",
            &["5040-6.1-04"],
            "If three Reads are agreed, no fourth Read Request comes before an answer.",
        )
        .steps([Establish(Setup::default().depths(16, 3))])
        .steps((1..=4).map(|n| Post(Post::read(STAG, TO * n, 8))))
        .steps((1..=3).map(|n| wants_read(TO * n, 8)))
        .steps([Quiet, Send(vec![answer_read(0, 8)]), wants_read(TO * 4, 8)]),
        must(
            "rdmap/5040-6.1/6",
            &["5040-6.1-05"],
            "One outstanding Read Request more than agreed is an error.",
        )
        .steps(too_many_reads(2, 3)),
        must(
            "rdmap/5040-6.1/7",
            &["5040-6.1-i01"],
            "The limit of Reads applies to each stream and direction separately.",
        )
        .steps([
            Establish(Setup::default().depths(1, 1)),
            Establish(Setup::default().depths(1, 1)),
            Region(Region::readable("r", 64)),
            Use(0),
        ])
        .steps(posts_read(8))
        .steps([read("r", 0, 64), response(64), Use(1)])
        .steps(posts_read(8))
        .steps([
            read("r", 0, 64),
            response(64),
            Send(vec![answer_read(0, 8)]),
            completes("read"),
            Use(0),
            Send(vec![answer_read(0, 8)]),
            completes("read"),
        ]),
    ]
}

/// Size of a response that exceeds what a TCP connection can buffer while the receiver reads
/// nothing. The first Read therefore remains outstanding.
const LARGE: u32 = 24 << 20;

/// Sends `sent` Reads at once, although only `agreed` may be outstanding.
pub(in crate::cases) fn too_many_reads(agreed: u16, sent: usize) -> Vec<Action> {
    let large = read_request(Stag::Of("r"), To::In("r", 0), LARGE);
    vec![
        Establish(Setup::default().depths(agreed, 1)),
        Require(Condition::TargetIrdIsAtMost(agreed)),
        Region(Region::writable("r", LARGE as usize).access("rr")),
        Send(vec![large; sent]),
        End(Ends::any_term()),
    ]
}

fn teardown() -> Vec<Case> {
    vec![
        should(
            "rdmap/5040-6.2.1/1",
            &["5040-6.2.1-01"],
            "An error of RDMAP or of the LLP ends the stream with a Terminate.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![read_request(Stag::Is(STAG), To::Is(TO), 16)]),
            End(Ends::any_term()),
            Establish(Setup::default().crc(true)),
            Send(vec![send(16).crc(CrcField::Xor(1))]),
            End(Ends::any_term()),
        ]),
        may(
            "rdmap/5040-6.2.1/3",
            &["5040-6.2.1-03", "5040-5.4-08"],
            "A peer may end the TCP connection right after its Terminate: no other stream is affected.",
        )
        .steps([
            Establish(Setup::default()),
            Establish(Setup::default()),
            Use(0),
            Send(vec![terminate(&[0, 0, 0, 0])]),
            Reset,
            Use(1),
            Ping,
        ]),
        should(
            "rdmap/5040-6.2.1/4",
            &["5040-6.2.1-04"],
            "After a Terminate, the TCP connection is closed gracefully with a FIN.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![read_request(Stag::Is(STAG), To::Is(TO), 16)]),
            End(Ends::any_end()),
            Closed { graceful: true },
        ]),
        must(
            "rdmap/5040-7/1",
            &["5040-7-i01"],
            "An error of RDMAP ends the stream with a Terminate, and the TCP connection with it.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![read_request(Stag::Is(STAG), To::Is(TO), 16)]),
            End(Ends::any_term()),
            Closed { graceful: false },
        ]),
        must(
            "rdmap/5040-7/2",
            &["5040-7-i01"],
            "An error of DDP ends the stream with a Terminate, and the TCP connection with it.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![write(Stag::Is(STAG), To::Is(TO), 16)]),
            End(Ends::any_term()),
            Closed { graceful: false },
        ]),
    ]
}

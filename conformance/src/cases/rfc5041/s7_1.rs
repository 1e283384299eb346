//! RFC 5041 sections 7.1 and 7.2: validation of untagged segments, and the error codes.

use super::untouched;
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{
    Action, Case, Data, Ends, Msn, OutSegment, Region, Setup, Stag, To, must, read_request, send,
    should, write,
};

pub(super) fn cases() -> Vec<Case> {
    [untagged(), numbers(), afterwards()].concat()
}

/// Sends each list of segments on its own connection. Each connection must end in this way.
fn each(
    setup: &Setup,
    wrong: impl IntoIterator<Item = Vec<OutSegment>>,
    ends: &Ends,
) -> Vec<Action> {
    wrong
        .into_iter()
        .flat_map(|segments| [Establish(setup.clone()), Send(segments), End(ends.clone())])
        .collect()
}

fn untagged() -> Vec<Case> {
    let small = Setup::default().receives(4, 64);
    let too_long = Ends::term(1, 2, 5);
    vec![
        must(
            "ddp/5041-7.1/1",
            &["5041-7.1-01", "5041-7.2-01"],
            "A segment on a queue that does not exist is an error: invalid QN.",
        )
        .steps(each(
            &Setup::default(),
            [4, 7, 0x100, u32::MAX].map(|qn| vec![send(16).qn(qn)]),
            &Ends::term(1, 2, 1),
        )),
        must(
            "ddp/5041-7.1/2",
            &["5041-7.1-02", "5041-7.1-07", "5041-7.1-09"],
            "A message without a buffer is an error: no buffer available, or an MSN out of range. Or it waits, and nothing is lost.",
        )
        .steps([
            Establish(Setup::default().receives(1, 64)),
            Send(vec![send(16)]),
            Delivered(Data::len(16)),
            Send(vec![send(48)]),
            EndOrHeld(Ends::term(1, 2, 2).or(1, 2, 3), 64, Data::len(48)),
        ]),
        must(
            "ddp/5041-7.1/3",
            &["5041-7.1-03"],
            "An MO beyond the end of the buffer is an error: invalid MO, or message too long.",
        )
        .steps(each(
            &small,
            [
                vec![send(16).mo(65)],
                vec![send(16).more(), send(16).mo(5000)],
                vec![send(16).more(), send(16).mo(u32::MAX - 7)],
            ],
            &Ends::term(1, 2, 4).or(1, 2, 5),
        )),
        must(
            "ddp/5041-7.1/4",
            &["5041-7.1-04"],
            "A message longer than its buffer is an error: message too long.",
        )
        .steps(each(
            &small,
            [
                vec![send(65)],
                vec![send(40).more(), send(25).mo(40)],
                vec![send(4000)],
            ],
            &too_long,
        )),
        must(
            "ddp/5041-7.1/6",
            &["5041-7.1-04", "5041-7.1-02"],
            "A message may fill its buffer to the last byte.",
        )
        .steps([
            Establish(small),
            Send(vec![send(64)]),
            Delivered(Data::len(64)),
            Send(vec![send(40).more(), send(super::piece(40, 24)).mo(40)]),
            Delivered(Data::len(64)),
            Ping,
        ]),
    ]
}

fn numbers() -> Vec<Case> {
    let out_of_range = Ends::term(1, 2, 3).or(1, 2, 2);
    let read = || read_request(Stag::Is(0), To::Is(0), 0);
    vec![
        must(
            "ddp/5041-7.1/5",
            &["5041-7.1-05"],
            "An MSN far beyond the available buffers is an error: MSN range not valid, or no buffer available.",
        )
        .steps(each(
            &Setup::default(),
            [1000, i32::MAX].map(|off| vec![send(16).msn(Msn::Off(off))]),
            &out_of_range,
        )),
        must(
            "ddp/5041-7.1/7",
            &["5041-7.1-05"],
            "The MSN of a completed message is no longer valid: MSN range not valid, or no buffer available.",
        )
        .steps(each(
            &Setup::default(),
            [
                vec![send(16), send(16).msn(Msn::Is(1))],
                vec![send(16), send(16), send(16).msn(Msn::Is(2))],
            ],
            &out_of_range,
        )),
        must(
            "ddp/5041-7.1/8",
            &["5041-7.1-05"],
            "MSN 0 is not valid at the beginning of a stream: MSN range not valid, or no buffer available.",
        )
        .steps(each(
            &Setup::default(),
            [vec![send(16).msn(Msn::Is(0))]],
            &out_of_range,
        )),
        must(
            "ddp/5041-7.1/9",
            &["5041-7.1-05"],
            "MSNs of Read Requests are checked like those of Sends.",
        )
        .steps(each(
            &Setup::default(),
            [
                vec![read().msn(Msn::Is(0))],
                vec![read(), read().msn(Msn::Is(1))],
                vec![read().msn(Msn::Off(i32::MAX))],
            ],
            &out_of_range,
        )),
    ]
}

fn afterwards() -> Vec<Case> {
    let wrong = || write(Stag::Of("r"), To::End("r", -8), 16);
    vec![
        must(
            "ddp/5041-7.1/18",
            &["5041-7.1-18"],
            "After an error, all later segments are dropped: nothing of them is placed, and no second Terminate comes.",
        )
        .steps([
            Establish(Setup::default()),
            Watch(&[Rule::SilentAfterTerminate]),
            Region(Region::writable("r", 4096)),
            Region(Region::readable("readable", 4096)),
            Send(vec![
                wrong(),
                write(Stag::Of("r"), To::In("r", 0), 64),
                send(16),
                read_request(Stag::Of("readable"), To::In("readable", 0), 64),
                send(16).qn(7),
            ]),
            End(Ends::any_end()),
            End(Ends::close()),
            Holds {
                region: "r",
                offset: 0,
                data: untouched(64),
            },
        ]),
        must(
            "ddp/5041-7.1/15",
            &["5041-7.1-15"],
            "Nothing of a wrong segment is placed, not even the part that fits in the buffer.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![wrong()]),
            End(Ends::any_end()),
            End(Ends::close()),
            Holds {
                region: "r",
                offset: 4088,
                data: untouched(8),
            },
        ]),
        should(
            "ddp/5041-7.1/16",
            &["5041-7.1-17"],
            "A Terminate for a tagged segment contains its DDP Header and its length.",
        )
        .steps([
            Establish(Setup::default()),
            Region(Region::writable("r", 4096)),
            Send(vec![wrong()]),
            End(Ends::term(1, 1, 1)
                .headers_within(6, 1)
                .naming_last()),
        ]),
        should(
            "ddp/5041-7.1/17",
            &["5041-7.1-17"],
            "A Terminate for an untagged segment contains its DDP Header and its length.",
        )
        .steps([
            Establish(Setup::default()),
            Send(vec![send(16).qn(7)]),
            End(Ends::term(1, 2, 1)
                .headers_within(6, 1)
                .naming_last()),
        ]),
    ]
}

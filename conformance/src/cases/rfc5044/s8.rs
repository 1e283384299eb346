//! RFC 5044 section 8: errors.

use super::s4_4::{crc_error, ready, spoiled, untouched};
use super::{source, steps};
use crate::script::Action::{self, *};
use crate::script::{
    Case, Condition, Ends, SINK_STAG, SINK_TO, Setup, Stag, To, Want, must, read_request, should,
    write,
};
use crate::wire::fpdu::{CrcField, MarkerForm};

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-8/1",
            &["5044-8-02"],
            "A CRC that does not match is detected, even if only one bit is wrong.",
        )
        .steps(steps([
            ready(),
            vec![
                Send(vec![spoiled(CrcField::Xor(0x0100_0000))]),
                End(crc_error()),
            ],
        ])),
        must(
            "mpa/5044-8/2",
            &["5044-8-03", "5044-5.2-02", "5044-8-08"],
            "A Marker with a wrong pointer is a Marker error or is ignored, and never another error.",
        )
        .steps(steps([
            misleading(),
            vec![EndOr(Ends::term(2, 0, 3).or_dropped(), answered())],
        ])),
        should(
            "mpa/5044-8/3",
            &["5044-8-06"],
            "Many Markers with wrong pointers are a Marker error, or are all ignored by a receiver that reads in order.",
        )
        .steps(steps([
            vec![
                Establish(Setup::default()),
                Require(Condition::TargetReceivesMarkers),
                source(),
                Send(vec![
                    write(Stag::Is(0), To::Is(0), 0)
                        .marker(MarkerForm {
                            reserved: 0,
                            off: 8,
                        });
                    140
                ]),
                Send(vec![read_request(Stag::Is(0), To::Is(0), 0)]),
                EndOr(Ends::term(2, 0, 3).or_dropped(), answered()),
            ],
        ])),
        must(
            "mpa/5044-8/4",
            &["5044-8-11"],
            "After an error, no FPDU is passed on.",
        )
        .steps(steps([
            ready(),
            vec![
                Send(vec![
                    spoiled(CrcField::Xor(1)),
                    write(Stag::Of("r"), To::In("r", 1024), 64),
                    write(Stag::Of("r"), To::In("r", 2048), 64),
                ]),
                End(crc_error()),
                untouched(),
            ],
        ])),
        must(
            "mpa/5044-8/5",
            &["5044-8-11"],
            "After an error, no FPDU is answered.",
        )
        .steps([
            Establish(Setup::default().crc(true)),
            source(),
            Watch(&[crate::check::Rule::SilentAfterTerminate]),
            Send(vec![
                write(Stag::Is(0), To::Is(0), 0).crc(CrcField::Xor(1)),
                read_request(Stag::Of("source"), To::In("source", 0), 100),
            ]),
            EndNow(crc_error()),
        ]),
        must(
            "mpa/5044-8/6",
            &["5044-8-12", "5044-8-10"],
            "A CRC error does not close TCP: a Terminate still comes as the last message, or the TCP segment is dropped.",
        )
        .steps(steps([
            ready(),
            vec![
                Ping,
                Send(vec![spoiled(CrcField::Bytes([0; 4]))]),
                End(crc_error()),
            ],
        ])),
    ]
}

/// Sends a Write and a Read. In each Marker of the Write, FPDUPTR is 4 too large, but the CRC is
/// correct.
fn misleading() -> Vec<Action> {
    let marker = MarkerForm {
        reserved: 0,
        off: 4,
    };
    vec![
        Establish(Setup::default()),
        Require(Condition::TargetReceivesMarkers),
        Region(crate::script::Region::writable("r", 4096)),
        Send(vec![
            write(Stag::Of("r"), To::In("r", 0), 1000).marker(marker),
            read_request(Stag::Is(0), To::Is(0), 0),
        ]),
    ]
}

/// The response to the Read of `misleading`.
fn answered() -> Want {
    Want::ReadResponse {
        stag: Stag::Is(SINK_STAG),
        to: SINK_TO,
        data: crate::script::Data::none(),
    }
}

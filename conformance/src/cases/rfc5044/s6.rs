//! RFC 5044 section 6: validation of an FPDU before DDP sees it.

use super::s4_4::{crc_error, ready, spoiled, untouched};
use super::steps;
use crate::script::Action::*;
use crate::script::{Case, Data, Ends, Setup, Stag, To, must, send, write};
use crate::wire::fpdu::CrcField;

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-6/1",
            &["5044-6-01", "5044-6-02"],
            "An FPDU is verified before DDP sees it: nothing of a bad one is placed, even after good ones.",
        )
        .steps(steps([
            ready(),
            vec![
                Send(vec![
                    write(Stag::Of("r"), To::In("r", 2048), 700),
                    write(Stag::Of("r"), To::In("r", 0), 1300).crc(CrcField::Xor(0x10)),
                ]),
                End(crc_error()),
                Holds {
                    region: "r",
                    offset: 0,
                    data: Data::Bytes(vec![0; 2048]),
                },
            ],
        ])),
        must(
            "mpa/5044-6/2",
            &["5044-6-02"],
            "The message of a bad FPDU is not delivered.",
        )
        .steps([
            Establish(Setup::default().crc(true)),
            Send(vec![send(16).crc(CrcField::Xor(1))]),
            End(crc_error()),
            Completion {
                op: "recv",
                success: false,
            },
        ]),
        must(
            "mpa/5044-6/3",
            &["5044-6-04"],
            "A part of an FPDU is not forwarded, even if the connection ends after it.",
        )
        .steps(steps([
            ready(),
            vec![
                // Sends the FPDU without its CRC field.
                SendPart(spoiled(CrcField::Right), 2 + 14 + 64),
                Fin,
                End(Ends::any_term().or_close()),
                untouched(),
            ],
        ])),
        must(
            "mpa/5044-6/4",
            &["5044-6-04"],
            "ULPDU_Length decides how long an FPDU is: bytes that follow a part of it belong to it.",
        )
        .steps(steps([
            ready(),
            vec![
                SendInPieces(
                    write(Stag::Of("r"), To::In("r", 0), 2500),
                    vec![1, 2, 15, 16, 17, 500, 1460, 2515],
                ),
                Ping,
                Holds {
                    region: "r",
                    offset: 0,
                    data: Data::len(2500),
                },
            ],
        ])),
    ]
}

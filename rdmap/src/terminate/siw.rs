//! Error codes to which Linux siw gives another meaning than the RFCs do.

use super::Terminate;
use super::layout::Reading;
use crate::code::TerminateCode;
use crate::opcode::Opcode;

/// An error code of siw that needs an explanation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Departure {
    /// Meaning that siw gives the code.
    pub(super) means: &'static str,
    /// How the RFCs treat this error.
    pub(super) rfc: &'static str,
    /// Code that the RFCs assign to this error, if it differs from siw's code.
    pub(super) code: Option<TerminateCode>,
    /// True if the headers in the message are those of the refused segment.
    pub(super) headers_fit: bool,
}

impl Departure {
    const fn new(means: &'static str, rfc: &'static str) -> Self {
        Departure {
            means,
            rfc,
            code: None,
            headers_fit: true,
        }
    }

    const fn code(self, layer: u8, etype: u8, code: u8) -> Self {
        Departure {
            code: Some(TerminateCode::new(layer, etype, code)),
            ..self
        }
    }
}

/// Returns the explanation for a message that was read in siw's layout; `None` if its code has the
/// meaning of the RFCs.
pub(super) fn departure(terminate: &Terminate) -> Option<Departure> {
    if terminate.reading != Reading::Siw {
        return None;
    }
    let TerminateCode { layer, etype, code } = terminate.code;
    Some(match (layer, etype, code, terminate.opcode()) {
        (0, 0, 0xFF, _) => Departure::new(
            "its consumer has moved the QP to the state SQE",
            "any code will do",
        ),
        (0, 1, 0xFF, Some(Opcode::ReadRequest)) => Departure::new(
            "it cannot serve this Read, as it cannot any of 2^31 bytes and more",
            "RFC 5040 lets a Read have 2^32 - 1 bytes",
        ),
        (0, 2, 0x07, Some(Opcode::ReadRequest)) => Departure::new(
            "more RDMA Reads were outstanding than its IRD",
            "RFC 5041 has 1/2/02, no buffer on queue 1",
        )
        .code(1, 2, 0x02),
        (0, 2, 0x09, _) => Departure {
            headers_fit: false,
            ..Departure::new(
                "an earlier Send named an STag that it could not invalidate; the header is that of a later message",
                "RFC 5040 section 7.1 has the same code, sent at once and with the header of that Send",
            )
        },
        (1, 0, 0x00, Some(Opcode::Write)) => Departure::new(
            "TO and length of the Write wrap past 2^64",
            "RFC 5041 has 1/1/03, TO wrap",
        )
        .code(1, 1, 0x03),
        (1, 0, 0x00, Some(Opcode::ReadResponse)) => Departure::new(
            "a Read Response came that none of its Reads had asked for",
            "no RFC has a code for it",
        ),
        (1, 1, 0x00, Some(Opcode::Write)) => Departure::new(
            "the STag is unknown or its key is wrong, or its region has no right of remote write",
            "RFC 5041 has no code for a missing right",
        ),
        (1, 2, 0x02, Some(opcode)) if opcode.queue() == Some(crate::opcode::QN_SEND) => {
            Departure::new(
                "no receive was posted for the Send, or the Send is longer than the receive",
                "RFC 5041 has 1/2/02 for the first and 1/2/05 for the second",
            )
        }
        _ => return None,
    })
}

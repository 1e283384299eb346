//! By whose layout a Terminate Message has to be read.
//!
//! Linux siw declares the Terminate Control Field with bit-fields in the order of a little-endian
//! compiler. Compared with RFC 5040 Figure 7, Layer and EType trade places, and M, D and R come at
//! the wrong end of the third octet:
//!
//! ```text
//!             octet 0          octet 1     octet 2                 octet 3
//!   RFC 5040  Layer  EType     Error Code  M D R reserved          reserved
//!   siw       EType  Layer     Error Code  reserved R D M          reserved
//!             (4)    (4)       (8)
//! ```
//!
//! What siw sends was measured with Linux 6.1; other versions may do other things. So two sets are
//! kept apart: what siw was [seen to send](siw_sends), which is narrow, and what
//! [has a meaning in its layout](fits_siw), which is wide. To recognize siw without being told, the
//! narrow set is held against everything an RFC allows; to go against a profile that says siw, an
//! RFC's meaning is held against the wide one.

use uwarp_ddp::{TAGGED_HEADER, UNTAGGED_HEADER};

use super::{DDP_HEADER, DdpOctets, RDMA_HEADER, SEGMENT_LEN_VALID};
use crate::code::TerminateCode;
use crate::opcode::{Opcode, split};
use crate::peer::Peer;
use crate::read_request::READ_REQUEST_HEADER;

/// M, D and R where siw has them.
pub(super) const SIW_SEGMENT_LEN_VALID: u8 = 0x01;
pub(super) const SIW_DDP_HEADER: u8 = 0x02;
pub(super) const SIW_RDMA_HEADER: u8 = 0x04;

/// How a Terminate Message was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// By RFC 5040's layout.
    Rfc,
    /// The same, but from siw the octets would mean something else, and no profile says who it is.
    RfcOrSiw,
    /// By siw's layout.
    Siw,
}

/// By whose layout to read the Terminate Header `octets`, the first four of which are `control`.
pub(super) fn decide(peer: Peer, control: [u8; 4], octets: &[u8]) -> Reading {
    let rfc = rfc_allows(control);
    match peer {
        Peer::Siw if rfc && !fits_siw(control) => Reading::Rfc,
        Peer::Siw => Reading::Siw,
        Peer::Rfc => match (rfc, siw_sends(control, octets)) {
            (_, false) => Reading::Rfc,
            // 5040-4.8-08 has reserved bits ignored; 5040-4.8-03 and -07 forbid to send these octets.
            (false, true) => Reading::Siw,
            (true, true) if rfc_code(control) == siw_code(control) => Reading::Rfc,
            (true, true) => Reading::RfcOrSiw,
        },
    }
}

/// Layer, type and code by RFC 5040's layout.
pub(super) const fn rfc_code([kind, code, ..]: [u8; 4]) -> TerminateCode {
    TerminateCode::new(kind >> 4, kind & 0x0F, code)
}

/// Layer, type and code by siw's layout.
pub(super) const fn siw_code([kind, code, ..]: [u8; 4]) -> TerminateCode {
    TerminateCode::new(kind & 0x0F, kind >> 4, code)
}

/// Whether a sender that keeps to the RFCs may send these four octets. Which headers go with which
/// error is left open, for Figure 10 of RFC 5040 is only a SHOULD.
const fn rfc_allows(control: [u8; 4]) -> bool {
    let [_, _, present, reserved] = control;
    present & !(SEGMENT_LEN_VALID | DDP_HEADER | RDMA_HEADER) == 0
        && reserved == 0
        && rfc_code(control).is_defined()
}

/// Whether these four octets mean something in siw's layout.
const fn fits_siw(control: [u8; 4]) -> bool {
    let [_, _, present, reserved] = control;
    present & !(SIW_SEGMENT_LEN_VALID | SIW_DDP_HEADER | SIW_RDMA_HEADER) == 0
        && reserved == 0
        && siw_code(control).is_defined()
}

/// Whether siw sends a Terminate Header like this one, to the octet.
fn siw_sends(control: [u8; 4], octets: &[u8]) -> bool {
    const NONE: u8 = 0;
    const DDP: u8 = SIW_SEGMENT_LEN_VALID | SIW_DDP_HEADER;
    const ALL: u8 = DDP | SIW_RDMA_HEADER;
    let code = siw_code(control);
    let headers = match (code.layer, code.etype, code.code) {
        // Where the layout of the segment is not known, or it is not about one.
        (0, 0, _) | (0, 2, 5 | 6) | (1, 1, 4) | (1, 2, 6) | (2, 0, _) => NONE,
        (0, 1, _) => ALL,
        (1, 3, _) => return false,
        _ => DDP,
    };
    let [_, _, present, reserved] = control;
    if !code.is_defined() || present != headers || reserved != 0 {
        return false;
    }
    if headers == NONE {
        return true;
    }
    // A segment length and a DDP header, and the header of a Read Request if it is about one; then
    // nothing more.
    let Some(ddp) = octets.get(4 + 2..).and_then(DdpOctets::take) else {
        return false;
    };
    let rest = match (ddp.len, headers) {
        (TAGGED_HEADER, DDP) => TAGGED_HEADER,
        (UNTAGGED_HEADER, ALL) if is_read_request(&ddp) => UNTAGGED_HEADER + READ_REQUEST_HEADER,
        (UNTAGGED_HEADER, _) => UNTAGGED_HEADER,
        _ => return false,
    };
    octets.len() == 4 + 2 + rest
}

/// Whether this is the DDP header of a Read Request.
pub(super) fn is_read_request(ddp: &DdpOctets) -> bool {
    let control = ddp.as_slice().get(1).copied().unwrap_or(0);
    ddp.len == UNTAGGED_HEADER && split(control).1 == Opcode::ReadRequest as u8
}

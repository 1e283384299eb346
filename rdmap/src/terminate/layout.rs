//! Choice of the layout in which a Terminate Message is read.
//!
//! Linux siw declares the Terminate Control Field with bit-fields in the order of a little-endian
//! compiler. Compared with RFC 5040 Figure 7, Layer and EType are swapped, and M, D and R are at
//! the wrong end of the third byte:
//!
//! ```text
//!             byte 0          byte 1     byte 2                 byte 3
//!   RFC 5040  Layer  EType     Error Code  M D R reserved          reserved
//!   siw       EType  Layer     Error Code  reserved R D M          reserved
//!             (4)    (4)       (8)
//! ```
//!
//! The messages of siw were measured with Linux 6.1; other versions may differ. The code therefore
//! uses two sets. The narrow set has the messages that siw [sends](siw_sends) in the measured
//! version. The wide set has all messages that [have a meaning in its layout](fits_siw). Without
//! siw's profile, siw's layout is chosen only for messages of the narrow set that no RFC allows.
//! With siw's profile, RFC 5040's layout is chosen only for messages that an RFC allows and that
//! are outside the wide set.

use uwarp_ddp::{TAGGED_HEADER, UNTAGGED_HEADER};

use super::{DDP_HEADER, DdpBytes, RDMA_HEADER, SEGMENT_LEN_VALID};
use crate::code::TerminateCode;
use crate::opcode::{Opcode, split};
use crate::peer::Peer;
use crate::read_request::READ_REQUEST_HEADER;

/// M, D and R in siw's layout.
pub(super) const SIW_SEGMENT_LEN_VALID: u8 = 0x01;
pub(super) const SIW_DDP_HEADER: u8 = 0x02;
pub(super) const SIW_RDMA_HEADER: u8 = 0x04;

/// Layout in which a Terminate Message was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// RFC 5040's layout.
    Rfc,
    /// RFC 5040's layout. The bytes would have another meaning if siw had sent them, and the
    /// profile does not exclude that.
    RfcOrSiw,
    /// siw's layout.
    Siw,
}

/// Chooses the layout for the Terminate Header `bytes`, whose first four bytes are `control`.
pub(super) fn decide(peer: Peer, control: [u8; 4], bytes: &[u8]) -> Reading {
    let rfc = rfc_allows(control);
    match peer {
        Peer::Siw if rfc && !fits_siw(control) => Reading::Rfc,
        Peer::Siw => Reading::Siw,
        Peer::Rfc => match (rfc, siw_sends(control, bytes)) {
            (_, false) => Reading::Rfc,
            // 5040-4.8-08 requires that reserved bits are ignored; 5040-4.8-03 and -07 forbid
            // sending them.
            (false, true) => Reading::Siw,
            (true, true) if rfc_code(control) == siw_code(control) => Reading::Rfc,
            (true, true) => Reading::RfcOrSiw,
        },
    }
}

/// Returns layer, type and code in RFC 5040's layout.
pub(super) const fn rfc_code([kind, code, ..]: [u8; 4]) -> TerminateCode {
    TerminateCode::new(kind >> 4, kind & 0x0F, code)
}

/// Returns layer, type and code in siw's layout.
pub(super) const fn siw_code([kind, code, ..]: [u8; 4]) -> TerminateCode {
    TerminateCode::new(kind & 0x0F, kind >> 4, code)
}

/// Returns true if a sender that follows the RFCs may send these four bytes. The headers that
/// belong to each error are not checked, because Figure 10 of RFC 5040 is only a SHOULD.
const fn rfc_allows(control: [u8; 4]) -> bool {
    let [_, _, present, reserved] = control;
    present & !(SEGMENT_LEN_VALID | DDP_HEADER | RDMA_HEADER) == 0
        && reserved == 0
        && rfc_code(control).is_defined()
}

/// Returns true if these four bytes have a meaning in siw's layout.
const fn fits_siw(control: [u8; 4]) -> bool {
    let [_, _, present, reserved] = control;
    present & !(SIW_SEGMENT_LEN_VALID | SIW_DDP_HEADER | SIW_RDMA_HEADER) == 0
        && reserved == 0
        && siw_code(control).is_defined()
}

/// Returns true if siw sends Terminate Headers with this code, these bits and this length.
fn siw_sends(control: [u8; 4], bytes: &[u8]) -> bool {
    const NONE: u8 = 0;
    const DDP: u8 = SIW_SEGMENT_LEN_VALID | SIW_DDP_HEADER;
    const ALL: u8 = DDP | SIW_RDMA_HEADER;
    let code = siw_code(control);
    let headers = match (code.layer, code.etype, code.code) {
        // siw sends no headers if it cannot parse the segment, or if the error concerns no segment.
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
    // The segment length and the DDP header follow, then the header of a Read Request if the error
    // concerns one. Nothing may follow after that.
    let Some(ddp) = bytes.get(4 + 2..).and_then(DdpBytes::take) else {
        return false;
    };
    let rest = match (ddp.len, headers) {
        (TAGGED_HEADER, DDP) => TAGGED_HEADER,
        (UNTAGGED_HEADER, ALL) if is_read_request(&ddp) => UNTAGGED_HEADER + READ_REQUEST_HEADER,
        (UNTAGGED_HEADER, _) => UNTAGGED_HEADER,
        _ => return false,
    };
    bytes.len() == 4 + 2 + rest
}

/// Returns true if this is the DDP header of a Read Request.
pub(super) fn is_read_request(ddp: &DdpBytes) -> bool {
    let control = ddp.as_slice().get(1).copied().unwrap_or(0);
    ddp.len == UNTAGGED_HEADER && split(control).1 == Opcode::ReadRequest as u8
}

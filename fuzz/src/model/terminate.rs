//! The Terminate Header, in the layout of RFC 5040 section 4.8 and in that of Linux siw
//! (docs/peers.md).

/// A parsed Terminate Header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// True if it was parsed in siw's layout.
    pub siw: bool,
    /// Layer, Error Type, Error Code.
    pub code: (u8, u8, u8),
    /// Length of the segment that caused the error. Present if flag M is set.
    pub segment_len: Option<u16>,
    /// DDP header of that segment, 14 or 18 bytes. Present if flag D is set.
    pub ddp: Option<Vec<u8>>,
    /// Header of the Read Request that caused the error. Present if flag R is set.
    pub read_request: Option<Vec<u8>>,
}

/// Returns true if an RFC defines the code: RFC 5040 Figure 9, RFC 5041 section 7.2, RFC 5044
/// section 8, RFC 6581 section 8.
#[must_use]
pub fn is_defined(layer: u8, etype: u8, code: u8) -> bool {
    let codes: &[u8] = match (layer, etype) {
        (0, 0) | (1, 3) => return true,
        (0, 1) => &[0, 1, 2, 3, 4, 9, 0xFF],
        (0, 2) => &[5, 6, 7, 8, 9, 0xFF],
        (1, 0) => &[0],
        (1, 1) => &[0, 1, 2, 3, 4],
        (1, 2) => &[1, 2, 3, 4, 5, 6],
        (2, 0) => &[1, 2, 3, 4, 5, 6, 7],
        _ => &[],
    };
    codes.contains(&code)
}

/// Parses a Terminate Header. `siw` is true if the peer is known to be Linux siw.
#[must_use]
pub fn read(bytes: &[u8], siw: bool) -> Option<Header> {
    let &[kinds, code, present, reserved] = bytes.first_chunk()?;
    let rfc = (kinds >> 4, kinds & 15, code);
    let other = (kinds & 15, kinds >> 4, code);
    let rfc_may_send = present & 0x1F == 0 && reserved == 0 && is_defined(rfc.0, rfc.1, rfc.2);
    let by_siw = if siw {
        let siw_may_mean =
            present & 0xF8 == 0 && reserved == 0 && is_defined(other.0, other.1, other.2);
        !rfc_may_send || siw_may_mean
    } else {
        !rfc_may_send && siw_sends(bytes)
    };
    if by_siw {
        return Some(of_siw(bytes, other));
    }
    let (mut at, mut header) = (4, none(false, rfc));
    if present & 0xC0 != 0 {
        let len = u16::from_be_bytes([*bytes.get(4)?, *bytes.get(5)?]);
        header.segment_len = (present & 0x80 != 0).then_some(len);
        at = 6;
    }
    if present & 0x40 != 0 {
        let len = ddp_len(*bytes.get(at)?);
        header.ddp = Some(bytes.get(at..at + len)?.to_vec());
        at += len;
    }
    if present & 0x20 != 0 {
        header.read_request = Some(bytes.get(at..at + 28)?.to_vec());
    }
    Some(header)
}

const fn none(siw: bool, code: (u8, u8, u8)) -> Header {
    Header {
        siw,
        code,
        segment_len: None,
        ddp: None,
        read_request: None,
    }
}

/// Returns the length of the DDP header that begins with `control`.
const fn ddp_len(control: u8) -> usize {
    if control & 0x80 != 0 { 14 } else { 18 }
}

fn is_read_request(ddp: &[u8]) -> bool {
    ddp.len() == 18 && ddp[1] & 15 == 1
}

/// Returns true if these bytes are a header that siw is known to send.
fn siw_sends(bytes: &[u8]) -> bool {
    let (etype, layer, code) = (bytes[0] >> 4, bytes[0] & 15, bytes[1]);
    if !is_defined(layer, etype, code) || bytes[3] != 0 {
        return false;
    }
    let bare = matches!(
        (layer, etype, code),
        (0, 0, _) | (0, 2, 5 | 6) | (1, 1, 4) | (1, 2, 6) | (2, 0, _)
    );
    let with_read = (layer, etype) == (0, 1);
    let wanted = match (bare, with_read) {
        (true, _) => 0,
        (false, true) => 7,
        (false, false) => 3,
    };
    if bytes[2] != wanted || (layer, etype) == (1, 3) {
        return false;
    }
    if bare {
        return true;
    }
    let Some(ddp) = bytes
        .get(6)
        .and_then(|control| bytes.get(6..6 + ddp_len(*control)))
    else {
        return false;
    };
    let behind = if with_read && is_read_request(ddp) {
        28
    } else {
        0
    };
    (ddp.len() == 18 || !with_read) && bytes.len() == 6 + ddp.len() + behind
}

/// Parses siw's layout. Leaves out incomplete headers.
fn of_siw(bytes: &[u8], code: (u8, u8, u8)) -> Header {
    let mut header = none(true, code);
    let present = bytes[2];
    let (Some(&[high, low]), true) = (
        bytes.get(4..6).and_then(|len| len.first_chunk()),
        present & 3 != 0,
    ) else {
        return header;
    };
    header.segment_len = (present & 1 != 0).then_some(u16::from_be_bytes([high, low]));
    if present & 2 != 0 {
        header.ddp = bytes
            .get(6)
            .and_then(|control| bytes.get(6..6 + ddp_len(*control)))
            .map(<[u8]>::to_vec);
    }
    if present & 4 != 0 && header.ddp.as_deref().is_some_and(is_read_request) {
        header.read_request = bytes.get(24..52).map(<[u8]>::to_vec);
    }
    header
}

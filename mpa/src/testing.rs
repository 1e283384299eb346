//! Helpers that several test modules share.

use alloc::vec::Vec;

use proptest::prelude::*;

use crate::{Deframer, Framer, Step, crc32c};

/// First FPDU of a stream with Markers (RFC 5044 Figure 5).
pub(crate) const FIGURE_5: [u8; 52] = {
    let mut bytes = [0; 52];
    bytes[5] = 0x2A;
    (bytes[6], bytes[7]) = (0x41, 0x43);
    bytes[0x13] = 1;
    (bytes[0x30], bytes[0x31], bytes[0x32], bytes[0x33]) = (0x52, 0x23, 0x99, 0x83);
    bytes
};

/// FPDU at stream offset 0x1EC with a Marker inside (RFC 5044 Figure 6).
pub(crate) const FIGURE_6: [u8; 52] = {
    let mut bytes = [0; 52];
    bytes[1] = 0x2A;
    (bytes[2], bytes[3]) = (0x41, 0x43);
    bytes[0x0F] = 2;
    bytes[0x17] = 0x14;
    (bytes[0x30], bytes[0x31], bytes[0x32], bytes[0x33]) = (0x84, 0x92, 0x58, 0x98);
    bytes
};

/// DDP header of a Send with the given MSN, as in both figures.
pub(crate) fn send_header(msn: u8) -> [u8; 18] {
    let mut header = [0; 18];
    (header[0], header[1], header[13]) = (0x41, 0x43, msn);
    header
}

/// Length of a first ULPDU after which the next FPDU starts at offset 0x1EC, as in Figure 6. Its
/// FPDU has 488 bytes after the first Marker.
pub(crate) const BEFORE_FIGURE_6: usize = 482;

/// Test data of `len` bytes that depends on `seed` and resembles no header or Marker.
pub(crate) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8) ^ seed)
        .collect()
}

/// Frames each ULPDU, passing its first 18 bytes as the header.
pub(crate) fn stream_of(ulpdus: &[Vec<u8>], crc: bool, markers: bool) -> Vec<u8> {
    let mut framer = Framer::new(crc, markers);
    let mut out = Vec::new();
    for ulpdu in ulpdus {
        let header = ulpdu.len().min(18);
        let (head, payload) = ulpdu.split_at(header);
        framer
            .frame(head, payload, 0, payload.len(), &mut out)
            .unwrap();
    }
    assert_eq!(framer.position(), out.len() as u64);
    out
}

/// Builds the same stream from the text of RFC 5044, one byte at a time.
pub(crate) fn stream_by_the_text(ulpdus: &[Vec<u8>], crc: bool, markers: bool) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::new();
    for ulpdu in ulpdus {
        let mut content = (ulpdu.len() as u16).to_be_bytes().to_vec();
        content.extend_from_slice(ulpdu);
        while !content.len().is_multiple_of(4) {
            content.push(0);
        }
        let start = out.len();
        let mut length_field = None;
        let marker_if_due = |out: &mut Vec<u8>, length_field: Option<usize>| {
            if markers && out.len().is_multiple_of(512) {
                let distance = length_field.map_or(0, |at| out.len() - at) as u16;
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(&distance.to_be_bytes());
            }
        };
        for byte in content {
            marker_if_due(&mut out, length_field);
            length_field.get_or_insert(out.len());
            out.push(byte);
        }
        marker_if_due(&mut out, length_field);
        let sum = if crc { crc32c(&out[start..]) } else { 0 };
        out.extend_from_slice(&sum.to_le_bytes());
    }
    out
}

/// Deframes all whole FPDUs. Checks that a call that returns no FPDU asks for more bytes than it
/// was given.
pub(crate) fn drain(
    deframer: &mut Deframer,
    buffer: &mut Vec<u8>,
    into: &mut Vec<Vec<u8>>,
) -> Result<(), crate::DeframeError> {
    loop {
        let ulpdu = match deframer.next(buffer)? {
            Step::Need(need) => {
                assert!(
                    need > buffer.len(),
                    "asked for {need}, had {}",
                    buffer.len()
                );
                return Ok(());
            }
            Step::Fpdu(ulpdu) => ulpdu,
        };
        into.push(ulpdu.pieces(0, ulpdu.len()).flatten().copied().collect());
        let used = ulpdu.wire_len();
        buffer.drain(..used);
    }
}

/// ULPDUs of various lengths, short ones most often. Under Miri they are shorter and have fewer
/// Markers.
pub(crate) fn ulpdus(most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let (longer, longest): (usize, usize) = if cfg!(miri) {
        (600, 1100)
    } else {
        (1200, 5000)
    };
    let len = prop_oneof![
        4 => 1..80usize,
        3 => 400..longer,
        1 => longer..longest,
    ];
    proptest::collection::vec(
        (len, any::<u8>()).prop_map(|(len, seed)| bytes(len, seed)),
        1..most,
    )
}

/// Cuts `stream` into pieces whose lengths repeat `sizes`.
pub(crate) fn chunked<'a>(stream: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = stream;
    let mut sizes = sizes.iter().cycle();
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let size = sizes.next().copied().unwrap_or(1).clamp(1, rest.len());
        let (piece, left) = rest.split_at(size);
        rest = left;
        Some(piece)
    })
}

//! Writers for the four kinds of pcapng blocks in a capture: Section Header, Interface Description,
//! Enhanced Packet and Interface Statistics (draft-ietf-opsawg-pcapng section 4).
//!
//! Each function appends one whole block to a buffer. The caller writes the buffer in one call, so
//! that a truncated capture has at most one incomplete block, at its end.

use crate::{Direction, LinkType};

/// Maximum number of bytes kept of a packet. A longer packet is truncated, but its original length
/// is recorded.
///
/// It is the largest value that Wireshark accepts. Every TCP/IP packet is shorter.
pub(crate) const SNAP_LEN: usize = 262_144;

/// Upper bound of the bytes that an Enhanced Packet Block needs besides packet and comment.
pub(crate) const OVERHEAD: usize = 128;

const SECTION_HEADER: u32 = 0x0A0D_0D0A;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
/// Lets a reader detect the byte order of the section.
const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;

const OPT_END: u16 = 0;
const OPT_COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// Appends a Section Header Block: little-endian, version 1.0, with unknown section length.
pub(crate) fn section_header(out: &mut Vec<u8>, application: &str) {
    block(out, SECTION_HEADER, |out| {
        put32(out, BYTE_ORDER_MAGIC);
        out.extend_from_slice(&[1, 0, 0, 0]);
        out.extend_from_slice(&u64::MAX.to_le_bytes());
        option(out, SHB_USERAPPL, application.as_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Appends an Interface Description Block. The timestamps of the interface are in nanoseconds.
pub(crate) fn interface(out: &mut Vec<u8>, name: &str, link: LinkType) {
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&link.code().to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        put32(out, SNAP_LEN as u32);
        option(out, IF_NAME, name.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        option(out, OPT_END, &[]);
    });
}

/// Metadata of a packet for an Enhanced Packet Block.
pub(crate) struct PacketInfo<'a> {
    /// Index of the interface, counted from 0 in the order of the Interface Description Blocks.
    pub(crate) interface: u32,
    /// Time in nanoseconds since 1970-01-01 00:00 UTC.
    pub(crate) nanoseconds: u64,
    pub(crate) direction: Direction,
    pub(crate) comment: Option<&'a str>,
    /// Number of packets of the interface that were dropped since its previous block.
    pub(crate) dropped: u64,
}

/// Appends an Enhanced Packet Block. The packet is the concatenation of `parts`.
pub(crate) fn packet(out: &mut Vec<u8>, info: &PacketInfo<'_>, parts: &[&[u8]]) {
    let original: usize = parts.iter().map(|part| part.len()).sum();
    let captured = original.min(SNAP_LEN);
    block(out, ENHANCED_PACKET, |out| {
        put32(out, info.interface);
        put32(out, (info.nanoseconds >> 32) as u32);
        put32(out, info.nanoseconds as u32);
        put32(out, captured as u32);
        put32(out, u32::try_from(original).unwrap_or(u32::MAX));
        let mut left = captured;
        for part in parts {
            let take = part.get(..left).unwrap_or(part);
            out.extend_from_slice(take);
            left -= take.len();
        }
        pad(out, captured);
        let flags = info.direction.flags();
        if let Some(comment) = info.comment {
            option(out, OPT_COMMENT, comment.as_bytes());
        }
        if flags != 0 {
            option(out, EPB_FLAGS, &flags.to_le_bytes());
        }
        if info.dropped != 0 {
            option(out, EPB_DROPCOUNT, &info.dropped.to_le_bytes());
        }
        if flags != 0 || info.comment.is_some() || info.dropped != 0 {
            option(out, OPT_END, &[]);
        }
    });
}

/// Appends an Interface Statistics Block with the number of packets that were dropped since the
/// start of the capture. `nanoseconds` is the current time since 1970.
pub(crate) fn statistics(out: &mut Vec<u8>, interface: u32, nanoseconds: u64, dropped: u64) {
    block(out, INTERFACE_STATISTICS, |out| {
        put32(out, interface);
        put32(out, (nanoseconds >> 32) as u32);
        put32(out, nanoseconds as u32);
        option(out, ISB_IFDROP, &dropped.to_le_bytes());
        option(out, OPT_END, &[]);
    });
}

/// Appends a block: its type, total length, `body`, and the total length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put32(out, kind);
    put32(out, 0);
    body(out);
    let len = (out.len() - start + 4) as u32;
    put32(out, len);
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&len.to_le_bytes());
    }
}

/// Appends an option. A value longer than 65535 bytes is truncated.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice([0u8; 3].get(..len.wrapping_neg() % 4).unwrap_or(&[]));
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_block_is_laid_out_as_the_specification_draws_it() {
        let mut out = Vec::new();
        let info = PacketInfo {
            interface: 2,
            nanoseconds: 0x0102_0304_0506_0708,
            direction: Direction::Outbound,
            comment: None,
            dropped: 0,
        };
        packet(&mut out, &info, &[&[0xAA], &[0xBB, 0xCC]]);
        #[rustfmt::skip]
        let expected = [
            6, 0, 0, 0,  48, 0, 0, 0,  2, 0, 0, 0,  4, 3, 2, 1,  8, 7, 6, 5,
            3, 0, 0, 0,  3, 0, 0, 0,   0xAA, 0xBB, 0xCC, 0,
            2, 0, 4, 0,  2, 0, 0, 0,   0, 0, 0, 0,  48, 0, 0, 0,
        ];
        assert_eq!(out, expected);
    }

    #[test]
    fn every_block_is_a_multiple_of_four_bytes_and_repeats_its_length() {
        for len in 0..9 {
            let mut out = Vec::new();
            section_header(&mut out, &"x".repeat(len));
            interface(&mut out, &"y".repeat(len), LinkType::RawIp);
            let mut rest = out.as_slice();
            while !rest.is_empty() {
                let total = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
                assert_eq!(total % 4, 0);
                assert_eq!(rest[4..8], rest[total - 4..total]);
                rest = &rest[total..];
            }
        }
    }

    #[test]
    fn a_packet_above_the_snap_length_is_cut_and_keeps_its_true_length() {
        let big = vec![7u8; SNAP_LEN];
        let info = PacketInfo {
            interface: 0,
            nanoseconds: 0,
            direction: Direction::Unknown,
            comment: None,
            dropped: 0,
        };
        let mut out = Vec::new();
        packet(&mut out, &info, &[&big, &[1, 2, 3]]);
        assert_eq!(out.len(), 32 + SNAP_LEN);
        assert_eq!(out[20..24], (SNAP_LEN as u32).to_le_bytes());
        assert_eq!(out[24..28], (SNAP_LEN as u32 + 3).to_le_bytes());
    }
}

//! Headers of RDMAP messages after the DDP header (RFC 5040 section 4.4, RFC 7306 section 5).

use crate::{READ_REQUEST, Untagged};

/// The 28 bytes of a Read Request.
#[derive(Clone, Copy, Debug)]
pub struct ReadHeader {
    /// STag of the sink.
    pub sink_stag: u32,
    /// Tagged Offset of the sink.
    pub sink_to: u64,
    /// Number of bytes to read.
    pub len: u32,
    /// STag of the source.
    pub source_stag: u32,
    /// Tagged Offset of the source.
    pub source_to: u64,
}

impl ReadHeader {
    /// Returns the bytes of the header.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        [
            &self.sink_stag.to_be_bytes()[..],
            &self.sink_to.to_be_bytes(),
            &self.len.to_be_bytes(),
            &self.source_stag.to_be_bytes(),
            &self.source_to.to_be_bytes(),
        ]
        .concat()
    }
}

/// Builds the ULPDU of a Read Request. `sink` and `source` are pairs of STag and TO.
#[must_use]
pub fn read_request(msn: u32, sink: (u32, u64), len: u32, source: (u32, u64)) -> Vec<u8> {
    let header = ReadHeader {
        sink_stag: sink.0,
        sink_to: sink.1,
        len,
        source_stag: source.0,
        source_to: source.1,
    };
    Untagged::new(READ_REQUEST, 1, msn, &header.bytes()).bytes()
}

/// The 52 bytes of an Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy, Debug)]
pub struct AtomicHeader {
    /// Atomic Operation Code, with the reserved bits above it.
    pub code: u32,
    /// Request Identifier.
    pub id: u32,
    /// STag of the word.
    pub stag: u32,
    /// Tagged Offset of the word.
    pub to: u64,
    /// Data, data mask, compare data, and compare mask.
    pub words: [u64; 4],
}

impl AtomicHeader {
    /// Returns the bytes of the header.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let short = [self.code, self.id, self.stag].map(u32::to_be_bytes);
        let long = self.words.map(u64::to_be_bytes);
        [&short.concat()[..], &self.to.to_be_bytes(), &long.concat()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_request_has_46_bytes() {
        let sink = (0x1122_3344, 0x0102_0304_0506_0708);
        let source = (0x5566_7788, 0x1112_1314_1516_1718);
        #[rustfmt::skip]
        let expected = [
            0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 0,
            0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0x40,
            0x55, 0x66, 0x77, 0x88, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        ];
        assert_eq!(read_request(3, sink, 64, source), expected);
    }

    #[test]
    fn an_atomic_header_has_52_bytes() {
        let header = AtomicHeader {
            code: 1,
            id: 0x0A0B_0C0D,
            stag: 0x1122_3344,
            to: 0x0102_0304_0506_0708,
            words: [1, 2, 3, 4],
        };
        #[rustfmt::skip]
        let expected = [
            0, 0, 0, 1, 0x0A, 0x0B, 0x0C, 0x0D, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8,
            0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2,
            0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4,
        ];
        assert_eq!(header.bytes(), expected);
    }
}

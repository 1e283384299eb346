//! Header of a Read Request (RFC 5040 section 4.4).

use uwarp_ddp::{STag, TaggedOffset};

/// Length in bytes of the header of a Read Request.
pub const READ_REQUEST_HEADER: usize = 28;

/// Content of a Read Request: `len` bytes go from the source to the sink. The source is memory of
/// the side that receives the request, the sink is memory of the side that sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequestHeader {
    /// `SinkSTag`: returned in the Response, without meaning to the responder.
    pub sink_stag: STag,
    /// `SinkTO`: TO of the first byte of the Response.
    pub sink_to: TaggedOffset,
    /// `RDMARDSZ`: number of bytes to read, 0 to 2^32 - 1.
    pub len: u32,
    /// `SrcSTag`: STag of the memory to read from.
    pub source_stag: STag,
    /// `SrcTO`: TO of the first byte to read.
    pub source_to: TaggedOffset,
}

impl ReadRequestHeader {
    /// Reads the header from the first 28 bytes after the DDP header; `None` if there are fewer.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<ReadRequestHeader> {
        let (sink_stag, rest) = bytes.split_first_chunk()?;
        let (sink_to, rest) = rest.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (source_stag, rest) = rest.split_first_chunk()?;
        let source_to = rest.first_chunk()?;
        Some(ReadRequestHeader {
            sink_stag: STag(u32::from_be_bytes(*sink_stag)),
            sink_to: TaggedOffset(u64::from_be_bytes(*sink_to)),
            len: u32::from_be_bytes(*len),
            source_stag: STag(u32::from_be_bytes(*source_stag)),
            source_to: TaggedOffset(u64::from_be_bytes(*source_to)),
        })
    }

    /// Returns the header in wire format.
    #[must_use]
    pub fn emit(&self) -> [u8; READ_REQUEST_HEADER] {
        let mut out = [0; READ_REQUEST_HEADER];
        out[0..4].copy_from_slice(&self.sink_stag.0.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_to.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..20].copy_from_slice(&self.source_stag.0.to_be_bytes());
        out[20..28].copy_from_slice(&self.source_to.0.to_be_bytes());
        out
    }

    /// Returns the header for the rest of the Read after `done` bytes were answered: both offsets
    /// are increased, and the length is decreased. A Terminate Message carries such a header (RFC
    /// 5040 section 4.8).
    #[must_use]
    pub const fn advance(&self, done: u32) -> ReadRequestHeader {
        ReadRequestHeader {
            sink_stag: self.sink_stag,
            sink_to: self.sink_to.advance(done),
            len: self.len.saturating_sub(done),
            source_stag: self.source_stag,
            source_to: self.source_to.advance(done),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn requests() -> impl Strategy<Value = ReadRequestHeader> {
        any::<(u32, u64, u32, u32, u64)>().prop_map(|(sink, sink_to, len, source, source_to)| {
            ReadRequestHeader {
                sink_stag: STag(sink),
                sink_to: TaggedOffset(sink_to),
                len,
                source_stag: STag(source),
                source_to: TaggedOffset(source_to),
            }
        })
    }

    proptest! {
        #[test]
        fn parse_gives_back_what_emit_wrote(request in requests()) {
            prop_assert_eq!(ReadRequestHeader::parse(&request.emit()), Some(request));
        }
    }

    #[test]
    fn fields_stand_where_the_rfc_puts_them() {
        let bytes: [u8; 28] = core::array::from_fn(|index| index as u8);
        let request = ReadRequestHeader {
            sink_stag: STag(0x0001_0203),
            sink_to: TaggedOffset(0x0405_0607_0809_0A0B),
            len: 0x0C0D_0E0F,
            source_stag: STag(0x1011_1213),
            source_to: TaggedOffset(0x1415_1617_1819_1A1B),
        };
        assert_eq!(ReadRequestHeader::parse(&bytes), Some(request));
        assert_eq!(ReadRequestHeader::parse(&bytes[..27]), None);
    }

    #[test]
    fn advance_moves_both_offsets_and_shortens() {
        let request = ReadRequestHeader {
            sink_stag: STag(1),
            sink_to: TaggedOffset(100),
            len: 4096,
            source_stag: STag(2),
            source_to: TaggedOffset(u64::MAX),
        };
        let left = request.advance(2048);
        assert_eq!(
            (left.sink_to.0, left.len, left.source_to.0),
            (2148, 2048, 2047)
        );
        assert_eq!(request.advance(u32::MAX).len, 0);
    }
}

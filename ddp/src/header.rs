//! DDP headers (RFC 5041 section 4): 14 bytes tagged, 18 bytes untagged.

use crate::error::DdpError;
use crate::mutants::mutate;
use crate::types::{Msn, Qn, STag, TaggedOffset};

/// Length of a tagged header in bytes.
pub const TAGGED_HEADER: usize = 14;
/// Length of an untagged header in bytes.
pub const UNTAGGED_HEADER: usize = 18;
/// Length of the longest header in bytes.
pub const MAX_HEADER: usize = UNTAGGED_HEADER;
/// DDP version (DV) that this crate supports.
pub const DDP_VERSION: u8 = 1;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;

/// Header of a DDP Segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// The segment names the destination of its payload by STag and TO.
    Tagged(TaggedHeader),
    /// The payload goes to a buffer that the receiver has posted on a queue.
    Untagged(UntaggedHeader),
}

/// Header of a tagged segment (RFC 5041 section 4.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaggedHeader {
    /// Flag L: this is the last segment of its message.
    pub last: bool,
    /// `RsvdULP`: a byte for the ULP, which gets it with every segment (5041-4.2-03). RDMAP uses it
    /// for its control field.
    pub ulp: u8,
    /// STag of the Tagged Buffer. The ULP gets the STag, too (5041-4.2-07).
    pub stag: STag,
    /// Destination of the first byte of the payload.
    pub to: TaggedOffset,
}

/// Header of an untagged segment (RFC 5041 section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UntaggedHeader {
    /// Flag L: this is the last segment of its message.
    pub last: bool,
    /// First byte of `RsvdULP`, which the ULP gets with every segment (5041-4.3-03). RDMAP uses it
    /// for its control field.
    pub ulp: u8,
    /// The other four bytes of `RsvdULP`. RDMAP uses them for the STag to invalidate.
    pub ulp_word: u32,
    /// Number of the queue.
    pub qn: Qn,
    /// Number of the message on this queue.
    pub msn: Msn,
    /// Offset of this segment's payload in its message, in bytes.
    pub mo: u32,
}

impl Header {
    /// Reads the header at the start of a ULPDU. Returns it with its length in bytes, 14 or 18; the
    /// payload follows it.
    ///
    /// The reserved bits are ignored (5041-4.1-09).
    ///
    /// # Errors
    /// [`DdpError::Version`] if DV is not 1, [`DdpError::TooShort`] if `ulpdu` ends within the
    /// header.
    #[inline]
    pub fn parse(ulpdu: &[u8]) -> Result<(Header, usize), DdpError> {
        let Some(&control) = ulpdu.first() else {
            return Err(DdpError::TooShort { len: 0, needed: 1 });
        };
        let tagged = control & TAGGED != 0;
        // The version is checked before the length, because the header of another version may have
        // another length.
        let version = control & VERSION_MASK;
        if mutate!(version != DDP_VERSION, DvNotChecked => false)
            || mutate!(false, DdpReservedChecked => control & 0x3C != 0)
        {
            return Err(DdpError::Version {
                tagged,
                got: version,
            }); // 5041-4.1-12, 5041-4.1-13
        }
        let last = control & LAST != 0;
        let needed = if tagged {
            TAGGED_HEADER
        } else {
            UNTAGGED_HEADER
        };
        let header = if tagged {
            Self::parse_tagged(last, ulpdu).map(Header::Tagged)
        } else {
            Self::parse_untagged(last, ulpdu).map(Header::Untagged)
        };
        match header {
            Some(header) => Ok((header, needed)),
            None => {
                let short = DdpError::TooShort {
                    len: ulpdu.len(),
                    needed,
                };
                mutate!(Err(short), ShortHeaderFilled => Self::filled(ulpdu).ok_or(short))
            }
        }
    }

    /// Reads a header that is only partly in the ULPDU. Missing bytes count as zero.
    #[cfg(uwarp_mutants)]
    fn filled(ulpdu: &[u8]) -> Option<(Header, usize)> {
        let mut whole = [0; UNTAGGED_HEADER];
        whole.get_mut(..ulpdu.len())?.copy_from_slice(ulpdu);
        let (header, _) = Self::parse(&whole).ok()?;
        Some((header, ulpdu.len()))
    }

    #[inline]
    fn parse_tagged(last: bool, ulpdu: &[u8]) -> Option<TaggedHeader> {
        let (&[_, ulp], rest) = ulpdu.split_first_chunk()?;
        let (stag, rest) = rest.split_first_chunk()?;
        let to = rest.first_chunk()?;
        Some(TaggedHeader {
            last,
            ulp,
            stag: STag(u32::from_be_bytes(*stag)),
            to: TaggedOffset(u64::from_be_bytes(*to)),
        })
    }

    #[inline]
    fn parse_untagged(last: bool, ulpdu: &[u8]) -> Option<UntaggedHeader> {
        let (&[_, ulp], rest) = ulpdu.split_first_chunk()?;
        let (ulp_word, rest) = rest.split_first_chunk()?;
        let (qn, rest) = rest.split_first_chunk()?;
        let (msn, rest) = rest.split_first_chunk()?;
        let mo = rest.first_chunk()?;
        Some(UntaggedHeader {
            last,
            ulp,
            ulp_word: u32::from_be_bytes(*ulp_word),
            qn: Qn(u32::from_be_bytes(*qn)),
            msn: Msn(u32::from_be_bytes(*msn)),
            mo: u32::from_be_bytes(*mo),
        })
    }

    /// Writes the header to the start of `out`. Returns its length in bytes, 14 or 18.
    #[inline]
    pub fn emit(&self, out: &mut [u8; MAX_HEADER]) -> usize {
        match self {
            Header::Tagged(header) => {
                out[..TAGGED_HEADER].copy_from_slice(&header.bytes());
                TAGGED_HEADER
            }
            Header::Untagged(header) => {
                *out = header.bytes();
                UNTAGGED_HEADER
            }
        }
    }

    /// Returns the flag L: true for the last segment of a message.
    #[must_use]
    pub const fn last(&self) -> bool {
        match self {
            Header::Tagged(header) => header.last,
            Header::Untagged(header) => header.last,
        }
    }

    /// Returns the header's byte for the ULP, which RDMAP uses for its control field.
    #[must_use]
    pub const fn ulp(&self) -> u8 {
        match self {
            Header::Tagged(header) => header.ulp,
            Header::Untagged(header) => header.ulp,
        }
    }
}

impl TaggedHeader {
    /// Returns the header as it is on the wire.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> [u8; TAGGED_HEADER] {
        let mut out = [0; TAGGED_HEADER];
        out[0] = TAGGED | control(self.last);
        out[1] = self.ulp;
        out[2..6].copy_from_slice(&self.stag.0.to_be_bytes());
        out[6..14].copy_from_slice(&self.to.0.to_be_bytes());
        out
    }
}

impl UntaggedHeader {
    /// Returns the header as it is on the wire.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> [u8; UNTAGGED_HEADER] {
        let mut out = [0; UNTAGGED_HEADER];
        out[0] = control(self.last);
        out[1] = self.ulp;
        out[2..6].copy_from_slice(&self.ulp_word.to_be_bytes());
        out[6..10].copy_from_slice(&self.qn.0.to_be_bytes());
        out[10..14].copy_from_slice(&self.msn.0.to_be_bytes());
        out[14..18].copy_from_slice(&self.mo.to_be_bytes());
        out
    }
}

/// Returns the DDP Control byte with T = 0. The reserved bits are zero (5041-4.1-08), and DV is 1
/// (5041-4.1-10).
#[inline]
fn control(last: bool) -> u8 {
    let last = mutate!(last, LastTooEarly => true);
    let version = mutate!(DDP_VERSION, DvWrong => 0) | mutate!(0, DdpReservedSet => 0x04);
    if last { LAST | version } else { version }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn headers() -> impl Strategy<Value = Header> {
        let tagged = (any::<bool>(), any::<u8>(), any::<u32>(), any::<u64>()).prop_map(
            |(last, ulp, stag, to)| {
                Header::Tagged(TaggedHeader {
                    last,
                    ulp,
                    stag: STag(stag),
                    to: TaggedOffset(to),
                })
            },
        );
        let untagged = any::<(bool, u8, u32, u32, u32, u32)>().prop_map(
            |(last, ulp, ulp_word, qn, msn, mo)| {
                let (qn, msn) = (Qn(qn), Msn(msn));
                Header::Untagged(UntaggedHeader {
                    last,
                    ulp,
                    ulp_word,
                    qn,
                    msn,
                    mo,
                })
            },
        );
        prop_oneof![tagged, untagged]
    }

    proptest! {
        #[test]
        fn parse_gives_back_what_emit_wrote(header in headers()) {
            let mut bytes = [0xEE; MAX_HEADER];
            let len = header.emit(&mut bytes);
            prop_assert_eq!(Header::parse(&bytes[..len]), Ok((header, len)));
            prop_assert_eq!(bytes[0] & 0x3C, 0); // 5041-4.1-08
        }

        #[test]
        fn any_bytes_parse_or_give_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
            if let Ok((header, len)) = Header::parse(&bytes) {
                let mut again = [0; MAX_HEADER];
                prop_assert_eq!(header.emit(&mut again), len);
                prop_assert_eq!(&again[1..len], &bytes[1..len]);
                prop_assert_eq!(again[0], bytes[0] & !0x3C);
            }
        }
    }

    #[test]
    fn fields_stand_where_the_rfc_puts_them() {
        let bytes = [
            0xC1, 0x40, 0x11, 0x22, 0x33, 0x44, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08,
        ];
        let tagged = TaggedHeader {
            last: true,
            ulp: 0x40,
            stag: STag(0x1122_3344),
            to: TaggedOffset(0x0102_0304_0506_0708),
        };
        assert_eq!(Header::parse(&bytes), Ok((Header::Tagged(tagged), 14)));

        let bytes = [
            0x41, 0x44, 0xAA, 0xBB, 0xCC, 0xDD, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 5, 0xCA, 0xFF,
        ];
        let untagged = UntaggedHeader {
            last: true,
            ulp: 0x44,
            ulp_word: 0xAABB_CCDD,
            qn: Qn(2),
            msn: Msn(1),
            mo: 1482,
        };
        assert_eq!(Header::parse(&bytes), Ok((Header::Untagged(untagged), 18)));
    }

    #[test]
    fn reserved_bits_are_not_checked() {
        let mut bytes = [0; 18];
        bytes[0] = 0x3C | 0x01;
        let parsed = Header::parse(&bytes);
        bytes[0] = 0x01;
        assert!(parsed.is_ok());
        assert_eq!(parsed, Header::parse(&bytes)); // 5041-4.1-09
    }

    #[test]
    fn another_version_is_refused_before_anything_else_is_looked_at() {
        for version in [0u8, 2, 3] {
            assert_eq!(
                Header::parse(&[0x80 | version]),
                Err(DdpError::Version {
                    tagged: true,
                    got: version
                })
            );
            assert_eq!(
                Header::parse(&[version]),
                Err(DdpError::Version {
                    tagged: false,
                    got: version
                })
            );
        }
    }

    #[test]
    fn a_header_cut_short_is_an_error_that_tells_the_lengths() {
        assert_eq!(
            Header::parse(&[]),
            Err(DdpError::TooShort { len: 0, needed: 1 })
        );
        for (control, needed) in [(0x81, 14), (0x01, 18)] {
            for len in 1..needed {
                let mut bytes = vec![0; len];
                bytes[0] = control;
                assert_eq!(
                    Header::parse(&bytes),
                    Err(DdpError::TooShort { len, needed })
                );
            }
        }
    }
}

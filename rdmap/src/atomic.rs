//! Atomic Operations: their effect, and the headers of Atomic Requests and Atomic Responses
//! (RFC 7306 sections 5.1 and 5.2).

use core::fmt;

use uwarp_ddp::{STag, TaggedOffset};

use crate::mutants::mutate;

/// Length in bytes of the header of an Atomic Request.
pub const ATOMIC_REQUEST_HEADER: usize = 52;

/// Length in bytes of the header of an Atomic Response: 12, as in Figure 6. (The text of section 4
/// says 32.)
pub const ATOMIC_RESPONSE_HEADER: usize = 12;

/// AOpCode of FetchAdd.
const FETCH_ADD: u8 = 0;
/// AOpCode of CmpSwap.
const COMPARE_SWAP: u8 = 2;

/// Operation on a 64-bit word of the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// FetchAdd: adds a value to the word, field by field (RFC 7306 section 5.1.1).
    FetchAdd {
        /// Value to add.
        add: u64,
        /// Add Mask: each set bit marks the most significant bit of a field. No carry leaves a
        /// field. With a mask of 0 the whole word is one field.
        mask: u64,
    },
    /// CmpSwap: stores a value if the word matches (RFC 7306 section 5.1.2).
    CompareSwap {
        /// Value that the word is compared with.
        compare: u64,
        /// Bits to compare; with 0 the swap is unconditional.
        compare_mask: u64,
        /// Value to store.
        swap: u64,
        /// Bits to store; the other bits of the word do not change.
        swap_mask: u64,
    },
}

impl AtomicOp {
    /// Returns the new value of a word that held `original` before the operation.
    ///
    /// ```
    /// use uwarp_rdmap::AtomicOp;
    /// let two_halves = AtomicOp::FetchAdd { add: 0x1_0000_0001, mask: 0x8000_0000_8000_0000 };
    /// assert_eq!(two_halves.apply(0xFFFF_FFFF_FFFF_FFFF), 0);
    /// ```
    #[must_use]
    pub const fn apply(&self, original: u64) -> u64 {
        match *self {
            // 7306-5.1.1-i01: the addition without the top bit of each field cannot carry into the
            // next field. The exclusive-or then adds the top bits without a carry.
            AtomicOp::FetchAdd { add, mask } => {
                let below = (original & !mask).wrapping_add(add & !mask);
                below ^ ((original ^ add) & mask)
            }
            // 7306-5.1.2-i01
            AtomicOp::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                if (compare ^ original) & compare_mask == 0 {
                    (original & !swap_mask) | (swap & swap_mask)
                } else {
                    original
                }
            }
        }
    }

    /// Returns the AOpCode of the operation.
    #[must_use]
    pub const fn code(&self) -> u8 {
        match self {
            AtomicOp::FetchAdd { .. } => FETCH_ADD,
            AtomicOp::CompareSwap { .. } => COMPARE_SWAP,
        }
    }
}

impl fmt::Display for AtomicOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AtomicOp::FetchAdd { .. } => "FetchAdd",
            AtomicOp::CompareSwap { .. } => "CmpSwap",
        })
    }
}

/// Header of an Atomic Request, which requests an operation on 8 bytes of the receiver's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequestHeader {
    /// Request Identifier: returned in the Response, without meaning to the responder.
    pub id: u32,
    /// Remote STag.
    pub stag: STag,
    /// Remote Tagged Offset of the first of the 8 bytes.
    pub to: TaggedOffset,
    /// AOpCode, 4 bits. Any value can arrive; RFC 7306 defines 0 and 2.
    pub code: u8,
    /// Add or Swap Data.
    pub data: u64,
    /// Add or Swap Mask.
    pub mask: u64,
    /// Compare Data.
    pub compare: u64,
    /// Compare Mask.
    pub compare_mask: u64,
}

impl AtomicRequestHeader {
    /// Creates the header of a request for `op`.
    #[must_use]
    pub const fn new(id: u32, stag: STag, to: TaggedOffset, op: AtomicOp) -> Self {
        let (data, mask, compare, compare_mask) = match op {
            // 7306-5.2.1-i04
            AtomicOp::FetchAdd { add, mask } => (add, mask, 0, u64::MAX),
            AtomicOp::CompareSwap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => (swap, swap_mask, compare, compare_mask),
        };
        AtomicRequestHeader {
            id,
            stag,
            to,
            code: op.code(),
            data,
            mask,
            compare,
            compare_mask,
        }
    }

    /// Returns the operation; `None` if RFC 7306 does not define the AOpCode.
    #[must_use]
    pub fn op(&self) -> Option<AtomicOp> {
        match self.code {
            // 7306-5.2.1-i04: the compare fields are ignored.
            FETCH_ADD => Some(AtomicOp::FetchAdd {
                add: self.data,
                mask: mutate!(self.mask, AddMaskIgnored => 0),
            }),
            COMPARE_SWAP => Some(AtomicOp::CompareSwap {
                compare: self.compare,
                compare_mask: mutate!(
                    mutate!(self.compare_mask, CompareMaskIgnored => u64::MAX),
                    SwapWithoutCompare => 0
                ),
                swap: self.data,
                swap_mask: mutate!(self.mask, SwapMaskIgnored => u64::MAX),
            }),
            _ => None,
        }
    }

    /// Reads the header from the first 52 bytes after the DDP header; `None` if there are fewer.
    /// The reserved bits are ignored (7306-5.2.1-i02).
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<AtomicRequestHeader> {
        let ([_, _, _, code], rest) = bytes.split_first_chunk()?;
        let (id, rest) = rest.split_first_chunk()?;
        let (stag, rest) = rest.split_first_chunk()?;
        let (to, rest) = rest.split_first_chunk()?;
        let (data, rest) = rest.split_first_chunk()?;
        let (mask, rest) = rest.split_first_chunk()?;
        let (compare, rest) = rest.split_first_chunk()?;
        let compare_mask = rest.first_chunk()?;
        Some(AtomicRequestHeader {
            id: u32::from_be_bytes(*id),
            stag: STag(u32::from_be_bytes(*stag)),
            to: TaggedOffset(u64::from_be_bytes(*to)),
            code: code & 0x0F,
            data: u64::from_be_bytes(*data),
            mask: u64::from_be_bytes(*mask),
            compare: u64::from_be_bytes(*compare),
            compare_mask: u64::from_be_bytes(*compare_mask),
        })
    }

    /// Returns the header in wire format.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST_HEADER] {
        let mut out = [0; ATOMIC_REQUEST_HEADER];
        out[3] = self.code & 0x0F; // 7306-5.2.1-i01
        out[4..8].copy_from_slice(&self.id.to_be_bytes());
        out[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        out[12..20].copy_from_slice(&self.to.0.to_be_bytes());
        out[20..28].copy_from_slice(&self.data.to_be_bytes());
        out[28..36].copy_from_slice(&self.mask.to_be_bytes());
        out[36..44].copy_from_slice(&self.compare.to_be_bytes());
        let compare_mask = mutate!(self.compare_mask, CompareMaskZero => 0);
        out[44..52].copy_from_slice(&compare_mask.to_be_bytes());
        out
    }
}

/// Header of an Atomic Response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicResponseHeader {
    /// Original Request Identifier.
    pub id: u32,
    /// Original Remote Data Value: value of the word before the operation.
    pub original: u64,
}

impl AtomicResponseHeader {
    /// Reads the header from the first 12 bytes after the DDP header; `None` if there are fewer.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<AtomicResponseHeader> {
        let (id, rest) = bytes.split_first_chunk()?;
        let original = rest.first_chunk()?;
        Some(AtomicResponseHeader {
            id: u32::from_be_bytes(*id),
            original: u64::from_be_bytes(*original),
        })
    }

    /// Returns the header in wire format.
    #[must_use]
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE_HEADER] {
        let mut out = [0; ATOMIC_RESPONSE_HEADER];
        out[0..4].copy_from_slice(&self.id.to_be_bytes());
        out[4..12].copy_from_slice(&self.original.to_be_bytes());
        out
    }
}

#[cfg(test)]
pub(crate) mod tests;

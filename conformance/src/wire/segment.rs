//! Parser for received DDP Segments and their RDMAP Control byte (RFC 5041 section 4, RFC 5040
//! section 4.1).

use crate::words::many;
use std::fmt;

/// RDMAP opcodes (RFC 5040 Figure 4, RFC 7306 Figure 3).
pub(crate) mod opcode {
    pub(crate) const WRITE: u8 = 0;
    pub(crate) const READ_REQUEST: u8 = 1;
    pub(crate) const READ_RESPONSE: u8 = 2;
    pub(crate) const SEND: u8 = 3;
    pub(crate) const SEND_INVALIDATE: u8 = 4;
    pub(crate) const SEND_SE: u8 = 5;
    pub(crate) const SEND_SE_INVALIDATE: u8 = 6;
    pub(crate) const TERMINATE: u8 = 7;
    pub(crate) const IMMEDIATE: u8 = 8;
    pub(crate) const IMMEDIATE_SE: u8 = 9;
    pub(crate) const ATOMIC_REQUEST: u8 = 10;
    pub(crate) const ATOMIC_RESPONSE: u8 = 11;
    /// An opcode that no RFC assigns.
    pub(crate) const UNASSIGNED: u8 = 15;

    /// Returns the name of an opcode.
    pub(crate) fn name(opcode: u8) -> &'static str {
        match opcode {
            WRITE => "RDMA Write",
            READ_REQUEST => "RDMA Read Request",
            READ_RESPONSE => "RDMA Read Response",
            SEND => "Send",
            SEND_INVALIDATE => "Send with Invalidate",
            SEND_SE => "Send with SE",
            SEND_SE_INVALIDATE => "Send with SE and Invalidate",
            TERMINATE => "Terminate",
            IMMEDIATE => "Immediate Data",
            IMMEDIATE_SE => "Immediate Data with SE",
            ATOMIC_REQUEST => "Atomic Request",
            ATOMIC_RESPONSE => "Atomic Response",
            _ => "an unassigned opcode",
        }
    }

    /// Returns the queue of an opcode, or `Some(None)` if its messages are tagged (RFC 5040 Figure
    /// 4). Returns `None` for an unassigned opcode.
    pub(crate) fn queue(opcode: u8) -> Option<Option<u32>> {
        match opcode {
            WRITE | READ_RESPONSE => Some(None),
            READ_REQUEST | ATOMIC_REQUEST => Some(Some(1)),
            SEND..=SEND_SE_INVALIDATE | IMMEDIATE | IMMEDIATE_SE => Some(Some(0)),
            TERMINATE => Some(Some(2)),
            ATOMIC_RESPONSE => Some(Some(3)),
            _ => None,
        }
    }
}

/// Address fields of a received segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tagged {
        stag: u32,
        to: u64,
    },
    Untagged {
        /// Bytes 2 to 5 of RsvdULP, which hold Invalidate STag.
        invalidate: u32,
        qn: u32,
        msn: u32,
        mo: u32,
    },
}

/// A received DDP Segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The byte DDP Control.
    pub(crate) ddp: u8,
    /// The byte RDMAP Control.
    pub(crate) rdmap: u8,
    pub(crate) address: Address,
    pub(crate) payload: Vec<u8>,
}

impl Segment {
    /// Parses the segment in a ULPDU. Returns `None` if its header is incomplete.
    pub(crate) fn parse(ulpdu: &[u8]) -> Option<Self> {
        let (ddp, rdmap) = (*ulpdu.first()?, *ulpdu.get(1)?);
        let word = |at: usize| {
            let bytes = ulpdu.get(at..)?.first_chunk()?;
            Some(u32::from_be_bytes(*bytes))
        };
        let (address, header) = if ddp & 0x80 != 0 {
            let to = u64::from(word(6)?) << 32 | u64::from(word(10)?);
            (Address::Tagged { stag: word(2)?, to }, 14)
        } else {
            let address = Address::Untagged {
                invalidate: word(2)?,
                qn: word(6)?,
                msn: word(10)?,
                mo: word(14)?,
            };
            (address, 18)
        };
        Some(Segment {
            ddp,
            rdmap,
            address,
            payload: ulpdu[header..].to_vec(),
        })
    }

    /// Returns true if L is set: this is the last segment of its message.
    pub(crate) fn last(&self) -> bool {
        self.ddp & 0x40 != 0
    }

    pub(crate) fn opcode(&self) -> u8 {
        self.rdmap & 0x0f
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", opcode::name(self.opcode()))?;
        match self.address {
            Address::Tagged { stag, to } => write!(f, ", STag {stag:#010x}, TO {to:#x}")?,
            Address::Untagged {
                invalidate,
                qn,
                msn,
                mo,
            } => {
                write!(f, ", QN {qn}, MSN {msn}, MO {mo}")?;
                if invalidate != 0 {
                    write!(f, ", Invalidate STag {invalidate:#010x}")?;
                }
            }
        }
        let last = if self.last() { "" } else { ", more follow" };
        write!(f, ", {}{last}", many(self.payload.len(), "byte"))
    }
}

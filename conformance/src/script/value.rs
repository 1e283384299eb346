//! Symbolic values in cases. They become numbers only during a run, because they depend on
//! addresses that the target advertised or sent.

use crate::words::many;
use std::fmt;

/// Name of a region of the target within a case.
pub(crate) type Name = &'static str;

/// An STag, as a number or relative to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stag {
    Is(u32),
    /// STag of a region of the target.
    Of(Name),
    /// STag of a region of the target, with these bits inverted.
    Near(Name, u32),
    /// SinkSTag of a Read Request that the target sent on this connection. The requests are
    /// numbered from 0.
    Sink(usize),
}

/// A TO, as a number or relative to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Is(u64),
    /// Address of the first byte of a region of the target, plus this offset, which may be
    /// negative.
    In(Name, i64),
    /// Address just past the last byte of a region of the target, plus this offset, which may be
    /// negative.
    End(Name, i64),
    /// SinkTO of a Read Request that the target sent on this connection, plus this offset. The
    /// requests are numbered from 0.
    Sink(usize, u64),
}

/// An MSN, as a number or relative to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Msn {
    /// The next MSN of the queue. A segment with L=1 advances it.
    Next,
    /// The next MSN plus this number. It does not advance the next MSN.
    Off(i32),
    Is(u32),
}

/// Content of a segment after its DDP Header: ULP Payload or an RDMAP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Bytes(Vec<u8>),
    /// Part of a pattern: its seed, the offset in the pattern, and the length.
    Pattern(u64, u64, usize),
    ReadRequest {
        sink_stag: Stag,
        sink_to: To,
        size: u32,
        src_stag: Stag,
        src_to: To,
    },
    Atomic {
        /// The first word of the header: 28 reserved bits and AOpCode.
        opcode: u32,
        id: u32,
        stag: Stag,
        to: To,
        data: u64,
        mask: u64,
        compare: u64,
        compare_mask: u64,
    },
    /// Atomic Response to the target's Atomic Request with this number, counted from 0. It has the
    /// Request Identifier of that request and this value.
    AtomicResponse {
        request: usize,
        /// Bits of the Request Identifier to invert.
        flip: u32,
        value: u64,
    },
    /// A word in memory of the target, in the byte order that this case has learned.
    Word(u64),
}

impl Data {
    /// Returns data of zero length.
    pub(crate) fn none() -> Self {
        Data::Bytes(Vec::new())
    }

    /// Returns the first `len` bytes of the pattern with seed 1.
    pub(crate) fn len(len: usize) -> Self {
        Data::Pattern(1, 0, len)
    }
}

impl From<&[u8]> for Data {
    fn from(bytes: &[u8]) -> Self {
        Data::Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Self {
        Data::Bytes(bytes)
    }
}

impl<const N: usize> From<&[u8; N]> for Data {
    fn from(bytes: &[u8; N]) -> Self {
        Data::Bytes(bytes.to_vec())
    }
}

impl From<usize> for Data {
    fn from(len: usize) -> Self {
        Data::len(len)
    }
}

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stag::Is(stag) => write!(f, "STag {stag:#010x}"),
            Stag::Of(name) => write!(f, "the STag of region {name}"),
            Stag::Near(name, bits) => write!(f, "the STag of region {name} xor {bits:#x}"),
            Stag::Sink(read) => write!(f, "the SinkSTag of Read {read}"),
        }
    }
}

impl fmt::Display for To {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            To::Is(to) => write!(f, "TO {to:#x}"),
            To::In(name, offset) => write!(f, "offset {offset} of region {name}"),
            To::End(name, offset) => write!(f, "the end of region {name} {offset:+}"),
            To::Sink(read, offset) => write!(f, "the SinkTO of Read {read} +{offset}"),
        }
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Bytes(bytes) if bytes.is_empty() => write!(f, "no bytes"),
            Data::Bytes(bytes) => write!(f, "{}", many(bytes.len(), "byte")),
            Data::Pattern(_, _, len) => write!(f, "{len} of a pattern", len = many(len, "byte")),
            Data::ReadRequest {
                size,
                src_stag,
                src_to,
                ..
            } => write!(
                f,
                "for {size} at {src_to}, {src_stag}",
                size = many(size, "byte")
            ),
            Data::Atomic {
                opcode, stag, to, ..
            } => write!(f, "operation {opcode} at {to}, {stag}"),
            Data::AtomicResponse {
                request,
                flip,
                value,
            } => {
                write!(f, "to Atomic Request {request}: {value:#x}")?;
                if *flip != 0 {
                    write!(f, ", Request Identifier xor {flip:#x}")?;
                }
                Ok(())
            }
            Data::Word(value) => write!(f, "the word {value:#018x}"),
        }
    }
}

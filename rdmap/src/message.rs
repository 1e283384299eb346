//! Outgoing messages: divides a message into segments and writes their headers.

use core::ops::Range;

use uwarp_ddp::{
    Header, MAX_HEADER as DDP_HEADER, Msn, Qn, STag, Segmenter, TAGGED_HEADER, TaggedHeader,
    TaggedOffset, UNTAGGED_HEADER, UntaggedHeader,
};

use crate::MAX_HEADER;
use crate::mutants::mutate;
use crate::opcode::{Opcode, control};
use crate::read_request::ReadRequestHeader;
use crate::terminate::MAX_TERMINATE_HEADER;

/// An outgoing message in progress. It holds the headers and the position of the next segment, but
/// no payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutMessage {
    control: u8,
    kind: Kind,
    segmenter: Segmenter,
    /// Offset in the message of the segment that was returned last.
    last_offset: u32,
}

/// Creates a message without segments.
impl Default for OutMessage {
    fn default() -> Self {
        Self::nothing()
    }
}

/// Content of the headers, by kind of message.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Kind {
    Tagged {
        stag: STag,
        to: TaggedOffset,
        /// Request that a Read Response answers.
        answers: Option<ReadRequestHeader>,
    },
    Untagged {
        qn: Qn,
        msn: Msn,
        ulp_word: u32,
    },
    /// A message of one segment that has an RDMAP header and no payload.
    Headed {
        qn: Qn,
        msn: Msn,
        header: [u8; MAX_TERMINATE_HEADER],
        len: usize,
    },
    /// The stream had ended before the message was begun.
    Nothing,
}

/// One segment of a message. Its headers are already written; the caller appends the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutSegment {
    /// Length in bytes of the DDP and RDMAP headers together.
    pub header_len: usize,
    /// Offset of this segment's payload in the payload of the message.
    pub offset: u32,
    /// Length of the payload in bytes.
    pub len: u32,
    /// True if this is the last segment of the message.
    pub last: bool,
}

impl OutSegment {
    /// Returns the payload of the segment as a range for slices.
    #[must_use]
    pub const fn range(&self) -> Range<usize> {
        let start = self.offset as usize;
        start..start + self.len as usize
    }
}

impl OutMessage {
    pub(crate) const fn send(opcode: Opcode, invalidate: Option<STag>, msn: Msn, len: u32) -> Self {
        let ulp_word = ulp_word(invalidate);
        let qn = crate::opcode::QN_SEND;
        Self::new(opcode, Kind::Untagged { qn, msn, ulp_word }, len)
    }

    pub(crate) const fn write(stag: STag, to: TaggedOffset, len: u32) -> Self {
        Self::new(
            Opcode::Write,
            Kind::Tagged {
                stag,
                to,
                answers: None,
            },
            len,
        )
    }

    pub(crate) const fn read_response(request: ReadRequestHeader) -> Self {
        // 5040-4.4-02, 5040-4.4-i01: STag and TO of the sink are returned as they were received.
        let kind = Kind::Tagged {
            stag: request.sink_stag,
            to: request.sink_to,
            answers: Some(request),
        };
        Self::new(Opcode::ReadResponse, kind, request.len)
    }

    /// Creates a message that consists of headers only. Bytes past the longest header would be cut
    /// off, but no message has any.
    pub(crate) fn headed(opcode: Opcode, qn: Qn, msn: Msn, bytes: &[u8]) -> Self {
        let mut header = [0; MAX_TERMINATE_HEADER];
        let len = bytes.len().min(header.len());
        for (to, from) in header.iter_mut().zip(bytes) {
            *to = *from;
        }
        Self::new(
            opcode,
            Kind::Headed {
                qn,
                msn,
                header,
                len,
            },
            0,
        )
    }

    pub(crate) const fn nothing() -> Self {
        Self::new(Opcode::Write, Kind::Nothing, 0)
    }

    const fn new(opcode: Opcode, kind: Kind, len: u32) -> Self {
        OutMessage {
            control: control(opcode),
            kind,
            segmenter: Segmenter::new(len),
            last_offset: 0,
        }
    }

    /// Writes the headers of the next segment to the start of `header` and returns the part of the
    /// payload that follows them. Returns `None` after the last segment. The whole segment has at
    /// most `mulpdu` bytes. `mulpdu` is at least 128 (RFC 5044 section 4.5).
    ///
    /// A message that was begun after its stream had ended has no segment.
    #[inline]
    pub fn next_segment(
        &mut self,
        mulpdu: usize,
        header: &mut [u8; MAX_HEADER],
    ) -> Option<OutSegment> {
        let ddp_len = match self.kind {
            Kind::Tagged { .. } => TAGGED_HEADER,
            Kind::Untagged { .. } | Kind::Headed { .. } => UNTAGGED_HEADER,
            Kind::Nothing => return None,
        };
        let segment = self.segmenter.next_segment(ddp_len, mulpdu)?;
        self.last_offset = segment.offset;
        let ddp = self.ddp_header(segment.offset, segment.last)?;
        let (ddp_bytes, rest) = header.split_first_chunk_mut::<DDP_HEADER>()?;
        let mut header_len = ddp.emit(ddp_bytes);
        if let Kind::Headed {
            header: bytes, len, ..
        } = &self.kind
        {
            for (to, from) in rest.iter_mut().zip(bytes.iter().take(*len)) {
                *to = *from;
            }
            header_len += len;
        }
        Some(OutSegment {
            header_len,
            offset: segment.offset,
            len: segment.len,
            last: segment.last,
        })
    }

    fn ddp_header(&self, offset: u32, last: bool) -> Option<Header> {
        let ulp = ulp(self.control);
        Some(match self.kind {
            Kind::Tagged { stag, to, .. } => {
                Header::Tagged(tagged(self.control, stag, to, offset, last))
            }
            Kind::Untagged { qn, msn, ulp_word } => {
                Header::Untagged(untagged(self.control, (qn, msn), ulp_word, offset, last))
            }
            Kind::Headed { qn, msn, .. } => Header::Untagged(UntaggedHeader {
                last,
                ulp,
                ulp_word: mutate!(0, InvalidateStagNotZero => 0xFFFF_FFFF),
                qn,
                msn,
                mo: offset,
            }),
            Kind::Nothing => return None,
        })
    }

    /// Length in bytes of the payload of the whole message.
    #[must_use]
    pub const fn payload_len(&self) -> u32 {
        self.segmenter.message_len()
    }

    /// Returns true if the last segment was returned, or the message has none.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.segmenter.is_done() || matches!(self.kind, Kind::Nothing)
    }

    /// Returns the request that a Read Response answers, and the number of payload bytes before the
    /// last returned segment. `None` for other messages. The number is the progress of the Read if
    /// that segment cannot be sent because its source was lost; see
    /// [`Terminate::for_partial_read`](crate::Terminate::for_partial_read).
    #[must_use]
    pub const fn read_response_progress(&self) -> Option<(ReadRequestHeader, u32)> {
        match self.kind {
            Kind::Tagged {
                answers: Some(request),
                ..
            } => Some((request, self.last_offset)),
            _ => None,
        }
    }
}

/// Returns the headers of a Write that has one segment. The [`OutMessage`] of the Write yields the
/// same headers.
#[inline]
pub(crate) fn whole_write(stag: STag, to: TaggedOffset) -> [u8; TAGGED_HEADER] {
    tagged(control(Opcode::Write), stag, to, 0, true).bytes()
}

/// Returns the headers of a Send that has one segment. The [`OutMessage`] of the Send yields the
/// same headers.
#[inline]
pub(crate) fn whole_send(
    opcode: Opcode,
    invalidate: Option<STag>,
    msn: Msn,
) -> [u8; UNTAGGED_HEADER] {
    let place = (crate::opcode::QN_SEND, msn);
    untagged(control(opcode), place, ulp_word(invalidate), 0, true).bytes()
}

/// Returns the content of the four bytes that DDP reserves for RDMAP in a Send.
const fn ulp_word(invalidate: Option<STag>) -> u32 {
    match invalidate {
        Some(stag) => stag.0, // 5040-4.1-03
        None => 0,            // 5040-4.1-10
    }
}

#[inline]
fn ulp(control: u8) -> u8 {
    mutate!(control, RvWrong => control & 0x3F) | mutate!(0, RdmapReservedSet => 0x10)
}

/// Returns the header of a tagged segment (5041-5.2-08).
#[inline]
fn tagged(control: u8, stag: STag, to: TaggedOffset, offset: u32, last: bool) -> TaggedHeader {
    TaggedHeader {
        last,
        ulp: ulp(control),
        stag,
        to: to.advance(mutate!(offset, ToStuck => 0)),
    }
}

/// Returns the header of an untagged segment (5041-5.2-06).
#[inline]
fn untagged(
    control: u8,
    (qn, msn): (Qn, Msn),
    ulp_word: u32,
    offset: u32,
    last: bool,
) -> UntaggedHeader {
    let ulp = ulp(control);
    UntaggedHeader {
        last: mutate!(last, LastMissing => false),
        ulp: mutate!(ulp, RsvdUlpChanges => if offset > 0 { ulp ^ 6 } else { ulp }),
        ulp_word,
        qn,
        msn,
        mo: mutate!(offset, MoStuck => 0),
    }
}

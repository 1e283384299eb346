//! Terminate Message (RFC 5040 section 4.8).

use uwarp_ddp::{Header, TAGGED_HEADER, UNTAGGED_HEADER};

use crate::atomic::ATOMIC_REQUEST_HEADER;
use crate::code::TerminateCode;
use crate::error::{Blame, StreamError};
use crate::mutants::mutate;
use crate::opcode::{Opcode, split};
use crate::peer::Peer;
use crate::read_request::{READ_REQUEST_HEADER, ReadRequestHeader};
use crate::requirement::{self, Requirement};
use crate::stream::AtomicJob;

mod layout;
mod siw;
mod words;

use layout::Reading;

/// Length in bytes of the longest Terminate Header: with a segment length, an untagged DDP header
/// and the header of a Read Request.
pub const MAX_TERMINATE_HEADER: usize = 4 + 2 + UNTAGGED_HEADER + READ_REQUEST_HEADER;

const SEGMENT_LEN_VALID: u8 = 0x80;
const DDP_HEADER: u8 = 0x40;
const RDMA_HEADER: u8 = 0x20;

/// A Terminate Message: the last message on a stream, with the reason why the stream ends.
///
/// Its `Display` explains which message was refused and why. For a message of Linux siw it also
/// explains a code that siw uses with another meaning than the RFCs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminate {
    reading: Reading,
    code: TerminateCode,
    segment_len: Option<u16>,
    ddp_header: Option<DdpBytes>,
    rdma_header: Option<ReadRequestHeader>,
}

/// The bytes of a DDP header as received. Its DDP version may be unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DdpBytes {
    bytes: [u8; UNTAGGED_HEADER],
    len: usize,
}

impl DdpBytes {
    /// Copies the header from the start of `ulpdu`. The T bit determines its length.
    fn take(ulpdu: &[u8]) -> Option<DdpBytes> {
        let len = Self::len_of(*ulpdu.first()?);
        let mut bytes = [0; UNTAGGED_HEADER];
        bytes.get_mut(..len)?.copy_from_slice(ulpdu.get(..len)?);
        Some(DdpBytes { bytes, len })
    }

    const fn len_of(control: u8) -> usize {
        if control & 0x80 != 0 {
            TAGGED_HEADER
        } else {
            UNTAGGED_HEADER
        }
    }

    fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&self.bytes)
    }
}

impl Terminate {
    /// Creates the message for an error that was not found in a segment of the peer.
    #[must_use]
    pub const fn new(code: TerminateCode) -> Self {
        Terminate {
            reading: Reading::Rfc,
            code,
            segment_len: None,
            ddp_header: None,
            rdma_header: None,
        }
    }

    /// Creates the message for `error`, with the headers that RFC 5040 Figure 10 asks for; `None`
    /// for [`StreamError::Ended`]. `offending` is the ULPDU in which the error was found: its first
    /// bytes ([`HEAD_LEN`](crate::HEAD_LEN) or all) and its length.
    pub(crate) fn for_error(
        error: &StreamError,
        offending: Option<(&[u8], usize)>,
    ) -> Option<Self> {
        let code = error.terminate_code()?;
        let mut terminate = Terminate::new(code);
        let Some((head, len)) = mutate!(offending, TerminateWithoutHeaders => None) else {
            return Some(terminate);
        };
        // 5040-4.8-i01, 5040-4.8-i04: no headers for a local error or an error of the LLP.
        if code.etype == 0 {
            return Some(terminate);
        }
        if let Some(bytes) = DdpBytes::take(head) {
            terminate.ddp_header = Some(bytes); // 5040-7.1-03
            let len = mutate!(len, TerminateLengthOfPayload => len - bytes.len);
            terminate.segment_len = u16::try_from(len).ok(); // 5040-4.8-09
        }
        // 5040-7.1-04, 5040-4.8-i02: only an error in a Read Request that RDMAP has parsed is
        // reported with the header of that request. Messages of RFC 7306 have no such header
        // (7306-8.1-02).
        let about_read =
            matches!(error, StreamError::Access(error) if error.opcode == Opcode::ReadRequest);
        if mutate!(about_read, TerminateWithoutReadHeader => false) {
            terminate.rdma_header = head
                .get(UNTAGGED_HEADER..)
                .and_then(ReadRequestHeader::parse);
        }
        Some(terminate)
    }

    /// Creates the message for a Read whose source was lost while it was answered, after `sent`
    /// bytes were sent. The header in the message describes the rest of the Read (5040-4.8-i03).
    ///
    /// [`StreamError::Ended`], which has no code, is reported as a local catastrophic error.
    #[must_use]
    pub fn for_partial_read(error: &StreamError, request: &ReadRequestHeader, sent: u32) -> Self {
        let code = error
            .terminate_code()
            .unwrap_or(TerminateCode::new(0, 0, 0));
        Terminate {
            rdma_header: Some(request.advance(sent)),
            ..Terminate::new(code)
        }
    }

    /// Creates the message for an Atomic Request whose memory was lost before the operation was
    /// executed. The message has the request's DDP header, and no RDMA header (RFC 7306 section
    /// 8.1).
    ///
    /// [`StreamError::Ended`], which has no code, is reported as a local catastrophic error.
    #[must_use]
    pub fn for_atomic(error: &StreamError, job: &AtomicJob) -> Self {
        let mut bytes = [0; uwarp_ddp::MAX_HEADER];
        Header::Untagged(*job.ddp_header()).emit(&mut bytes);
        let len = UNTAGGED_HEADER + ATOMIC_REQUEST_HEADER;
        Self::for_error(error, Some((&bytes, len)))
            .unwrap_or(Terminate::new(TerminateCode::new(0, 0, 0)))
    }

    /// Reads the Terminate Header of an unknown peer. The header starts right after the DDP header.
    /// Same as [`parse_from`](Self::parse_from) with [`Peer::Rfc`].
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Terminate> {
        Self::parse_from(Peer::Rfc, bytes)
    }

    /// Reads the Terminate Header, which starts right after the DDP header.
    ///
    /// In RFC 5040's layout, the reserved bits are ignored (5040-4.8-08), and so are bytes after
    /// the announced headers. Returns `None` if an announced header is incomplete. With every
    /// profile, a message that Linux siw sends and no RFC allows is read in siw's layout. With
    /// [`Peer::Siw`], every message that has a meaning in siw's layout is read in that layout. In
    /// siw's layout, an incomplete header counts as absent.
    #[must_use]
    pub fn parse_from(peer: Peer, bytes: &[u8]) -> Option<Terminate> {
        let (control, rest) = bytes.split_first_chunk()?;
        let reading = layout::decide(peer, *control, bytes);
        if reading == Reading::Siw {
            return Some(Self::parse_siw(*control, rest));
        }
        let terminate = Self::parse_rfc(*control, rest)?;
        Some(Terminate {
            reading,
            ..terminate
        })
    }

    fn parse_rfc(control: [u8; 4], mut rest: &[u8]) -> Option<Terminate> {
        let mut terminate = Terminate::new(layout::rfc_code(control));
        let [_, _, present, _] = control;
        if present & (SEGMENT_LEN_VALID | DDP_HEADER) != 0 {
            let (len, after) = rest.split_first_chunk()?;
            // 5040-4.8-10: D alone also implies the length field, but only M makes it valid.
            terminate.segment_len =
                (present & SEGMENT_LEN_VALID != 0).then(|| u16::from_be_bytes(*len));
            rest = after;
        }
        if present & DDP_HEADER != 0 {
            let header = DdpBytes::take(rest)?;
            rest = rest.get(header.len..)?;
            terminate.ddp_header = Some(header);
        }
        if present & RDMA_HEADER != 0 {
            terminate.rdma_header = Some(ReadRequestHeader::parse(rest)?);
        }
        Some(terminate)
    }

    /// Reads a message in siw's layout. `rest`: the bytes after `control`. siw also sets R for some
    /// Sends, which have no RDMA header.
    fn parse_siw(control: [u8; 4], rest: &[u8]) -> Terminate {
        let mut terminate = Terminate {
            reading: Reading::Siw,
            ..Terminate::new(layout::siw_code(control))
        };
        let [_, _, present, _] = control;
        if present & (layout::SIW_SEGMENT_LEN_VALID | layout::SIW_DDP_HEADER) == 0 {
            return terminate;
        }
        let Some((len, rest)) = rest.split_first_chunk() else {
            return terminate;
        };
        terminate.segment_len =
            (present & layout::SIW_SEGMENT_LEN_VALID != 0).then(|| u16::from_be_bytes(*len));
        if present & layout::SIW_DDP_HEADER != 0 {
            terminate.ddp_header = DdpBytes::take(rest);
        }
        if let Some(header) = &terminate.ddp_header
            && present & layout::SIW_RDMA_HEADER != 0
            && layout::is_read_request(header)
        {
            terminate.rdma_header = rest.get(header.len..).and_then(ReadRequestHeader::parse);
        }
        terminate
    }

    /// Returns the length in bytes that the Terminate Header at the start of `bytes` should have.
    pub(crate) fn bytes_needed(bytes: &[u8]) -> usize {
        let present = bytes.get(2).copied().unwrap_or(0);
        let mut needed = 4;
        if present & (SEGMENT_LEN_VALID | DDP_HEADER) != 0 {
            needed += 2;
        }
        if present & DDP_HEADER != 0 {
            needed += DdpBytes::len_of(bytes.get(6).copied().unwrap_or(0x80));
        }
        if present & RDMA_HEADER != 0 {
            needed += READ_REQUEST_HEADER;
        }
        needed
    }

    /// Writes the Terminate Header to the start of `out`, in RFC 5040's layout. Returns its length
    /// in bytes.
    pub fn emit(&self, out: &mut [u8; MAX_TERMINATE_HEADER]) -> usize {
        let mut present = 0;
        let mut len = 4;
        let mut put = |bytes: &[u8]| {
            for (to, from) in out.iter_mut().skip(len).zip(bytes) {
                *to = *from;
            }
            len += bytes.len();
        };
        if self.segment_len.is_some() || self.ddp_header.is_some() {
            put(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if self.segment_len.is_some() {
            present |= SEGMENT_LEN_VALID;
        }
        if let Some(header) = &self.ddp_header {
            put(header.as_slice());
            present |= DDP_HEADER;
        }
        if let Some(header) = &self.rdma_header {
            put(&header.emit());
            present |= RDMA_HEADER;
        }
        let first = self.code.layer << 4 | (self.code.etype & 0x0F);
        out[0] = mutate!(first, TerminateNibblesSwapped => first.rotate_left(4));
        out[1] = mutate!(self.code.code, TerminateCodeOff => self.code.code.wrapping_add(1));
        out[2] = mutate!(present, TerminateBitsReversed => present.reverse_bits());
        out[3] = mutate!(0, TerminateReservedSet => 1); // 5040-4.8-07
        len
    }

    /// Returns the reason as numbers.
    #[must_use]
    pub const fn reason(&self) -> TerminateCode {
        self.code
    }

    /// Returns the code that the RFCs assign to the reason. It differs from
    /// [`reason`](Self::reason) if Linux siw uses another code for the error.
    #[must_use]
    pub fn rfc_reason(&self) -> TerminateCode {
        siw::departure(self)
            .and_then(|departure| departure.code)
            .unwrap_or(self.code)
    }

    /// Returns the profile in whose layout the message was read.
    #[must_use]
    pub const fn read_as(&self) -> Peer {
        match self.reading {
            Reading::Rfc | Reading::RfcOrSiw => Peer::Rfc,
            Reading::Siw => Peer::Siw,
        }
    }

    /// Returns the reason that the message would have if Linux siw had sent it. `None` if siw's
    /// layout gives the message no other meaning, or if the message was read in siw's layout.
    #[must_use]
    pub fn if_siw(&self) -> Option<TerminateCode> {
        let TerminateCode { layer, etype, code } = self.code;
        (self.reading == Reading::RfcOrSiw).then_some(TerminateCode::new(etype, layer, code))
    }

    /// Returns the meaning that Linux siw gives the code, in words. `None` if the RFCs give the
    /// same meaning, or if the message was not read in siw's layout.
    #[must_use]
    pub fn siw_means(&self) -> Option<&'static str> {
        siw::departure(self).map(|departure| departure.means)
    }

    /// Returns true if the headers in the message are those of the refused segment, as the RFC
    /// requires. Linux siw sends one error late, with the header of another message.
    #[must_use]
    pub fn headers_fit(&self) -> bool {
        siw::departure(self).is_none_or(|departure| departure.headers_fit)
    }

    /// Layer that found the error: 0 RDMAP, 1 DDP, 2 LLP.
    #[must_use]
    pub const fn layer(&self) -> u8 {
        self.code.layer
    }

    /// Error Type.
    #[must_use]
    pub const fn etype(&self) -> u8 {
        self.code.etype
    }

    /// Error Code.
    #[must_use]
    pub const fn code(&self) -> u8 {
        self.code.code
    }

    /// Returns the length in bytes of the segment in which the error was found, if the message
    /// contains it (M).
    ///
    /// In RFC 5040 this is the length of the whole ULPDU; Linux siw counts only the payload.
    #[must_use]
    pub const fn segment_len(&self) -> Option<u16> {
        self.segment_len
    }

    /// Returns the side at fault according to the peer. [`Blame::Local`] is the side that received
    /// the message.
    #[must_use]
    pub fn blame(&self) -> Blame {
        if self.is_about_request() && self.rfc_reason() == TerminateCode::new(1, 2, 0x02) {
            // The missing buffer is not a receive: this side sent more requests than the peer's
            // IRD.
            return Blame::Local;
        }
        self.rfc_reason().blame()
    }

    /// Returns the requirement of the RFCs that was violated, if the code identifies it.
    #[must_use]
    pub fn requirement(&self) -> Option<Requirement> {
        if self.is_about_request() && self.rfc_reason() == TerminateCode::new(1, 2, 0x02) {
            return Some(requirement::IRD);
        }
        self.rfc_reason().requirement()
    }

    /// Returns the DDP header of the segment in which the error was found, if the message contains
    /// it (D). These are 14 or 18 bytes, as the peer received them.
    #[must_use]
    pub fn ddp_bytes(&self) -> Option<&[u8]> {
        self.ddp_header.as_ref().map(DdpBytes::as_slice)
    }

    /// Returns the parsed [`ddp_bytes`](Self::ddp_bytes). `None` also if the DDP version is not
    /// supported. If Linux siw had begun to answer a Read Request, the MSN in the header is the
    /// length of the Read.
    #[must_use]
    pub fn ddp_header(&self) -> Option<Header> {
        Header::parse(self.ddp_bytes()?)
            .ok()
            .map(|(header, _)| header)
    }

    /// Returns the header of the refused Read Request, if the message contains it (R). If the Read
    /// was in progress, the header describes the rest of the Read.
    #[must_use]
    pub const fn rdma_header(&self) -> Option<&ReadRequestHeader> {
        self.rdma_header.as_ref()
    }

    /// Returns the opcode of the message in which the error was found, if it can be determined.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        if self.rdma_header.is_some() {
            return Some(Opcode::ReadRequest);
        }
        let (_, opcode) = split(self.ddp_header()?.ulp());
        Opcode::from_raw(opcode)
    }

    /// Returns true if the error was found in a Read Request.
    #[must_use]
    pub fn is_about_read_request(&self) -> bool {
        self.opcode() == Some(Opcode::ReadRequest)
    }

    /// Returns true if the error was found in a request that waits for a Response: a Read Request
    /// or an Atomic Request.
    #[must_use]
    pub fn is_about_request(&self) -> bool {
        self.is_about_read_request() || self.opcode() == Some(Opcode::AtomicRequest)
    }

    /// Returns true if the error was found in a tagged segment: a Write or a Read Response. The DDP
    /// header decides this. If the message has no DDP header, the Error Type decides, because DDP
    /// has an Error Type for tagged segments.
    #[must_use]
    pub fn is_about_tagged(&self) -> bool {
        match self.ddp_bytes() {
            Some(bytes) => bytes.len() == TAGGED_HEADER,
            None => (self.code.layer, self.code.etype) == (1, 1),
        }
    }
}

#[cfg(test)]
mod tests;

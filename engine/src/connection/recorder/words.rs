//! Text form of a recorded frame.

use std::fmt::{Formatter, Result};

use uwarp_ddp::{Header, TaggedHeader, UntaggedHeader};
use uwarp_mpa::NO_AUTO;
use uwarp_rdmap::{
    AtomicOp, AtomicRequestHeader, AtomicResponseHeader, Opcode, Peer, ReadRequestHeader, Terminate,
};

use super::{FrameKind, RecordedFrame};

/// Writes a frame, such as `RDMA Write STag 0x001a2b00 TO 0x40 64 bytes, Last`.
pub(super) fn frame(f: &mut Formatter<'_>, frame: &RecordedFrame, peer: Peer) -> Result {
    match frame.kind {
        FrameKind::Startup => startup(f, frame.head()),
        FrameKind::Ulpdu => ulpdu(f, frame.head(), frame.len, peer),
        FrameKind::Damaged => {
            write!(f, "no FPDU: {} bytes that begin with ", frame.len)?;
            hex(f, frame.head())
        }
    }
}

fn hex(f: &mut Formatter<'_>, bytes: &[u8]) -> Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Writes flags, revision, the data of RFC 6581, and the length of the private data.
fn startup(f: &mut Formatter<'_>, head: &[u8]) -> Result {
    let known = head.split_first_chunk::<16>().and_then(|(key, rest)| {
        let name = match key {
            b"MPA ID Req Frame" => "MPA Request",
            b"MPA ID Rep Frame" => "MPA Reply",
            _ => return None,
        };
        let (fixed, rest) = rest.split_first_chunk::<4>()?;
        Some((name, *fixed, rest))
    });
    let Some((name, [flags, revision, high, low], rest)) = known else {
        let bytes = head.escape_ascii();
        return write!(f, "no MPA startup frame, but \"{bytes}\"");
    };
    f.write_str(name)?;
    if flags & 0x20 != 0 {
        write!(f, ", rejected")?;
    }
    write!(f, ", revision {revision}")?;
    for (bit, name) in [(0x80, "Markers"), (0x40, "CRC")] {
        if flags & bit != 0 {
            write!(f, ", {name}")?;
        }
    }
    let mut private = u16::from_be_bytes([high, low]);
    if flags & 0x10 != 0
        && revision >= 2
        && let Some(&[a, b, c, d]) = rest.first_chunk()
    {
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let (ird, ord) = (first & NO_AUTO, second & NO_AUTO);
        write!(f, ", IRD {ird}, ORD {ord}")?;
        if first & 0x8000 != 0 {
            write!(f, ", peer-to-peer")?;
        }
        private = private.saturating_sub(4);
    }
    write!(f, ", {private} bytes of private data")
}

fn ulpdu(f: &mut Formatter<'_>, head: &[u8], len: u32, peer: Peer) -> Result {
    match Header::parse(head) {
        Ok((Header::Tagged(header), at)) => {
            tagged(f, &header)?;
            payload(f, len, at, header.last)
        }
        Ok((Header::Untagged(header), at)) => {
            let rest = head.get(at..).unwrap_or_default();
            if untagged(f, &header, rest, peer)? {
                return Ok(());
            }
            payload(f, len, at, header.last)
        }
        Err(error) => {
            write!(f, "{error}: ")?;
            hex(f, head)
        }
    }
}

fn payload(f: &mut Formatter<'_>, len: u32, header_len: usize, last: bool) -> Result {
    let bytes = (len as usize).saturating_sub(header_len);
    write!(f, " {bytes} bytes{}", if last { ", Last" } else { "" })
}

fn name(f: &mut Formatter<'_>, control: u8) -> Result {
    match Opcode::from_raw(control & 0x0F) {
        Some(opcode) => write!(f, "{opcode}"),
        None => write!(f, "unknown opcode {}", control & 0x0F),
    }
}

fn tagged(f: &mut Formatter<'_>, header: &TaggedHeader) -> Result {
    name(f, header.ulp)?;
    write!(f, " STag {:#010x} TO {:#x}", header.stag.0, header.to.0)
}

/// Writes an untagged header. Returns true if the payload is described as well.
fn untagged(
    f: &mut Formatter<'_>,
    header: &UntaggedHeader,
    rest: &[u8],
    peer: Peer,
) -> std::result::Result<bool, std::fmt::Error> {
    name(f, header.ulp)?;
    let opcode = Opcode::from_raw(header.ulp & 0x0F);
    if opcode.and_then(Opcode::queue) != Some(header.qn) {
        write!(f, " on queue {}", header.qn.0)?;
    }
    write!(f, " MSN {}", header.msn.0)?;
    let told = match opcode {
        Some(Opcode::ReadRequest) => read_request(f, rest)?,
        Some(Opcode::AtomicRequest) => atomic_request(f, rest)?,
        Some(Opcode::AtomicResponse) => match AtomicResponseHeader::parse(rest) {
            Some(AtomicResponseHeader { id, original }) => {
                write!(f, " request {id}: the word was {original:#x}")?;
                true
            }
            None => false,
        },
        Some(Opcode::Terminate) => match Terminate::parse_from(peer, rest) {
            Some(message) => {
                terminate(f, &message)?;
                true
            }
            None => false,
        },
        Some(Opcode::Immediate | Opcode::ImmediateSolicited) if rest.len() == 8 => {
            write!(f, ": 0x")?;
            hex(f, rest)?;
            true
        }
        Some(Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate) => {
            write!(f, " MO {} STag {:#010x}", header.mo, header.ulp_word)?;
            false
        }
        _ => {
            write!(f, " MO {}", header.mo)?;
            false
        }
    };
    Ok(told)
}

fn read_request(f: &mut Formatter<'_>, rest: &[u8]) -> std::result::Result<bool, std::fmt::Error> {
    let Some(request) = ReadRequestHeader::parse(rest) else {
        return Ok(false);
    };
    let (source, sink) = (request.source_stag.0, request.sink_stag.0);
    let (from, to) = (request.source_to.0, request.sink_to.0);
    write!(
        f,
        ": {} bytes from STag {source:#010x} TO {from:#x} to STag {sink:#010x} TO {to:#x}",
        request.len
    )?;
    Ok(true)
}

fn atomic_request(
    f: &mut Formatter<'_>,
    rest: &[u8],
) -> std::result::Result<bool, std::fmt::Error> {
    let Some(request) = AtomicRequestHeader::parse(rest) else {
        return Ok(false);
    };
    let AtomicRequestHeader { id, stag, to, .. } = request;
    write!(f, " request {id}: ")?;
    match request.op() {
        Some(AtomicOp::FetchAdd { add, .. }) => write!(f, "FetchAdd {add:#x}")?,
        Some(AtomicOp::CompareSwap { compare, swap, .. }) => {
            write!(f, "CmpSwap {compare:#x} by {swap:#x}")?;
        }
        None => write!(f, "unknown operation {}", request.code)?,
    }
    write!(f, " on STag {:#010x} TO {:#x}", stag.0, to.0)?;
    Ok(true)
}

fn terminate(f: &mut Formatter<'_>, message: &Terminate) -> Result {
    let code = message.reason();
    write!(f, ", {code}: {}", message.rfc_reason().name())?;
    match (message.rdma_header(), message.ddp_header()) {
        (Some(request), _) => {
            let (stag, to) = (request.source_stag.0, request.source_to.0);
            write!(f, "; about ")?;
            about(f, message)?;
            write!(f, " STag {stag:#010x} TO {to:#x}")
        }
        (None, Some(Header::Tagged(header))) => {
            write!(f, "; about ")?;
            tagged(f, &header)
        }
        (None, Some(Header::Untagged(header))) => {
            write!(f, "; about ")?;
            name(f, header.ulp)?;
            write!(f, " MSN {}", header.msn.0)
        }
        (None, None) => Ok(()),
    }
}

fn about(f: &mut Formatter<'_>, message: &Terminate) -> Result {
    match message.opcode() {
        Some(opcode) => write!(f, "{opcode}"),
        None => write!(f, "a request"),
    }
}

//! Lenient parser for the DDP Segment and the RDMA Message in a ULPDU. It also checks the rules
//! that concern a single segment (RFC 5041 section 4, RFC 5040 section 4, RFC 7306 section 4).

use std::fmt;

use uwarp_ddp::{DDP_VERSION, Header, MAX_HEADER, TAGGED_HEADER, UNTAGGED_HEADER};
use uwarp_rdmap::{
    AtomicRequestHeader, AtomicResponseHeader, Opcode, Peer, RDMAP_VERSION, ReadRequestHeader,
    Terminate,
};

use super::finding::Findings;
use super::words::many;

/// A DDP Segment with its RDMAP content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// The DDP Control byte.
    pub ddp_control: u8,
    /// The RDMAP Control byte.
    pub rdmap_control: u8,
    /// The DDP header. It is parsed as version 1 even if its version field differs.
    pub header: Header,
    /// Number of bytes in the ULPDU after the DDP header.
    pub len: u32,
    /// Content of the bytes after the DDP header.
    pub body: Body,
}

/// Decoded bytes after the DDP header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// ULP payload, or bytes that are not a valid RDMAP header.
    Payload,
    /// A Read Request.
    ReadRequest(ReadRequestHeader),
    /// A Terminate Message.
    Terminate(Terminate),
    /// Immediate Data.
    Immediate([u8; 8]),
    /// An Atomic Request.
    AtomicRequest(AtomicRequestHeader),
    /// An Atomic Response.
    AtomicResponse(AtomicResponseHeader),
}

impl Segment {
    /// Parses a ULPDU. A Terminate Message is read in the layout of `peer`. Returns `None` if the
    /// ULPDU ends within the DDP header.
    pub(super) fn read(ulpdu: &[u8], peer: Peer) -> Option<Self> {
        let &[ddp_control, rdmap_control] = ulpdu.first_chunk()?;
        let mut head = [0; MAX_HEADER];
        let head = head.get_mut(..ulpdu.len().min(MAX_HEADER))?;
        head.copy_from_slice(ulpdu.get(..head.len())?);
        // Parses the header as version 1, because only this layout is known.
        if let Some(control) = head.first_mut() {
            *control = *control & !3 | DDP_VERSION;
        }
        let (header, len) = Header::parse(head).ok()?;
        let rest = ulpdu.get(len..)?;
        let untagged = matches!(header, Header::Untagged(_));
        let body = match Opcode::from_raw(rdmap_control & 0x0F) {
            Some(Opcode::ReadRequest) if untagged => {
                ReadRequestHeader::parse(rest).map(Body::ReadRequest)
            }
            Some(Opcode::Terminate) if untagged => {
                Terminate::parse_from(peer, rest).map(Body::Terminate)
            }
            Some(Opcode::Immediate | Opcode::ImmediateSolicited) if untagged => {
                rest.first_chunk().copied().map(Body::Immediate)
            }
            Some(Opcode::AtomicRequest) if untagged => {
                AtomicRequestHeader::parse(rest).map(Body::AtomicRequest)
            }
            Some(Opcode::AtomicResponse) if untagged => {
                AtomicResponseHeader::parse(rest).map(Body::AtomicResponse)
            }
            _ => None,
        };
        Some(Self {
            ddp_control,
            rdmap_control,
            header,
            len: u32::try_from(rest.len()).ok()?,
            body: body.unwrap_or(Body::Payload),
        })
    }

    /// Returns the opcode, if an RFC defines it.
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::from_raw(self.rdmap_control & 0x0F)
    }

    /// Returns true if a correct sender could send these control bytes, T flag and Queue Number.
    pub(super) fn is_plausible(&self) -> bool {
        let mut findings = Findings::default();
        self.judge_control(&mut findings);
        findings.0.is_empty()
    }

    /// Checks the rules that concern a single segment. `rest` contains the bytes after the DDP
    /// header. `whole` is true if the capture contains all of these bytes.
    pub(super) fn judge(&self, rest: &[u8], whole: bool, findings: &mut Findings) {
        self.judge_control(findings);
        findings.demand(
            self.len > 0 || self.header.last(),
            "5041-5.2-09",
            || "empty, but not the last segment of its message",
        );
        match &self.header {
            Header::Tagged(header) => {
                let end = header.to.0.checked_add(u64::from(self.len));
                findings.demand(self.len == 0 || end.is_some(), "5041-7.1-14", || {
                    let len = many(self.len, "byte");
                    format!("TO {} plus {len} wraps around", header.to)
                });
            }
            Header::Untagged(header) => {
                let (word, opcode) = (header.ulp_word, self.opcode());
                let id = match opcode {
                    Some(opcode) if opcode.is_extension() => "7306-4.1-02",
                    _ => "5040-4.1-10",
                };
                let may = opcode.is_none_or(Opcode::invalidates);
                findings.demand(may || word == 0, id, || {
                    format!("Invalidate STag {word:#010x}: must be zero in this message")
                });
            }
        }
        if whole {
            self.judge_body(rest, findings);
        }
    }

    fn judge_control(&self, findings: &mut Findings) {
        let (ddp, rdmap) = (self.ddp_control, self.rdmap_control);
        findings.demand(ddp & 0x3C == 0, "5041-4.1-08", || {
            format!("DDP control {ddp:#04x}: its reserved bits must be zero")
        });
        findings.demand(ddp & 3 == DDP_VERSION, "5041-4.1-10", || {
            format!("DV {}: must be {DDP_VERSION}", ddp & 3)
        });
        findings.demand(rdmap >> 6 == RDMAP_VERSION, "5040-4.1-07", || {
            format!("RV {}: must be {RDMAP_VERSION}", rdmap >> 6)
        });
        findings.demand(rdmap & 0x30 == 0, "5040-4.1-08", || {
            format!("RDMAP control {rdmap:#04x}: its reserved bits must be zero")
        });
        let Some(opcode) = self.opcode() else {
            findings.demand(false, "5040-4.1-05", || {
                format!("opcode {:#x}: not defined by any RFC", rdmap & 15)
            });
            return;
        };
        match (opcode.queue(), &self.header) {
            (None, Header::Tagged(_)) => {}
            (Some(due), Header::Untagged(header)) => {
                let id = match opcode {
                    Opcode::AtomicRequest => "7306-5.2-01",
                    Opcode::AtomicResponse => "7306-5-04",
                    Opcode::Immediate | Opcode::ImmediateSolicited => "7306-6.3-04",
                    _ => "5040-4.1-06",
                };
                findings.demand(header.qn == due, id, || {
                    format!("QN {}: must be {due} for this message", header.qn)
                });
            }
            (None, Header::Untagged(_)) => {
                findings.demand(
                    false,
                    "5040-4.1-04",
                    || "untagged, but this message must be tagged",
                );
            }
            (Some(_), Header::Tagged(_)) => {
                let id = match opcode {
                    Opcode::AtomicRequest => "7306-5.2.1-02",
                    Opcode::Immediate | Opcode::ImmediateSolicited => "7306-6.3-01",
                    Opcode::AtomicResponse => "7306-5-04",
                    _ => "5040-4.1-04",
                };
                findings.demand(false, id, || "tagged, but this message must be untagged");
            }
        }
    }

    fn judge_body(&self, rest: &[u8], findings: &mut Findings) {
        let Header::Untagged(_) = self.header else {
            return;
        };
        let len = self.len;
        let fixed = match self.opcode() {
            Some(Opcode::ReadRequest) => Some((28, "5040-4.4-01")),
            Some(Opcode::Immediate | Opcode::ImmediateSolicited) => Some((8, "7306-6.3-05")),
            Some(Opcode::AtomicRequest) => Some((52, "7306-5.2.1-09")),
            Some(Opcode::AtomicResponse) => Some((12, "7306-5.2.1-09")),
            _ => None,
        };
        if let Some((due, id)) = fixed {
            findings.demand(len == due, id, || {
                let len = many(len, "byte");
                format!("{len} after the DDP header: must be {due}")
            });
        }
        match &self.body {
            Body::ReadRequest(request) => {
                let end = request.source_to.0.checked_add(u64::from(request.len));
                findings.demand(end.is_some(), "5040-7.2-10", || {
                    let len = many(request.len, "byte");
                    format!("SrcTO {} plus {len} wraps around", request.source_to)
                });
            }
            Body::Terminate(terminate) => judge_terminate(terminate, rest, findings),
            Body::AtomicRequest(request) => {
                let reserved = rest.first_chunk().copied().map_or(0, u32::from_be_bytes) & !0x0F;
                findings.demand(
                    reserved == 0,
                    "7306-5.2.1-i01",
                    || "the 28 bits before AOpCode must be zero",
                );
                findings.demand(request.op().is_some(), "7306-5.2.1-06", || {
                    format!(
                        "AOpCode {}: must be 0 (FetchAdd) or 2 (CmpSwap)",
                        request.code
                    )
                });
            }
            Body::Payload if self.opcode() == Some(Opcode::Terminate) => {
                let id = if len < 4 {
                    "5040-4.8-01"
                } else {
                    "5040-4.8-11"
                };
                findings.demand(false, id, || {
                    let len = many(len, "byte");
                    format!("{len}: too few for the Terminate Header and the fields that M, D and R announce")
                });
            }
            Body::Payload | Body::Immediate(_) | Body::AtomicResponse(_) => {}
        }
    }
}

fn judge_terminate(terminate: &Terminate, rest: &[u8], findings: &mut Findings) {
    if terminate.read_as() == Peer::Siw {
        findings.demand(false, "5040-4.8-02", || {
            "the layout of Linux siw: by the RFC, Layer is the high half of the first byte, M, D and R the high bits of the third"
        });
        return;
    }
    let Some([_, _, present, reserved]) = rest.first_chunk() else {
        return;
    };
    findings.demand(
        (present & 0x1F, *reserved) == (0, 0),
        "5040-4.8-07",
        || "the 13 bits after M, D and R must be zero",
    );
    let code = terminate.reason();
    findings.demand(code.is_defined(), "5040-4.8-03", || {
        format!("{code}: not defined by any RFC")
    });
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opcode() {
            Some(opcode) => write!(f, "{opcode}")?,
            None => write!(f, "opcode {:#x}", self.rdmap_control & 15)?,
        }
        match &self.header {
            Header::Tagged(header) => {
                write!(f, " STag {} TO {}", header.stag, header.to)?;
            }
            Header::Untagged(header) => {
                let regular = self.opcode().and_then(Opcode::queue) == Some(header.qn);
                if !regular || self.opcode().is_none() {
                    write!(f, " QN {}", header.qn)?;
                }
                write!(f, " MSN {}", header.msn)?;
                if header.mo != 0 || !header.last {
                    write!(f, " MO {}", header.mo)?;
                }
                if header.ulp_word != 0 {
                    write!(f, " Invalidate STag {:#010x}", header.ulp_word)?;
                }
            }
        }
        match &self.body {
            Body::Payload => write!(f, " {}", many(self.len, "byte"))?,
            Body::ReadRequest(request) => write!(
                f,
                " {} from STag {} TO {} to STag {} TO {}",
                many(request.len, "byte"),
                request.source_stag,
                request.source_to,
                request.sink_stag,
                request.sink_to
            )?,
            Body::Terminate(terminate) => write!(f, ": {terminate}")?,
            Body::Immediate(bytes) => {
                write!(f, " {:#018x}", u64::from_be_bytes(*bytes))?;
            }
            Body::AtomicRequest(request) => write_atomic(request, f)?,
            Body::AtomicResponse(response) => {
                write!(f, " id {:#x} was {:#x}", response.id, response.original)?;
            }
        }
        f.write_str(if self.header.last() { " L" } else { "" })
    }
}

fn write_atomic(request: &AtomicRequestHeader, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match request.op() {
        Some(op) => write!(f, " {op}")?,
        None => write!(f, " AOpCode {}", request.code)?,
    }
    write!(
        f,
        " id {:#x} STag {} TO {} data {:#x}/{:#x} compare {:#x}/{:#x}",
        request.id,
        request.stag,
        request.to,
        request.data,
        request.mask,
        request.compare,
        request.compare_mask
    )
}

/// Maximum number of bytes needed to identify a ULPDU: a DDP header and the longest fixed header
/// after it.
pub(super) const HEAD: usize = UNTAGGED_HEADER + 52;
const _: () = assert!(TAGGED_HEADER < UNTAGGED_HEADER);

#[cfg(test)]
#[path = "segment/tests.rs"]
mod tests;

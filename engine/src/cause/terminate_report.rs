//! Meaning of the peer's Terminate Message.
//!
//! The message contains the code of the failed check. The headers that it quotes identify the
//! memory or the message concerned. This side adds its knowledge of the work request.

use std::fmt;

use uwarp_ddp::Header;
use uwarp_rdmap::{Opcode, Peer, Requirement, StreamError, Terminate, TerminateCode};

use super::parts::{Account, Layer, Operation, Who};

/// Relation of a Terminate Message to a work request of this side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// The relation is unknown.
    Unknown,
    /// The Terminate is about a work request that was still outstanding.
    This,
    /// The Terminate is about a work request that was already complete, because TCP had accepted
    /// it.
    Complete,
}

/// Contents of a Terminate Message, and the work request concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TerminateReport {
    code: TerminateCode,
    /// The same error in the numbers of the RFCs.
    meant: TerminateCode,
    if_siw: Option<TerminateCode>,
    /// True if the message was read in the layout of Linux siw.
    siw: bool,
    /// The refused message.
    opcode: Option<Opcode>,
    /// STag; for a Send, its number on the connection.
    stag: u32,
    /// Length in bytes of the work request, or else of the segment's payload; `None` if neither is
    /// known.
    len: Option<u32>,
    /// Tagged offset; for a Send, the offset in the message.
    to: u64,
    work: Work,
    /// True if this side reads large payloads twice: for the CRC and for TCP
    /// (`Settings::send_in_place`).
    read_twice: bool,
}

/// A work request of this side: message, target (STag and TO) and length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    pub(crate) opcode: Opcode,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    pub(crate) len: u32,
}

impl TerminateReport {
    /// Interprets the message without facts about a work request. `work`: relation of the message
    /// to a work request.
    pub(crate) fn new(terminate: &Terminate, work: Work) -> Self {
        let mut report = TerminateReport {
            code: terminate.reason(),
            meant: terminate.rfc_reason(),
            if_siw: terminate.if_siw(),
            siw: terminate.read_as() == Peer::Siw,
            opcode: None,
            stag: 0,
            len: None,
            to: 0,
            work: Work::Unknown,
            read_twice: false,
        };
        if !terminate.headers_fit() {
            return report;
        }
        report.opcode = terminate.opcode();
        report.work = work;
        if let Some(request) = terminate.rdma_header() {
            report.stag = request.source_stag.0;
            report.to = request.source_to.0;
            report.len = Some(request.len);
            return report;
        }
        let header_len = terminate.ddp_bytes().map_or(0, <[u8]>::len);
        let payload = terminate.segment_len().map(usize::from);
        // The segment length of siw counts only the payload.
        let payload = if report.siw {
            payload
        } else {
            payload.and_then(|len| len.checked_sub(header_len))
        };
        report.len = payload.and_then(|len| u32::try_from(len).ok());
        match terminate.ddp_header() {
            Some(Header::Tagged(header)) => (report.stag, report.to) = (header.stag.0, header.to.0),
            Some(Header::Untagged(header)) => {
                (report.stag, report.to) = (header.msn.0, header.mo.into());
            }
            None => report.opcode = None,
        }
        report
    }

    /// Records whether this side reads large payloads twice. If it does, the program may have
    /// changed the memory in between and so made the CRC wrong.
    pub(crate) fn read_twice(mut self, read_twice: bool) -> Self {
        self.read_twice = read_twice;
        self
    }

    /// Interprets the message for the refused work request. `asked`: facts that this side knows
    /// about the request.
    pub(crate) fn about(terminate: &Terminate, asked: Asked) -> Self {
        let mut report = TerminateReport::new(terminate, Work::This);
        if matches!(
            asked.opcode,
            Opcode::Write | Opcode::ReadRequest | Opcode::AtomicRequest
        ) {
            (report.stag, report.to) = (asked.stag, asked.to);
        }
        report.opcode = Some(asked.opcode);
        report.len = Some(asked.len);
        report.work = Work::This;
        report
    }

    pub(super) fn account(&self) -> Account {
        let (title, who, hint) = self.row();
        let layer = match self.meant.layer {
            0 => Layer::Rdmap,
            1 => Layer::Ddp,
            _ => Layer::Mpa,
        };
        let hint = if self.if_siw.is_some() {
            "if the peer is Linux siw, select it in the settings (`Peer::Siw`, `--peer siw`), because its codes have other meanings"
        } else {
            hint
        };
        Account::new(title, who, layer)
            .terminate(Some(self.code))
            .against(self.requirement())
            .hint(hint)
    }

    /// Returns true if the peer had no place for another Read. The code is the same as for a
    /// missing receive.
    fn is_ird(&self) -> bool {
        matches!(
            self.opcode,
            Some(Opcode::ReadRequest | Opcode::AtomicRequest)
        ) && is(self.meant, (1, 2, 0x02))
    }

    /// Returns true if the memory of an atomic was not aligned, the only use of this code in RFC
    /// 7306 section 8.2.
    fn is_misaligned(&self) -> bool {
        self.opcode == Some(Opcode::AtomicRequest) && is(self.meant, (0, 2, 0x07))
    }

    fn requirement(&self) -> Option<Requirement> {
        if self.is_ird() {
            return StreamError::IrdExceeded { ird: 0 }.requirement();
        }
        self.meant.requirement()
    }

    /// Returns title, originator and hint.
    fn row(&self) -> (&'static str, Who, &'static str) {
        const ACCESS: &str = "remote access error";
        const OPERATION: &str = "remote operation error";
        const REPORT: &str = "report it, with a capture (`--pcap`) of the connection";
        const CODE_ONLY: &str = "the code has no details: check the peer's error and its log";
        let TerminateCode { layer, etype, code } = self.meant;
        match (layer, etype, code) {
            (0, 1, 0x00) | (1, 1, 0x00) => (ACCESS, Who::Program, self.invalid_stag_hint()),
            (0, 1, 0x01) | (1, 1, 0x01) | (0, 1, 0x04) | (1, 1, 0x03) => (
                ACCESS,
                Who::Program,
                "compare address and length with those that the peer gave for its region",
            ),
            (0, 1, 0x02) => (ACCESS, Who::Program, self.rights_hint()),
            (0, 1, 0x03) | (1, 1, 0x02) => (
                ACCESS,
                Who::Program,
                "use an rkey that the peer gave for this connection; its region belongs to another protection domain or QP",
            ),
            (0, 1 | 2, 0x09) => (
                ACCESS,
                Who::Program,
                "ask the peer to register that region for this connection alone, and invalidate it only once",
            ),
            (0, 2, 0x06) => (
                OPERATION,
                Who::PeerStack,
                "do not use this operation with that peer, whose stack does not know it (atomics and Immediate Data are RFC 7306, which siw lacks)",
            ),
            (0, 2, 0x07) if self.is_misaligned() => (
                OPERATION,
                Who::Program,
                "ask the peer at which memory address its region begins: the word's address there must be a multiple of 8, whatever its TO is",
            ),
            // The code does not say what happened or who caused it. A stack sends it when its
            // program took memory away or moved the QP, or when it lacks a resource.
            (0 | 1, 0, _) | (0, 2, 0x07 | 0x08) => (OPERATION, Who::Peer, CODE_ONLY),
            (1, 2, 0x02) if self.is_ird() => (
                OPERATION,
                Who::Library,
                "connect with an ORD of at most the peer's IRD",
            ),
            (1, 2, 0x02) => (
                OPERATION,
                Who::PeerProgram,
                "agree with the peer on how many receives it keeps posted, and send no more than that",
            ),
            (1, 2, 0x05) => (
                OPERATION,
                Who::Program,
                "send messages that fit the peer's receives, or ask the peer to post longer ones",
            ),
            (2, 0, 0x02) if self.read_twice => (
                "damaged stream",
                Who::Program,
                "leave the memory of a Send or Write unchanged until the request is complete, or turn `send_in_place` off (UWARP_SEND_IN_PLACE, --send-in-place); if it was unchanged, look for a middlebox or adapter that changes TCP payload",
            ),
            (2, 0, 0x01..=0x03) => (
                "damaged stream",
                Who::Network,
                "look for a middlebox or adapter that changes TCP payload; connect again to continue",
            ),
            (2, 0, 0x06) => (
                "startup failed",
                Who::PeerStack,
                "connect with a smaller ord, or raise the peer's limit on IRD",
            ),
            (2, 0, 0x05 | 0x07) => (
                "startup failed",
                Who::PeerStack,
                "check the peer's log; enable a common RTR kind on both sides",
            ),
            (0, 1, 0xFF) => (ACCESS, Who::Program, CODE_ONLY),
            (0, 2, 0xFF) => (OPERATION, Who::Peer, CODE_ONLY),
            // Versions, opcodes, queues, sequence numbers, offsets and startup frames: this library
            // produced them.
            (0, 2, 0x05) | (1, 1, 0x04) | (1, 2, 0x01 | 0x03 | 0x04 | 0x06) | (2, 0, 0x04) => {
                (OPERATION, Who::Library, REPORT)
            }
            // No RFC defines the code, so its meaning at the peer is unknown.
            _ => (
                OPERATION,
                Who::PeerStack,
                "ask the vendor of the peer's iWARP stack what that code means",
            ),
        }
    }

    /// Returns the hint for an invalid STag. DDP has no code for a missing right, so the peer may
    /// report a missing right as an invalid STag.
    const fn invalid_stag_hint(&self) -> &'static str {
        match (self.opcode, self.meant.layer) {
            (Some(Opcode::Write), _) => {
                "compare the rkey with the one the peer gave; ask the peer to keep the region registered and to allow REMOTE_WRITE, because a missing right has the same code"
            }
            (Some(Opcode::ReadRequest), _) => {
                "compare the rkey with the one the peer gave; ask the peer to keep the region registered, with REMOTE_READ"
            }
            (Some(Opcode::AtomicRequest), _) => {
                "compare the rkey with the one the peer gave; ask the peer to keep the region registered, with REMOTE_ATOMIC"
            }
            (Some(Opcode::ReadResponse), _) => {
                "the STag is the one that the peer itself named in its Read: ask it to keep its region registered until the Read is done"
            }
            (Some(opcode), _) if opcode.is_send() => {
                "compare the STag to be invalidated with the rkey that the peer gave, and invalidate it only once"
            }
            // The code concerns no message, or a message that names no STag.
            (_, 1) => {
                "compare the rkeys with those that the peer gave; ask the peer to keep its regions registered, with REMOTE_WRITE for a Write, because a missing right has the same code"
            }
            _ => {
                "compare the rkeys with those that the peer gave; ask the peer to keep its regions registered, with REMOTE_READ for a Read"
            }
        }
    }

    /// Returns the hint for a missing right.
    const fn rights_hint(&self) -> &'static str {
        match self.opcode {
            Some(Opcode::ReadRequest) => "ask the peer to register it with REMOTE_READ",
            Some(Opcode::AtomicRequest) => "ask the peer to register it with REMOTE_ATOMIC",
            Some(Opcode::Write) => "ask the peer to register it with REMOTE_WRITE",
            _ => {
                "ask the peer to register its region with the required right: REMOTE_READ for a Read, REMOTE_ATOMIC for an atomic operation"
            }
        }
    }

    fn place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(opcode) = self.opcode else {
            return f.write_str("the peer ended the connection");
        };
        let operation = Operation(opcode);
        let this = match self.work {
            Work::This => "this",
            Work::Unknown | Work::Complete => operation.article(),
        };
        write!(f, "the peer refused {this} {operation}")?;
        if let Some(len) = self.len {
            write!(f, " of {len} bytes")?;
        }
        let (stag, to) = (self.stag, self.to);
        match opcode {
            Opcode::Write | Opcode::ReadResponse => write!(f, " to STag {stag:#010x}, TO {to:#x}")?,
            Opcode::ReadRequest => write!(f, " from STag {stag:#010x}, TO {to:#x}")?,
            Opcode::AtomicRequest => write!(f, " on STag {stag:#010x}, TO {to:#x}")?,
            Opcode::AtomicResponse | Opcode::Terminate => {}
            _ if self.work != Work::This => {
                write!(f, " (number {stag} on this connection, at offset {to})")?;
            }
            _ => {}
        }
        match self.work {
            Work::Unknown | Work::This => Ok(()),
            Work::Complete => write!(f, " (already complete, if this side sent it)"),
        }
    }
}

impl fmt::Display for TerminateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place(f)?;
        let name = if self.is_ird() {
            "more Reads are outstanding than it has places for"
        } else if self.is_misaligned() {
            "the memory address at the peer is not a multiple of 8"
        } else {
            self.meant.name()
        };
        write!(f, ": {name} ({}, {})", self.meant.kind(), self.meant)?;
        if self.siw {
            write!(f, "; sent in the layout of Linux siw")?;
        }
        if self.code != self.meant {
            write!(f, ", as {}", self.code)?;
        }
        if let Some(code) = self.if_siw {
            let (name, kind) = (code.name(), code.kind());
            write!(f, "; from Linux siw it would mean: {name} ({kind}, {code})")?;
        }
        Ok(())
    }
}

fn is(code: TerminateCode, (layer, etype, number): (u8, u8, u8)) -> bool {
    code == TerminateCode {
        layer,
        etype,
        code: number,
    }
}

//! A Terminate Message in words.

use core::fmt;

use uwarp_ddp::Header;

use super::Terminate;

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(opcode) = self.opcode() {
            write!(f, "{opcode} refused: ")?;
        }
        write!(
            f,
            "{} ({}, {})",
            self.code.name(),
            self.code.kind(),
            self.code
        )?;
        if let Some(request) = &self.rdma_header {
            let (stag, to, len) = (request.source_stag, request.source_to, request.len);
            return write!(f, "; source STag {stag}, TO {to}, {len} octets");
        }
        match self.ddp_header() {
            Some(Header::Tagged(header)) => {
                write!(f, "; STag {}, TO {}", header.stag, header.to)?;
            }
            Some(Header::Untagged(header)) => {
                write!(f, "; message {} on Queue Number {}", header.msn, header.qn)?;
                write!(f, ", Message Offset {}", header.mo)?;
            }
            None => {}
        }
        match self.segment_len {
            Some(len) => write!(f, ", in a DDP segment of {len} octets"),
            None => Ok(()),
        }
    }
}

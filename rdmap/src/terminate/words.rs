//! Text of a Terminate Message.

use core::fmt;

use uwarp_ddp::Header;

use super::layout::Reading;
use super::{Terminate, siw};

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(opcode) = self.opcode()
            && self.headers_fit()
        {
            write!(f, "{opcode} refused: ")?;
        }
        write!(
            f,
            "{} ({}, {})",
            self.code.name(),
            self.code.kind(),
            self.code
        )?;
        self.place(f)?;
        self.siw(f)
    }
}

impl Terminate {
    /// Writes the place where the error was found.
    fn place(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.headers_fit() {
            return Ok(());
        }
        if let Some(request) = &self.rdma_header {
            let (stag, to, len) = (request.source_stag, request.source_to, request.len);
            return write!(f, "; source STag {stag}, TO {to}, {len} bytes");
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
        match (self.segment_len, self.reading) {
            (Some(len), Reading::Siw) => {
                write!(f, ", in a DDP segment with {len} bytes of payload")
            }
            (Some(len), _) => write!(f, ", in a DDP segment of {len} bytes"),
            (None, _) => Ok(()),
        }
    }

    /// Writes the meaning that Linux siw gives the code, if the peer is siw or may be.
    fn siw(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(code) = self.if_siw() {
            let (name, kind) = (code.name(), code.kind());
            return write!(f, "; from Linux siw it would mean: {name} ({kind}, {code})");
        }
        if self.reading != Reading::Siw {
            return Ok(());
        }
        write!(f, "; sent in the layout of Linux siw")?;
        match siw::departure(self) {
            Some(departure) => write!(
                f,
                ", which means by it: {} ({})",
                departure.means, departure.rfc
            ),
            None => Ok(()),
        }
    }
}

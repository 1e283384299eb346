//! Assembly of a startup frame from the pieces in which it arrives.

use alloc::vec::Vec;

use super::error::{FirstBytes, StartupError};
use super::frame::{FrameKind, Parsed, StartupFrame};
use super::options::Revision;
use crate::mutants::mutate;

/// Offset of the Rev field.
const REV: usize = 17;

/// A startup frame that is being received.
#[derive(Clone, Debug)]
pub(super) struct Assembler {
    kind: FrameKind,
    /// Highest revision that this side accepts.
    highest: Revision,
    /// Bytes of the frame received so far, at most 532.
    bytes: Vec<u8>,
}

impl Assembler {
    pub(super) const fn new(kind: FrameKind, highest: Revision) -> Self {
        Self {
            kind,
            highest,
            bytes: Vec::new(),
        }
    }

    /// Number of bytes taken so far.
    pub(super) fn received(&self) -> usize {
        self.bytes.len()
    }

    /// Takes the bytes of the frame from `input`. Returns the number of bytes taken, and the frame
    /// with its revision once it is complete.
    pub(super) fn push(
        &mut self,
        input: &[u8],
    ) -> Result<(usize, Option<(StartupFrame, Revision)>), StartupError> {
        let mut rest = input;
        loop {
            let need = match self.parse(rest)? {
                Ok(frame) => return Ok((input.len() - rest.len(), Some(frame))),
                Err(need) => need,
            };
            if rest.is_empty() {
                return Ok((input.len(), None));
            }
            let missing = need.saturating_sub(self.bytes.len()).min(rest.len());
            let (taken, left) = rest.split_at(missing);
            self.bytes.extend_from_slice(taken);
            rest = left;
        }
    }

    /// Returns the frame, or the number of bytes that it needs (`Ok(Err(..))`). `rest` holds the
    /// bytes after those already taken. They are used only in the error about a peer that does not
    /// speak MPA.
    fn parse(&self, rest: &[u8]) -> Result<Result<(StartupFrame, Revision), usize>, StartupError> {
        let parsed = StartupFrame::parse(self.kind, &self.bytes);
        if let Err(StartupError::NotMpa { peer, .. }) = parsed {
            let first = FirstBytes::of(&self.bytes, rest);
            return Err(StartupError::NotMpa { first, peer });
        }
        // 5044-7.1.1-13: the key is valid, so check Rev before the fields that only a known
        // revision defines.
        let revision = match self.bytes.get(REV) {
            Some(&revision) if !wrong_frame(&parsed) => Some(self.check_revision(revision)?),
            _ => None,
        };
        match (parsed?, revision) {
            (Parsed::Frame(frame, _), Some(revision)) => Ok(Ok((frame, revision))),
            (Parsed::Frame(_, need) | Parsed::Need(need), _) => Ok(Err(need)),
        }
    }

    fn check_revision(&self, revision: u8) -> Result<Revision, StartupError> {
        Revision::from_code(mutate!(revision, RevisionNotChecked => revision.clamp(1, 2)))
            .filter(|revision| *revision <= self.highest)
            .ok_or(StartupError::UnsupportedRevision {
                revision,
                highest: self.highest.code(),
            })
    }
}

/// Returns true if the key is that of the other kind of frame.
fn wrong_frame(parsed: &Result<Parsed, StartupError>) -> bool {
    matches!(
        parsed,
        Err(StartupError::RequestInsteadOfReply | StartupError::ReplyInsteadOfRequest)
    )
}

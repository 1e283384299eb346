//! Changes to the startup frame of the suite. They apply on top of the settings of a run and the
//! role of the target. So a frame can have one invalid or unusual field, and its other fields are
//! correct.

use crate::wire::startup::StartupFrame;
use crate::words::many;

/// Changes to single fields of a startup frame, and to the way it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameChanges {
    key: Option<[u8; 16]>,
    flags: u8,
    rev: Option<u8>,
    private_data: Vec<u8>,
    claim: i16,
    /// Offsets at which the frame is cut into pieces.
    pub(crate) cuts: Vec<usize>,
    /// If set, only this many bytes of the frame are sent.
    pub(crate) only: Option<usize>,
}

impl FrameChanges {
    /// Creates a change that replaces the Key.
    pub(crate) fn key(key: &[u8; 16]) -> Self {
        FrameChanges {
            key: Some(*key),
            ..FrameChanges::default()
        }
    }

    /// Creates a change that sets these flags in addition to the others.
    pub(crate) fn flags(flags: u8) -> Self {
        FrameChanges {
            flags,
            ..FrameChanges::default()
        }
    }

    /// Creates a change that replaces the revision.
    pub(crate) fn rev(rev: u8) -> Self {
        FrameChanges {
            rev: Some(rev),
            ..FrameChanges::default()
        }
    }

    /// Creates a change that appends this many bytes of Private Data, with the values 0, 1, 2 and
    /// so on. Enhanced connection data remains before them.
    pub(crate) fn private_data(len: usize) -> Self {
        FrameChanges {
            private_data: private_data(len),
            ..FrameChanges::default()
        }
    }

    /// Creates a change that appends this many zeros after the frame, without counting them in
    /// PD_Length. The zeros are no valid FPDU, because a ULPDU has at least one byte.
    pub(crate) fn trailing(zeros: i16) -> Self {
        FrameChanges {
            private_data: vec![0; usize::from(zeros.unsigned_abs())],
            claim: -zeros,
            ..FrameChanges::default()
        }
    }

    /// Creates a change that cuts the frame at these offsets.
    pub(crate) fn in_pieces(cuts: impl IntoIterator<Item = usize>) -> Self {
        FrameChanges {
            cuts: cuts.into_iter().collect(),
            ..FrameChanges::default()
        }
    }

    /// Creates a change that sends only the first `bytes` bytes.
    pub(crate) fn only(bytes: usize) -> Self {
        FrameChanges {
            only: Some(bytes),
            ..FrameChanges::default()
        }
    }

    /// Also sends only the first `bytes` bytes.
    pub(crate) fn and_only(mut self, bytes: usize) -> Self {
        self.only = Some(bytes);
        self
    }

    /// Also sets these flags.
    pub(crate) fn and_flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    /// Describes the changes in words.
    pub(super) fn differences(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(key) = &self.key {
            said.push(format!("Key {:?}", String::from_utf8_lossy(key)));
        }
        if self.flags != 0 {
            said.push(format!("also flags {:#04x}", self.flags));
        }
        if let Some(rev) = self.rev {
            said.push(format!("Rev {rev}"));
        }
        if !self.private_data.is_empty() {
            let len = self.private_data.len();
            let len = many(len, "more byte");
            said.push(format!("{len} of Private Data"));
        }
        if self.claim != 0 {
            said.push(format!("PD_Length {:+}", self.claim));
        }
        if !self.cuts.is_empty() {
            said.push(format!("in {}", many(self.cuts.len() + 1, "piece")));
        }
        if let Some(only) = self.only {
            said.push(format!("only the first {only}", only = many(only, "byte")));
        }
        said
    }

    /// Returns the frame with these changes.
    pub(crate) fn of(&self, mut frame: StartupFrame) -> StartupFrame {
        frame.key = self.key.unwrap_or(frame.key);
        frame.flags |= self.flags;
        frame.rev = self.rev.unwrap_or(frame.rev);
        frame.private_data.extend_from_slice(&self.private_data);
        if self.claim != 0 {
            let len = u16::try_from(frame.private_data.len()).unwrap_or(u16::MAX);
            frame.pd_length = Some(len.wrapping_add_signed(self.claim));
        }
        frame
    }
}

/// Returns Private Data of the suite: bytes that count up from 0.
pub(crate) fn private_data(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

//! How the suite's own startup frame differs from the one that fits: whatever a run's settings and the target's role are,
//! the frame has one thing wrong (or odd), and the rest right.

use crate::wire::startup::StartupFrame;
use crate::words::many;

/// The difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Twist {
    key: Option<[u8; 16]>,
    flags: u8,
    rev: Option<u8>,
    private_data: Vec<u8>,
    claim: i16,
    /// The frame is sent in pieces that end at these bytes.
    pub(crate) cuts: Vec<usize>,
    /// Only so many of its bytes are sent.
    pub(crate) only: Option<usize>,
}

impl Twist {
    /// Another Key.
    pub(crate) fn key(key: &[u8; 16]) -> Self {
        Twist {
            key: Some(*key),
            ..Twist::default()
        }
    }

    /// These flags, too.
    pub(crate) fn flags(flags: u8) -> Self {
        Twist {
            flags,
            ..Twist::default()
        }
    }

    /// Another revision.
    pub(crate) fn rev(rev: u8) -> Self {
        Twist {
            rev: Some(rev),
            ..Twist::default()
        }
    }

    /// So many bytes of Private Data (0, 1, 2 and so on), behind the enhanced connection data where the frame has it.
    pub(crate) fn private_data(len: usize) -> Self {
        Twist {
            private_data: private_data(len),
            ..Twist::default()
        }
    }

    /// So many zeros behind the frame, that PD_Length does not count. No FPDU is like this: none has a ULPDU of no bytes.
    pub(crate) fn trailing(zeros: i16) -> Self {
        Twist {
            private_data: vec![0; usize::from(zeros.unsigned_abs())],
            claim: -zeros,
            ..Twist::default()
        }
    }

    /// In pieces that end at these bytes.
    pub(crate) fn in_pieces(cuts: impl IntoIterator<Item = usize>) -> Self {
        Twist {
            cuts: cuts.into_iter().collect(),
            ..Twist::default()
        }
    }

    /// Only the first bytes.
    pub(crate) fn only(octets: usize) -> Self {
        Twist {
            only: Some(octets),
            ..Twist::default()
        }
    }

    /// And only the first bytes.
    pub(crate) fn and_only(mut self, octets: usize) -> Self {
        self.only = Some(octets);
        self
    }

    /// And with these flags.
    pub(crate) fn and_flags(mut self, flags: u8) -> Self {
        self.flags |= flags;
        self
    }

    /// In words.
    pub(super) fn differences(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(key) = &self.key {
            said.push(format!("Key {:?}", String::from_utf8_lossy(key)));
        }
        if self.flags != 0 {
            said.push(format!("flags {:#04x}, too", self.flags));
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
            said.push(format!("of it the first {only}", only = many(only, "byte")));
        }
        said
    }

    /// The frame with this difference.
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

/// The Private Data of a frame of this suite: bytes that count.
pub(crate) fn private_data(len: usize) -> Vec<u8> {
    (0..len).map(|at| at as u8).collect()
}

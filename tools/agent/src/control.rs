//! Protocol of the control connection, without I/O. It splits the input into lines and queues the
//! output. The length of a line and of the queue is limited.

use std::sync::Arc;

use crate::budget::{Budget, Charge};

/// Maximum length of a line in bytes, without its end.
const MAX_LINE: usize = 65_535;
/// Number of queued bytes at which no further command is executed until the controller has read
/// some of the output.
const FULL: usize = 1 << 20;
/// Number of queued bytes at which the session ends. Events and completions add to the queue even
/// if no command is executed.
const MAX_QUEUE: usize = 16 << 20;

/// A line from the controller, or the error that it is too long.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum InputLine {
    Line(Vec<u8>),
    TooLong,
}

/// Input and output of one controller. The owner of the connection sends and receives the bytes.
pub(crate) struct Control {
    input: Input,
    output: Vec<u8>,
    /// Number of bytes at the start of `output` that have been sent.
    sent: usize,
    ended: bool,
    /// Memory that all controllers share.
    budget: Arc<Budget>,
    /// Charges for the queued bytes beyond `FULL`, one for each `FULL` bytes.
    charges: Vec<Charge>,
}

impl Control {
    pub(crate) fn new(budget: Arc<Budget>) -> Control {
        Control {
            input: Input::default(),
            output: Vec::new(),
            sent: 0,
            ended: false,
            budget,
            charges: Vec::new(),
        }
    }

    /// Appends bytes that were received from the controller.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.input.take(bytes);
    }

    /// Removes and returns the next line. Returns `None` if no line is complete, or if the output
    /// queue is full.
    pub(crate) fn next(&mut self) -> Option<InputLine> {
        if self.is_full() {
            return None;
        }
        self.input.next()
    }

    /// Queues a line for the controller. If the queue would exceed its limit, ends the session
    /// instead.
    pub(crate) fn write(&mut self, line: &str) {
        let len = self.queued().len() + line.len();
        if len > MAX_QUEUE || !self.reserve(len) {
            tracing::warn!("a controller does not read its output; its session ends");
            self.ended = true;
        }
        if !self.ended {
            self.output.extend_from_slice(line.as_bytes());
        }
    }

    /// Charges the budget for a queue of `len` bytes. Returns false if too little is left. The
    /// first `FULL` bytes of each controller are free.
    fn reserve(&mut self, len: usize) -> bool {
        while (self.charges.len() + 1) * FULL < len {
            match self.budget.charge(FULL as u64) {
                Ok(charge) => self.charges.push(charge),
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns the bytes that wait to be sent.
    pub(crate) fn queued(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Removes the first `bytes` bytes from the queue after they were sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent == self.output.len() {
            self.output.clear();
            self.output.shrink_to(FULL);
            self.charges.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Returns true if the output queue is full. While it is full, nothing is read from the
    /// controller.
    pub(crate) fn is_full(&self) -> bool {
        self.queued().len() >= FULL
    }

    /// Records that the connection has ended.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns true if the connection has ended, or the output queue exceeded its limit.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }
}

/// Splits received bytes into lines.
#[derive(Default)]
struct Input {
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that were returned as lines.
    taken: usize,
    /// Number of bytes after `taken` that contain no end of line.
    searched: usize,
    /// True while the rest of an overlong line is discarded.
    skipping: bool,
}

impl Input {
    fn take(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Option<InputLine> {
        loop {
            let rest = &self.bytes[self.taken..];
            let fresh = rest.get(self.searched..).unwrap_or_default();
            let Some(end) = fresh.iter().position(|byte| *byte == b'\n') else {
                return self.unfinished();
            };
            let line = rest[..self.searched + end].to_vec();
            self.taken += line.len() + 1;
            self.searched = 0;
            if std::mem::take(&mut self.skipping) || line.is_empty() || line == b"\r" {
                continue;
            }
            return Some(if line.len() > MAX_LINE {
                InputLine::TooLong
            } else {
                InputLine::Line(line)
            });
        }
    }

    /// Handles input without an end of line. If the line is already too long, discards it and
    /// returns the error.
    fn unfinished(&mut self) -> Option<InputLine> {
        self.searched = self.bytes.len() - self.taken;
        if self.searched <= MAX_LINE {
            return None;
        }
        (self.taken, self.searched) = (self.bytes.len(), 0);
        let was_skipping = std::mem::replace(&mut self.skipping, true);
        (!was_skipping).then_some(InputLine::TooLong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<InputLine> {
        Some(InputLine::Line(text.as_bytes().to_vec()))
    }

    #[test]
    fn lines_come_whole_however_they_arrive() {
        let mut input = Input::default();
        input.take(b"{}\n\n\r\nab");
        assert_eq!(input.next(), line("{}"));
        assert_eq!(input.next(), None);
        input.take(b"c");
        assert_eq!(input.next(), None);
        input.take(b"d\ne");
        assert_eq!(input.next(), line("abcd"));
        assert_eq!(input.next(), None);
    }

    #[test]
    fn a_line_that_is_too_long_is_told_once_and_not_kept() {
        let mut input = Input::default();
        for _ in 0..9 {
            input.take(&[b'x'; 16_384]);
        }
        assert_eq!(input.next(), Some(InputLine::TooLong));
        input.take(&[b'x'; 70_000]);
        assert_eq!(input.next(), None);
        input.take(b"x\n{}\n");
        assert!(input.bytes.len() < 100);
        assert_eq!(input.next(), line("{}"));
    }

    #[test]
    fn a_line_of_the_greatest_length_is_taken() {
        let mut input = Input::default();
        let longest = "x".repeat(MAX_LINE);
        input.take(format!("{longest}\n{longest}x\n{{}}\n").as_bytes());
        assert_eq!(input.next(), line(&longest));
        assert_eq!(input.next(), Some(InputLine::TooLong));
        assert_eq!(input.next(), line("{}"));
    }
}

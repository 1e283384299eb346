//! Protocol of the control connection, without I/O: whole lines in, lines out, both bounded.

/// Length of the longest line in bytes, without its end.
const MAX_LINE: usize = 65_535;
/// Queued bytes at which the controller's commands wait until it reads.
const FULL: usize = 1 << 20;
/// Queued bytes at which the session ends. Events and completions add to the queue without a
/// command.
const MAX_QUEUE: usize = 16 << 20;

/// A line from the controller, or its error.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Incoming {
    Line(Vec<u8>),
    TooLong,
}

/// Input and output of one controller. The owner of the connection moves the bytes.
#[derive(Default)]
pub(crate) struct Control {
    input: Input,
    output: Vec<u8>,
    /// Bytes at the start of `output` that have been sent.
    sent: usize,
    ended: bool,
}

impl Control {
    /// Appends bytes that the controller sent.
    pub(crate) fn take(&mut self, octets: &[u8]) {
        self.input.take(octets);
    }

    /// Returns the next line, if there is room for its answer.
    pub(crate) fn next(&mut self) -> Option<Incoming> {
        if self.is_full() {
            return None;
        }
        self.input.next()
    }

    /// Queues a line.
    pub(crate) fn write(&mut self, line: &str) {
        if self.queued().len() + line.len() > MAX_QUEUE {
            tracing::warn!("a controller does not read its output; its session ends");
            self.ended = true;
        }
        if !self.ended {
            self.output.extend_from_slice(line.as_bytes());
        }
    }

    /// Bytes that wait to be sent.
    pub(crate) fn queued(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Removes `octets` bytes from the queue, because they were sent.
    pub(crate) fn sent(&mut self, octets: usize) {
        self.sent += octets;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Returns true if the controller has to read before anything more is read from it.
    pub(crate) fn is_full(&self) -> bool {
        self.queued().len() >= FULL
    }

    /// Records that the connection has ended.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns true if the connection has ended, or the session was ended by the limit of the
    /// queue.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }
}

/// Received bytes, split into lines.
#[derive(Default)]
struct Input {
    octets: Vec<u8>,
    /// Bytes at the start that were returned.
    taken: usize,
    /// Bytes after `taken` that are known to have no end of line.
    searched: usize,
    /// True while the rest of a line that is too long is discarded.
    skipping: bool,
}

impl Input {
    fn take(&mut self, octets: &[u8]) {
        self.octets.drain(..self.taken);
        self.taken = 0;
        self.octets.extend_from_slice(octets);
    }

    fn next(&mut self) -> Option<Incoming> {
        loop {
            let rest = &self.octets[self.taken..];
            let fresh = rest.get(self.searched..).unwrap_or_default();
            let Some(end) = fresh.iter().position(|octet| *octet == b'\n') else {
                return self.unfinished();
            };
            let line = rest[..self.searched + end].to_vec();
            self.taken += line.len() + 1;
            self.searched = 0;
            if std::mem::take(&mut self.skipping) || line.is_empty() || line == b"\r" {
                continue;
            }
            return Some(if line.len() > MAX_LINE {
                Incoming::TooLong
            } else {
                Incoming::Line(line)
            });
        }
    }

    /// Handles input without an end of line. Discards a line that is already too long.
    fn unfinished(&mut self) -> Option<Incoming> {
        self.searched = self.octets.len() - self.taken;
        if self.searched <= MAX_LINE {
            return None;
        }
        (self.taken, self.searched) = (self.octets.len(), 0);
        let was_skipping = std::mem::replace(&mut self.skipping, true);
        (!was_skipping).then_some(Incoming::TooLong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<Incoming> {
        Some(Incoming::Line(text.as_bytes().to_vec()))
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
        assert_eq!(input.next(), Some(Incoming::TooLong));
        input.take(&[b'x'; 70_000]);
        assert_eq!(input.next(), None);
        input.take(b"x\n{}\n");
        assert!(input.octets.len() < 100);
        assert_eq!(input.next(), line("{}"));
    }

    #[test]
    fn a_line_of_the_greatest_length_is_taken() {
        let mut input = Input::default();
        let longest = "x".repeat(MAX_LINE);
        input.take(format!("{longest}\n{longest}x\n{{}}\n").as_bytes());
        assert_eq!(input.next(), line(&longest));
        assert_eq!(input.next(), Some(Incoming::TooLong));
        assert_eq!(input.next(), line("{}"));
    }
}

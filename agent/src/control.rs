//! The control connection without the connection: whole lines in, lines out, both bounded.

/// The longest line, without its end.
const MAX_LINE: usize = 65_535;
/// While so much waits for the controller, its commands wait too.
const FULL: usize = 1 << 20;
/// When so much waits for it (events and completions need no command), it is given up.
const MAX_QUEUE: usize = 16 << 20;

/// What came: one line, or what is wrong with it.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Incoming {
    Line(Vec<u8>),
    TooLong,
}

/// What one controller has said and what it is to hear. Who has the connection to it carries the bytes.
#[derive(Default)]
pub(crate) struct Control {
    input: Input,
    output: Vec<u8>,
    /// Bytes of `output` that are gone.
    sent: usize,
    ended: bool,
}

impl Control {
    /// The controller says this.
    pub(crate) fn take(&mut self, octets: &[u8]) {
        self.input.take(octets);
    }

    /// The next line, as long as there is room for its answer.
    pub(crate) fn next(&mut self) -> Option<Incoming> {
        if self.is_full() {
            return None;
        }
        self.input.next()
    }

    /// Queues a line.
    pub(crate) fn write(&mut self, line: &str) {
        if self.queued().len() + line.len() > MAX_QUEUE {
            tracing::warn!("a controller does not read what it is told, and is given up");
            self.ended = true;
        }
        if !self.ended {
            self.output.extend_from_slice(line.as_bytes());
        }
    }

    /// What waits for the controller.
    pub(crate) fn queued(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// So many bytes of what waits are on their way.
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

    /// Whether nothing more is to be read from the controller until it takes what waits.
    pub(crate) fn is_full(&self) -> bool {
        self.queued().len() >= FULL
    }

    /// The controller is gone.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the controller is gone, or was given up.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }
}

/// Bytes as they came, cut into lines.
#[derive(Default)]
struct Input {
    octets: Vec<u8>,
    /// Bytes that were handed out.
    taken: usize,
    /// Bytes behind `taken` that have no end of line.
    searched: usize,
    /// The rest of a line that was too long is passed over.
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

    /// No whole line is there. One that is too long already is not kept.
    fn unfinished(&mut self) -> Option<Incoming> {
        self.searched = self.octets.len() - self.taken;
        if self.searched <= MAX_LINE {
            return None;
        }
        (self.taken, self.searched) = (self.octets.len(), 0);
        let told = std::mem::replace(&mut self.skipping, true);
        (!told).then_some(Incoming::TooLong)
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

//! The control connection: whole lines in, lines out, both bounded, never blocking.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

/// The control connection of one controller.
pub(crate) struct Control {
    stream: TcpStream,
    input: Input,
    output: Vec<u8>,
    /// Octets of `output` that are sent.
    sent: usize,
    ended: bool,
}

impl Control {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Control> {
        stream.set_nonblocking(true)?;
        Ok(Control {
            stream,
            input: Input::default(),
            output: Vec::new(),
            sent: 0,
            ended: false,
        })
    }

    /// What to wait for: room when something is to be sent, octets while there is room for answers.
    pub(crate) fn interest(&self) -> PollFd<'_> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::OUT, self.queued() > 0);
        events.set(PollFlags::IN, self.queued() < FULL);
        PollFd::new(&self.stream, events)
    }

    /// Reads once, and sends what waits. Nothing of it blocks.
    pub(crate) fn turn(&mut self) {
        self.send();
        if self.queued() < FULL && !self.ended {
            self.read();
        }
    }

    fn read(&mut self) {
        let mut octets = [0; 16_384];
        match self.stream.read(&mut octets) {
            Ok(0) => self.ended = true,
            Ok(count) => self.input.take(&octets[..count]),
            Err(error) if is_for_now(&error) => {}
            Err(_) => self.ended = true,
        }
    }

    /// The next line, as long as there is room for its answer.
    pub(crate) fn next(&mut self) -> Option<Incoming> {
        if self.queued() >= FULL {
            return None;
        }
        self.input.next()
    }

    /// Queues a line, and sends it when it can.
    pub(crate) fn write(&mut self, line: &str) {
        if self.queued() + line.len() > MAX_QUEUE {
            tracing::warn!("a controller does not read what it is told, and is given up");
            self.ended = true;
        }
        if !self.ended {
            self.output.extend_from_slice(line.as_bytes());
            self.send();
        }
    }

    fn queued(&self) -> usize {
        self.output.len() - self.sent
    }

    fn send(&mut self) {
        while self.queued() > 0 {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.ended = true;
                    break;
                }
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Waits a little for the last words to be taken.
    pub(crate) fn flush(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.queued() > 0 && !self.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut set = [PollFd::new(&self.stream, PollFlags::OUT)];
            let ready = poll(&mut set, Timespec::try_from(left).ok().as_ref());
            if left.is_zero() || ready.is_err() {
                return;
            }
            self.send();
        }
    }

    /// Whether the controller is gone, and all its lines were handed out.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Octets as they came, cut into lines.
#[derive(Default)]
struct Input {
    octets: Vec<u8>,
    /// Octets that were handed out.
    taken: usize,
    /// Octets behind `taken` that have no end of line.
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

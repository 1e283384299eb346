//! A controller that has connected: its session, and the thread that has it.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::session::Session;

/// Time for a controller to take the last words before its connection is closed.
const LAST_WORDS: Duration = Duration::from_secs(1);
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A controller at the other end of a TCP connection.
pub(crate) struct Controller {
    stream: TcpStream,
    session: Session,
}

impl Controller {
    pub(crate) fn new(stream: TcpStream, session: Session) -> io::Result<Controller> {
        stream.set_nonblocking(true)?;
        Ok(Controller { stream, session })
    }

    /// Serves the controller until it leaves.
    pub(crate) fn run(mut self) {
        let mut busy = true;
        while !self.session.is_over() {
            if let Err(error) = self.wait(busy) {
                tracing::error!(%error, "waiting for a controller failed; it is given up");
                break;
            }
            busy = self.session.turn();
            self.send();
        }
        self.session.reset();
        self.last_words();
    }

    /// Waits until something happens: also for room when something is to be sent, and for bytes while there is room for
    /// answers. Only looks while the session is `busy`: commands may have waited for room that there is now.
    fn wait(&mut self, busy: bool) -> io::Result<()> {
        let control = &self.session.control;
        let mut events = PollFlags::empty();
        events.set(PollFlags::OUT, !control.queued().is_empty());
        events.set(PollFlags::IN, !control.is_full());
        let mailbox = Arc::clone(&self.session.membership.mailbox);
        let mut set = [
            PollFd::new(&self.session.cm, PollFlags::IN),
            PollFd::new(&self.session.completions, PollFlags::IN),
            PollFd::new(&mailbox.wake, PollFlags::IN),
            PollFd::new(&self.stream, events),
        ];
        match poll(&mut set, busy.then_some(&AT_ONCE)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if !set[3].revents().is_empty() {
            self.send();
            self.read();
        }
        Ok(())
    }

    /// Reads once, if there is room for answers.
    fn read(&mut self) {
        let control = &mut self.session.control;
        if control.is_full() || control.is_over() {
            return;
        }
        let mut octets = [0; 16_384];
        match self.stream.read(&mut octets) {
            Ok(0) => control.end(),
            Ok(count) => control.take(&octets[..count]),
            Err(error) if is_for_now(&error) => {}
            Err(_) => control.end(),
        }
    }

    fn send(&mut self) {
        let control = &mut self.session.control;
        while !control.queued().is_empty() && !control.is_over() {
            match self.stream.write(control.queued()) {
                Ok(count) => control.sent(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => control.end(),
            }
        }
    }

    /// Waits a little for the last words to be taken.
    fn last_words(&mut self) {
        let deadline = Instant::now() + LAST_WORDS;
        self.send();
        while !self.session.control.queued().is_empty() && !self.session.control.is_over() {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut set = [PollFd::new(&self.stream, PollFlags::OUT)];
            let ready = poll(&mut set, Timespec::try_from(left).ok().as_ref());
            if left.is_zero() || ready.is_err() {
                return;
            }
            self.send();
        }
    }
}

fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

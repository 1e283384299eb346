//! Thread that serves a connected controller and runs its session.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::session::Session;

/// Maximum time to send the last lines before the connection is closed.
const FLUSH_TIME: Duration = Duration::from_secs(1);
/// Timeout for a poll that must not block.
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A controller that is connected over TCP.
pub(crate) struct Controller {
    stream: TcpStream,
    session: Session,
}

impl Controller {
    pub(crate) fn new(stream: TcpStream, session: Session) -> io::Result<Controller> {
        stream.set_nonblocking(true)?;
        Ok(Controller { stream, session })
    }

    /// Serves the controller until its session ends, and then sends the rest of its output.
    pub(crate) fn run(mut self) {
        let mut busy = true;
        while !self.session.is_over() {
            if let Err(error) = self.wait(busy) {
                tracing::error!(%error, "waiting for a controller failed; its session ends");
                break;
            }
            busy = self.session.turn();
            self.send();
        }
        self.session.reset();
        self.flush_queue();
    }

    /// Waits for events, for input if the output queue has room, and for room in the connection if
    /// output is queued. Then sends and reads. Does not block if the session is `busy`, because
    /// commands that waited for room in the queue may now be executed.
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

    /// Reads from the connection once, if the output queue has room.
    fn read(&mut self) {
        let control = &mut self.session.control;
        if control.is_full() || control.is_over() {
            return;
        }
        let mut bytes = [0; 16_384];
        match self.stream.read(&mut bytes) {
            Ok(0) => control.end(),
            Ok(count) => control.take(&bytes[..count]),
            Err(error) if is_temporary(&error) => {}
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

    /// Sends the output queue, for at most `FLUSH_TIME`.
    fn flush_queue(&mut self) {
        let deadline = Instant::now() + FLUSH_TIME;
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

fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

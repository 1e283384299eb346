//! Guests with siw, one after another. The C agent runs in each.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use uwarp_conformance::{Channel, Targets};
use uwarp_interop::{Guest, HostTap, Image};

/// Time limit for a write to the agent. A guest that reads nothing for longer has failed.
const WRITE: Duration = Duration::from_secs(10);

/// Records about the guests of a run, which can be read while the suite uses the guests.
#[derive(Default)]
pub(crate) struct Diary {
    booted: AtomicUsize,
    troubles: Mutex<BTreeMap<usize, String>>,
}

impl Diary {
    /// Returns the number of guests booted so far. It is also the number of the current guest,
    /// because guests are counted from 1.
    pub(crate) fn booted(&self) -> usize {
        self.booted.load(Ordering::Relaxed)
    }

    /// Returns the log of a guest's kernel, if it reported a bug.
    pub(crate) fn trouble(&self, number: usize) -> Option<String> {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.get(&number).cloned()
    }

    fn note(&self, number: usize, guest: &Guest) {
        if let Some(trouble) = guest.trouble() {
            eprintln!("the kernel of guest {number} is in trouble:\n{trouble}");
            let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
            troubles.insert(number, trouble);
        }
    }
}

/// Boots a new guest when the suite needs one.
pub(crate) struct Guests<'a> {
    image: &'a Image,
    tap: &'a HostTap,
    guest: Option<Guest>,
    diary: &'a Diary,
    /// Maximum number of guests that may be booted.
    most: usize,
}

impl<'a> Guests<'a> {
    pub(crate) fn new(image: &'a Image, tap: &'a HostTap, diary: &'a Diary, most: usize) -> Self {
        Guests {
            image,
            tap,
            guest: None,
            diary,
            most,
        }
    }
}

impl Targets for Guests<'_> {
    fn start(&mut self) -> io::Result<Box<dyn Channel>> {
        if let Some(old) = self.guest.take() {
            self.diary.note(self.diary.booted(), &old);
        }
        if self.diary.booted.fetch_add(1, Ordering::Relaxed) >= self.most {
            return Err(io::Error::other(format!(
                "{} guests have died; no other is started",
                self.most
            )));
        }
        let (net, addresses) = (self.tap.net_device(), self.tap.guest_addresses());
        let (guest, stream) = Guest::boot_without_controller(self.image, &net, &addresses, None)
            .map_err(|failure| io::Error::other(failure.to_string()))?;
        stream.set_write_timeout(Some(WRITE))?;
        self.guest = Some(guest);
        Ok(Box::new(AgentChannel(stream)))
    }
}

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        if let Some(last) = &self.guest {
            self.diary.note(self.diary.booted(), last);
        }
    }
}

/// Channel to the agent in the guest.
struct AgentChannel(UnixStream);

impl Channel for AgentChannel {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn receive(&mut self, bytes: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let timeout = timeout.max(Duration::from_millis(1));
        self.0.set_read_timeout(Some(timeout))?;
        match self.0.read(bytes) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => Ok(count),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            },
        }
    }
}

//! Guests with siw, one after the other, each with the C agent in it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use uwarp_conformance::{Channel, Targets};
use uwarp_interop::{Guest, HostTap, Image};

/// A guest that reads nothing for so long is not well.
const WRITE: Duration = Duration::from_secs(10);

/// What is known of the guests of a run, also while the suite has them.
#[derive(Default)]
pub(crate) struct Diary {
    booted: AtomicUsize,
    troubles: Mutex<BTreeMap<usize, String>>,
}

impl Diary {
    /// How many guests there were until now: the number of the present one, from 1.
    pub(crate) fn booted(&self) -> usize {
        self.booted.load(Ordering::Relaxed)
    }

    /// What the kernel of a guest said in its trouble.
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

/// Where guests come from.
pub(crate) struct Guests<'a> {
    image: &'a Image,
    tap: &'a HostTap,
    guest: Option<Guest>,
    diary: &'a Diary,
    /// How many there may be.
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
                "{} guests have died, and there will be no other one",
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

/// The agent's port of the guest.
struct AgentChannel(UnixStream);

impl Channel for AgentChannel {
    fn send(&mut self, octets: &[u8]) -> io::Result<()> {
        self.0.write_all(octets)
    }

    fn receive(&mut self, octets: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let timeout = timeout.max(Duration::from_millis(1));
        self.0.set_read_timeout(Some(timeout))?;
        match self.0.read(octets) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => Ok(count),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            },
        }
    }
}

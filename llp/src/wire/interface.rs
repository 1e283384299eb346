//! A network interface of the kernel: its current state, and the consequences of failed calls on
//! it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};

use super::error::{AttachError, InterfaceName, OpenError};
use super::sys;
use crate::LlpError;

/// Time for which an interface may be down before the wire fails. Until then frames are lost, as
/// with a cable that is unplugged and plugged in again.
const PATIENCE: Duration = Duration::from_secs(5);

/// Current state of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    Up,
    Down,
    /// Deleted, or moved to another network namespace.
    Gone,
}

/// A network interface, identified by its index, because it may be renamed while in use.
pub(super) struct Interface {
    name: InterfaceName,
    index: u32,
    /// Socket for the ioctls. They act on the socket's network namespace. The kind of the socket
    /// does not matter.
    control: OwnedFd,
    outage: Outage,
    /// True if a frame was lost because it was longer than the MTU.
    too_long: AtomicBool,
}

impl Interface {
    /// Finds the interface with this name. Returns `None` if there is none.
    pub(super) fn find(name: InterfaceName) -> Result<Option<Self>, LlpError> {
        let control = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| LlpError::from_local_errno("open a socket", errno))?;
        match netdevice::name_to_index(&control, name.as_str()) {
            Ok(index) => Ok(Some(Self {
                name,
                index,
                control,
                outage: Outage::new(PATIENCE),
                too_long: AtomicBool::new(false),
            })),
            Err(Errno::NODEV | Errno::NXIO) => Ok(None),
            Err(errno) => Err(LlpError::from_local_errno("look for the interface", errno)),
        }
    }

    pub(super) fn name(&self) -> InterfaceName {
        self.name
    }

    pub(super) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the current name of the interface; `None` if it no longer exists.
    fn name_now(&self) -> Option<InterfaceName> {
        let name = netdevice::index_to_name_inlined(&self.control, self.index).ok()?;
        name.as_str().parse().ok()
    }

    /// Returns the MTU of the interface; `None` if it no longer exists.
    pub(super) fn mtu(&self) -> Option<usize> {
        sys::mtu(&self.control, &self.name_now()?).ok()
    }

    /// Returns the MAC address of the interface; `None` if it is not an Ethernet.
    pub(super) fn ethernet_address(&self) -> Result<Option<[u8; 6]>, LlpError> {
        sys::ethernet_address(&self.control, &self.name)
            .map_err(|errno| LlpError::from_local_errno("ask for the MAC address", errno))
    }

    /// Brings the interface up if it is down.
    pub(super) fn ensure_up(&self) -> Result<(), OpenError> {
        let failed = |errno| match errno {
            Errno::PERM | Errno::ACCESS => AttachError::Down { name: self.name }.into(),
            errno => LlpError::from_local_errno("bring the interface up", errno).into(),
        };
        if sys::is_up(&self.control, &self.name).map_err(failed)? {
            return Ok(());
        }
        sys::bring_up(&self.control, &self.name).map_err(failed)
    }

    /// Sets the MTU of the interface.
    pub(super) fn set_mtu(&self, wanted: usize) -> Result<(), AttachError> {
        sys::set_mtu(&self.control, &self.name, wanted).map_err(|_| self.wrong_mtu(wanted))
    }

    /// Returns an error if `wanted` is above the interface's MTU.
    pub(super) fn allow_mtu(&self, wanted: Option<usize>) -> Result<(), AttachError> {
        match wanted {
            Some(wanted) if self.mtu().is_some_and(|has| has < wanted) => {
                Err(self.wrong_mtu(wanted))
            }
            _ => Ok(()),
        }
    }

    fn wrong_mtu(&self, wanted: usize) -> AttachError {
        AttachError::Mtu {
            name: self.name,
            has: self.mtu().unwrap_or(0),
            wanted,
        }
    }

    fn condition(&self) -> Condition {
        let up = self
            .name_now()
            .and_then(|name| sys::is_up(&self.control, &name).ok());
        match up {
            Some(true) => Condition::Up,
            Some(false) => Condition::Down,
            None => Condition::Gone,
        }
    }

    /// Records that the interface works, and ends an outage.
    pub(super) fn record_success(&self) {
        if self.outage.end_outage() {
            tracing::info!(interface = %self.name, "the interface is up again");
        }
    }

    /// Records that a frame was lost because it was longer than the MTU.
    pub(super) fn lost_for_its_length(&self) {
        self.too_long.store(true, Ordering::Release);
    }

    /// Returns true if the interface was down at its last use, or a frame was longer than its MTU.
    pub(super) fn has_problem(&self) -> bool {
        self.outage.lasts.load(Ordering::Relaxed) || self.too_long.load(Ordering::Acquire)
    }

    /// Checks an interface that has a problem. Returns true if it is still down.
    ///
    /// The check is needed because the kernel notifies a socket when its interface goes down, but
    /// not when it is deleted afterwards. Without the check, the end of an outage would be noticed
    /// only at the next frame. The check does not apply the time limit of an outage. This limit
    /// applies only when a frame is lost.
    pub(super) fn check(&self) -> Result<bool, LlpError> {
        self.too_long.store(false, Ordering::Release);
        if !self.outage.lasts.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match self.condition() {
            Condition::Gone => self.judge("check the interface", Errno::NODEV)?,
            Condition::Down => {}
            Condition::Up => self.record_success(),
        }
        Ok(self.outage.lasts.load(Ordering::Relaxed))
    }

    /// Decides whether a failed call is an error of the wire. Returns `Ok` if only a frame was lost
    /// and the wire still works.
    pub(super) fn judge(&self, op: &'static str, errno: Errno) -> Result<(), LlpError> {
        match (self.condition(), errno) {
            (Condition::Gone, _) => Err(LlpError::LinkDown {
                why: "its interface was deleted, or moved to another network namespace",
                errno: errno.raw_os_error(),
            }),
            (Condition::Down, _) => match self.outage.extend(Instant::now()) {
                Outcome::Begun => {
                    tracing::warn!(
                        interface = %self.name,
                        "the interface is down and frames are lost; `ip link set {} up` within {} s",
                        self.name,
                        self.outage.patience.as_secs(),
                    );
                    Ok(())
                }
                Outcome::Borne => Ok(()),
                Outcome::TooLong => Err(LlpError::LinkDown {
                    why: "its interface was taken down and stayed down (bring it up with `ip link \
                          set INTERFACE up`)",
                    errno: errno.raw_os_error(),
                }),
            },
            // The interface was brought up again between the failed call and the check.
            (Condition::Up, Errno::NETDOWN | Errno::IO) => Ok(()),
            (Condition::Up, errno) => Err(LlpError::from_local_errno(op, errno)),
        }
    }

    /// Sets how long an interface may be down.
    #[cfg(test)]
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.outage = Outage::new(patience);
    }
}

/// Record of the current outage: the time during which the interface is down.
struct Outage {
    patience: Duration,
    since: Mutex<Option<Instant>>,
    /// Equal to `since.is_some()`, so that a check for each frame takes no lock.
    lasts: AtomicBool,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Begun,
    Borne,
    TooLong,
}

impl Outage {
    fn new(patience: Duration) -> Self {
        Self {
            patience,
            since: Mutex::new(None),
            lasts: AtomicBool::new(false),
        }
    }

    /// Records that the interface is down. Starts an outage if there is none.
    fn extend(&self, now: Instant) -> Outcome {
        let mut since = self.since.lock();
        match *since {
            Some(since) if now.saturating_duration_since(since) >= self.patience => {
                Outcome::TooLong
            }
            Some(_) => Outcome::Borne,
            None => {
                *since = Some(now);
                self.lasts.store(true, Ordering::Relaxed);
                if self.patience.is_zero() {
                    Outcome::TooLong
                } else {
                    Outcome::Begun
                }
            }
        }
    }

    /// Ends the current outage. Returns true if there was one.
    fn end_outage(&self) -> bool {
        if !self.lasts.load(Ordering::Relaxed) {
            return false;
        }
        self.lasts.store(false, Ordering::Relaxed);
        self.since.lock().take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_borne_for_a_while_and_each_one_anew() {
        let outage = Outage::new(Duration::from_secs(5));
        let start = Instant::now();
        let at = |seconds| outage.extend(start + Duration::from_secs(seconds));
        assert!(!outage.end_outage(), "there was none");
        assert_eq!([at(0), at(4)], [Outcome::Begun, Outcome::Borne]);
        assert!(outage.end_outage() && !outage.end_outage());
        assert_eq!([at(5), at(9)], [Outcome::Begun, Outcome::Borne]);
        assert_eq!([at(10), at(11)], [Outcome::TooLong, Outcome::TooLong]);
    }

    #[test]
    fn an_interface_that_does_not_exist_is_not_found() {
        let name = "uwarp-none".parse().unwrap();
        assert!(Interface::find(name).unwrap().is_none());
    }
}

//! State that the parts of an agent share: the recipients of events of the device, and the request
//! to stop.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, mem};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use uwarp_verbs::AsyncEvent;
use uwarp_verbs::llp::LlpError;

/// A descriptor that becomes readable when `wake` is called.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?))
    }

    pub(crate) fn wake(&self) {
        // This fails only if 2^64-2 calls are pending. The descriptor is readable even then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    pub(crate) fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Queue of events for one session. Every session receives all events of the device, and ignores
/// events about objects of other sessions. Events are rare, so a table of owners is not needed.
pub(crate) struct Mailbox {
    events: Mutex<Vec<AsyncEvent>>,
    pub(crate) wake: Wake,
    /// True after the controller has sent a command that the agent executes.
    is_proven: AtomicBool,
    /// True after a newer controller took the place of this one.
    is_displaced: AtomicBool,
}

#[derive(Default)]
struct Boxes {
    next: u64,
    open: BTreeMap<u64, Arc<Mailbox>>,
}

/// State that all threads of an agent share.
pub(crate) struct Hub {
    boxes: Mutex<Boxes>,
    stopping: AtomicBool,
    fault: Mutex<Option<LlpError>>,
    /// Latest shortage of a resource that nobody has taken.
    shortage: Mutex<Option<LlpError>>,
    /// Wakes the thread that accepts controllers.
    pub(crate) wake: Wake,
}

impl Hub {
    pub(crate) fn new() -> io::Result<Hub> {
        Ok(Hub {
            boxes: Mutex::default(),
            stopping: AtomicBool::new(false),
            fault: Mutex::new(None),
            shortage: Mutex::new(None),
            wake: Wake::new()?,
        })
    }

    /// Adds a mailbox. It receives events until the returned guard is dropped.
    pub(crate) fn join(self: &Arc<Hub>) -> io::Result<Membership> {
        let mailbox = Arc::new(Mailbox {
            events: Mutex::default(),
            wake: Wake::new()?,
            is_proven: AtomicBool::new(false),
            is_displaced: AtomicBool::new(false),
        });
        let mut boxes = self.boxes.lock();
        let number = boxes.next;
        boxes.next += 1;
        boxes.open.insert(number, Arc::clone(&mailbox));
        Ok(Membership {
            hub: Arc::clone(self),
            mailbox,
            number,
        })
    }

    pub(crate) fn controllers(&self) -> usize {
        self.boxes.lock().open.len()
    }

    /// Ensures that fewer than `most` controllers are left, if possible: ends the oldest controller
    /// that has sent no command yet. Returns false if all have.
    pub(crate) fn make_room(&self, most: usize) -> bool {
        let mut boxes = self.boxes.lock();
        if boxes.open.len() < most {
            return true;
        }
        // The numbers grow, so the first of them is the oldest.
        let mut all = boxes.open.iter();
        let silent = all.find(|(_, mailbox)| !mailbox.is_proven.load(Ordering::Acquire));
        let Some(number) = silent.map(|(number, _)| *number) else {
            return false;
        };
        if let Some(mailbox) = boxes.open.remove(&number) {
            mailbox.is_displaced.store(true, Ordering::Release);
            mailbox.wake.wake();
        }
        true
    }

    /// Queues an event for every controller. Also records a failure of the network, or a resource
    /// shortage of a listener.
    pub(crate) fn publish(&self, event: &AsyncEvent) {
        match event {
            AsyncEvent::DeviceFatal { error } => *self.fault.lock() = Some(*error),
            AsyncEvent::ListenerShort { error, .. } => *self.shortage.lock() = Some(*error),
            _ => {}
        }
        for mailbox in self.boxes.lock().open.values() {
            mailbox.events.lock().push(event.clone());
            mailbox.wake.wake();
        }
    }

    /// Records that a client was refused because memory is short.
    pub(crate) fn record_short_memory(&self) {
        *self.shortage.lock() = Some(LlpError::Exhausted {
            op: "serve another client",
            what: "memory in this process (`ulimit -v`, `ulimit -d`)",
        });
    }

    /// Removes and returns the latest shortage since the last call.
    pub(crate) fn take_shortage(&self) -> Option<LlpError> {
        self.shortage.lock().take()
    }

    pub(crate) fn fault(&self) -> Option<LlpError> {
        *self.fault.lock()
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake.wake();
        for mailbox in self.boxes.lock().open.values() {
            mailbox.wake.wake();
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

/// Guard that keeps the mailbox of a controller registered in the hub.
pub(crate) struct Membership {
    hub: Arc<Hub>,
    pub(crate) mailbox: Arc<Mailbox>,
    number: u64,
}

impl Membership {
    /// Removes and returns the events since the last call.
    pub(crate) fn take(&self) -> Vec<AsyncEvent> {
        // The descriptor is cleared first. An event that arrives after that makes it readable
        // again.
        self.mailbox.wake.clear();
        mem::take(&mut self.mailbox.events.lock())
    }

    /// Records that the controller has sent a command. From now on, no other takes its place.
    pub(crate) fn prove(&self) {
        self.mailbox.is_proven.store(true, Ordering::Release);
    }

    /// Returns true if the agent stops, or another controller took the place of this one.
    pub(crate) fn is_stopping(&self) -> bool {
        self.hub.is_stopping() || self.mailbox.is_displaced.load(Ordering::Acquire)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hub.boxes.lock().open.remove(&self.number);
    }
}

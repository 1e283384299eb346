//! State that the parts of an agent share: recipients of the device's events, and the signal to
//! stop.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, mem};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use uwarp_verbs::AsyncEvent;
use uwarp_verbs::llp::LlpError;

/// A descriptor that becomes readable by `wake`.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?))
    }

    pub(crate) fn wake(&self) {
        // Fails only if 2^64-2 calls are pending, and then it is readable anyway.
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

/// Queue of events for one session. Each session gets all events of the device and skips events of
/// other sessions' objects. Events are rare, so no table of owners is needed.
pub(crate) struct Mailbox {
    events: Mutex<Vec<AsyncEvent>>,
    pub(crate) wake: Wake,
}

#[derive(Default)]
struct Boxes {
    next: u64,
    open: BTreeMap<u64, Arc<Mailbox>>,
}

/// State that all parts of an agent share.
pub(crate) struct Hub {
    boxes: Mutex<Boxes>,
    stopping: AtomicBool,
    fault: Mutex<Option<LlpError>>,
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

    /// Opens a mailbox, which stays open until the guard is dropped.
    pub(crate) fn join(self: &Arc<Hub>) -> io::Result<Membership> {
        let mailbox = Arc::new(Mailbox {
            events: Mutex::default(),
            wake: Wake::new()?,
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

    /// Queues an event for every controller.
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

    /// Takes the latest shortage of a listener, if there was one since the last call.
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

/// Registration of a controller in the hub.
pub(crate) struct Membership {
    hub: Arc<Hub>,
    pub(crate) mailbox: Arc<Mailbox>,
    number: u64,
}

impl Membership {
    /// Takes the events since the last call.
    pub(crate) fn take(&self) -> Vec<AsyncEvent> {
        // Cleared before taking, so that an event which arrives in between makes it readable again.
        self.mailbox.wake.clear();
        mem::take(&mut self.mailbox.events.lock())
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.hub.is_stopping()
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.hub.boxes.lock().open.remove(&self.number);
    }
}

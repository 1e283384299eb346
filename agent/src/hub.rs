//! What the parts of an agent share: who gets the device's events, and the word to stop.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{io, mem};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use uwarp_verbs::AsyncEvent;
use uwarp_verbs::llp::LlpError;

/// A descriptor that is readable after a call of `wake`.
pub(crate) struct Wake(OwnedFd);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake(eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?))
    }

    pub(crate) fn wake(&self) {
        // It fails only when 2^64-2 calls wait, and then it is readable.
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

/// What a session is told by others. Each gets all events of the device, and passes over those about objects
/// that are not its own: they are rare, and so nobody has to know whose QP is whose.
pub(crate) struct Mailbox {
    events: Mutex<Vec<AsyncEvent>>,
    pub(crate) wake: Wake,
}

#[derive(Default)]
struct Boxes {
    next: u64,
    open: BTreeMap<u64, Arc<Mailbox>>,
}

/// What all parts of an agent know.
pub(crate) struct Hub {
    boxes: Mutex<Boxes>,
    stopping: AtomicBool,
    fault: Mutex<Option<LlpError>>,
    short: Mutex<Option<LlpError>>,
    /// Wakes the thread that takes new controllers.
    pub(crate) wake: Wake,
}

impl Hub {
    pub(crate) fn new() -> io::Result<Hub> {
        Ok(Hub {
            boxes: Mutex::default(),
            stopping: AtomicBool::new(false),
            fault: Mutex::new(None),
            short: Mutex::new(None),
            wake: Wake::new()?,
        })
    }

    /// A mailbox that is open as long as the guard lives.
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

    /// Hands an event to every controller.
    pub(crate) fn tell(&self, event: &AsyncEvent) {
        match event {
            AsyncEvent::DeviceFatal { error } => *self.fault.lock() = Some(*error),
            AsyncEvent::ListenerShort { error, .. } => *self.short.lock() = Some(*error),
            _ => {}
        }
        for mailbox in self.boxes.lock().open.values() {
            mailbox.events.lock().push(event.clone());
            mailbox.wake.wake();
        }
    }

    /// What a listener was short of, since the last call.
    pub(crate) fn take_short(&self) -> Option<LlpError> {
        self.short.lock().take()
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

/// A controller's place in the hub.
pub(crate) struct Membership {
    hub: Arc<Hub>,
    pub(crate) mailbox: Arc<Mailbox>,
    number: u64,
}

impl Membership {
    /// What has come since the last call.
    pub(crate) fn take(&self) -> Vec<AsyncEvent> {
        // First this: what comes now makes it readable again.
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

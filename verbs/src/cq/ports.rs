//! Ports that receive datagrams for the QPs of a CQ. Polls of the CQ drive them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::datagram::port::DatagramPort;

/// Ports of a CQ. Most CQs have none.
#[derive(Default)]
pub(super) struct Ports {
    /// Each port with the number of work queues of its QPs that complete to the CQ.
    ports: RwLock<Vec<(Weak<DatagramPort>, usize)>>,
    /// False if there are none, for readers without the lock.
    any: AtomicBool,
}

impl Ports {
    pub(super) fn attach(&self, port: &Arc<DatagramPort>) {
        let mut ports = self.ports.write();
        let weak: Weak<DatagramPort> = Arc::downgrade(port);
        match ports.iter_mut().find(|(known, _)| known.ptr_eq(&weak)) {
            Some((_, queues)) => *queues += 1,
            None => ports.push((weak, 1)),
        }
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn detach(&self, port: &Arc<DatagramPort>) {
        let mut ports = self.ports.write();
        let weak: Weak<DatagramPort> = Arc::downgrade(port);
        if let Some((_, queues)) = ports.iter_mut().find(|(known, _)| known.ptr_eq(&weak)) {
            *queues -= 1;
        }
        ports.retain(|(_, queues)| *queues > 0);
        self.any.store(!ports.is_empty(), Ordering::Release);
    }

    /// Returns true if there is a port.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Calls `act` for each port, without a lock.
    pub(super) fn each(&self, mut act: impl FnMut(&DatagramPort)) {
        if !self.any() {
            return;
        }
        for index in 0.. {
            let (port, is_last) = {
                let ports = self.ports.read();
                let Some((port, _)) = ports.get(index) else {
                    return;
                };
                (port.upgrade(), index + 1 == ports.len())
            };
            if let Some(port) = port {
                act(&port);
            }
            // Most CQs have one. A second look would take the lock again.
            if is_last {
                return;
            }
        }
    }
}

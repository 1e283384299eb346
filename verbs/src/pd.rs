//! Protection domains.

use std::sync::Arc;

use uwarp_ddp::STag;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};
use uwarp_engine::mem::RemoteBuffer;
use uwarp_engine::mem::{Access, Asker, Need};

use crate::device::{Device, DeviceError, DeviceInner};
use crate::event_queue::EventQueue;
use uwarp_engine::limits::{OfPd, PdAccount, PdCharge};

/// A protection domain (`ibv_pd`; RFC 5042 section 2.2.4). A QP reaches only the regions of its own
/// domain. Clones are handles to the same domain.
#[derive(Clone)]
pub struct Pd {
    device: ForkGuarded<Arc<DeviceInner>>,
    account: Arc<PdAccount>,
    /// Receives the events of the objects in the domain.
    events: Arc<EventQueue>,
}

impl Device {
    /// Allocates a protection domain (`ibv_alloc_pd`). Regions and QPs work together only within
    /// one.
    ///
    /// # Errors
    /// [`DeviceError::Limit`] if [`Limits::max_pd`](crate::Limits::max_pd) domains exist.
    pub fn alloc_pd(&self) -> Result<Pd, DeviceError> {
        let inner = self.inner()?;
        let (place, id) = inner.take_pd()?;
        let events = Arc::clone(self.events());
        Ok(Pd::new(
            self.guarded().clone(),
            PdAccount::new(id, place),
            events,
        ))
    }
}

impl Pd {
    pub(crate) fn new(
        device: ForkGuarded<Arc<DeviceInner>>,
        account: Arc<PdAccount>,
        events: Arc<EventQueue>,
    ) -> Self {
        Pd {
            device,
            account,
            events,
        }
    }

    /// Returns true if a peer's Write to this memory would pass the checks, on a QP of this domain
    /// that allows remote Writes. For `uwarp-bench`, which measures the checks.
    #[doc(hidden)]
    #[must_use]
    pub fn would_place(&self, memory: &RemoteBuffer) -> bool {
        let asker = Asker {
            pd: self.id(),
            qp: 0,
            access: Access::REMOTE_WRITE,
        };
        let RemoteBuffer { addr, len, rkey } = *memory;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.device.here().is_some_and(|device| {
            let checked = (device.table).check(STag(rkey), addr, len, Need::RemoteWrite, &asker);
            checked.is_ok()
        })
    }

    /// Returns the shared part of the device.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork.
    pub(crate) fn device(&self) -> Result<&Arc<DeviceInner>, Inherited> {
        self.device.get()
    }

    /// Returns true if the domain belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(self.device.unguarded(), device)
    }

    pub(crate) fn id(&self) -> u32 {
        self.account.id()
    }

    /// Returns the queue for the events of the objects in the domain.
    pub(crate) fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    /// Returns the account, which each object in the domain keeps alive.
    pub(crate) fn account(&self) -> &Arc<PdAccount> {
        &self.account
    }

    /// Charges `amount` to the domain. Returns an error if that would exceed its limit.
    pub(crate) fn take(&self, what: OfPd, amount: u32) -> Result<PdCharge, DeviceError> {
        let limit = what.limit(&self.device()?.settings.limits.per_pd);
        let taken = self.account.take(what, amount, limit);
        taken.ok_or(match what {
            OfPd::Qps => DeviceError::PdLimit { what: "QPs", limit },
            OfPd::Srqs => DeviceError::PdLimit {
                what: "SRQs",
                limit,
            },
            OfPd::Reads => DeviceError::PdLimit {
                what: "places for RDMA Reads",
                limit,
            },
            OfPd::Receives => DeviceError::PdReceives {
                asked: amount,
                limit,
            },
        })
    }
}

impl std::fmt::Debug for Pd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pd")
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Access, Device, RemoteBuffer};

    #[test]
    fn what_a_write_may_reach_is_what_the_checks_let_pass() {
        let device = Device::tcp().unwrap();
        let (pd, other) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.register(vec![0; 64], open).unwrap();
        let closed = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
        let memory = region.remote();
        assert!(pd.would_place(&memory));
        assert!(!other.would_place(&memory));
        assert!(!pd.would_place(&closed.remote()));
        let beyond = RemoteBuffer {
            addr: memory.addr + 1,
            ..memory
        };
        assert!(!pd.would_place(&beyond));
        region.deregister().unwrap();
        assert!(!pd.would_place(&memory));
    }
}

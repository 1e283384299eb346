//! Shared receive queues, from which several QPs take receives.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use uwarp_engine::fork_guard::{ForkGuarded, Inherited};

use crate::device::{DeviceError, DeviceInner, check_size};
use crate::event_queue::EventQueue;
use crate::pd::Pd;
use crate::refused::refused;
use uwarp_engine::connection::PostError;
use uwarp_engine::connection::{Counts, Limit, SrqInner};
use uwarp_engine::event::{AsyncEvent, EventObject};
use uwarp_engine::limits::{Number, OfPd, PdCharge, Place};
use uwarp_engine::setters;
use uwarp_engine::wr::RecvWr;

/// Sizes and limit of an SRQ (`ibv_srq_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Number of places. A receive occupies one from its post until its completion is polled from
    /// the CQ of the QP that took it. Default: 1,024.
    pub max_wr: u32,
    /// Maximum number of scatter/gather elements in one receive. Default: 4.
    pub max_sge: u32,
    /// Armed limit: [`AsyncEvent::SrqLimitReached`] is raised once when fewer receives are left. 0:
    /// not armed. [`Pd::create_srq`] ignores it, as `ibv_create_srq` does, because a new SRQ is
    /// empty. Arm it with [`Srq::modify`] after receives are posted. Default: 0.
    pub limit: u32,
}

setters! { const SrqAttr {
    max_wr: u32,
    max_sge: u32,
    limit: u32,
} }

impl Default for SrqAttr {
    fn default() -> Self {
        SrqAttr {
            max_wr: 1024,
            max_sge: 4,
            limit: 0,
        }
    }
}

/// Changes for [`Srq::modify`] (`ibv_modify_srq`). `None` leaves a value unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SrqModify {
    /// New number of places (`IBV_SRQ_MAX_WR`).
    pub max_wr: Option<u32>,
    /// Arms the limit (`IBV_SRQ_LIMIT`); 0 disarms it.
    pub limit: Option<u32>,
}

setters! { const SrqModify {
    max_wr: Option<u32>,
    limit: Option<u32>,
} }

/// Error of changing an SRQ (`ibv_modify_srq`). Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifySrqError {
    /// More places are occupied than the requested size has.
    #[error(
        "the shared receive queue has {posted} receives posted whose completions have not been polled, and cannot be made for {max_wr}; poll the receive CQs of its queue pairs, or resize it when fewer are posted"
    )]
    TooSmall {
        /// Posted receives whose completions have not been polled.
        posted: usize,
        /// The requested size.
        max_wr: u32,
    },
    /// The device does not allow the size.
    #[error("max_wr is {got}, but this device allows 1 to {max} (Limits::max_srq_wr)")]
    Size {
        /// The requested size.
        got: u32,
        /// The largest allowed size.
        max: u32,
    },
    /// The receive queues of the protection domain would exceed its limit.
    #[error(
        "a shared receive queue for {max_wr} receives is more than is left of the {limit} of the protection domain; make it smaller, drop other queues, or raise the limit in the settings (limits.per_pd.max_recv_wr)"
    )]
    PdReceives {
        /// The requested size.
        max_wr: u32,
        /// Maximum number of receives in all queues of the domain together.
        limit: u32,
    },
    /// The limit exceeds the size of the SRQ, so it would always be reached.
    #[error(
        "a limit of {limit} is more than the {max_wr} receives that the shared receive queue holds at most"
    )]
    Limit {
        /// The requested limit.
        limit: u32,
        /// Number of places of the SRQ.
        max_wr: usize,
    },
    /// The SRQ was created before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
}

/// Error of destroying an SRQ (`ibv_destroy_srq`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroySrqError {
    /// QPs still use the SRQ.
    #[error("the shared receive queue is in use by {qps} queue pairs; drop those first")]
    InUse {
        /// Number of QPs.
        qps: u32,
    },
    /// Events of the SRQ were taken with [`Device::get_event`](crate::Device::get_event) and not
    /// acknowledged.
    #[error("{events} events of the shared receive queue are not acknowledged; drop them")]
    Unacknowledged {
        /// Number of events.
        events: u64,
    },
}

/// An SRQ with its device and its charges.
pub(crate) struct SrqShared {
    inner: Arc<SrqInner>,
    device: Arc<DeviceInner>,
    /// Receives the events of the SRQ.
    events: Arc<EventQueue>,
    /// Charge for its capacity. This lock is taken before that of the SRQ.
    receives: Mutex<PdCharge>,
    _in_pd: PdCharge,
    _place: (Place, Number),
}

/// A shared receive queue (`ibv_srq`, `ibv_create_srq`): each posted receive is taken by the first
/// of its QPs that gets a message. RFC 5042 section 6.4.3.1 lists the risks.
///
/// The first segment of a message takes a receive. The receive completes to the receive CQ of the
/// QP that took it, with that QP's number. If the QP fails before that, the receive is flushed; all
/// other receives stay. A message that finds the queue empty is handled as
/// [`OnNoReceive`](crate::OnNoReceive) describes.
///
/// Clones are handles to the same queue. Any thread may post. The queue lives at least as long as
/// its QPs.
///
/// ```
/// use uwarp_verbs::{Access, Device, RecvWr, SrqAttr, SrqModify};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::tcp()?;
/// let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
/// let srq = pd.create_srq(SrqAttr::default().max_wr(16))?;
/// let region = pd.register(vec![0; 16 * 64], Access::LOCAL_WRITE)?;
/// for index in 0..16 {
///     srq.post_recv(&RecvWr::new(index, &[region.sge(index * 64, 64)]))?;
/// }
/// // Raises an event of the device when fewer than 4 are left.
/// srq.modify(SrqModify::default().limit(Some(4)))?;
/// let qps = [pd.qp().srq(&srq).build(&cq, &cq)?, pd.qp().srq(&srq).build(&cq, &cq)?];
/// assert_eq!(srq.posted(), 16);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Srq {
    shared: ForkGuarded<Arc<SrqShared>>,
}

/// A QP that uses an SRQ. The SRQ cannot be destroyed while one exists.
pub(crate) struct SrqUser {
    shared: Arc<SrqShared>,
}

impl Drop for SrqUser {
    fn drop(&mut self) {
        self.shared.inner.qps().fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq`). Its receives can use the regions of this
    /// domain that were not registered for a single QP. QPs of other domains may take receives from
    /// it. Their peers then write to memory of this domain, but only where a receive was posted.
    ///
    /// # Errors
    /// [`DeviceError::Size`], or a limit of the device or of the domain.
    pub fn create_srq(&self, attr: SrqAttr) -> Result<Srq, DeviceError> {
        self.make_srq(attr, false)
    }

    /// Creates an SRQ like [`create_srq`](Self::create_srq), but posting accepts receives that name
    /// unusable memory. Such a receive fails when a message reaches that memory, as with
    /// [`QpBuilder::late_faults`](crate::QpBuilder::late_faults).
    ///
    /// # Errors
    /// See [`create_srq`](Self::create_srq).
    pub fn create_srq_with_late_faults(&self, attr: SrqAttr) -> Result<Srq, DeviceError> {
        self.make_srq(attr, true)
    }

    fn make_srq(&self, attr: SrqAttr, late_faults: bool) -> Result<Srq, DeviceError> {
        let device = self.device()?;
        let limits = &device.settings.limits;
        check_size("max_wr of the SRQ", attr.max_wr, 1, limits.max_srq_wr)?;
        check_size("max_sge of the SRQ", attr.max_sge, 0, limits.max_sge)?;
        let in_pd = self.take(OfPd::Srqs, 1)?;
        let receives = Mutex::new(self.take(OfPd::Receives, attr.max_wr)?);
        let (place, num) = device.take_srq()?;
        let table = Arc::clone(&device.table);
        let max_wr = attr.max_wr as usize;
        Ok(Srq {
            shared: ForkGuarded::new(Arc::new(SrqShared {
                inner: Arc::new(SrqInner::new(
                    num.get(),
                    self.id(),
                    table,
                    max_wr,
                    attr.max_sge,
                    late_faults,
                )),
                device: Arc::clone(device),
                events: Arc::clone(self.events()),
                receives,
                _in_pd: in_pd,
                _place: (place, num),
            })),
        })
    }
}

impl Srq {
    pub(crate) fn inner(&self) -> Result<&Arc<SrqInner>, Inherited> {
        Ok(&self.shared.get()?.inner)
    }

    /// Returns a guard that counts one more QP until it is dropped.
    pub(crate) fn user(&self) -> Result<SrqUser, Inherited> {
        let shared = Arc::clone(self.shared.get()?);
        shared.inner.qps().fetch_add(1, Ordering::AcqRel);
        Ok(SrqUser { shared })
    }

    /// Returns true if this SRQ belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.shared.unguarded().device, device)
    }

    /// Number of the SRQ, unique on its device, as events carry it (`ibv_get_srq_num`).
    #[must_use]
    pub fn srq_num(&self) -> u32 {
        self.shared.unguarded().inner.num()
    }

    /// Posts one receive (`ibv_post_srq_recv`). QPs that wait for a receive continue.
    ///
    /// # Errors
    /// See [`PostErrorKind`](crate::PostErrorKind). `SrqFull` if all `max_wr` places are taken by
    /// receives whose completions have not been polled.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_list(std::slice::from_ref(wr))
    }

    /// Posts receives that are taken in this order, with no other receives in between (a list of
    /// `ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`PostError`] names the first request that was refused. Those before it were posted, and
    /// those after it were not.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.inner().map_err(refused)?.post(wrs)
    }

    fn counts(&self) -> Counts {
        self.inner().map_or(Counts::NOTHING, |inner| inner.counts())
    }

    /// Returns the sizes, and the limit if it is armed (`ibv_query_srq`). In the child of a fork
    /// `max_wr` is 0.
    #[must_use]
    pub fn query(&self) -> SrqAttr {
        let Counts { max_wr, limit, .. } = self.counts();
        SrqAttr {
            max_wr: u32::try_from(max_wr).unwrap_or(u32::MAX),
            max_sge: self.shared.unguarded().inner.max_sge(),
            limit: match limit {
                Limit::Disarmed => 0,
                Limit::Armed(limit) => limit,
            },
        }
    }

    /// Number of receives that are posted and not taken; 0 in the child of a fork.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.counts().posted
    }

    /// Changes the size, arms the limit, or both (`ibv_modify_srq`). On an error nothing changes.
    /// Each arming raises one event. If fewer receives than the limit are posted, the event is
    /// raised at once, so a program cannot miss it.
    ///
    /// # Errors
    /// See [`ModifySrqError`].
    pub fn modify(&self, change: SrqModify) -> Result<(), ModifySrqError> {
        let shared = self.shared.get()?;
        let limits = &shared.device.settings.limits;
        let SrqModify { max_wr, limit } = change;
        let mut receives = shared.receives.lock();
        let reached = shared
            .inner
            .modify(max_wr.map(|max_wr| max_wr as usize), limit, |now| {
                check_modify(change, now, limits.max_srq_wr)?;
                let max_wr = max_wr.unwrap_or(receives.amount());
                let limit = limits.per_pd.max_recv_wr;
                if !receives.change(max_wr, limit) {
                    return Err(ModifySrqError::PdReceives { max_wr, limit });
                }
                Ok(())
            })?;
        drop(receives);
        if reached {
            let srq_num = self.srq_num();
            shared.events.push(AsyncEvent::SrqLimitReached { srq_num });
        }
        Ok(())
    }

    /// Destroys the SRQ as `ibv_destroy_srq` does. Fails if a QP uses it. Waits until all its
    /// events that were taken are acknowledged. Dropping the last handle neither fails nor waits.
    /// Posted receives are discarded without a completion.
    ///
    /// # Errors
    /// [`DestroySrqError`], together with the handle: a QP uses the SRQ, or `timeout` passed first
    /// (`None` waits without limit).
    pub fn destroy(self, timeout: Option<Duration>) -> Result<(), (Srq, DestroySrqError)> {
        let Some(shared) = self.shared.here() else {
            return Ok(());
        };
        let qps = shared.inner.qps().load(Ordering::Acquire);
        if qps > 0 {
            return Err((self, DestroySrqError::InUse { qps }));
        }
        let object = EventObject::Srq(self.srq_num());
        match shared
            .events
            .retire(object, shared.device.patience(timeout))
        {
            Ok(()) => Ok(()),
            Err(events) => Err((self, DestroySrqError::Unacknowledged { events })),
        }
    }
}

fn check_modify(change: SrqModify, now: Counts, max: u32) -> Result<(), ModifySrqError> {
    if let Some(max_wr) = change.max_wr {
        if !(1..=max).contains(&max_wr) {
            return Err(ModifySrqError::Size { got: max_wr, max });
        }
        if (max_wr as usize) < now.places_taken {
            let posted = now.places_taken;
            return Err(ModifySrqError::TooSmall { posted, max_wr });
        }
    }
    let max_wr = change.max_wr.map_or(now.max_wr, |max_wr| max_wr as usize);
    match change.limit {
        Some(limit) if limit as usize > max_wr => Err(ModifySrqError::Limit { limit, max_wr }),
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq")
            .field("num", &self.srq_num())
            .field("posted", &self.posted())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;

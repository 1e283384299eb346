//! Shared receive queues: receives that several QPs take from.

mod inner;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::{DeviceError, DeviceInner, check_size};
use crate::event::AsyncEvent;
use crate::event_queue::{EventObject, EventQueue};
use crate::fork_guard::Inherited;
use crate::limits::{Number, OfPd, PdCharge, Place};
use crate::pd::Pd;
use crate::qp::PostError;
use crate::qp::wr::RecvWr;
use crate::setters::setters;

use inner::{Counts, Limit};

pub(crate) use inner::SrqInner;

/// Sizes and limit of an SRQ, as `ibv_srq_attr` has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Its places. A receive has its place from the post until its completion is polled from the CQ of the QP that
    /// took it. Default: 1,024.
    pub max_wr: u32,
    /// Scatter/gather elements of one receive. Default: 4.
    pub max_sge: u32,
    /// The limit that is armed: [`AsyncEvent::SrqLimitReached`] comes once when fewer receives are left. 0: none
    /// is armed. [`Pd::create_srq`] does not look at it, as `ibv_create_srq` does not: a new SRQ is empty. Arm it
    /// with [`Srq::modify`] when receives are posted. Default: 0.
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

/// What [`Srq::modify`] changes (`ibv_modify_srq`); `None` leaves as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SrqModify {
    /// Receives that it holds at most from now on (`IBV_SRQ_MAX_WR`).
    pub max_wr: Option<u32>,
    /// Arms the limit (`IBV_SRQ_LIMIT`); 0 disarms it.
    pub limit: Option<u32>,
}

setters! { const SrqModify {
    max_wr: Option<u32>,
    limit: Option<u32>,
} }

/// Why an SRQ was not changed (`ibv_modify_srq`). Nothing of the change was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModifySrqError {
    /// More of its places are taken than it shall have.
    #[error(
        "the shared receive queue has {posted} receives posted whose completions have not been polled, and cannot be made for {max_wr}; poll the receive CQs of its queue pairs, or resize it when fewer are posted"
    )]
    TooSmall {
        /// Receives that are posted and whose completions have not been polled.
        posted: usize,
        /// The size asked for.
        max_wr: u32,
    },
    /// The size is not one that the device allows.
    #[error("max_wr is {got}, but this device allows 1 to {max} (Limits::max_srq_wr)")]
    Size {
        /// The size asked for.
        got: u32,
        /// The most allowed.
        max: u32,
    },
    /// The queues of the protection domain could hold too many receives then.
    #[error(
        "a shared receive queue for {max_wr} receives is more than is left of the {limit} of the protection domain; make it smaller, drop other queues, or raise the limit in the settings (limits.per_pd.max_recv_wr)"
    )]
    PdReceives {
        /// The size asked for.
        max_wr: u32,
        /// What all queues of the domain together can hold.
        limit: u32,
    },
    /// The limit is more than the SRQ can hold, so it would be reached always.
    #[error(
        "a limit of {limit} is more than the {max_wr} receives that the shared receive queue holds at most"
    )]
    Limit {
        /// The limit asked for.
        limit: u32,
        /// What the SRQ holds.
        max_wr: usize,
    },
    /// The SRQ was made before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
}

/// Why an SRQ could not be destroyed (`ibv_destroy_srq`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DestroySrqError {
    /// QPs still take their receives from it.
    #[error("the shared receive queue is in use by {qps} queue pairs; drop those first")]
    InUse {
        /// How many.
        qps: u32,
    },
    /// Events of it were taken with [`Device::get_event`](crate::Device::get_event) and not acknowledged.
    #[error("{events} events of the shared receive queue are not acknowledged; drop them")]
    Unacknowledged {
        /// How many.
        events: u64,
    },
}

/// An SRQ with the device that counts it.
pub(crate) struct SrqShared {
    inner: Arc<SrqInner>,
    device: Arc<DeviceInner>,
    /// Where its events go.
    events: Arc<EventQueue>,
    /// The receives that it can hold; its lock comes before that of the SRQ.
    receives: Mutex<PdCharge>,
    _in_pd: PdCharge,
    _place: (Place, Number),
}

/// A shared receive queue: receives posted once, taken by whichever of its QPs gets a message first. `ibv_srq` of the
/// verbs (`ibv_create_srq`); RFC 5042 section 6.4.3.1 has what to beware of.
///
/// A receive is taken with the first segment of a message, completes to the receive CQ of the QP that took it, with
/// that QP's number, and is flushed with that QP if the QP fails in between. All others stay. When it is empty, a
/// message that comes finds no receive: what then happens says [`OnNoReceive`](crate::OnNoReceive).
///
/// Clones are handles to the same queue; any thread may post. Dropping handles asks nothing: the queue lives as
/// long as its QPs do.
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
/// // An event of the device when fewer than 4 are left.
/// srq.modify(SrqModify::default().limit(Some(4)))?;
/// let qps = [pd.qp().srq(&srq).build(&cq, &cq)?, pd.qp().srq(&srq).build(&cq, &cq)?];
/// assert_eq!(srq.posted(), 16);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Srq {
    shared: Arc<SrqShared>,
}

/// A QP that uses an SRQ: while there are any, it is not destroyed.
pub(crate) struct SrqUser {
    shared: Arc<SrqShared>,
}

impl Drop for SrqUser {
    fn drop(&mut self) {
        self.shared.inner.qps().fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq`). Only regions of this domain that were not registered for one
    /// QP alone can be used in it. QPs of other domains may take from it, too: their peers then write to memory of this
    /// domain, but only where a receive was posted.
    ///
    /// # Errors
    /// [`DeviceError::Size`], or a limit of the device or of the domain.
    pub fn create_srq(&self, attr: SrqAttr) -> Result<Srq, DeviceError> {
        self.make_srq(attr, false)
    }

    /// As [`create_srq`](Self::create_srq), but a receive is taken although its elements name memory that may not be used,
    /// and fails when a message reaches that memory: as [`QpBuilder::late_faults`](crate::QpBuilder::late_faults) has it.
    ///
    /// # Errors
    /// As [`create_srq`](Self::create_srq).
    pub fn create_srq_with_late_faults(&self, attr: SrqAttr) -> Result<Srq, DeviceError> {
        self.make_srq(attr, true)
    }

    fn make_srq(&self, attr: SrqAttr, late_faults: bool) -> Result<Srq, DeviceError> {
        let device = self.device();
        device.fork_guard.check()?;
        let limits = &device.settings.limits;
        check_size("max_wr of the SRQ", attr.max_wr, 1, limits.max_srq_wr)?;
        check_size("max_sge of the SRQ", attr.max_sge, 0, limits.max_sge)?;
        let in_pd = self.take(OfPd::Srqs, 1)?;
        let receives = Mutex::new(self.take(OfPd::Receives, attr.max_wr)?);
        let (place, num) = device.take_srq()?;
        let table = Arc::clone(&device.table);
        let max_wr = attr.max_wr as usize;
        Ok(Srq {
            shared: Arc::new(SrqShared {
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
            }),
        })
    }
}

impl Srq {
    pub(crate) fn inner(&self) -> &Arc<SrqInner> {
        &self.shared.inner
    }

    /// Counts one more QP.
    pub(crate) fn user(&self) -> SrqUser {
        self.shared.inner.qps().fetch_add(1, Ordering::AcqRel);
        SrqUser {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Whether this SRQ was made by that device.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.shared.device, device)
    }

    /// The number of this SRQ, unique on its device (`ibv_get_srq_num`); events carry it.
    #[must_use]
    pub fn srq_num(&self) -> u32 {
        self.inner().num()
    }

    /// Posts one receive (`ibv_post_srq_recv`). QPs that wait for one go on.
    ///
    /// # Errors
    /// See [`PostErrorKind`](crate::PostErrorKind); `SrqFull` when `max_wr` receives were posted whose completions
    /// have not been polled.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.post_recv_list(std::slice::from_ref(wr))
    }

    /// Posts receives, taken in this order, with no others in between (a list of `ibv_post_srq_recv`).
    ///
    /// # Errors
    /// The first request that was not taken; none after it was.
    pub fn post_recv_list(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.shared
            .device
            .fork_guard
            .check()
            .map_err(|inherited| PostError {
                index: 0,
                kind: inherited.into(),
            })?;
        self.inner().post(wrs)
    }

    /// Whether it was made before a fork: its lock may never come free.
    fn is_inherited(&self) -> bool {
        !self.shared.device.fork_guard.is_here()
    }

    fn counts(&self) -> Counts {
        if self.is_inherited() {
            return Counts::NOTHING;
        }
        self.inner().counts()
    }

    /// Its sizes, and the limit if one is armed (`ibv_query_srq`). In the child of a fork it has no size.
    #[must_use]
    pub fn query(&self) -> SrqAttr {
        let Counts { max_wr, limit, .. } = self.counts();
        SrqAttr {
            max_wr: u32::try_from(max_wr).unwrap_or(u32::MAX),
            max_sge: self.inner().max_sge(),
            limit: match limit {
                Limit::Disarmed => 0,
                Limit::Armed(limit) => limit,
            },
        }
    }

    /// Receives that are posted and not taken (the verbs have no such count); none in the child of a fork.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.counts().posted
    }

    /// Changes its size, or arms its limit, or both (`ibv_modify_srq`): all or nothing. The limit is good for one
    /// event. When fewer receives are posted than it says, the event comes at once: nothing is missed between a look
    /// and the arming.
    ///
    /// # Errors
    /// See [`ModifySrqError`].
    pub fn modify(&self, change: SrqModify) -> Result<(), ModifySrqError> {
        self.shared.device.fork_guard.check()?;
        let limits = &self.shared.device.settings.limits;
        let SrqModify { max_wr, limit } = change;
        let mut receives = self.shared.receives.lock();
        let reached = self
            .inner()
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
            self.shared
                .events
                .push(AsyncEvent::SrqLimitReached { srq_num });
        }
        Ok(())
    }

    /// Destroys the SRQ as `ibv_destroy_srq` does: it must have no QP any more, and waits until every event of it
    /// that was taken is acknowledged. (Dropping the last handle asks for neither.) Receives that are posted are
    /// forgotten, without a completion.
    ///
    /// # Errors
    /// [`DestroySrqError`] with the handle back, also when `timeout` passed first (`None` waits for ever).
    pub fn destroy(self, timeout: Option<Duration>) -> Result<(), (Srq, DestroySrqError)> {
        if self.is_inherited() {
            return Ok(());
        }
        let qps = self.inner().qps().load(Ordering::Acquire);
        if qps > 0 {
            return Err((self, DestroySrqError::InUse { qps }));
        }
        let object = EventObject::Srq(self.srq_num());
        match self
            .shared
            .events
            .retire(object, self.shared.device.patience(timeout))
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

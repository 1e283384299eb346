//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use uwarp_engine::fork_guard::ForkGuarded;
use uwarp_engine::mem::Sge;

use super::Domain;
use super::buf::{InFlightBuf, RegisteredBuf};
use super::error::Error;
use crate::completion::Completion;
use crate::device::DeviceError;
use crate::refused::refused;
use crate::srq::{ModifySrqError, SrqAttr, SrqModify};
use uwarp_engine::connection::{PostError, PostErrorKind};
use uwarp_engine::wr::RecvWr;

/// Bit that marks the `wr_id` of a shared receive. The `wr_id` of any other request is only its
/// slot number.
const SHARED: u64 = 1 << 32;

/// A shared receive queue of a [`Domain`] (`ibv_srq`): buffers for the messages of several
/// connections.
///
/// A connection made by [`Connection::with_srq`](super::Connection::with_srq) takes its receives
/// from the queue. [`Connection::recv_shared`](super::Connection::recv_shared) returns its
/// messages. The queue owns a buffer until a message takes it. Unused buffers return to their pool
/// after the queue and all its connections are dropped. Clones are handles to the same queue.
///
/// ```
/// # use uwarp_verbs::aio::{Connection, Domain, Error, RegisteredBuf, Srq};
/// # use uwarp_verbs::{QpCaps, SrqAttr};
/// # async fn serve(domain: &Domain) -> Result<(), Box<dyn std::error::Error>> {
/// let srq = Srq::new(domain, SrqAttr::default().max_wr(64))?;
/// let pool = domain.pool(64, 4096)?;
/// while let Some(buf) = pool.try_get() {
///     srq.post_recv(buf).map_err(|(error, _)| error)?;
/// }
/// let connection = Connection::with_srq(domain, QpCaps::default(), &srq)?;
/// // ... accept or connect. Each message comes in a buffer of the queue; post it again after use.
/// let (received, buf) = connection.recv_shared().await?;
/// println!("{} bytes", received.len);
/// srq.post_recv(buf).map_err(|(error, _)| error)?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Srq {
    pub(super) srq: crate::Srq,
    pub(super) shared: ForkGuarded<Arc<Shared>>,
}

/// The queue and its buffers. Each connection keeps a reference until its QP is gone.
pub(super) struct Shared {
    domain: Domain,
    slots: Mutex<Slots>,
}

struct Slots {
    bufs: Box<[Option<InFlightBuf>]>,
    free: Vec<u32>,
}

impl Srq {
    /// Creates an empty queue (`ibv_create_srq`).
    ///
    /// A receive uses one buffer, so [`SrqAttr::max_sge`] may be 1.
    ///
    /// # Errors
    /// See [`Pd::create_srq`](crate::Pd::create_srq).
    pub fn new(domain: &Domain, attr: SrqAttr) -> Result<Srq, DeviceError> {
        let srq = domain.pd().create_srq(attr)?;
        let slots = attr.max_wr;
        Ok(Srq {
            srq,
            shared: ForkGuarded::new(Arc::new(Shared {
                domain: domain.clone(),
                slots: Mutex::new(Slots {
                    bufs: (0..slots).map(|_| None).collect(),
                    free: (0..slots).rev().collect(),
                }),
            })),
        })
    }

    /// Posts a buffer for a message of any connection, without waiting (`ibv_post_srq_recv`).
    ///
    /// The message may be as long as the buffer's capacity.
    ///
    /// # Errors
    /// [`Error::Refused`] and the buffer, if the queue is full or the buffer is of another domain.
    #[expect(
        clippy::result_large_err,
        reason = "the buffer comes back; a refusal is rare"
    )]
    pub fn post_recv(&self, buf: RegisteredBuf) -> Result<(), (Error, RegisteredBuf)> {
        let shared = match self.shared.get() {
            Ok(shared) => shared,
            Err(inherited) => return Err((refused(inherited).into(), buf)),
        };
        let mut slots = shared.slots.lock();
        let Some(slot) = slots.free.pop() else {
            let depth = slots.bufs.len();
            drop(slots);
            let kind = PostErrorKind::SrqFull { depth };
            return Err((PostError { index: 0, kind }.into(), buf));
        };
        let capacity = buf.capacity();
        let in_flight = buf.start_transfer();
        let sink: [Sge; 1] = [in_flight.room(capacity)];
        // Stored before the post, because a message may consume the receive before the post
        // returns.
        slots.bufs[slot as usize] = Some(in_flight);
        drop(slots);
        let wr = RecvWr::new(SHARED | u64::from(slot), &sink);
        match self.srq.post_recv(&wr) {
            Ok(()) => Ok(()),
            Err(error) => {
                let buf = shared.take(slot, None);
                let buf = buf.unwrap_or_else(|| unreachable!("a receive that was not posted"));
                Err((error.into(), buf))
            }
        }
    }

    /// Arms the limit (`IBV_SRQ_LIMIT`), a number of receives; 0 disarms it.
    ///
    /// The device reports [`AsyncEvent::SrqLimitReached`](crate::AsyncEvent::SrqLimitReached) once,
    /// when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// See [`Srq::modify`](crate::Srq::modify).
    pub fn arm_limit(&self, limit: u32) -> Result<(), ModifySrqError> {
        let change = SrqModify {
            limit: Some(limit),
            ..SrqModify::default()
        };
        self.srq.modify(change)
    }

    /// Number of receives that no message has taken yet.
    #[must_use]
    pub fn posted(&self) -> usize {
        self.srq.posted()
    }

    /// Number of the queue, as the device's asynchronous events use it.
    #[must_use]
    pub fn srq_num(&self) -> u32 {
        self.srq.srq_num()
    }
}

impl Shared {
    /// Takes the buffer of a completed receive; `None` if the completion belongs to another
    /// request.
    pub(super) fn reclaim(&self, completion: &Completion) -> Option<RegisteredBuf> {
        if completion.wr_id & SHARED == 0 {
            return None;
        }
        let slot = u32::try_from(completion.wr_id ^ SHARED).ok()?;
        let len = completion
            .status
            .is_success()
            .then_some(completion.byte_len);
        self.take(slot, len)
    }

    /// Frees a slot and returns its buffer. The receive must have completed or been refused, or no
    /// connection may be able to take it any more.
    fn take(&self, slot: u32, brought: Option<u32>) -> Option<RegisteredBuf> {
        let mut slots = self.slots.lock();
        let in_flight = slots.bufs.get_mut(slot as usize)?.take()?;
        slots.free.push(slot);
        drop(slots);
        let buf = {
            // SAFETY: only this file calls this function, under the contract above. So the only
            // receive that names the buffer has completed or was refused, or no connection can take
            // it any more.
            #[expect(unsafe_code, reason = "this is where the flight of a buffer ends")]
            unsafe {
                in_flight.reclaim(brought)
            }
        };
        Some(buf)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In the child of a fork the buffers belong to the parent.
        if self.domain.pd().device().is_err() {
            return;
        }
        // Every QP that uses the queue keeps a reference to it through its operations. So no QP is
        // left that could take a receive.
        let count = self.slots.get_mut().bufs.len();
        for slot in 0..u32::try_from(count).unwrap_or(u32::MAX) {
            drop(self.take(slot, None));
        }
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Srq")
            .field("srq_num", &self.srq_num())
            .field("posted", &self.posted())
            .finish_non_exhaustive()
    }
}

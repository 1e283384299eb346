//! Who sits in a crowd.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::event::epoll;

use super::Crowd;
use super::hot::Heated;
use crate::progress::background::Interest;
use crate::qp::inner::QpInner;

/// QPs by the number of their seat. A number is used again: an event that was for the one before gives the
/// next one a turn too many, which does no harm.
#[derive(Default)]
pub(super) struct Seats {
    qps: Vec<Weak<QpInner>>,
    free: Vec<u32>,
}

impl Seats {
    /// Its number, and how many seats there are.
    pub(super) fn take(&mut self, qp: Weak<QpInner>) -> (u32, usize) {
        if let Some(index) = self.free.pop()
            && let Some(seat) = self.qps.get_mut(index as usize)
        {
            *seat = qp;
            return (index, self.qps.len());
        }
        // There are fewer QPs than that.
        let index = u32::try_from(self.qps.len()).unwrap_or(u32::MAX);
        self.qps.push(qp);
        (index, self.qps.len())
    }

    fn leave(&mut self, index: u32) -> Weak<QpInner> {
        let qp = self.qps.get_mut(index as usize).map(std::mem::take);
        self.free.extend(qp.is_some().then_some(index));
        qp.unwrap_or_default()
    }

    pub(super) fn get(&self, index: u32) -> Option<Arc<QpInner>> {
        self.qps.get(index as usize)?.upgrade()
    }
}

/// The place of a QP in a crowd, as long as the QP exists.
pub(crate) struct Seat {
    crowd: Arc<Crowd>,
    index: u32,
    /// It is in the queue of those that want a turn.
    hot: AtomicBool,
}

impl Seat {
    pub(super) fn new(crowd: Arc<Crowd>, index: u32) -> Self {
        Seat {
            crowd,
            index,
            hot: AtomicBool::new(false),
        }
    }

    /// The crowd.
    #[inline]
    pub(crate) fn crowd(&self) -> &Arc<Crowd> {
        &self.crowd
    }

    /// The QP wants a turn although nothing arrived. False when nobody would give it one soon: a thread sleeps on the
    /// crowd. Called under the lock of the QP.
    pub(crate) fn heat(&self) -> bool {
        if self.hot.swap(true, Ordering::AcqRel) {
            return true;
        }
        match self.crowd.hot.push(self.index) {
            Heated::First => self.crowd.see_to_it(),
            Heated::Queued => {}
            Heated::Refused => {
                self.hot.store(false, Ordering::Release);
                return false;
            }
        }
        true
    }

    /// Its turn comes now; whoever asks from now on asks anew. Called before the lock of the QP is taken: what was staged
    /// under that lock before is seen by that turn, and what is staged after asks again.
    pub(super) fn cool(&self) {
        self.hot.store(false, Ordering::Release);
    }

    /// Changes which readiness of the descriptor the crowd looks for. Without any it is not in the set at all: a socket
    /// that both sides have closed would be ready for ever.
    pub(crate) fn change(
        &self,
        fd: BorrowedFd<'_>,
        from: Interest,
        to: Interest,
    ) -> rustix::io::Result<()> {
        let set = &self.crowd.set;
        let data = epoll::EventData::new_u64(self.index.into());
        match (from, to) {
            (from, to) if from == to => Ok(()),
            (Interest::None, _) => epoll::add(set, fd, data, to.readiness()),
            (_, Interest::None) => epoll::delete(set, fd),
            _ => epoll::modify(set, fd, data, to.readiness()),
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // In the child of a fork the lock may be held by a thread that is no more.
        if self.crowd.device.home.is_here() {
            let left = self.crowd.seats.write().leave(self.index);
            drop(left);
        }
    }
}

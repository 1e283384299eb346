//! Who sits in a crowd.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::event::epoll;

use super::EpollGroup;
use super::dirty::Marked;
use crate::progress::background::Interest;
use crate::qp::inner::QpInner;

/// QPs by the number of their seat. A number is used again: an event that was for the one before gives the
/// next one a turn too many, which does no harm.
#[derive(Default)]
pub(super) struct Members {
    qps: Vec<Weak<QpInner>>,
    free: Vec<u32>,
}

impl Members {
    /// Its number, and how many seats there are.
    pub(super) fn take(&mut self, qp: Weak<QpInner>) -> (u32, usize) {
        if let Some(index) = self.free.pop()
            && let Some(member) = self.qps.get_mut(index as usize)
        {
            *member = qp;
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
pub(crate) struct Member {
    group: Arc<EpollGroup>,
    index: u32,
    /// It is in the queue of those that want a turn.
    dirty: AtomicBool,
}

impl Member {
    pub(super) fn new(group: Arc<EpollGroup>, index: u32) -> Self {
        Member {
            group,
            index,
            dirty: AtomicBool::new(false),
        }
    }

    /// The crowd.
    #[inline]
    pub(crate) fn group(&self) -> &Arc<EpollGroup> {
        &self.group
    }

    /// The QP wants a turn although nothing arrived. False when nobody would give it one soon: a thread sleeps on the
    /// crowd. Called under the lock of the QP.
    pub(crate) fn mark_dirty(&self) -> bool {
        if self.dirty.swap(true, Ordering::AcqRel) {
            return true;
        }
        match self.group.dirty.push(self.index) {
            Marked::First => self.group.see_to_it(),
            Marked::Queued => {}
            Marked::Refused => {
                self.dirty.store(false, Ordering::Release);
                return false;
            }
        }
        true
    }

    /// Its turn comes now; whoever asks from now on asks anew. Called before the lock of the QP is taken: what was staged
    /// under that lock before is seen by that turn, and what is staged after asks again.
    pub(super) fn clear_dirty(&self) {
        self.dirty.store(false, Ordering::Release);
    }

    /// Changes which readiness of the descriptor the crowd looks for. Without any it is not in the set at all: a socket
    /// that both sides have closed would be ready for ever.
    pub(crate) fn change(
        &self,
        fd: BorrowedFd<'_>,
        from: Interest,
        to: Interest,
    ) -> rustix::io::Result<()> {
        let set = &self.group.set;
        let data = epoll::EventData::new_u64(self.index.into());
        match (from, to) {
            (from, to) if from == to => Ok(()),
            (Interest::None, _) => epoll::add(set, fd, data, to.readiness()),
            (_, Interest::None) => epoll::delete(set, fd),
            _ => epoll::modify(set, fd, data, to.readiness()),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // In the child of a fork the lock may be held by a thread that is no more.
        if self.group.device.fork_guard.is_here() {
            let left = self.group.members.write().leave(self.index);
            drop(left);
        }
    }
}

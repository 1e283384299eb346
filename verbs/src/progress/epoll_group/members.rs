//! Membership of QPs in an epoll group.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use rustix::event::epoll;

use super::EpollGroup;
use super::dirty::Marked;
use crate::connection::inner::QpInner;
use crate::progress::background::Interest;

/// QPs by index. Indices are reused. An event for the previous member with an index then gives the
/// new one an extra turn, which is harmless.
#[derive(Default)]
pub(super) struct Members {
    qps: Vec<Weak<QpInner>>,
    free: Vec<u32>,
}

impl Members {
    /// Adds a QP. Returns its index and the number of slots.
    pub(super) fn insert(&mut self, qp: Weak<QpInner>) -> (u32, usize) {
        if let Some(index) = self.free.pop()
            && let Some(member) = self.qps.get_mut(index as usize)
        {
            *member = qp;
            return (index, self.qps.len());
        }
        // The limit on QPs is lower than `u32::MAX`.
        let index = u32::try_from(self.qps.len()).unwrap_or(u32::MAX);
        self.qps.push(qp);
        (index, self.qps.len())
    }

    fn remove(&mut self, index: u32) -> Weak<QpInner> {
        let qp = self.qps.get_mut(index as usize).map(std::mem::take);
        self.free.extend(qp.is_some().then_some(index));
        qp.unwrap_or_default()
    }

    pub(super) fn get(&self, index: u32) -> Option<Arc<QpInner>> {
        self.qps.get(index as usize)?.upgrade()
    }
}

/// Membership of a QP in a group, for as long as the QP exists.
pub(crate) struct Member {
    group: Arc<EpollGroup>,
    index: u32,
    /// True while the member is in the group's dirty list.
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

    /// Returns the group of this member.
    #[inline]
    pub(crate) fn group(&self) -> &Arc<EpollGroup> {
        &self.group
    }

    /// Requests a turn although nothing arrived. Returns false if no turn would follow soon,
    /// because a thread sleeps on the group. Called under the lock of the QP.
    pub(crate) fn mark_dirty(&self) -> bool {
        if self.dirty.swap(true, Ordering::AcqRel) {
            return true;
        }
        match self.group.dirty.push(self.index) {
            Marked::First => self.group.schedule_round(),
            Marked::Queued => {}
            Marked::Refused => {
                self.dirty.store(false, Ordering::Release);
                return false;
            }
        }
        true
    }

    /// Clears the dirty flag for a turn. Call it before the lock of the QP is taken. The turn then
    /// sends all requests that were staged before, and requests staged later set the flag again.
    pub(super) fn clear_dirty(&self) {
        self.dirty.store(false, Ordering::Release);
    }

    /// Changes the readiness that the set reports for the descriptor.
    ///
    /// For [`Interest::None`] the descriptor is removed, because a socket that both sides have
    /// closed would always be ready.
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
        // In the child of a fork the lock may be held by a thread that does not exist there.
        if self.group.device.is_here() {
            let left = self.group.members.write().remove(self.index);
            drop(left);
        }
    }
}

//! QPs of a CQ, which are driven one by one if they are few, and by groups if they are many.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;

use crate::connection::inner::QpInner;
use crate::device::DeviceInner;
use crate::policy::progress::FEW_QPS;
use crate::policy::{Heuristic, is_on};
use crate::progress::epoll_group::EpollGroup;

/// Way in which the QPs of a CQ are driven.
#[derive(Clone)]
pub(super) enum Driven {
    /// Each QP is driven by itself.
    Each(Arc<[Weak<QpInner>]>),
    /// The QPs are driven by their groups.
    Groups(Arc<[Arc<EpollGroup>]>),
}

/// QPs of a CQ, and the way in which they are driven.
///
/// ```text
///         more than `FEW_QPS` QPs
///   Each ─────────────────────────► Groups
///     ▲                               │
///     └────────── no QP at all ───────┘
/// ```
#[derive(Default)]
pub(super) struct Members {
    state: RwLock<State>,
    /// True if the QPs are driven by groups, for readers without the lock.
    driven_by_groups: AtomicBool,
}

/// `qps` is a map that is cheap to change, and `driven` is a list that is cheap to read. The first
/// reader after a change rebuilds the list.
#[derive(Default)]
struct State {
    qps: BTreeMap<u32, Member>,
    driven: Option<Driven>,
    /// Groups of the QPs if there are many, with the number of QPs of this CQ in each.
    groups: Vec<(Arc<EpollGroup>, usize)>,
    /// Group that this CQ created, for QPs that belong to no group yet.
    own: Option<Arc<EpollGroup>>,
}

struct Member {
    qp: Weak<QpInner>,
    /// True if the QP is counted in `groups`.
    in_group: bool,
}

impl Members {
    pub(super) fn len(&self) -> usize {
        self.state.read().qps.len()
    }

    /// Returns true if the QPs are driven by groups.
    #[inline]
    pub(super) fn driven_by_groups(&self) -> bool {
        self.driven_by_groups.load(Ordering::Relaxed)
    }

    /// Returns the QPs if they are few and driven one by one. A poll then needs no reference to the
    /// list. Returns `None` if there are more, if they are in groups, or if the list has to be
    /// rebuilt first.
    #[inline]
    pub(super) fn few(&self) -> Option<[Option<Arc<QpInner>>; FEW_QPS]> {
        match &self.state.read().driven {
            Some(Driven::Each(qps)) if qps.len() <= FEW_QPS => {
                let mut few = [const { None }; FEW_QPS];
                for (slot, qp) in few.iter_mut().zip(qps.iter()) {
                    *slot = qp.upgrade();
                }
                Some(few)
            }
            _ => None,
        }
    }

    /// Returns how the QPs are driven now.
    pub(super) fn driven(&self) -> Driven {
        if let Some(driven) = &self.state.read().driven {
            return driven.clone();
        }
        let mut state = self.state.write();
        let State {
            qps,
            driven,
            groups,
            ..
        } = &mut *state;
        let make = || match groups.is_empty() {
            true => Driven::Each(qps.values().map(|member| Weak::clone(&member.qp)).collect()),
            false => Driven::Groups(groups.iter().map(|(group, _)| Arc::clone(group)).collect()),
        };
        driven.get_or_insert_with(make).clone()
    }

    /// Adds a QP that completes here with one queue or both.
    pub(super) fn attach(&self, device: &Arc<DeviceInner>, qp: &Arc<QpInner>) {
        let mut state = self.state.write();
        let member = Member {
            qp: Arc::downgrade(qp),
            in_group: false,
        };
        if state.qps.contains_key(&qp.ctx.qp_num) {
            return;
        }
        state.qps.insert(qp.ctx.qp_num, member);
        state.driven = None;
        // With manual progress each poll drives all QPs, in a reproducible order.
        let many = state.qps.len() > FEW_QPS || !state.groups.is_empty();
        if is_on(Heuristic::EpollGroup) && many && !device.background.is_manual() {
            let result = match state.groups.is_empty() {
                true => state.join_all(device),
                false => state.join_one(device, qp),
            };
            if let Err(error) = result {
                tracing::warn!(%error, "cannot create an epoll set for the connections of a CQ; each poll queries all of them");
            }
        }
        self.note(&state);
    }

    /// Removes a QP.
    pub(super) fn detach(&self, qp: &QpInner) {
        let mut state = self.state.write();
        state.driven = None;
        let member = state.qps.remove(&qp.ctx.qp_num);
        if member.is_some_and(|member| member.in_group)
            && let Some(member) = qp.member()
        {
            state.leave(member.group());
        }
        self.note(&state);
    }

    fn note(&self, state: &State) {
        self.driven_by_groups
            .store(!state.groups.is_empty(), Ordering::Relaxed);
    }
}

impl State {
    /// Moves all QPs into groups.
    fn join_all(&mut self, device: &Arc<DeviceInner>) -> rustix::io::Result<()> {
        // The group is created before any QP joins it: either all QPs join or none.
        self.own(device)?;
        let qps = self.qps.values().filter_map(|member| member.qp.upgrade());
        for qp in qps.collect::<Vec<_>>() {
            self.join_one(device, &qp)?;
        }
        Ok(())
    }

    /// Puts a QP into a group of this CQ. A QP that already belongs to a group through its other CQ
    /// stays in that group and is counted there.
    fn join_one(&mut self, device: &Arc<DeviceInner>, qp: &Arc<QpInner>) -> rustix::io::Result<()> {
        let member = match (qp.member(), self.groups.first()) {
            (Some(member), _) => member,
            (None, Some((group, _))) => qp.join_group(group),
            (None, None) => qp.join_group(self.own(device)?),
        };
        let group = member.group();
        match self
            .groups
            .iter_mut()
            .find(|(known, _)| Arc::ptr_eq(known, group))
        {
            Some((_, qps)) => *qps += 1,
            None => self.groups.push((Arc::clone(group), 1)),
        }
        if let Some(member) = self.qps.get_mut(&qp.ctx.qp_num) {
            member.in_group = true;
        }
        Ok(())
    }

    fn leave(&mut self, group: &Arc<EpollGroup>) {
        let at = self
            .groups
            .iter()
            .position(|(known, _)| Arc::ptr_eq(known, group));
        if let Some(at) = at
            && let Some((_, qps)) = self.groups.get_mut(at)
        {
            *qps -= 1;
            if *qps == 0 {
                self.groups.swap_remove(at);
            }
        }
    }

    fn own(&mut self, device: &Arc<DeviceInner>) -> rustix::io::Result<&Arc<EpollGroup>> {
        if self.own.is_none() {
            self.own = Some(EpollGroup::new(device)?);
        }
        self.own.as_ref().ok_or(rustix::io::Errno::NFILE)
    }
}

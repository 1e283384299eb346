//! Accounting of the resources of one protection domain. A domain represents one part of the local
//! program (RFC 5042 section 6.4.1), and its limits keep it from taking more than a fair share
//! (5040-8.1.2-06).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Number, Place};
use crate::settings::PdLimits;

/// Kind of a resource counted for a domain. Regions are counted in their table, which knows the
/// domain of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfPd {
    /// Queue pairs.
    Qps,
    /// Shared receive queues.
    Srqs,
    /// Capacity of SRQs, and of the receive queues of QPs without an SRQ.
    Receives,
    /// Places for Reads of peers (IRD), of all connections in the domain.
    Reads,
}

const KINDS: usize = 4;

impl OfPd {
    /// Returns the limit of this resource.
    pub fn limit(self, limits: &PdLimits) -> u32 {
        match self {
            OfPd::Qps => limits.max_qp,
            OfPd::Srqs => limits.max_srq,
            OfPd::Receives => limits.max_recv_wr,
            OfPd::Reads => limits.max_ird_total,
        }
    }
}

/// Account of a protection domain, shared by the objects in it. It exists while there is an object
/// in the domain or a handle to it.
pub struct PdAccount {
    id: Number,
    used: [AtomicU32; KINDS],
    /// Place among the domains of the device.
    _place: Place,
}

impl PdAccount {
    /// Creates the account of the domain with this number.
    pub fn new(id: Number, place: Place) -> Arc<Self> {
        Arc::new(PdAccount {
            id,
            used: [const { AtomicU32::new(0) }; KINDS],
            _place: place,
        })
    }

    /// Number of the domain.
    pub fn id(&self) -> u32 {
        self.id.get()
    }

    /// Charges `amount` completely, or returns `None` if the limit is exceeded.
    pub fn take(self: &Arc<Self>, what: OfPd, amount: u32, limit: u32) -> Option<PdCharge> {
        self.add(what, amount, limit).then(|| PdCharge {
            account: Arc::clone(self),
            what,
            amount,
        })
    }

    /// Charges `most`, or as much of it as the limit leaves, which may be 0.
    pub(crate) fn take_up_to(self: &Arc<Self>, what: OfPd, most: u32, limit: u32) -> PdCharge {
        let left = |used: u32| limit.saturating_sub(used).min(most);
        let (Ok(before) | Err(before)) =
            self.of(what)
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                    Some(used + left(used))
                });
        PdCharge {
            account: Arc::clone(self),
            what,
            amount: left(before),
        }
    }

    fn add(&self, what: OfPd, amount: u32, limit: u32) -> bool {
        self.of(what)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(amount).filter(|sum| *sum <= limit)
            })
            .is_ok()
    }

    fn of(&self, what: OfPd) -> &AtomicU32 {
        // The discriminants are 0 to KINDS - 1.
        &self.used[what as usize]
    }
}

/// An amount that is charged to a domain until it is dropped.
pub struct PdCharge {
    account: Arc<PdAccount>,
    what: OfPd,
    amount: u32,
}

impl PdCharge {
    /// Account of the domain.
    pub fn account(&self) -> &Arc<PdAccount> {
        &self.account
    }

    /// Charged amount.
    pub fn amount(&self) -> u32 {
        self.amount
    }

    /// Changes the charge to `amount`. Returns false, without a change, if the limit is exceeded. A
    /// reduction always succeeds.
    pub fn change(&mut self, amount: u32, limit: u32) -> bool {
        if amount > self.amount {
            let more = amount - self.amount;
            if !self.account.add(self.what, more, limit) {
                return false;
            }
            self.amount = amount;
        } else {
            self.shrink_to(amount);
        }
        true
    }

    /// Gives back all but `amount`.
    pub(crate) fn shrink_to(&mut self, amount: u32) {
        let surplus = self.amount.saturating_sub(amount);
        self.amount -= surplus;
        self.give(surplus);
    }

    fn give(&self, amount: u32) {
        self.account
            .of(self.what)
            .fetch_sub(amount, Ordering::AcqRel);
    }
}

impl Drop for PdCharge {
    fn drop(&mut self) {
        self.give(self.amount);
    }
}

impl fmt::Debug for PdCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PdCharge {
            account,
            what,
            amount,
        } = self;
        write!(f, "{amount} {what:?} of protection domain {}", account.id())
    }
}

//! What one protection domain has: the share of one part of the local program (RFC 5042 section 6.4.1), of which none
//! need get more than is fair (5040-8.1.2-06).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Number, Place};
use crate::settings::PdLimits;

/// What is counted of a domain. (Regions are counted in their table, which knows the domain of each.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OfPd {
    Qps,
    Srqs,
    /// Receives that its queues can hold: those of QPs without an SRQ, and SRQs.
    Receives,
    /// Places for the Reads of peers, of all its connections (IRD).
    Reads,
}

const KINDS: usize = 4;

impl OfPd {
    pub(crate) fn limit(self, limits: &PdLimits) -> u32 {
        match self {
            OfPd::Qps => limits.max_qp,
            OfPd::Srqs => limits.max_srq,
            OfPd::Receives => limits.max_recv_wr,
            OfPd::Reads => limits.max_ird_total,
        }
    }
}

/// A protection domain, as the objects in it know it. It exists as long as one of them or a handle does.
pub(crate) struct PdAccount {
    id: Number,
    used: [AtomicU32; KINDS],
    /// Its place among the domains of the device.
    _place: Place,
}

impl PdAccount {
    pub(crate) fn new(id: Number, place: Place) -> Arc<Self> {
        Arc::new(PdAccount {
            id,
            used: [const { AtomicU32::new(0) }; KINDS],
            _place: place,
        })
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.id.get()
    }

    /// `amount` more, all or nothing: `None` beyond the limit.
    pub(crate) fn take(self: &Arc<Self>, what: OfPd, amount: u32, limit: u32) -> Option<PdCharge> {
        self.add(what, amount, limit).then(|| PdCharge {
            account: Arc::clone(self),
            what,
            amount,
        })
    }

    /// Up to `most`: what is left, which may be nothing.
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

/// Something that is charged to a domain until this is dropped.
pub(crate) struct PdCharge {
    account: Arc<PdAccount>,
    what: OfPd,
    amount: u32,
}

impl PdCharge {
    /// The domain that it is charged to.
    pub(crate) fn account(&self) -> &Arc<PdAccount> {
        &self.account
    }

    /// How much.
    pub(crate) fn amount(&self) -> u32 {
        self.amount
    }

    /// Charges so much instead. False beyond the limit; then all is as it was. Less is always granted.
    pub(crate) fn change(&mut self, amount: u32, limit: u32) -> bool {
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

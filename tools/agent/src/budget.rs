//! Memory that all controllers of an agent may use together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::refusal::Refusal;

/// Limit of the memory of all controllers, and the memory in use.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    used: AtomicU64,
}

/// Part of a budget. Dropping it gives the memory back.
#[derive(Debug)]
pub(crate) struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Budget> {
        let used = AtomicU64::new(0);
        Arc::new(Budget { limit, used })
    }

    /// Takes `bytes` from the budget. Refuses if fewer are left.
    pub(crate) fn charge(self: &Arc<Budget>, bytes: u64) -> Result<Charge, Refusal> {
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        let taken = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        taken.map_err(|used| {
            let limit = self.limit;
            Refusal::agent(format!(
                "all controllers together have {limit} bytes of memory, and {used} are in use; \
                 {bytes} more were asked for (the agent's --max-memory sets the limit)"
            ))
        })?;
        let budget = Arc::clone(self);
        Ok(Charge { budget, bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_and_given_back() {
        let budget = Budget::new(10);
        let first = budget.charge(6).unwrap();
        let refused = budget.charge(5).unwrap_err().to_string();
        assert!(refused.contains("10 bytes") && refused.contains("6 are in use"));
        assert!(budget.charge(u64::MAX).is_err());
        let rest = budget.charge(4).unwrap();
        drop((first, rest));
        budget.charge(10).unwrap();
    }
}

//! Points in time.

use std::time::{Duration, Instant};

/// Returns the time `limit` after `from`. A longer limit counts as 100 years.
#[must_use]
pub fn after(from: Instant, limit: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    from + limit.min(NEVER)
}

/// Returns the earlier of the two times, or the one that is present.
#[inline]
#[must_use]
pub fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

//! Counts the users of an object. Destroying an object that is in use fails with `EBUSY`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of users of one object.
#[derive(Default)]
pub(crate) struct Users(Arc<AtomicU32>);

/// One user of an object. Dropping the user lowers the number.
pub(crate) struct User(Arc<AtomicU32>);

impl Users {
    /// Adds a user.
    pub(crate) fn add(&self) -> User {
        self.0.fetch_add(1, Ordering::Relaxed);
        User(Arc::clone(&self.0))
    }

    /// Returns true if there are any users.
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_in_use_until_its_last_user_is_gone() {
        let users = Users::default();
        assert!(!users.any());
        let (one, other) = (users.add(), users.add());
        drop(one);
        assert!(users.any());
        drop(other);
        assert!(!users.any());
    }
}

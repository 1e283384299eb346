//! Counts the users of a stack: networks, connections and listeners.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stack::Stack;

/// Number of users of a stack.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

/// A counted reference to a stack.
///
/// Dropping the last user closes the link before the call returns. The interface or socket can then
/// be used again at once. A plain `Arc` is not enough, because the link's thread also holds an
/// `Arc` for short times and could be the last owner.
pub(crate) struct User(Arc<Stack>);

impl User {
    pub(crate) fn of(stack: &Arc<Stack>) -> Self {
        stack.users.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(stack))
    }
}

impl Clone for User {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Deref for User {
    type Target = Arc<Stack>;

    fn deref(&self) -> &Arc<Stack> {
        &self.0
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.0.users.0.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.link().close();
        }
    }
}

//! Counts the users of a stack: networks, connections and listeners.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stack::Stack;

/// Number of users.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

/// A counted reference to a stack.
///
/// The drop of the last one closes the link before it returns, so the interface or the socket is
/// free then. A plain `Arc` is not enough. The link's thread holds one too, for short times, and
/// could be the last owner.
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

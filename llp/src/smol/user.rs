//! Who uses a stack: networks, connections and listeners.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::stack::Stack;

/// How many there are.
#[derive(Default)]
pub(crate) struct Users(AtomicUsize);

/// A hold of a stack that its owner can see.
///
/// When the last one is dropped the link is closed before the drop returns, so that the interface or
/// the socket is free then. A plain `Arc` does not do: the thread of a link holds one too, for a
/// moment now and then, and could be the last.
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

//! Memory that stays free for allocations that cannot fail; see the module of the same name in
//! `uwarp-engine`.

use uwarp_engine::headroom;
pub use uwarp_engine::headroom::{MemoryShort, share_arena};

use crate::Device;

impl Device {
    /// Checks that the process can allocate `bytes` bytes at once for `what`, and that enough
    /// remains for small allocations. A server should ask this before it accepts a connection.
    /// Frees unused buffers of the device if that is necessary.
    ///
    /// # Errors
    /// [`MemoryShort`], only in a process with a limit of its memory (`ulimit -v`, `ulimit -d`).
    pub fn check_memory(&self, bytes: usize, what: &'static str) -> Result<(), MemoryShort> {
        self.check_or_clear(what, || headroom::has(bytes))
    }

    /// Checks that the process can start a thread that needs `bytes` bytes for `what`, and that
    /// enough remains for small allocations. Frees unused buffers of the device if that is
    /// necessary.
    ///
    /// The bytes must be free twice. Otherwise a server that keeps its threads might later find no
    /// room for the memory of a single client.
    ///
    /// # Errors
    /// As [`Device::check_memory`].
    pub fn check_memory_for_thread(
        &self,
        bytes: usize,
        what: &'static str,
    ) -> Result<(), MemoryShort> {
        self.check_or_clear(what, || headroom::has_for_thread(bytes))
    }

    fn check_or_clear(
        &self,
        what: &'static str,
        is_granted: impl Fn() -> bool,
    ) -> Result<(), MemoryShort> {
        let is_granted = is_granted() || {
            if let Ok(inner) = self.inner() {
                inner.pool.clear();
            }
            is_granted()
        };
        is_granted.then_some(()).ok_or(MemoryShort::new(what))
    }
}

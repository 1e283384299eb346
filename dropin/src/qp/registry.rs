//! Queue pairs by their number: a program names one so in `rdma_conn_param`, and completions carry it.
#![expect(
    unsafe_code,
    reason = "the map holds pointers to what programs hold pointers to"
)]

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::RwLock;

use super::QpKept;

/// What is behind a queue pair that exists: it is taken out before it ends.
struct Pointer(*const QpKept);

// SAFETY: what it points to may be used by any thread (`QpKept` is `Sync`, below), and is not freed while the map's lock is held.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

const _: () = {
    const fn sync<T: Sync>() {}
    sync::<QpKept>();
};

static ALL: LazyLock<RwLock<HashMap<u32, Pointer>>> = LazyLock::new(RwLock::default);

/// Looks at the queue pair with this number, if there is one. It does not end meanwhile: `look` must not wait for anything.
pub(crate) fn with<R>(number: u32, look: impl FnOnce(&QpKept) -> R) -> Option<R> {
    let all = ALL.read();
    let pointer = all.get(&number)?;
    // SAFETY: it is in the map, whose lock this holds, so that it is not freed.
    Some(look(unsafe { &*pointer.0 }))
}

/// One more.
pub(super) fn add(number: u32, kept: &QpKept) {
    ALL.write().insert(number, Pointer(kept));
}

/// It is about to end.
pub(super) fn remove(number: u32) {
    ALL.write().remove(&number);
}

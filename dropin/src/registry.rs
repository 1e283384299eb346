//! Maps from the numbers of objects to their pointers. Completions and events carry numbers, and a
//! program names a queue pair by its number in `rdma_conn_param`.
//!
//! Each process has its own maps and locks. A child that is forked while another thread holds a
//! lock would find it taken for ever. The objects of the parent are in none of its maps: no
//! completion or event of the child names them.
#![expect(
    unsafe_code,
    reason = "the maps hold pointers to objects that programs point to"
)]

use core::convert::Infallible;
use std::collections::BTreeMap;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::abi::{ibv_cq_ex, ibv_qp_ex, ibv_srq};
use crate::cq::CqInner;
use crate::object::Object;
use crate::per_process::PerProcess;
use crate::qp::QpInner;
use crate::srq::SrqInner;

pub(crate) static QPS: Registry<ibv_qp_ex, QpInner> = Registry::new();
pub(crate) static CQS: Registry<ibv_cq_ex, CqInner> = Registry::new();
pub(crate) static SRQS: Registry<ibv_srq, SrqInner> = Registry::new();

/// Locked for writing while a queue pair is destroyed, and for reading while an event is taken and
/// its object is looked up. So either the queue pair of the event still exists, or the event is
/// dropped.
static DESTROYING: PerProcess<RwLock<()>> = PerProcess::new();

/// Waits until no event is taken. None is taken until the result is dropped.
pub(crate) fn destroying() -> RwLockWriteGuard<'static, ()> {
    own(&DESTROYING).write()
}

/// Waits until no queue pair is destroyed. None is destroyed until the result is dropped.
pub(crate) fn taking_event() -> RwLockReadGuard<'static, ()> {
    own(&DESTROYING).read()
}

/// Returns the value of this process, which a child does not inherit.
fn own<V: Default + Send + Sync + 'static>(value: &PerProcess<V>) -> &'static V {
    let Ok(own) = value.get_or_make(|_| Ok::<_, Infallible>(V::default()));
    own
}

/// Pointers to all existing objects of one kind, by number.
pub(crate) struct Registry<C, T>(PerProcess<RwLock<Map<C, T>>>);

type Map<C, T> = BTreeMap<u32, Pointer<C, T>>;

struct Pointer<C, T>(*mut C, core::marker::PhantomData<fn() -> T>);

// SAFETY: each pointer is used only to read the object's `T`, which is `Sync`, and only while the
// object is in the map.
unsafe impl<C, T: Sync> Send for Pointer<C, T> {}
// SAFETY: as above.
unsafe impl<C, T: Sync> Sync for Pointer<C, T> {}

impl<C: 'static, T: Sync + 'static> Registry<C, T> {
    const fn new() -> Self {
        Registry(PerProcess::new())
    }

    /// Calls `look` with the object of this number, if it exists. The map stays locked during the
    /// call, so that the object is not destroyed. So `look` must not block.
    pub(crate) fn with<R>(&self, number: u32, look: impl FnOnce(*mut C, &T) -> R) -> Option<R> {
        let all = own(&self.0).read();
        let pointer = all.get(&number)?.0;
        // SAFETY: the object is in the map, and is not destroyed while the lock is held.
        Some(look(pointer, unsafe { Object::<C, T>::inner(pointer) }))
    }

    /// Adds an object.
    ///
    /// # Safety
    /// `object` has these types, and is [removed](Self::remove) before it is destroyed.
    pub(crate) unsafe fn add(&self, number: u32, object: *mut C) {
        let pointer = Pointer(object, core::marker::PhantomData);
        own(&self.0).write().insert(number, pointer);
    }

    /// Removes an object that is about to be destroyed. A child may destroy an inherited one, and
    /// have a new one with the same number, which stays.
    pub(crate) fn remove(&self, number: u32, object: *mut C) {
        let mut all = own(&self.0).write();
        if all.get(&number).is_some_and(|found| found.0 == object) {
            all.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_that_ends_takes_none_with_it_that_has_its_number_now() {
        let registry: Registry<u64, ()> = Registry::new();
        let (parents, own) = (Object::allocate(1, ()), Object::allocate(2, ()));
        // SAFETY: the objects have these types. They are freed below, after they are removed.
        unsafe {
            registry.add(7, parents);
            registry.add(7, own);
            registry.remove(7, parents);
            assert_eq!(registry.with(7, |pointer, ()| pointer), Some(own));
            registry.remove(7, own);
            assert_eq!(registry.with(7, |pointer, ()| pointer), None);
            Object::<u64, ()>::free(parents);
            Object::<u64, ()>::free(own);
        }
    }
}

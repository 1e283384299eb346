//! Maps from the numbers of objects to their pointers. Completions and events carry numbers, and a
//! program names a queue pair by its number in `rdma_conn_param`.
#![expect(
    unsafe_code,
    reason = "the maps hold pointers to objects that programs point to"
)]

use std::collections::BTreeMap;

use parking_lot::RwLock;

use crate::abi::{ibv_cq_ex, ibv_qp_ex, ibv_srq};
use crate::cq::CqInner;
use crate::object::Object;
use crate::qp::QpInner;
use crate::srq::SrqInner;

pub(crate) static QPS: Registry<ibv_qp_ex, QpInner> = Registry::new();
pub(crate) static CQS: Registry<ibv_cq_ex, CqInner> = Registry::new();
pub(crate) static SRQS: Registry<ibv_srq, SrqInner> = Registry::new();

/// Locked for writing while a queue pair is destroyed, and for reading while an event is taken and
/// its object is looked up. So either the queue pair of the event still exists, or the event is
/// dropped.
pub(crate) static DESTROYING: RwLock<()> = RwLock::new(());

/// Pointers to all existing objects of one kind, by number.
pub(crate) struct Registry<C, T>(RwLock<BTreeMap<u32, Pointer<C, T>>>);

struct Pointer<C, T>(*mut C, core::marker::PhantomData<fn() -> T>);

// SAFETY: each pointer is used only to read the object's `T`, which is `Sync`, and only while the
// object is in the map.
unsafe impl<C, T: Sync> Send for Pointer<C, T> {}
// SAFETY: as above.
unsafe impl<C, T: Sync> Sync for Pointer<C, T> {}

impl<C, T: Sync> Registry<C, T> {
    const fn new() -> Self {
        Registry(RwLock::new(BTreeMap::new()))
    }

    /// Calls `look` with the object of this number, if it exists. The map stays locked during the
    /// call, so that the object is not destroyed. So `look` must not block.
    pub(crate) fn with<R>(&self, number: u32, look: impl FnOnce(*mut C, &T) -> R) -> Option<R> {
        let all = self.0.read();
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
        self.0.write().insert(number, pointer);
    }

    /// Removes an object that is about to be destroyed. In a forked child, a new object may have
    /// replaced an inherited one with the same number. In that case the new object stays.
    pub(crate) fn remove(&self, number: u32, object: *mut C) {
        let mut all = self.0.write();
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

//! Objects by their numbers: completions and events carry those, and a program names a queue pair so in `rdma_conn_param`.
#![expect(
    unsafe_code,
    reason = "the maps hold pointers to what programs hold pointers to"
)]

use std::collections::BTreeMap;

use parking_lot::RwLock;

use crate::abi::{ibv_cq_ex, ibv_qp_ex, ibv_srq};
use crate::cq::CqKept;
use crate::object::Object;
use crate::qp::QpKept;
use crate::srq::SrqKept;

pub(crate) static QPS: Registry<ibv_qp_ex, QpKept> = Registry::new();
pub(crate) static CQS: Registry<ibv_cq_ex, CqKept> = Registry::new();
pub(crate) static SRQS: Registry<ibv_srq, SrqKept> = Registry::new();

/// Written while an object ends, read while the object of an event is looked up: so an event that was taken belongs to an object
/// that is there, or to none.
pub(crate) static ENDING: RwLock<()> = RwLock::new(());

/// The objects of one kind that exist.
pub(crate) struct Registry<C, T>(RwLock<BTreeMap<u32, Pointer<C, T>>>);

struct Pointer<C, T>(*mut C, core::marker::PhantomData<fn() -> T>);

// SAFETY: a pointer to an object is used only to look at what is kept, from any thread, and only as long as it is in the map.
unsafe impl<C, T: Sync> Send for Pointer<C, T> {}
// SAFETY: as above.
unsafe impl<C, T: Sync> Sync for Pointer<C, T> {}

impl<C, T: Sync> Registry<C, T> {
    const fn new() -> Self {
        Registry(RwLock::new(BTreeMap::new()))
    }

    /// Looks at the object with this number, if there is one. It does not end meanwhile: `look` must not wait for anything.
    pub(crate) fn with<R>(&self, number: u32, look: impl FnOnce(*mut C, &T) -> R) -> Option<R> {
        let all = self.0.read();
        let pointer = all.get(&number)?.0;
        // SAFETY: it is in the map, whose lock this holds, so that it does not end.
        Some(look(pointer, unsafe { Object::<C, T>::kept(pointer) }))
    }

    /// One more.
    ///
    /// # Safety
    /// It is an object of these types, and is [removed](Self::remove) before it ends.
    pub(crate) unsafe fn add(&self, number: u32, object: *mut C) {
        let pointer = Pointer(object, core::marker::PhantomData);
        self.0.write().insert(number, pointer);
    }

    /// It is about to end. In the child of a fork an object of the child's may have the number of one of the parent's: that stays.
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
        let (parents, own) = (Object::begin(1, ()), Object::begin(2, ()));
        // SAFETY: objects of these types, which end below, after they were removed.
        unsafe {
            registry.add(7, parents);
            registry.add(7, own);
            registry.remove(7, parents);
            assert_eq!(registry.with(7, |pointer, ()| pointer), Some(own));
            registry.remove(7, own);
            assert_eq!(registry.with(7, |pointer, ()| pointer), None);
            Object::<u64, ()>::end(parents);
            Object::<u64, ()>::end(own);
        }
    }
}

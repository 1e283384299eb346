//! Objects to which a program has a pointer: the structure of the C interface, followed by the
//! state that this library keeps for it.
#![expect(unsafe_code, reason = "programs hold pointers to these objects")]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// Object with its C structure at the start. The program may read the structure at any time, and
/// write it where the interface says so. So no reference to it is ever created.
#[repr(C)]
pub(crate) struct Object<C, T> {
    shown: UnsafeCell<C>,
    kept: T,
}

impl<C, T> Object<C, T> {
    /// Creates an object. It lives until [`end`](Self::end).
    pub(crate) fn begin(shown: C, kept: T) -> *mut C {
        let object = Box::new(Object {
            shown: UnsafeCell::new(shown),
            kept,
        });
        Box::into_raw(object).cast()
    }

    /// Creates an object whose parts need its address. After an error there is none.
    pub(crate) fn begin_with<E>(
        make: impl FnOnce(*mut C) -> Result<(C, T), E>,
    ) -> Result<*mut C, E> {
        let place: *mut MaybeUninit<Self> = Box::into_raw(Box::new(MaybeUninit::uninit()));
        let pointer = place.cast::<C>();
        match make(pointer) {
            Ok((shown, kept)) => {
                let object = Object {
                    shown: UnsafeCell::new(shown),
                    kept,
                };
                // SAFETY: no other code uses the memory yet: `make` has only passed its address on.
                unsafe { place.cast::<Self>().write(object) };
                Ok(pointer)
            }
            Err(error) => {
                // SAFETY: the pointer came from `Box::into_raw`, and nothing in it needs a drop.
                drop(unsafe { Box::from_raw(place) });
                Err(error)
            }
        }
    }

    /// Returns the state of the object at the program's pointer.
    ///
    /// # Safety
    /// `pointer` came from [`begin`](Self::begin) with the same types, and `end` is not called for
    /// it during the lifetime of the reference.
    pub(crate) unsafe fn kept<'a>(pointer: *mut C) -> &'a T {
        // SAFETY: guaranteed by the caller; the state is never borrowed mutably before `end`.
        unsafe { &(*pointer.cast::<Self>()).kept }
    }

    /// Frees the object and returns its state.
    ///
    /// # Safety
    /// As for [`kept`](Self::kept), and the program does not use the pointer any more.
    pub(crate) unsafe fn end(pointer: *mut C) -> T {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { Box::from_raw(pointer.cast::<Self>()) };
        object.kept
    }
}

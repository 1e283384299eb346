//! What a program holds a pointer to: the structure that the C interface shows, and what this library keeps behind it.
#![expect(
    unsafe_code,
    reason = "the program holds pointers to what is kept here"
)]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// The program sees `shown` and may read and, where the interface says so, write it at any time: no reference to it is ever made.
#[repr(C)]
pub(crate) struct Object<C, T> {
    shown: UnsafeCell<C>,
    kept: T,
}

impl<C, T> Object<C, T> {
    /// Makes an object. It lives until [`end`](Self::end).
    pub(crate) fn begin(shown: C, kept: T) -> *mut C {
        let object = Box::new(Object {
            shown: UnsafeCell::new(shown),
            kept,
        });
        Box::into_raw(object).cast()
    }

    /// Makes an object whose parts have to know where it will be. With an error there is none.
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
                // SAFETY: the place is this one's alone: `make` has given nobody anything but its address.
                unsafe { place.cast::<Self>().write(object) };
                Ok(pointer)
            }
            Err(error) => {
                // SAFETY: it came from `Box::into_raw`, and there is nothing in it to drop.
                drop(unsafe { Box::from_raw(place) });
                Err(error)
            }
        }
    }

    /// What is kept behind the pointer that the program has.
    ///
    /// # Safety
    /// `pointer` came from [`begin`](Self::begin) of the same types, and `end` is not called for it while the reference lives.
    pub(crate) unsafe fn kept<'a>(pointer: *mut C) -> &'a T {
        // SAFETY: the promise of the caller; `kept` is never borrowed mutably while it is an object.
        unsafe { &(*pointer.cast::<Self>()).kept }
    }

    /// Ends the object and gives what was kept.
    ///
    /// # Safety
    /// As for [`kept`](Self::kept), and the program does not use the pointer any more.
    pub(crate) unsafe fn end(pointer: *mut C) -> T {
        // SAFETY: the promise of the caller.
        let object = unsafe { Box::from_raw(pointer.cast::<Self>()) };
        object.kept
    }
}

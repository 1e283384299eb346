//! What a program holds a pointer to: the structure that the C interface shows, and what this library keeps behind it.
#![expect(
    unsafe_code,
    reason = "the program holds pointers to what is kept here"
)]

use core::cell::UnsafeCell;

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

//! Objects to which a program has a pointer: the structure of the C interface, followed by the
//! state that this library keeps for it.
#![expect(unsafe_code, reason = "programs hold pointers to these objects")]

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;

/// Checks that a structure still has the handle (`handle` of `ibv_pd` and others) that it was
/// created with. The kernel finds the object of a command by this number, among those of the
/// context.
///
/// # Errors
/// `ENOENT`, as from the kernel.
pub(crate) fn check_handle<T: PartialEq + Copy>(shown: T, own: T) -> Result<(), c_int> {
    (shown == own).then_some(()).ok_or(libc::ENOENT)
}

/// Object with its C structure at the start. The program may read the structure at any time, and
/// write those fields that the interface allows. So no reference to the structure is ever created.
#[repr(C)]
pub(crate) struct Object<C, T> {
    public: UnsafeCell<C>,
    inner: T,
}

impl<C, T> Object<C, T> {
    /// Creates an object. It lives until [`free`](Self::free).
    pub(crate) fn allocate(public: C, inner: T) -> *mut C {
        let object = Box::new(Object {
            public: UnsafeCell::new(public),
            inner,
        });
        Box::into_raw(object).cast()
    }

    /// Creates an object whose parts need its address, which `make` gets. If `make` fails, frees
    /// the memory.
    pub(crate) fn allocate_with<E>(
        make: impl FnOnce(*mut C) -> Result<(C, T), E>,
    ) -> Result<*mut C, E> {
        let place: *mut MaybeUninit<Self> = Box::into_raw(Box::new(MaybeUninit::uninit()));
        let pointer = place.cast::<C>();
        match make(pointer) {
            Ok((public, inner)) => {
                let object = Object {
                    public: UnsafeCell::new(public),
                    inner,
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

    /// Returns the internal state of the object to which the program's pointer points.
    ///
    /// # Safety
    /// `pointer` came from [`allocate`](Self::allocate) with the same types, and `free` is not
    /// called for it during the lifetime of the reference.
    pub(crate) unsafe fn inner<'a>(pointer: *mut C) -> &'a T {
        // SAFETY: guaranteed by the caller; the state is never borrowed mutably before `free`.
        unsafe { &(*pointer.cast::<Self>()).inner }
    }

    /// Frees the object and returns its state.
    ///
    /// # Safety
    /// As for [`inner`](Self::inner), and the program does not use the pointer any more.
    pub(crate) unsafe fn free(pointer: *mut C) -> T {
        // SAFETY: guaranteed by the caller.
        let object = unsafe { Box::from_raw(pointer.cast::<Self>()) };
        object.inner
    }
}

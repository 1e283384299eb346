//! Functions of other libraries, found by their names.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Function of another library.
pub(crate) struct Real {
    name: &'static CStr,
    /// True if only the libraries after this one are searched. They have the function that this
    /// library hides.
    after: bool,
    address: AtomicPtr<c_void>,
}

impl Real {
    /// Function that this library hides.
    pub(crate) const fn hidden(name: &'static CStr) -> Self {
        Real {
            name,
            after: true,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Function of any library.
    pub(crate) const fn anywhere(name: &'static CStr) -> Self {
        Real {
            name,
            after: false,
            address: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the address of the function, or NULL if there is none.
    #[inline]
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        match known.is_null() {
            true => self.find(),
            false => known,
        }
    }

    #[cold]
    #[inline(never)]
    fn find(&self) -> *mut c_void {
        let place = match self.after {
            true => libc::RTLD_NEXT,
            false => libc::RTLD_DEFAULT,
        };
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(place, self.name.as_ptr()) };
        if found.is_null() {
            // SAFETY: the function takes nothing. The program must not see this error as its own.
            unsafe { libc::dlerror() };
        }
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library returns the address of the calling thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
}

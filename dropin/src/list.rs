//! Lists of pointers that programs get and free, with NULL after the last entry.
#![expect(unsafe_code, reason = "the list is in memory that the program frees")]

use core::mem;

/// Creates a list. Returns `None` if no memory is left.
pub(crate) fn create<T>(entries: &[*mut T]) -> Option<*mut *mut T> {
    // SAFETY: the call takes only numbers.
    let list = unsafe { libc::calloc(entries.len() + 1, mem::size_of::<*mut T>()) };
    let list: *mut *mut T = list.cast();
    if list.is_null() {
        return None;
    }
    // SAFETY: the list has room for one entry more, which stays NULL.
    unsafe { list.copy_from_nonoverlapping(entries.as_ptr(), entries.len()) };
    Some(list)
}

/// Frees a list.
///
/// # Safety
/// `list` is NULL or from [`create`], and is not used any more.
pub(crate) unsafe fn free<T>(list: *mut *mut T) {
    // SAFETY: guaranteed by the caller.
    unsafe { libc::free(list.cast()) };
}

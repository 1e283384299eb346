//! Paths that are redirected, and the paths that replace them.

use core::ffi::{CStr, c_char, c_int};
use core::mem::{self, MaybeUninit};
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering};

use libc::PATH_MAX;

use crate::real::{Real, set_errno};

/// Directories that are redirected, with all below them.
const DIRECTORIES: [&CStr; 3] = [
    c"/sys/class/infiniband",
    c"/sys/class/infiniband_verbs",
    c"/dev/infiniband",
];

/// Function of the drop-in library: writes the path that replaces a path, and returns the number of
/// bytes that come before the path, or a negative error number.
type Map = unsafe extern "C-unwind" fn(*const c_char, *mut c_char, usize) -> c_int;

static MAP: Real = Real::anywhere(c"uwarp_sysfs_map");

/// Path that replaces another.
pub(crate) struct Mapped<'a> {
    pub(crate) path: *const c_char,
    /// Bytes at the start of the path that the program does not know.
    pub(crate) root: &'a [u8],
}

/// Returns true for a path that is redirected.
///
/// # Safety
/// `path` is NULL or a C string.
#[inline]
pub(crate) unsafe fn is_redirected(path: *const c_char) -> bool {
    // SAFETY: guaranteed by the caller.
    !path.is_null()
        && DIRECTORIES
            .iter()
            .any(|directory| unsafe { is_in(path, directory) })
}

/// Returns true if `path` is `directory` or a path below it. A slash may be several, with dots
/// between them. Reads no byte after the first that differs.
///
/// # Safety
/// `path` is a C string.
#[inline]
unsafe fn is_in(path: *const c_char, directory: &CStr) -> bool {
    let mut at = 0;
    // SAFETY: all bytes before this one were not NUL, so it belongs to the string.
    let byte = |at: usize| unsafe { *path.add(at) } as u8;
    for due in directory.to_bytes() {
        if byte(at) != *due {
            return false;
        }
        at += 1;
        if *due != b'/' {
            continue;
        }
        loop {
            match byte(at) {
                b'/' => at += 1,
                b'.' if byte(at + 1) == b'/' => at += 2,
                _ => break,
            }
        }
    }
    matches!(byte(at), 0 | b'/')
}

/// Set by the constructor of this library.
static IS_LOADED: AtomicBool = AtomicBool::new(false);

/// Marks the process as ready to load the drop-in library's settings.
pub(crate) fn set_loaded() {
    IS_LOADED.store(true, Ordering::Relaxed);
}

/// Returns true if the C library has the environment, which has the settings of the device. Code
/// that runs before the constructors (`.preinit_array`) finds none. Later a program may remove it.
fn has_environment() -> bool {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the C library defines the variable.
    IS_LOADED.load(Ordering::Relaxed) || !unsafe { environ }.is_null()
}

/// Calls `call` with the path that replaces `path`. If there is none, sets `errno` and returns
/// `failed`. Without the drop-in library, and before the process has its environment, `path` stays
/// as it is.
///
/// # Safety
/// `path` is a C string.
#[cold]
#[inline(never)]
pub(crate) unsafe fn with_mapped<R>(
    path: *const c_char,
    failed: R,
    call: impl FnOnce(Mapped<'_>) -> R,
) -> R {
    let map = MAP.get();
    if map.is_null() || !has_environment() {
        return call(Mapped { path, root: &[] });
    }
    // SAFETY: the drop-in library defines the function with this type.
    let map = unsafe { mem::transmute::<*mut core::ffi::c_void, Map>(map) };
    let mut room = MaybeUninit::<[c_char; PATH_MAX as usize]>::uninit();
    let to = room.as_mut_ptr().cast::<c_char>();
    // SAFETY: the path is a C string, and the room has this length.
    let before = unsafe { map(path, to, PATH_MAX as usize) };
    let Ok(len) = usize::try_from(before) else {
        set_errno(-before);
        return failed;
    };
    // SAFETY: the function wrote a path of at least this length.
    let root = unsafe { slice::from_raw_parts(to.cast(), len) };
    call(Mapped { path: to, root })
}

/// Removes `root` from the start of `path`, so that a program sees the path under which it looked.
///
/// # Safety
/// `path` is a C string that may be written.
pub(crate) unsafe fn remove_root(path: *mut c_char, root: &[u8]) {
    // SAFETY: guaranteed by the caller. The bytes are moved within the string, with their NUL.
    unsafe {
        let bytes = CStr::from_ptr(path).to_bytes_with_nul();
        let inner = bytes
            .strip_prefix(root)
            .filter(|inner| inner.starts_with(b"/"));
        if let Some(inner) = inner {
            let len = inner.len();
            core::ptr::copy(path.add(root.len()), path, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_directories_and_what_is_in_them_are_redirected() {
        for (path, due) in [
            (c"/sys/class/infiniband", true),
            (c"/sys/class/infiniband/", true),
            (c"/sys/class/infiniband/uwarp0/ports/1", true),
            (c"/sys/class/infiniband_verbs/uverbs0", true),
            (c"/dev/infiniband/uverbs0", true),
            (c"/dev/infiniband", true),
            (c"//sys/.//class/./infiniband/x", true),
            (c"/sys//class/infiniband//", true),
            (c"/sys/.class/infiniband", false),
            (c"/sys/class/.", false),
            (c"/sys/class/./", false),
            (c"/sys/class/infiniband_mad", false),
            (c"/sys/class/infiniband_verbs0", false),
            (c"/sys/class/infiniban", false),
            (c"/sys/class", false),
            (c"/dev/infinibandx", false),
            (c"/dev", false),
            (c"sys/class/infiniband", false),
            (c"/", false),
            (c"", false),
        ] {
            // SAFETY: the path is a C string.
            assert_eq!(unsafe { is_redirected(path.as_ptr()) }, due, "{path:?}");
        }
        // SAFETY: NULL is allowed.
        assert!(!unsafe { is_redirected(core::ptr::null()) });
    }

    #[test]
    fn a_root_is_removed_from_the_paths_that_have_it() {
        for (path, root, due) in [
            (c"/tmp/x/sys/class", &b"/tmp/x"[..], c"/sys/class"),
            (c"/tmp/xy/sys", b"/tmp/x", c"/tmp/xy/sys"),
            (c"/tmp/x", b"/tmp/x", c"/tmp/x"),
            (c"/dev/null", b"", c"/dev/null"),
        ] {
            let text = path.to_owned().into_raw();
            // SAFETY: the text is a C string of this test. Its memory is leaked, because its length
            // may have changed.
            let found = unsafe {
                remove_root(text, root);
                CStr::from_ptr(text)
            };
            assert_eq!(found, due);
        }
    }

    #[test]
    fn without_the_drop_in_library_a_path_stays_as_it_is() {
        let path = c"/sys/class/infiniband".as_ptr();
        // SAFETY: the path is a C string.
        let (found, root) =
            unsafe { with_mapped(path, (path, 1), |mapped| (mapped.path, mapped.root.len())) };
        assert_eq!((found, root), (path, 0));
    }
}

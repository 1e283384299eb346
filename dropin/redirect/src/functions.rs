//! Functions that hide those of the C library.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem;
use core::ptr;

use crate::mapping::{is_redirected, remove_root, set_loaded, with_mapped};
use crate::real::{Real, set_errno};

/// Defines functions `name(arguments, [path], arguments) -> result, value of a failure`. The path
/// is redirected.
///
/// SAFETY (for all functions): the caller guarantees what the function of the C library demands of
/// it. That function has the same type.
macro_rules! functions {
    ($($name:ident($($before:ident: $before_type:ty,)* [$path:ident] $(, $after:ident: $after_type:ty)*) -> $result:ty, $failed:expr;)*) => {
        mod hidden {
            #![expect(non_upper_case_globals, reason = "each has the name of its function")]

            use super::Real;

            $(pub(super) static $name: Real =
                Real::hidden(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                });)*

            pub(super) static ALL: &[&Real] = &[$(&$name,)*];
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name($($before: $before_type,)* $path: *const c_char $(, $after: $after_type)*) -> $result {
                type Function = unsafe extern "C-unwind" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
                let real = hidden::$name.get();
                if real.is_null() {
                    set_errno(libc::ENOSYS);
                    return $failed;
                }
                // SAFETY: as argued above.
                unsafe {
                    let real = mem::transmute::<*mut c_void, Function>(real);
                    if !is_redirected($path) {
                        return real($($before,)* $path $(, $after)*);
                    }
                    with_mapped($path, $failed, |mapped| real($($before,)* mapped.path $(, $after)*))
                }
            }
        )*
    };
}

// In C, the functions that open a file have a variable number of arguments, of which there is at
// most one more. On the processors of this library it is passed in the same way as a fixed one. If
// there is none, the function of the C library does not use it.
functions! {
    stat([path], to: *mut c_void) -> c_int, -1;
    stat64([path], to: *mut c_void) -> c_int, -1;
    lstat([path], to: *mut c_void) -> c_int, -1;
    lstat64([path], to: *mut c_void) -> c_int, -1;
    fstatat(dir: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, -1;
    fstatat64(dir: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, -1;
    statx(dir: c_int, [path], flags: c_int, mask: c_uint, to: *mut c_void) -> c_int, -1;
    // Programs that were linked with a C library before 2.33 call these.
    __xstat(version: c_int, [path], to: *mut c_void) -> c_int, -1;
    __xstat64(version: c_int, [path], to: *mut c_void) -> c_int, -1;
    __lxstat(version: c_int, [path], to: *mut c_void) -> c_int, -1;
    __lxstat64(version: c_int, [path], to: *mut c_void) -> c_int, -1;
    __fxstatat(version: c_int, dir: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, -1;
    __fxstatat64(version: c_int, dir: c_int, [path], to: *mut c_void, flags: c_int) -> c_int, -1;
    access([path], mode: c_int) -> c_int, -1;
    euidaccess([path], mode: c_int) -> c_int, -1;
    eaccess([path], mode: c_int) -> c_int, -1;
    faccessat(dir: c_int, [path], mode: c_int, flags: c_int) -> c_int, -1;
    open([path], flags: c_int, mode: c_uint) -> c_int, -1;
    open64([path], flags: c_int, mode: c_uint) -> c_int, -1;
    openat(dir: c_int, [path], flags: c_int, mode: c_uint) -> c_int, -1;
    openat64(dir: c_int, [path], flags: c_int, mode: c_uint) -> c_int, -1;
    // Programs that were compiled with _FORTIFY_SOURCE call these.
    __open_2([path], flags: c_int) -> c_int, -1;
    __open64_2([path], flags: c_int) -> c_int, -1;
    __openat_2(dir: c_int, [path], flags: c_int) -> c_int, -1;
    __openat64_2(dir: c_int, [path], flags: c_int) -> c_int, -1;
    fopen([path], mode: *const c_char) -> *mut c_void, ptr::null_mut();
    fopen64([path], mode: *const c_char) -> *mut c_void, ptr::null_mut();
    opendir([path]) -> *mut c_void, ptr::null_mut();
    scandir([path], to: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int, -1;
    scandir64([path], to: *mut c_void, select: *mut c_void, compare: *mut c_void) -> c_int, -1;
    readlink([path], to: *mut c_char, size: usize) -> isize, -1;
    readlinkat(dir: c_int, [path], to: *mut c_char, size: usize) -> isize, -1;
    __readlink_chk([path], to: *mut c_char, size: usize, room: usize) -> isize, -1;
    __readlinkat_chk(dir: c_int, [path], to: *mut c_char, size: usize, room: usize) -> isize, -1;
    // `ls -l` asks for access control lists.
    getxattr([path], name: *const c_char, to: *mut c_void, size: usize) -> isize, -1;
    lgetxattr([path], name: *const c_char, to: *mut c_void, size: usize) -> isize, -1;
    listxattr([path], to: *mut c_char, size: usize) -> isize, -1;
    llistxattr([path], to: *mut c_char, size: usize) -> isize, -1;
}

/// Defines functions that return a path without symbolic links. It begins as that of the program.
/// SAFETY: as above.
macro_rules! resolving {
    ($($name:ident($($after:ident: $after_type:ty),*);)*) => {
        mod resolved {
            #![expect(non_upper_case_globals, reason = "each has the name of its function")]

            use super::Real;

            $(pub(super) static $name: Real =
                Real::hidden(match core::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                });)*

            pub(super) static ALL: &[&Real] = &[$(&$name,)*];
        }

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(path: *const c_char $(, $after: $after_type)*) -> *mut c_char {
                type Function = unsafe extern "C-unwind" fn(*const c_char $(, $after_type)*) -> *mut c_char;
                let real = resolved::$name.get();
                if real.is_null() {
                    set_errno(libc::ENOSYS);
                    return ptr::null_mut();
                }
                // SAFETY: as argued above. A result is a C string that belongs to the program.
                unsafe {
                    let real = mem::transmute::<*mut c_void, Function>(real);
                    if !is_redirected(path) {
                        return real(path $(, $after)*);
                    }
                    with_mapped(path, ptr::null_mut(), |mapped| {
                        let found = real(mapped.path $(, $after)*);
                        if !found.is_null() {
                            remove_root(found, mapped.root);
                        }
                        found
                    })
                }
            }
        )*
    };
}

resolving! {
    realpath(to: *mut c_char);
    __realpath_chk(to: *mut c_char, room: usize);
    canonicalize_file_name();
}

/// Finds the functions of the C library before the program starts.
extern "C" fn find_all() {
    for real in hidden::ALL.iter().chain(resolved::ALL) {
        real.get();
    }
    set_loaded();
}

#[used]
#[unsafe(link_section = ".init_array")]
static FIND_ALL: extern "C" fn() = find_all;

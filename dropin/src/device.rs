//! Devices: functions that list, describe, open and close them.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_char, c_int};
use core::mem;
use core::ptr;
use std::ffi::CStr;

use crate::abi::{_ibv_device_ops, IBV_NODE_RNIC, IBV_TRANSPORT_IWARP, ibv_context, ibv_device};
use crate::context::Context;
use crate::panic_guard::entry;
use crate::{errno, rnic};

/// The one device of the process. It has a fixed address until the process ends, because programs
/// use a device after they have freed the list.
static DEVICE: Fixed = Fixed(ibv_device {
    _ops: _ibv_device_ops {
        _dummy1: None,
        _dummy2: None,
    },
    node_type: IBV_NODE_RNIC,
    transport_type: IBV_TRANSPORT_IWARP,
    name: text(b"uwarp0"),
    dev_name: text(b"uverbs0"),
    dev_path: text(b"/sys/class/infiniband_verbs/uverbs0"),
    ibdev_path: text(b"/sys/class/infiniband/uwarp0"),
});

struct Fixed(ibv_device);

// SAFETY: its only pointers are two null ones, and it is never written.
unsafe impl Sync for Fixed {}

const fn text<const N: usize>(words: &[u8]) -> [c_char; N] {
    let mut out = [0; N];
    let mut at = 0;
    while at < words.len() {
        out[at] = words[at] as c_char;
        at += 1;
    }
    out
}

/// Returns the pointer to the device that programs get. They do not write to it.
pub(crate) fn the_device() -> *mut ibv_device {
    ptr::from_ref(&DEVICE.0).cast_mut()
}

/// `ibv_get_device_list`: one device, followed by NULL. The list is empty if the device cannot be
/// opened.
pub(crate) unsafe extern "C-unwind" fn get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    entry(ptr::null_mut(), || {
        let devices = if rnic::device().is_some() {
            [the_device(), ptr::null_mut()]
        } else {
            [ptr::null_mut(); 2]
        };
        let count = devices.iter().filter(|device| !device.is_null()).count();
        if !number.is_null() {
            // SAFETY: not NULL, so it points to an `int`.
            unsafe { *number = count as c_int };
        }
        Box::into_raw(Box::new(devices)).cast()
    })
}

/// `ibv_free_device_list`
pub(crate) unsafe extern "C-unwind" fn free_device_list(list: *mut *mut ibv_device) {
    entry((), || {
        if !list.is_null() {
            // SAFETY: the program passes a list from `get_device_list`.
            drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
        }
    });
}

/// `ibv_get_device_name`
pub(crate) unsafe extern "C-unwind" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the program passes a device of the list.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid`, in network byte order.
pub(crate) unsafe extern "C-unwind" fn get_device_guid(_device: *mut ibv_device) -> u64 {
    entry(0, || {
        rnic::device().map_or(0, |device| u64::from_ne_bytes(device.query().node_guid))
    })
}

/// `ibv_get_device_index`: -1, because the kernel does not know this device.
pub(crate) unsafe extern "C-unwind" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_get_sysfs_path`: the directory where the kernel describes its devices. It has no entry for
/// this device.
pub(crate) unsafe extern "C-unwind" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: returns fixed contents for the files that programs are known to read.
pub(crate) unsafe extern "C-unwind" fn read_sysfs_file(
    _dir: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: usize,
) -> c_int {
    entry(-1, || {
        // SAFETY: the file name is a C string.
        let file = unsafe { CStr::from_ptr(file) };
        let words: &[u8] = match file.to_bytes() {
            b"board_id" => b"uwarp",
            b"fw_ver" | b"device/fw_ver" => env!("CARGO_PKG_VERSION").as_bytes(),
            b"node_type" => b"4: RNIC",
            b"hca_type" => b"uwarp",
            _ => {
                errno::set(libc::ENOENT);
                return -1;
            }
        };
        let room = size.saturating_sub(1).min(words.len());
        if size > 0 {
            // SAFETY: the program has `size` bytes at `out`, and `room + 1` is at most `size`.
            unsafe {
                ptr::copy_nonoverlapping(words.as_ptr().cast(), out, room);
                *out.add(room) = 0;
            }
        }
        room as c_int
    })
}

/// `ibv_open_device`
pub(crate) unsafe extern "C-unwind" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    entry(ptr::null_mut(), || {
        if device != the_device() {
            errno::set(libc::ENODEV);
            return ptr::null_mut();
        }
        match rnic::get() {
            Some(rnic) => Context::open(&rnic),
            None => {
                errno::set(libc::ENODEV);
                ptr::null_mut()
            }
        }
    })
}

/// `ibv_close_device`. Remaining objects of the context keep the device open; pointers to them stay
/// valid.
pub(crate) unsafe extern "C-unwind" fn close_device(context: *mut ibv_context) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes a context from `ibv_open_device`, and does not use it any
        // more.
        unsafe { Context::close(context) };
        0
    })
}

const _: () = assert!(mem::size_of::<ibv_device>() == 664);

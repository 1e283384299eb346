//! Devices: functions that list, describe, open and close them.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_char, c_int};
use core::mem;
use core::ptr;
use std::ffi::CStr;

use uwarp_verbs::options::DeviceNames;

use crate::abi::{_ibv_device_ops, ibv_context, ibv_device};
use crate::context::Context;
use crate::panic_guard::entry;
use crate::persona::Persona;
use crate::{errno, list, rnic, sysfs};

/// The devices that programs see. They have fixed addresses until the process ends, because
/// programs use a device after they have freed the list.
pub(crate) struct Devices {
    persona: Persona,
    list: Box<[ibv_device]>,
}

// SAFETY: the only pointers of a device are two null ones, and it is never written.
unsafe impl Send for Devices {}
// SAFETY: as above.
unsafe impl Sync for Devices {}

impl Devices {
    /// Creates the devices with these names.
    pub(crate) fn new(names: &DeviceNames, persona: Persona) -> &'static Self {
        let device = |(index, name): (usize, &str)| ibv_device {
            _ops: _ibv_device_ops {
                _dummy1: None,
                _dummy2: None,
            },
            node_type: persona.node_type(),
            transport_type: persona.transport_type(),
            name: text(name),
            dev_name: text(&format!("uverbs{index}")),
            dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{index}")),
            ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
        };
        let list = names.iter().enumerate().map(device).collect();
        Box::leak(Box::new(Self { persona, list }))
    }

    pub(crate) fn persona(&self) -> Persona {
        self.persona
    }

    /// Names of the devices, in their order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|device| {
            // SAFETY: the text ends with a NUL byte (`text`), and is never written.
            let name = unsafe { CStr::from_ptr(device.name.as_ptr()) };
            name.to_str().unwrap_or_default()
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the pointer that programs get. They do not write to the device.
    ///
    /// # Panics
    /// There is no device with this index.
    pub(crate) fn pointer(&self, index: usize) -> *mut ibv_device {
        ptr::from_ref(&self.list[index]).cast_mut()
    }

    fn index_of(&self, device: *mut ibv_device) -> Option<usize> {
        self.list.iter().position(|one| ptr::eq(one, device))
    }
}

/// Returns a C string. The field is longer than all texts it is used for.
fn text<const N: usize>(words: &str) -> [c_char; N] {
    let mut out = [0; N];
    for (to, from) in out[..N - 1].iter_mut().zip(words.bytes()) {
        *to = from as c_char;
    }
    out
}

/// `ibv_get_device_list`: the devices, followed by NULL. The list is empty if the device of the
/// process cannot be opened.
pub(crate) unsafe extern "C-unwind" fn get_device_list(number: *mut c_int) -> *mut *mut ibv_device {
    entry(ptr::null_mut(), || {
        let devices = rnic::get().map(|rnic| rnic.devices);
        let devices = devices.map(|devices| (0..devices.len()).map(|index| devices.pointer(index)));
        let devices: Vec<_> = devices.into_iter().flatten().collect();
        let list = list::create(&devices);
        if !number.is_null() {
            // SAFETY: not NULL, so it points to an `int`.
            unsafe { *number = list.map_or(0, |_| devices.len() as c_int) };
        }
        errno::pointer(list.ok_or(libc::ENOMEM))
    })
}

/// `ibv_free_device_list`
pub(crate) unsafe extern "C-unwind" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the program passes a list from `get_device_list`, or NULL.
    unsafe { list::free(list) };
}

/// `ibv_get_device_name`
pub(crate) unsafe extern "C-unwind" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the program passes a device of the list.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_guid`, in network byte order.
pub(crate) unsafe extern "C-unwind" fn get_device_guid(device: *mut ibv_device) -> u64 {
    entry(0, || {
        let guid =
            rnic::get().and_then(|rnic| Some(rnic.node_guid(rnic.devices.index_of(device)?)));
        guid.unwrap_or(0)
    })
}

/// `ibv_get_device_index`: -1, because the kernel does not know this device.
pub(crate) unsafe extern "C-unwind" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_get_sysfs_path`: the directory where the kernel describes its devices. It has entries for
/// this device only with `uwarp run --preload` (`sysfs`).
pub(crate) unsafe extern "C-unwind" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: returns the text of the file as a kernel would have it for this device.
/// Files that programs are known to read have it in every directory.
pub(crate) unsafe extern "C-unwind" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    out: *mut c_char,
    size: usize,
) -> c_int {
    entry(-1, || {
        // SAFETY: both are C strings.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
        let rnic = rnic::get();
        let words = rnic
            .as_ref()
            .and_then(|rnic| sysfs::contents::text(rnic, &path));
        let words = words.or_else(|| {
            let words = match file.to_bytes() {
                b"board_id" => "uwarp",
                b"fw_ver" | b"device/fw_ver" => env!("CARGO_PKG_VERSION"),
                b"node_type" => rnic?.devices.persona().node_type_file(),
                b"hca_type" => "uwarp",
                _ => return None,
            };
            Some(words.to_owned())
        });
        let Some(words) = words else {
            errno::set(libc::ENOENT);
            return -1;
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
        let rnic = rnic::get();
        let index = rnic.as_ref().and_then(|rnic| rnic.devices.index_of(device));
        match rnic.zip(index) {
            Some((rnic, index)) => Context::open(&rnic, index),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::query;
    use crate::rnic::Rnic;

    fn rnic(names: &'static str) -> Rnic {
        let var = move |name: &str| (name == "UWARP_NAME").then(|| names.into());
        Rnic::open(Environment::from(var).unwrap(), None, None).unwrap()
    }

    #[test]
    fn devices_differ_in_their_names_and_paths() {
        let longest = "n".repeat(DeviceNames::MAX_LEN);
        let names: DeviceNames = format!("mlx5_0,{longest}").parse().unwrap();
        let devices = Devices::new(&names, Persona::Iwarp);
        let shown = |index: usize| {
            let device = &devices.list[index];
            [
                &device.name[..],
                &device.dev_name,
                &device.dev_path,
                &device.ibdev_path,
            ]
            .map(|text| {
                let bytes: Vec<_> = text.iter().map(|byte| *byte as u8).collect();
                let text = CStr::from_bytes_until_nul(&bytes).unwrap();
                text.to_str().unwrap().to_owned()
            })
        };
        assert_eq!(devices.len(), 2);
        assert_eq!(
            shown(0),
            [
                "mlx5_0",
                "uverbs0",
                "/sys/class/infiniband_verbs/uverbs0",
                "/sys/class/infiniband/mlx5_0"
            ]
        );
        assert_eq!(
            shown(1),
            [
                &longest,
                "uverbs1",
                "/sys/class/infiniband_verbs/uverbs1",
                &format!("/sys/class/infiniband/{longest}")
            ]
        );
        assert_eq!(devices.index_of(devices.pointer(1)), Some(1));
        assert_eq!(devices.index_of(ptr::null_mut()), None);
    }

    #[test]
    fn a_context_shows_the_device_for_which_it_was_opened() {
        let rnic = rnic("mlx5_0,mlx5_1");
        let guids = [0, 1].map(|index| {
            let context = Context::open(&rnic, index);
            assert!(!context.is_null());
            // SAFETY: the context was just opened, and all bytes of the attributes may be zero.
            unsafe {
                assert_eq!((*context).device, rnic.devices.pointer(index));
                let mut attr = mem::zeroed();
                assert_eq!(query::query_device(context, &raw mut attr), 0);
                Context::close(context);
                assert_eq!(attr.node_guid, rnic.node_guid(index));
                (attr.node_guid, attr.sys_image_guid)
            }
        });
        assert_ne!(guids[0].0, guids[1].0);
        assert_eq!(guids[0].1, guids[1].1);
    }
}

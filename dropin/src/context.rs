//! Contexts (`ibv_context`): what `ibv_open_device` gives, with the functions that programs call through memory.
#![expect(
    unsafe_code,
    reason = "a program has a pointer into the middle of the structure"
)]

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::{self, offset_of};
use core::ptr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use uwarp_verbs::Device;

use crate::abi::{ibv_context, verbs_context};
use crate::device::the_device;
use crate::{errno, events, operations};

/// A context. The program's pointer is to the `ibv_context` at the end of `shown`, which is how libibverbs grows.
#[repr(C)]
pub(crate) struct Context {
    shown: UnsafeCell<verbs_context>,
    device: Device,
    /// The descriptor of asynchronous events, which the program may close on its own.
    events: OwnedFd,
    /// The process that opened it: to the child of a fork nothing comes.
    process: u32,
}

impl Context {
    /// Opens one; NULL and `errno` where there are no descriptors left.
    pub(crate) fn open(device: &Device) -> *mut ibv_context {
        let device = match device.with_own_events(events::is_shown) {
            Ok(device) => device,
            Err(error) => {
                errno::set(errno::of_device(&error));
                return ptr::null_mut();
            }
        };
        let events = match device.as_fd().try_clone_to_owned() {
            Ok(events) => events,
            Err(error) => {
                errno::set(error.raw_os_error().unwrap_or(libc::EMFILE));
                return ptr::null_mut();
            }
        };
        // SAFETY: all fields may be zero: numbers, pointers, functions that are not there, a mutex as PTHREAD_MUTEX_INITIALIZER has it.
        let mut shown: verbs_context = unsafe { mem::zeroed() };
        shown.sz = size_of::<verbs_context>();
        operations::fill(&mut shown);
        let context = &mut shown.context;
        context.device = the_device();
        // An extended context (`__VERBS_ABI_IS_EXTENDED`).
        context.abi_compat = ptr::without_provenance_mut::<c_void>(usize::MAX);
        context.cmd_fd = -1;
        context.async_fd = events.as_raw_fd();
        context.num_comp_vectors = 1;
        let whole = Box::into_raw(Box::new(Context {
            shown: UnsafeCell::new(shown),
            device,
            events,
            process: std::process::id(),
        }));
        // SAFETY: the field is inside of what was just made.
        unsafe { &raw mut (*whole.cast::<verbs_context>()).context }
    }

    /// What is behind the program's pointer.
    ///
    /// # Safety
    /// `context` came from [`open`](Self::open), and is not closed while the reference lives.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: the promise of the caller.
        unsafe { &*Self::whole(context) }
    }

    /// Ends one.
    ///
    /// # Safety
    /// As for [`of`](Self::of), and the program does not use it any more.
    pub(crate) unsafe fn close(context: *mut ibv_context) {
        // SAFETY: the promise of the caller.
        drop(unsafe { Box::from_raw(Self::whole(context).cast_mut()) });
    }

    unsafe fn whole(context: *mut ibv_context) -> *const Context {
        // SAFETY: `context` is that field of a whole one.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    /// The device behind it, with the events of this context.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether another process has opened it, of which this one is a fork.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// The descriptor of its asynchronous events.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

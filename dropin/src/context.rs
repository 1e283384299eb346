//! Contexts (`ibv_context`), which `ibv_open_device` returns. They contain pointers to the
//! functions that programs call without a symbol.
#![expect(
    unsafe_code,
    reason = "a program's pointer points into the middle of the structure"
)]

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::{self, offset_of};
use core::ptr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use uwarp_verbs::{Device, Rendezvous};

use crate::abi::{ibv_context, verbs_context};
use crate::gids::GidEntry;
use crate::persona::Persona;
use crate::qp::pair::{Pairing, Service};
use crate::rnic::Rnic;
use crate::{errno, events, operations};

/// A context. The program's pointer points to the `ibv_context` at the end of `shown`, because
/// libibverbs extends the structure at its start.
#[repr(C)]
pub(crate) struct Context {
    shown: UnsafeCell<verbs_context>,
    /// The RNIC, with a handle of the device that delivers only the events of this context.
    rnic: Rnic,
    /// Index of the device that the program opened.
    index: usize,
    /// Descriptor of asynchronous events. It is a duplicate, so that a program which closes it does
    /// not close the device's own descriptor.
    events: OwnedFd,
    /// Process id of the process that opened the context. A forked child gets no events.
    process: u32,
}

impl Context {
    /// Opens a context of the device with this index. Returns NULL and sets `errno` if no
    /// descriptors are left.
    pub(crate) fn open(rnic: &Rnic, index: usize) -> *mut ibv_context {
        let device = match rnic.device.with_own_events(events::is_delivered) {
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
        // SAFETY: all fields may be zero: numbers, pointers, absent functions, and a mutex as
        // PTHREAD_MUTEX_INITIALIZER sets it.
        let mut shown: verbs_context = unsafe { mem::zeroed() };
        shown.sz = size_of::<verbs_context>();
        operations::fill(&mut shown);
        let context = &mut shown.context;
        context.device = rnic.devices.pointer(index);
        // Marks an extended context (`__VERBS_ABI_IS_EXTENDED`).
        context.abi_compat = ptr::without_provenance_mut::<c_void>(usize::MAX);
        context.cmd_fd = -1;
        context.async_fd = events.as_raw_fd();
        context.num_comp_vectors = 1;
        let whole = Box::into_raw(Box::new(Context {
            shown: UnsafeCell::new(shown),
            rnic: Rnic {
                device,
                ..rnic.clone()
            },
            index,
            events,
            process: std::process::id(),
        }));
        // SAFETY: the field is inside of the new allocation.
        unsafe { &raw mut (*whole.cast::<verbs_context>()).context }
    }

    /// Returns the context at the program's pointer.
    ///
    /// # Safety
    /// `context` came from [`open`](Self::open), and is not closed during the lifetime of the
    /// reference.
    pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> &'a Context {
        // SAFETY: guaranteed by the caller.
        unsafe { &*Self::whole(context) }
    }

    /// Frees a context.
    ///
    /// # Safety
    /// As for [`of`](Self::of), and the program does not use the context any more.
    pub(crate) unsafe fn close(context: *mut ibv_context) {
        // SAFETY: guaranteed by the caller.
        drop(unsafe { Box::from_raw(Self::whole(context).cast_mut()) });
    }

    unsafe fn whole(context: *mut ibv_context) -> *const Context {
        // SAFETY: `context` points to this field of a `Context`.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    /// Returns the device. This handle delivers only the events of this context.
    pub(crate) fn device(&self) -> &Device {
        &self.rnic.device
    }

    /// Returns the kind of device that the program sees.
    pub(crate) fn persona(&self) -> Persona {
        self.rnic.devices.persona()
    }

    /// Returns the place where queue pairs are called by their numbers, if the device has one.
    pub(crate) fn rendezvous(&self) -> Option<&Rendezvous> {
        self.rnic.rendezvous.as_ref()
    }

    /// Returns the attributes of a new queue pair that can be connected by its number.
    pub(crate) fn pairing(&self, service: Service) -> Option<Pairing> {
        let gids = Arc::clone(&self.rnic.gids);
        (self.rendezvous()).map(|_| Pairing::new(gids, self.rnic.pairs, service))
    }

    /// Returns the GID table of the port.
    pub(crate) fn gids(&self) -> &[GidEntry] {
        &self.rnic.gids
    }

    /// Returns the node GUID of the device that the program opened.
    pub(crate) fn node_guid(&self) -> u64 {
        self.rnic.node_guid(self.index)
    }

    /// Returns true in a forked child of the process that opened the context.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns the descriptor of asynchronous events.
    pub(crate) fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

//! Attributes of a device and its port.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_char, c_int};
use core::{mem, ptr};

use uwarp_verbs::PortAttr;

use crate::abi::{
    IBV_GID_TYPE_IB, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_gid_type, ibv_port_attr, ibv_query_device_ex_input,
};
use crate::context::Context;
use crate::errno;
use crate::gids::GidEntry;
use crate::panic_guard::entry;

/// Size of `struct ibv_port_attr` when the symbol `ibv_query_port` got its version: without `flags`
/// and later fields, but with padding.
const OLD_PORT_ATTR: usize = 48;

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn attributes(context: &Context) -> ibv_device_attr {
    let attr = context.device().query();
    // SAFETY: all bytes may be zero: the structure has only numbers and characters.
    let mut out: ibv_device_attr = unsafe { mem::zeroed() };
    for (to, from) in out.fw_ver.iter_mut().zip(attr.fw_ver.bytes().take(63)) {
        *to = from as c_char;
    }
    out.node_guid = context.node_guid();
    out.sys_image_guid = u64::from_ne_bytes(attr.sys_image_guid);
    out.max_mr_size = attr.max_mr_size;
    out.page_size_cap = attr.page_size_cap;
    out.vendor_id = attr.vendor_id;
    out.vendor_part_id = attr.vendor_part_id;
    out.hw_ver = attr.hw_ver;
    out.max_qp = int(attr.max_qp);
    out.max_qp_wr = int(attr.max_qp_wr);
    out.device_cap_flags = attr.device_cap_flags;
    out.max_sge = int(attr.max_sge);
    out.max_sge_rd = int(attr.max_sge_rd);
    out.max_cq = int(attr.max_cq);
    out.max_cqe = int(attr.max_cqe);
    out.max_mr = int(attr.max_mr);
    out.max_pd = int(attr.max_pd);
    out.max_qp_rd_atom = int(attr.max_qp_rd_atom);
    out.max_res_rd_atom = int(attr.max_res_rd_atom);
    out.max_qp_init_rd_atom = int(attr.max_qp_init_rd_atom);
    out.atomic_cap = attr.atomic_cap as u32 as _;
    out.max_mw = int(attr.max_mw);
    out.max_srq = int(attr.max_srq);
    out.max_srq_wr = int(attr.max_srq_wr);
    out.max_srq_sge = int(attr.max_srq_sge);
    out.max_pkeys = attr.max_pkeys;
    out.local_ca_ack_delay = attr.local_ca_ack_delay;
    out.phys_port_cnt = attr.phys_port_cnt;
    out
}

/// `ibv_query_device`
pub(crate) unsafe extern "C-unwind" fn query_device(
    context: *mut ibv_context,
    out: *mut ibv_device_attr,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes an open context, and memory for the attributes.
        unsafe { out.write(attributes(Context::of(context))) };
        0
    })
}

/// `ibv_query_device_ex`. The program was compiled with a structure of `size` bytes, which may be
/// shorter or longer than this library's structure.
pub(crate) unsafe extern "C-unwind" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    out: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes NULL, or a structure.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
            || size < size_of::<ibv_device_attr>()
        {
            return libc::EINVAL;
        }
        // SAFETY: all bytes may be zero: the structure has only numbers.
        let mut attr: ibv_device_attr_ex = unsafe { mem::zeroed() };
        // SAFETY: the program passes an open context.
        attr.orig_attr = attributes(unsafe { Context::of(context) });
        attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags.into();
        attr.phys_port_cnt_ex = 1;
        // SAFETY: the program has `size` bytes at `out`.
        unsafe { give(&attr, out.cast(), size) };
        0
    })
}

/// Writes `value` to `size` bytes at `out`. Cuts it if it is longer, and adds zeros if it is
/// shorter.
///
/// # Safety
/// `size` bytes at `out` may be written; the padding of `T` may be copied.
unsafe fn give<T>(value: &T, out: *mut u8, size: usize) {
    let len = size.min(size_of::<T>());
    // SAFETY: guaranteed by the caller.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), out, len);
        ptr::write_bytes(out.add(len), 0, size - len);
    }
}

fn port(attr: &PortAttr, gids: &[GidEntry]) -> ibv_port_attr {
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut out: ibv_port_attr = unsafe { mem::zeroed() };
    out.state = attr.state as u32 as _;
    out.max_mtu = attr.max_mtu as _;
    out.active_mtu = attr.active_mtu as _;
    out.gid_tbl_len = c_int::try_from(gids.len()).unwrap_or(c_int::MAX);
    out.max_msg_sz = attr.max_msg_sz;
    out.port_cap_flags = attr.port_cap_flags;
    out.pkey_tbl_len = attr.pkey_tbl_len;
    out.max_vl_num = 0;
    out.active_width = attr.active_width;
    out.active_speed = attr.active_speed;
    out.phys_state = attr.phys_state;
    out.link_layer = attr.link_layer;
    out
}

/// Operation `query_port` of a context, which the inline function `___ibv_query_port` calls.
/// `size`: size of the structure with which the program was compiled.
pub(crate) unsafe extern "C-unwind" fn query_port_of(
    context: *mut ibv_context,
    number: u8,
    out: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    entry(libc::EIO, || {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) };
        match context.device().query_port(number) {
            Ok(attr) => {
                // SAFETY: the program has `size` bytes at `out`.
                unsafe { give(&port(&attr, context.gids()), out.cast(), size) };
                0
            }
            Err(_) => libc::EINVAL,
        }
    })
}

/// The symbol `ibv_query_port`, for programs that were compiled with the oldest structure.
pub(crate) unsafe extern "C-unwind" fn query_port(
    context: *mut ibv_context,
    number: u8,
    out: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: guaranteed by the caller for this size.
    unsafe { query_port_of(context, number, out, OLD_PORT_ATTR) }
}

fn gid(context: &Context, number: u32, index: u32) -> Option<GidEntry> {
    let gids = (number == 1).then(|| context.gids())?;
    gids.get(index as usize).copied()
}

/// `ibv_query_gid`
pub(crate) unsafe extern "C-unwind" fn query_gid(
    context: *mut ibv_context,
    number: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) };
        let found = u32::try_from(index)
            .ok()
            .and_then(|index| gid(context, number.into(), index));
        let Some(found) = found else {
            errno::set(libc::EINVAL);
            return -1;
        };
        // SAFETY: the program passes memory for a GID.
        unsafe { out.write(ibv_gid { raw: found.gid.0 }) };
        0
    })
}

/// `_ibv_query_gid_ex`. `size`: size of an entry in the program.
pub(crate) unsafe extern "C-unwind" fn query_gid_ex(
    context: *mut ibv_context,
    number: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    entry(libc::EIO, || {
        if flags != 0 {
            return libc::EOPNOTSUPP;
        }
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) };
        let Some(found) = gid_entry(context, number, index) else {
            return libc::ENODATA;
        };
        // SAFETY: the program has `size` bytes at `out`.
        unsafe { give(&found, out.cast(), size) };
        0
    })
}

fn gid_entry(context: &Context, number: u32, index: u32) -> Option<ibv_gid_entry> {
    let found = gid(context, number, index)?;
    Some(ibv_gid_entry {
        gid: ibv_gid { raw: found.gid.0 },
        gid_index: index,
        port_num: 1,
        gid_type: IBV_GID_TYPE_IB,
        ndev_ifindex: found.interface,
    })
}

/// `_ibv_query_gid_table`: returns the number of entries written, or a negative error number. Fails
/// if the table has more than `room` entries.
pub(crate) unsafe extern "C-unwind" fn query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    entry(-(libc::EIO as isize), || {
        if flags != 0 {
            return -(libc::EOPNOTSUPP as isize);
        }
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) };
        let entries = (0..).map_while(|index| gid_entry(context, 1, index));
        let entries: Vec<_> = entries.collect();
        if entries.len() > room {
            return -(libc::EINVAL as isize);
        }
        for (at, entry) in entries.iter().enumerate() {
            // SAFETY: the program has memory for `room` entries of `size` bytes.
            unsafe { give(entry, out.byte_add(at * size).cast(), size) };
        }
        entries.len() as isize
    })
}

/// `ibv_query_gid_type`, a private symbol that `ibv_devinfo` uses. iWARP has no GID types; the
/// result is always `IBV_GID_TYPE_IB`.
pub(crate) unsafe extern "C-unwind" fn query_gid_type(
    context: *mut ibv_context,
    number: u8,
    index: u32,
    out: *mut ibv_gid_type,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an open context.
        if gid(unsafe { Context::of(context) }, number.into(), index).is_none() {
            errno::set(libc::EINVAL);
            return -1;
        }
        // SAFETY: the program passes memory for a number.
        unsafe { out.write(IBV_GID_TYPE_IB) };
        0
    })
}

/// `ibv_query_pkey`: the table has one entry, 0xFFFF, which has no meaning on iWARP.
pub(crate) unsafe extern "C-unwind" fn query_pkey(
    _context: *mut ibv_context,
    number: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    entry(-1, || {
        if number != 1 || index != 0 {
            errno::set(libc::EINVAL);
            return -1;
        }
        // SAFETY: the program passes memory for a number.
        unsafe { out.write(0xFFFF) };
        0
    })
}

/// `ibv_get_pkey_index`
pub(crate) unsafe extern "C-unwind" fn get_pkey_index(
    _context: *mut ibv_context,
    number: u8,
    pkey: u16,
) -> c_int {
    if number == 1 && pkey == 0xFFFF {
        0
    } else {
        errno::set(libc::EINVAL);
        -1
    }
}

//! Attributes of a device and its port.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::{c_char, c_int};
use core::{mem, ptr};

use uwarp_verbs::PortAttr;

use crate::abi::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_gid_type,
    ibv_port_attr, ibv_query_device_ex_input,
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
    out.max_pkeys = context.persona().max_pkeys();
    out.max_ah = context.persona().max_ah();
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

/// Returns the active MTU of the port in bytes.
///
/// # Errors
/// Returns an `errno` value.
pub(crate) fn mtu(context: &Context) -> Result<u32, c_int> {
    let attr = context.device().query_port(1).map_err(|_| libc::EINVAL)?;
    // `ibv_mtu` has 1 for 256 bytes, and each further value is twice as much.
    Ok(128 << context.persona().active_mtu(attr.active_mtu).min(5))
}

fn port(context: &Context, attr: &PortAttr) -> ibv_port_attr {
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut out: ibv_port_attr = unsafe { mem::zeroed() };
    out.state = attr.state as u32 as _;
    out.max_mtu = attr.max_mtu as _;
    out.active_mtu = context.persona().active_mtu(attr.active_mtu) as _;
    out.gid_tbl_len = c_int::try_from(context.gids().len()).unwrap_or(c_int::MAX);
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
                unsafe { give(&port(context, &attr), out.cast(), size) };
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
        gid_type: context.persona().gid_type(),
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

/// `ibv_query_gid_type`, a private symbol that `ibv_devinfo` uses.
pub(crate) unsafe extern "C-unwind" fn query_gid_type(
    context: *mut ibv_context,
    number: u8,
    index: u32,
    out: *mut ibv_gid_type,
) -> c_int {
    entry(-1, || {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) };
        if gid(context, number.into(), index).is_none() {
            errno::set(libc::EINVAL);
            return -1;
        }
        // SAFETY: the program passes memory for a number.
        unsafe { out.write(context.persona().gid_type_sysfs()) };
        0
    })
}

/// `ibv_query_pkey`: the table has one entry, 0xFFFF (the default partition), which has no meaning.
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

#[cfg(test)]
mod tests {
    use uwarp_verbs::Gid;

    use super::*;
    use crate::abi::{
        IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_MTU_1024, IBV_MTU_4096,
        IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP,
    };
    use crate::environment::Environment;
    use crate::rnic::Rnic;

    /// A context that is closed on drop.
    struct Opened(*mut ibv_context);

    impl Opened {
        fn new(persona: &'static str) -> Self {
            let var = |name: &str| match name {
                "UWARP_PERSONA" => Some(persona.into()),
                "UWARP_DEVICE" => Some("tcp:127.0.0.1".into()),
                _ => None,
            };
            let rnic = Rnic::open(Environment::from(var).unwrap(), None, None).unwrap();
            let context = Context::open(&rnic, 0);
            assert!(!context.is_null());
            Opened(context)
        }

        fn entries(&self) -> Vec<ibv_gid_entry> {
            // SAFETY: all bytes may be zero, and the context is open.
            unsafe {
                let mut table: [ibv_gid_entry; 70] = mem::zeroed();
                let size = size_of::<ibv_gid_entry>();
                let count = query_gid_table(self.0, table.as_mut_ptr(), 70, 0, size);
                table[..usize::try_from(count).unwrap()].to_vec()
            }
        }

        fn gid_type_sysfs(&self, index: u32) -> (c_int, ibv_gid_type) {
            let mut found = 77;
            // SAFETY: the context is open.
            let result = unsafe { query_gid_type(self.0, 1, index, &raw mut found) };
            (result, found)
        }

        fn port(&self) -> ibv_port_attr {
            // SAFETY: all bytes may be zero, and the context is open.
            unsafe {
                let mut attr = mem::zeroed();
                let size = size_of::<ibv_port_attr>();
                assert_eq!(query_port_of(self.0, 1, &raw mut attr, size), 0);
                attr
            }
        }

        fn max_pkeys(&self) -> u16 {
            // SAFETY: all bytes may be zero, and the context is open.
            unsafe {
                let mut attr = mem::zeroed();
                assert_eq!(query_device(self.0, &raw mut attr), 0);
                attr.max_pkeys
            }
        }
    }

    impl Drop for Opened {
        fn drop(&mut self) {
            // SAFETY: nothing uses the context any more.
            unsafe { Context::close(self.0) };
        }
    }

    fn loopback() -> Gid {
        Gid(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets())
    }

    #[test]
    fn a_roce_device_has_the_attributes_of_one() {
        let roce = Opened::new("roce");
        // SAFETY: the device exists until the process ends.
        let device = unsafe { &*(*roce.0).device };
        assert_eq!(device.node_type, IBV_NODE_CA);
        assert_eq!(device.transport_type, IBV_TRANSPORT_IB);
        let port = roce.port();
        assert_eq!(u32::from(port.link_layer), IBV_LINK_LAYER_ETHERNET);
        assert_eq!((port.lid, port.pkey_tbl_len, port.gid_tbl_len), (0, 1, 1));
        assert!(port.active_mtu >= IBV_MTU_1024);
        assert_eq!(port.max_mtu, IBV_MTU_4096);
        assert_eq!(roce.max_pkeys(), 1);
    }

    #[test]
    fn a_roce_device_at_one_address_has_this_gid_alone_of_type_roce_v2() {
        let roce = Opened::new("roce");
        let entries = roce.entries();
        let [entry] = entries[..] else {
            panic!("{} entries", entries.len())
        };
        // SAFETY: all bytes of a GID are initialised.
        assert_eq!(Gid(unsafe { entry.gid.raw }), loopback());
        assert_eq!((entry.gid_index, entry.port_num), (0, 1));
        assert_eq!(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
        assert_ne!(entry.ndev_ifindex, 0);
        assert_eq!(roce.gid_type_sysfs(0), (0, 1));
        assert_eq!(roce.gid_type_sysfs(1), (-1, 77));
    }

    #[test]
    fn an_iwarp_device_has_a_mac_entry_and_gids_without_a_type() {
        let iwarp = Opened::new("iwarp");
        // SAFETY: the device exists until the process ends.
        let device = unsafe { &*(*iwarp.0).device };
        assert_eq!(device.node_type, IBV_NODE_RNIC);
        assert_eq!(device.transport_type, IBV_TRANSPORT_IWARP);
        let entries = iwarp.entries();
        assert_eq!(iwarp.port().gid_tbl_len as usize, entries.len());
        assert!(entries.len() >= 2);
        for (index, entry) in entries.iter().enumerate() {
            assert_eq!(entry.gid_type, IBV_GID_TYPE_IB);
            assert_eq!(iwarp.gid_type_sysfs(index as u32), (0, 0));
        }
        // SAFETY: all bytes of a GID are initialised.
        let gids = entries.iter().map(|entry| Gid(unsafe { entry.gid.raw }));
        assert_eq!(gids.clone().position(|gid| gid.0[6..] == [0; 10]), Some(0));
        assert!(gids.clone().any(|gid| gid == loopback()));
        assert_eq!(iwarp.max_pkeys(), 0);
    }

    #[test]
    fn the_pkey_table_has_the_default_partition_alone() {
        for persona in ["iwarp", "roce"] {
            let opened = Opened::new(persona);
            let mut found = 7;
            // SAFETY: the context is open.
            unsafe {
                for (port, index) in [(1, 1), (1, -1), (2, 0), (0, 0)] {
                    assert_eq!(query_pkey(opened.0, port, index, &raw mut found), -1);
                    assert_eq!((found, errno::get()), (7, libc::EINVAL));
                }
                assert_eq!(query_pkey(opened.0, 1, 0, &raw mut found), 0);
                assert_eq!(found, 0xFFFF);
                assert_eq!(get_pkey_index(opened.0, 1, 0xFFFF), 0);
                assert_eq!(get_pkey_index(opened.0, 1, 0x7FFF), -1);
                assert_eq!(get_pkey_index(opened.0, 2, 0xFFFF), -1);
            }
        }
    }
}

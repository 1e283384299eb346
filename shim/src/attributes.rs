//! Attributes of a device and its port.

use core::ffi::c_int;

use rustix::io::Errno;
use uwarp_verbs::{Device, QueryError};

use crate::error::status;

/// Has the layout of `struct uw_device_attr`.
#[repr(C)]
struct DeviceAttr {
    node_guid: u64,
    max_qp: c_int,
    max_qp_wr: c_int,
    max_sge: c_int,
    max_cq: c_int,
    max_cqe: c_int,
    max_mr: c_int,
    max_qp_rd_atom: c_int,
    max_qp_init_rd_atom: c_int,
    atomic_cap: c_int,
    active_mtu: c_int,
    gid_tbl_len: c_int,
    gid: [u8; 16],
}

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn query(device: &Device) -> Result<DeviceAttr, QueryError> {
    let attr = device.query();
    let port = device.query_port(1)?;
    Ok(DeviceAttr {
        // In network byte order, as in libibverbs.
        node_guid: u64::from_ne_bytes(attr.node_guid),
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        max_sge: int(attr.max_sge),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        atomic_cap: attr.atomic_cap as c_int,
        active_mtu: int(port.active_mtu),
        gid_tbl_len: int(port.gid_tbl_len),
        gid: device.gid(0)?.0,
    })
}

#[unsafe(no_mangle)]
extern "C" fn uw_query_device(device: &Device, out: &mut DeviceAttr) -> c_int {
    status(query(device).map(|attr| *out = attr), Errno::INVAL)
}

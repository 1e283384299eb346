//! What a device and its port tell of themselves: `ibv_query_device`, `ibv_query_port`, `ibv_query_gid`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use uwarp_llp::NetworkInfo;

use crate::device::Device;

/// Organization in [`DeviceAttr::vendor_id`]: a locally administered OUI, because a software RNIC has no vendor.
const VENDOR_ID: u32 = 0x02_75_77;
/// Device in [`DeviceAttr::vendor_part_id`].
const PART_ID: u32 = 1;

/// Whether, and against whom, an operation of RFC 7306 is atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCap {
    /// `IBV_ATOMIC_NONE`: there are none.
    None = 0,
    /// `IBV_ATOMIC_HCA`: against all connections of the device.
    Device = 1,
    /// `IBV_ATOMIC_GLOB`: against the CPU too.
    Global = 2,
}

/// A GID (`ibv_gid`): 16 bytes that name a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// What a device can do, and how much of it (`ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// The version of this library (`fw_ver`).
    pub fw_ver: &'static str,
    /// An EUI-64 made from the MAC address; the same for every device on the same interface, as with Linux siw.
    /// Without a MAC address, made from the first IP address. In network order as ibv has it: the first byte is
    /// that of the MAC.
    pub node_guid: [u8; 8],
    /// Here the same as `node_guid`.
    pub sys_image_guid: [u8; 8],
    /// An OUI.
    pub vendor_id: u32,
    /// A number of this kind of device.
    pub vendor_part_id: u32,
    /// The version of the device.
    pub hw_ver: u32,
    /// The largest region in bytes.
    pub max_mr_size: u64,
    /// Sizes of pages that regions may have, a bit each: all from 4 KiB on.
    pub page_size_cap: u64,
    /// QPs.
    pub max_qp: u32,
    /// Work requests in one queue of a QP.
    pub max_qp_wr: u32,
    /// Scatter/gather elements of one work request.
    pub max_sge: u32,
    /// Scatter/gather elements of a Read: one, because a Read Request names one sink (RFC 5040 section 5.2).
    pub max_sge_rd: u32,
    /// Bytes of inline data in one work request.
    pub max_inline_data: u32,
    /// CQs.
    pub max_cq: u32,
    /// Entries of a CQ.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows; they share their STags with the regions, so that there are no more of both together.
    pub max_mw: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives in one SRQ.
    pub max_srq_wr: u32,
    /// Scatter/gather elements of one receive of an SRQ.
    pub max_srq_sge: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Reads and atomic operations that a peer may have outstanding on one QP: IRD (`max_qp_rd_atom`).
    pub max_qp_rd_atom: u32,
    /// The same of all QPs (`max_res_rd_atom`).
    pub max_res_rd_atom: u32,
    /// Reads and atomic operations that one QP may have outstanding: ORD (`max_qp_init_rd_atom`).
    pub max_qp_init_rd_atom: u32,
    /// Whether atomic operations (RFC 7306) are atomic against the CPU too.
    pub atomic_cap: AtomicCap,
    /// Partitions: 0, because iWARP has no P_Keys.
    pub max_pkeys: u16,
    /// Delay of an acknowledgement, as the exponent of 4.096 us: 0, because TCP acknowledges.
    pub local_ca_ack_delay: u8,
    /// Ports: 1.
    pub phys_port_cnt: u8,
    /// `ibv_device_attr.device_cap_flags`.
    pub device_cap_flags: u32,
}

/// Bits of [`DeviceAttr::device_cap_flags`]; the values are those of `ibv_device_cap_flags`.
pub mod device_cap {
    /// A port that fails raises an event (`IBV_DEVICE_PORT_ACTIVE_EVENT`).
    pub const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    /// The GUID is that of the system (`IBV_DEVICE_SYS_IMAGE_GUID`).
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    /// Memory windows of type 1 (`IBV_DEVICE_MEM_WINDOW`).
    pub const MEM_WINDOW: u32 = 1 << 17;
    /// Memory windows of type 2B (`IBV_DEVICE_MEM_WINDOW_TYPE_2B`).
    pub const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    /// Send with Invalidate, fast registration and local invalidate (`IBV_DEVICE_MEM_MGT_EXTENSIONS`).
    pub const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
}

/// The state of a port (`ibv_port_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// The network below has failed.
    Down = 1,
    /// It works.
    Active = 4,
}

/// What a port is (`ibv_port_attr`). Its link layer is Ethernet, whatever is below; LIDs, P_Keys
/// and Q_Keys mean nothing on iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Whether it works.
    pub state: PortState,
    /// The largest MTU that has a name in `ibv_mtu`: 4096, which is 5.
    pub max_mtu: u32,
    /// The largest one with a name that the network's MTU covers, as `ibv_mtu` (256 is 1, 4096 is 5).
    pub active_mtu: u32,
    /// The MTU of the network: bytes of the largest IP packet.
    pub link_mtu: u32,
    /// Bits of `ibv_port_cap_flags`: none, because they are about InfiniBand's management.
    pub port_cap_flags: u32,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Entries of the P_Key table: 1, as programs expect of every port. It has no meaning.
    pub pkey_tbl_len: u16,
    /// The longest message, in bytes (RFC 5041 section 5.2).
    pub max_msg_sz: u32,
    /// `IBV_LINK_LAYER_ETHERNET`.
    pub link_layer: u8,
    /// Nominal: 4 lanes, as `ibv_port_attr` has it (4X is 2).
    pub active_width: u8,
    /// Nominal: 10 Gbit/s a lane (FDR10 is 8). TCP is as fast as it is.
    pub active_speed: u8,
    /// `LinkUp` is 5, `Disabled` is 3.
    pub phys_state: u8,
}

/// Why there is no such port or GID (of `ibv_query_port` and `ibv_query_gid`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The device has one port.
    #[error("there is no port {port}: a device has one, number 1")]
    NoPort {
        /// The number asked for.
        port: u8,
    },
    /// The table ends before.
    #[error("there is no GID {index}: the table has {len}")]
    NoGid {
        /// The index asked for.
        index: u32,
        /// How many there are.
        len: u32,
    },
}

impl Device {
    /// The name that programs see (`ibv_get_device_name`): `uwarp0`. Whoever has several devices numbers them.
    #[must_use]
    pub fn name(&self) -> &'static str {
        "uwarp0"
    }

    /// What the device can do (`ibv_query_device`). The limits are those of its settings, as far as there are STags.
    #[must_use]
    pub fn query(&self) -> DeviceAttr {
        let limits = &self.settings().limits;
        let guid = eui64(mac_like(&self.network_info()));
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: guid,
            sys_image_guid: guid,
            vendor_id: VENDOR_ID,
            vendor_part_id: PART_ID,
            hw_ver: 0,
            max_mr_size: isize::MAX as u64,
            page_size_cap: u64::MAX << 12,
            max_qp: limits.max_qp,
            max_qp_wr: limits.max_wr,
            max_sge: limits.max_sge,
            max_sge_rd: 1,
            max_inline_data: limits.max_inline_data,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr: self.inner().table.limit(),
            max_srq: limits.max_srq,
            max_srq_wr: limits.max_srq_wr,
            max_srq_sge: limits.max_sge,
            max_pd: limits.max_pd,
            max_qp_rd_atom: limits.max_ird.into(),
            max_res_rd_atom: limits.max_ird_total,
            max_qp_init_rd_atom: limits.max_ord.into(),
            atomic_cap: AtomicCap::Global,
            max_pkeys: 0,
            local_ca_ack_delay: 0,
            phys_port_cnt: 1,
            max_mw: self.inner().table.limit(),
            device_cap_flags: device_cap::SYS_IMAGE_GUID
                | device_cap::MEM_WINDOW
                | device_cap::MEM_MGT_EXTENSIONS
                | device_cap::MEM_WINDOW_TYPE_2B,
        }
    }

    /// What its port is (`ibv_query_port`). In the child of a fork it is down.
    ///
    /// # Errors
    /// [`QueryError::NoPort`] for any but port 1.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, QueryError> {
        if port != 1 {
            return Err(QueryError::NoPort { port });
        }
        let info = self.network_info();
        let works = self.network_works();
        Ok(PortAttr {
            state: if works {
                PortState::Active
            } else {
                PortState::Down
            },
            max_mtu: 5,
            active_mtu: ibv_mtu(info.mtu),
            link_mtu: u32::try_from(info.mtu).unwrap_or(u32::MAX),
            port_cap_flags: 0,
            gid_tbl_len: gids(&info).len() as u32,
            pkey_tbl_len: 1,
            max_msg_sz: u32::MAX,
            link_layer: 2,
            active_width: 2,
            active_speed: 8,
            phys_state: if works { 5 } else { 3 },
        })
    }

    /// An entry of the GID table of its port (`ibv_query_gid`).
    ///
    /// Entry 0 is the MAC address, in the first 6 bytes, with zeros behind: what drivers of iWARP devices
    /// on Linux have as their only entry. Behind it are the addresses of the network, those of IPv4 mapped to
    /// IPv6, as they are now: for programs that look an address up.
    ///
    /// # Errors
    /// [`QueryError::NoGid`] behind the end of the table.
    pub fn gid(&self, index: u32) -> Result<Gid, QueryError> {
        let table = gids(&self.network_info());
        let len = table.len() as u32;
        let entry = table.get(index as usize).copied();
        entry.ok_or(QueryError::NoGid { index, len })
    }

    /// The kernel's number of the interface that an entry of the GID table belongs to (`ndev_ifindex` of `ibv_gid_entry`); 0
    /// where the network is none of the kernel's. Entry 0 belongs to the interface of the first address.
    ///
    /// # Errors
    /// [`QueryError::NoGid`] past the end of the table.
    pub fn gid_interface(&self, index: u32) -> Result<u32, QueryError> {
        let info = self.network_info();
        let len = gids(&info).len() as u32;
        if index >= len {
            return Err(QueryError::NoGid { index, len });
        }
        let address = index.saturating_sub(1) as usize;
        Ok(info.interfaces.get(address).copied().unwrap_or(0))
    }
}

fn gids(info: &NetworkInfo) -> Vec<Gid> {
    let mut first = [0; 16];
    first[..6].copy_from_slice(&mac_like(info));
    let mut table = vec![Gid(first)];
    table.extend(info.addresses.iter().map(|addr| match addr {
        IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
        IpAddr::V6(v6) => Gid(v6.octets()),
    }));
    table
}

/// The MAC address, or one that the first IP address makes: local, for one host, and always the same.
fn mac_like(info: &NetworkInfo) -> [u8; 6] {
    if let Some(mac) = info.mac {
        return mac;
    }
    let octets = match info.addresses.first() {
        Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(v6)) => v6.octets(),
        None => Ipv6Addr::LOCALHOST.octets(),
    };
    // FNV-1a, which is the same in every build.
    let hash = octets
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, octet| {
            (hash ^ u64::from(*octet)).wrapping_mul(0x100_0000_01b3)
        });
    let [_, _, a, b, c, d, e, _] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

/// A MAC address as an EUI-64 (RFC 4291, appendix A, without its inverted bit: a GUID, not an address).
fn eui64([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a, b, c, 0xff, 0xfe, d, e, f]
}

/// The largest of `ibv_mtu` within an MTU.
fn ibv_mtu(mtu: usize) -> u32 {
    (1..=5).rev().find(|name| 128 << name <= mtu).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_is_told_by_the_names_of_ibv_mtu() {
        let named = [576, 1024, 1500, 2048, 4095, 4096, 65536].map(ibv_mtu);
        assert_eq!(named, [2, 3, 3, 4, 4, 5, 5]);
    }

    #[test]
    fn a_guid_is_the_mac_address_and_stays_the_same() {
        let mut info = NetworkInfo {
            addresses: vec![IpAddr::from([192, 0, 2, 1])],
            interfaces: Vec::new(),
            mtu: 1500,
            mac: Some([2, 0, 0, 0, 0, 7]),
        };
        assert_eq!(eui64(mac_like(&info)), [2, 0, 0, 0xff, 0xfe, 0, 0, 7]);
        info.mac = None;
        let made = mac_like(&info);
        assert_eq!((made[0], made), (2, mac_like(&info.clone())));
        info.addresses = vec![IpAddr::from([192, 0, 2, 2])];
        assert_ne!(made, mac_like(&info));
    }
}

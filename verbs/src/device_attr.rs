//! Attributes of a device and its port: `ibv_query_device`, `ibv_query_port`, `ibv_query_gid`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use uwarp_llp::NetworkInfo;

use crate::device::Device;
use crate::options::DEFAULT_NAME;

/// Value of [`DeviceAttr::vendor_id`]: a locally administered OUI, because a software RNIC has no
/// vendor.
const VENDOR_ID: u32 = 0x02_75_77;
/// Value of [`DeviceAttr::vendor_part_id`].
const PART_ID: u32 = 1;

/// Scope within which an operation of RFC 7306 is atomic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AtomicCap {
    /// `IBV_ATOMIC_NONE`: no atomic operations.
    None = 0,
    /// `IBV_ATOMIC_HCA`: atomic with respect to all connections of the device.
    Device = 1,
    /// `IBV_ATOMIC_GLOB`: atomic with respect to the CPU, too.
    Global = 2,
}

/// A GID (`ibv_gid`): 16 bytes that identify a port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Gid(pub [u8; 16]);

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

/// Capabilities and limits of a device (`ibv_device_attr`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// The version of this library (`fw_ver`).
    pub fw_ver: &'static str,
    /// An EUI-64 made from the MAC address, or from the first IP address if there is no MAC
    /// address. It is the same for every device on one interface, as with Linux siw. In network
    /// byte order: the first byte is that of the MAC address.
    pub node_guid: [u8; 8],
    /// The same as `node_guid`.
    pub sys_image_guid: [u8; 8],
    /// An OUI that is locally administered.
    pub vendor_id: u32,
    /// Part number of this kind of device.
    pub vendor_part_id: u32,
    /// Hardware version: 0, because there is no hardware.
    pub hw_ver: u32,
    /// The largest region, in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes, as a bit mask: all from 4 KiB on.
    pub page_size_cap: u64,
    /// Maximum number of QPs.
    pub max_qp: u32,
    /// Maximum work requests in one queue of a QP.
    pub max_qp_wr: u32,
    /// Maximum scatter/gather elements of one work request.
    pub max_sge: u32,
    /// Maximum scatter/gather elements of a Read, the same as of other requests. A Read sends one
    /// Read Request for each.
    pub max_sge_rd: u32,
    /// Maximum inline data of one work request, in bytes.
    pub max_inline_data: u32,
    /// Maximum number of CQs.
    pub max_cq: u32,
    /// Maximum entries of a CQ.
    pub max_cqe: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of memory windows. Windows and regions share the STags, so this also bounds
    /// both together.
    pub max_mw: u32,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum receives in one SRQ.
    pub max_srq_wr: u32,
    /// Maximum scatter/gather elements of one receive of an SRQ.
    pub max_srq_sge: u32,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// IRD: Reads and atomic operations that a peer may have outstanding on one QP.
    pub max_qp_rd_atom: u32,
    /// Sum of the IRDs of all QPs.
    pub max_res_rd_atom: u32,
    /// ORD: Reads and atomic operations that one QP may have outstanding.
    pub max_qp_init_rd_atom: u32,
    /// Scope within which atomic operations (RFC 7306) are atomic.
    pub atomic_cap: AtomicCap,
    /// Maximum number of partition keys (P_Keys): 0, because iWARP has none.
    pub max_pkeys: u16,
    /// Delay of an acknowledgement: 4.096 us times 2 to this power. It is 0, because TCP
    /// acknowledges.
    pub local_ca_ack_delay: u8,
    /// Number of ports: 1.
    pub phys_port_cnt: u8,
    /// Bits of [`device_cap`].
    pub device_cap_flags: u32,
}

/// Bits of [`DeviceAttr::device_cap_flags`], with the values of `ibv_device_cap_flags`.
pub mod device_cap {
    /// A port that fails raises an event (`IBV_DEVICE_PORT_ACTIVE_EVENT`).
    pub const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    /// The GUID identifies the system (`IBV_DEVICE_SYS_IMAGE_GUID`).
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    /// Memory windows of type 1 (`IBV_DEVICE_MEM_WINDOW`).
    pub const MEM_WINDOW: u32 = 1 << 17;
    /// Memory windows of type 2B (`IBV_DEVICE_MEM_WINDOW_TYPE_2B`).
    pub const MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
    /// Send with Invalidate, fast registration and Local Invalidate
    /// (`IBV_DEVICE_MEM_MGT_EXTENSIONS`).
    pub const MEM_MGT_EXTENSIONS: u32 = 1 << 21;
}

/// State of a port (`ibv_port_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortState {
    /// The network has failed.
    Down = 1,
    /// The network works.
    Active = 4,
}

/// Attributes of a port (`ibv_port_attr`). The link layer is Ethernet for every network. LIDs,
/// P_Keys and Q_Keys have no meaning on iWARP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// State of the port.
    pub state: PortState,
    /// The largest MTU of `ibv_mtu`: 5, which is 4096 bytes.
    pub max_mtu: u32,
    /// The largest value of `ibv_mtu` that the network's MTU covers (1 is 256 bytes, 5 is 4096).
    pub active_mtu: u32,
    /// MTU of the network: the largest IP packet, in bytes.
    pub link_mtu: u32,
    /// Bits of `ibv_port_cap_flags`: none, because they concern InfiniBand's management.
    pub port_cap_flags: u32,
    /// Number of entries of the GID table.
    pub gid_tbl_len: u32,
    /// Number of entries of the P_Key table: 1, as programs expect of every port. The entry has no
    /// meaning.
    pub pkey_tbl_len: u16,
    /// The longest message, in bytes (RFC 5041 section 5.2).
    pub max_msg_sz: u32,
    /// Link layer: `IBV_LINK_LAYER_ETHERNET`.
    pub link_layer: u8,
    /// Nominal width: 2, which is 4 lanes.
    pub active_width: u8,
    /// Nominal speed: 8 (FDR10), which is 10 Gbit/s a lane. The actual speed is that of TCP.
    pub active_speed: u8,
    /// Physical state: 5 (`LinkUp`) or 3 (`Disabled`).
    pub phys_state: u8,
}

/// Error of `ibv_query_port` and `ibv_query_gid`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The port does not exist. A device has one port, number 1.
    #[error("there is no port {port}: a device has one, number 1")]
    NoPort {
        /// The requested number.
        port: u8,
    },
    /// The index is past the end of the GID table.
    #[error("there is no GID {index}: the table has {len}")]
    NoGid {
        /// The requested index.
        index: u32,
        /// Number of entries.
        len: u32,
    },
}

impl Device {
    /// Name that programs see (`ibv_get_device_name`): `uwarp0`. A program with several devices
    /// numbers them itself.
    #[must_use]
    pub fn name(&self) -> &'static str {
        DEFAULT_NAME
    }

    /// Returns the capabilities and limits of the device (`ibv_query_device`). The limits are those
    /// of its settings; the number of regions is bounded by the number of STags, too.
    #[must_use]
    pub fn query(&self) -> DeviceAttr {
        let limits = &self.settings().limits;
        let max_mr = self.guarded().unguarded().table.limit();
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
            max_sge_rd: limits.max_sge,
            max_inline_data: limits.max_inline_data,
            max_cq: limits.max_cq,
            max_cqe: limits.max_cqe,
            max_mr,
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
            max_mw: max_mr,
            device_cap_flags: device_cap::SYS_IMAGE_GUID
                | device_cap::MEM_WINDOW
                | device_cap::MEM_MGT_EXTENSIONS
                | device_cap::MEM_WINDOW_TYPE_2B,
        }
    }

    /// Returns the attributes of the port (`ibv_query_port`). In the child of a fork the port is
    /// down.
    ///
    /// # Errors
    /// [`QueryError::NoPort`] unless `port` is 1.
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

    /// Returns an entry of the port's GID table (`ibv_query_gid`).
    ///
    /// Entry 0 holds the MAC address in its first 6 bytes, followed by zeros. Drivers of iWARP
    /// devices on Linux have no other entry. The further entries are the current addresses of the
    /// network, for programs that look an address up. IPv4 addresses are mapped to IPv6.
    ///
    /// # Errors
    /// [`QueryError::NoGid`] past the end of the table.
    pub fn gid(&self, index: u32) -> Result<Gid, QueryError> {
        let table = gids(&self.network_info());
        let len = table.len() as u32;
        let entry = table.get(index as usize).copied();
        entry.ok_or(QueryError::NoGid { index, len })
    }

    /// Returns the interface index of an entry of the GID table (`ndev_ifindex` of
    /// `ibv_gid_entry`), or 0 if the network does not belong to the kernel. Entry 0 belongs to the
    /// interface of the first address.
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

/// Returns the MAC address, or a locally administered one derived from the first IP address.
fn mac_like(info: &NetworkInfo) -> [u8; 6] {
    if let Some(mac) = info.mac {
        return mac;
    }
    let bytes = match info.addresses.first() {
        Some(IpAddr::V4(v4)) => v4.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(v6)) => v6.octets(),
        None => Ipv6Addr::LOCALHOST.octets(),
    };
    // FNV-1a gives the same hash in every build.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    });
    let [_, _, a, b, c, d, e, _] = hash.to_be_bytes();
    [0x02, a, b, c, d, e]
}

/// Converts a MAC address to an EUI-64 (RFC 4291, appendix A). The universal/local bit, which the
/// appendix inverts, is kept, because this is a GUID and not an address.
fn eui64([a, b, c, d, e, f]: [u8; 6]) -> [u8; 8] {
    [a, b, c, 0xff, 0xfe, d, e, f]
}

/// Returns the largest value of `ibv_mtu` that `mtu` covers.
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

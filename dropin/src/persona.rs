//! The kind of device that programs see (`UWARP_PERSONA`). The wire is that of iWARP for both.

use crate::abi::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP, ibv_gid_type, ibv_node_type, ibv_transport_type,
};

/// Value of `ibv_query_gid_type` for RoCE v2. This private function of libibverbs has an
/// enumeration of its own (`enum ibv_gid_type_sysfs`), in which every other kind of GID is 0.
const GID_TYPE_SYSFS_ROCE_V2: ibv_gid_type = 1;

/// Smallest value of `ibv_mtu` that a RoCE port has on Ethernet: 3, which is 1024 bytes.
const ROCE_MTU: u32 = 3;

/// Kind of device that programs see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Persona {
    /// An iWARP RNIC, whose connections librdmacm makes.
    Iwarp,
    /// A RoCE v2 adapter.
    Roce,
}

impl Persona {
    pub(crate) fn node_type(self) -> ibv_node_type {
        match self {
            Persona::Iwarp => IBV_NODE_RNIC,
            Persona::Roce => IBV_NODE_CA,
        }
    }

    /// Returns the node type as the kernel writes it to the file `node_type`.
    pub(crate) fn node_type_file(self) -> &'static str {
        match self {
            Persona::Iwarp => "4: RNIC",
            Persona::Roce => "1: CA",
        }
    }

    pub(crate) fn transport_type(self) -> ibv_transport_type {
        match self {
            Persona::Iwarp => IBV_TRANSPORT_IWARP,
            Persona::Roce => IBV_TRANSPORT_IB,
        }
    }

    /// Returns the type of every GID. iWARP has no types, and Linux' drivers report this one.
    pub(crate) fn gid_type(self) -> ibv_gid_type {
        match self {
            Persona::Iwarp => IBV_GID_TYPE_IB,
            Persona::Roce => IBV_GID_TYPE_ROCE_V2,
        }
    }

    /// Returns the type of every GID in the enumeration of `ibv_query_gid_type`.
    pub(crate) fn gid_type_sysfs(self) -> ibv_gid_type {
        match self {
            Persona::Iwarp => IBV_GID_TYPE_IB,
            Persona::Roce => GID_TYPE_SYSFS_ROCE_V2,
        }
    }

    /// Returns the number of P_Keys (`max_pkeys` of `ibv_device_attr`). Linux' iWARP drivers report
    /// none, although their P_Key table has an entry.
    pub(crate) fn max_pkeys(self) -> u16 {
        match self {
            Persona::Iwarp => 0,
            Persona::Roce => 1,
        }
    }

    /// Returns the number of address handles (`max_ah` of `ibv_device_attr`). Only memory bounds
    /// it.
    pub(crate) fn max_ah(self) -> i32 {
        match self {
            Persona::Iwarp => 0,
            Persona::Roce => i32::MAX,
        }
    }

    /// Returns the value of `active_mtu` for a port whose network has the MTU `of_network`, both as
    /// `ibv_mtu`. TCP makes the segments, so a RoCE port need not fit into the network's MTU.
    pub(crate) fn active_mtu(self, of_network: u32) -> u32 {
        match self {
            Persona::Iwarp => of_network,
            Persona::Roce => of_network.max(ROCE_MTU),
        }
    }
}

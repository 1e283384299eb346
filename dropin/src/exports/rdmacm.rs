//! Symbols of librdmacm: every `rdma_` name of rdma-core 44 (RDMACM_1.0 to 1.3).

use super::{absent_names as absent, exports};
use crate::cm::{
    address, addrinfo, attributes, channel, common, connect, endpoint, event, id, listen, option,
    queues, shared,
};

exports! {
    "@@RDMACM_1.0"
    rdma_accept => connect::accept,
    rdma_ack_cm_event => event::ack_cm_event,
    rdma_bind_addr => address::bind_addr,
    rdma_connect => connect::connect,
    rdma_create_ep => endpoint::create_ep,
    rdma_create_event_channel => channel::create_event_channel,
    rdma_create_id => id::create_id,
    rdma_create_qp => queues::create_qp,
    rdma_create_qp_ex => queues::create_qp_ex,
    rdma_create_srq => shared::create_srq,
    rdma_create_srq_ex => shared::create_srq_ex,
    rdma_destroy_ep => endpoint::destroy_ep,
    rdma_destroy_event_channel => channel::destroy_event_channel,
    rdma_destroy_id => id::destroy_id,
    rdma_destroy_qp => queues::destroy_qp,
    rdma_destroy_srq => shared::destroy_srq,
    rdma_disconnect => connect::disconnect,
    rdma_event_str => event::event_str,
    rdma_free_devices => common::free_devices,
    rdma_freeaddrinfo => addrinfo::freeaddrinfo,
    rdma_get_cm_event => event::get_cm_event,
    rdma_get_devices => common::get_devices,
    rdma_get_dst_port => address::get_dst_port,
    rdma_get_request => listen::get_request,
    rdma_get_src_port => address::get_src_port,
    rdma_getaddrinfo => addrinfo::getaddrinfo,
    rdma_listen => listen::listen,
    rdma_migrate_id => id::migrate_id,
    rdma_notify => connect::notify,
    rdma_reject => connect::reject,
    rdma_resolve_addr => address::resolve_addr,
    rdma_resolve_route => address::resolve_route,
    rdma_set_option => option::set_option,
}

exports! {
    "@@RDMACM_1.2"
    rdma_establish => connect::establish,
    rdma_init_qp_attr => attributes::init_qp_attr,
}

absent! {
    "@@RDMACM_1.0"
    rdma_join_multicast => minus_one,
    rdma_leave_multicast => minus_one,
}

absent! {
    "@@RDMACM_1.1"
    rdma_join_multicast_ex => minus_one,
}

absent! {
    "@@RDMACM_1.3"
    rdma_get_remote_ece => minus_one,
    rdma_reject_ece => minus_one,
    rdma_set_local_ece => minus_one,
}

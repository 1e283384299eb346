//! Symbols of libibverbs: every name of rdma-core 44 (IBVERBS_1.0 to 1.14).

use super::{absent_names as absent, exports};
use crate::qp::{extended, modify};
use crate::{ah, channel, cq, device, events, fork, mr, pd, qp, query, srq, strings};

exports! {
    "@@IBVERBS_1.0"
    ibv_create_comp_channel => channel::create_comp_channel,
    ibv_destroy_comp_channel => channel::destroy_comp_channel,
    ibv_get_sysfs_path => device::get_sysfs_path,
    ibv_rate_to_mult => strings::rate_to_mult,
    ibv_read_sysfs_file => device::read_sysfs_file,
    mult_to_ibv_rate => strings::mult_to_rate,
}

exports! {
    "@@IBVERBS_1.1"
    ibv_ack_async_event => events::ack_async_event,
    ibv_ack_cq_events => channel::ack_cq_events,
    ibv_alloc_pd => pd::alloc_pd,
    ibv_close_device => device::close_device,
    ibv_create_ah => ah::create_ah,
    ibv_create_ah_from_wc => ah::create_ah_from_wc,
    ibv_create_cq => cq::create_cq,
    ibv_create_qp => qp::create_qp,
    ibv_create_srq => srq::create_srq,
    ibv_dealloc_pd => pd::dealloc_pd,
    ibv_dereg_mr => mr::dereg_mr,
    ibv_destroy_ah => ah::destroy_ah,
    ibv_destroy_cq => cq::destroy_cq,
    ibv_destroy_qp => qp::destroy_qp,
    ibv_destroy_srq => srq::destroy_srq,
    ibv_dofork_range => fork::range,
    ibv_dontfork_range => fork::range,
    ibv_event_type_str => strings::event_type_str,
    ibv_fork_init => fork::fork_init,
    ibv_free_device_list => device::free_device_list,
    ibv_get_async_event => events::get_async_event,
    ibv_get_cq_event => channel::get_cq_event,
    ibv_get_device_guid => device::get_device_guid,
    ibv_get_device_list => device::get_device_list,
    ibv_get_device_name => device::get_device_name,
    ibv_init_ah_from_wc => ah::init_ah_from_wc,
    ibv_modify_qp => modify::modify_qp,
    ibv_modify_srq => srq::modify_srq,
    ibv_node_type_str => strings::node_type_str,
    ibv_open_device => device::open_device,
    ibv_port_state_str => strings::port_state_str,
    ibv_query_device => query::query_device,
    ibv_query_gid => query::query_gid,
    ibv_query_pkey => query::query_pkey,
    ibv_query_port => query::query_port,
    ibv_query_qp => modify::query_qp,
    ibv_query_srq => srq::query_srq,
    ibv_rate_to_mbps => strings::rate_to_mbps,
    ibv_reg_mr => mr::reg_mr,
    ibv_rereg_mr => mr::rereg_mr,
    ibv_resize_cq => cq::resize_cq,
    ibv_wc_status_str => strings::wc_status_str,
    mbps_to_ibv_rate => strings::mbps_to_rate,
}

exports! {
    "@@IBVERBS_1.5"
    ibv_get_pkey_index => query::get_pkey_index,
}

exports! {
    "@@IBVERBS_1.6"
    ibv_qp_to_qp_ex => extended::qp_to_qp_ex,
}

exports! {
    "@@IBVERBS_1.7"
    ibv_reg_mr_iova => mr::reg_mr_iova,
}

exports! {
    "@@IBVERBS_1.8"
    ibv_reg_mr_iova2 => mr::reg_mr_iova2,
}

exports! {
    "@@IBVERBS_1.9"
    ibv_get_device_index => device::get_device_index,
}

exports! {
    "@@IBVERBS_1.11"
    _ibv_query_gid_ex => query::query_gid_ex,
    _ibv_query_gid_table => query::query_gid_table,
}

exports! {
    "@@IBVERBS_1.13"
    ibv_is_fork_initialized => fork::is_fork_initialized,
}

exports! {
    "@@IBVERBS_1.14"
    ibv_query_qp_data_in_order => fork::data_in_order,
}

absent! {
    "@@IBVERBS_1.0"
    ibv_copy_path_rec_from_kern => nothing,
    ibv_copy_path_rec_to_kern => nothing,
    ibv_copy_qp_attr_from_kern => nothing,
}

absent! {
    "@@IBVERBS_1.1"
    ibv_attach_mcast => errno,
    ibv_copy_ah_attr_from_kern => nothing,
    ibv_detach_mcast => errno,
    ibv_resolve_eth_l2_from_gid => errno,
}

absent! {
    "@@IBVERBS_1.10"
    ibv_import_device => null,
    ibv_import_mr => null,
    ibv_import_pd => null,
    ibv_query_ece => errno,
    ibv_set_ece => errno,
    ibv_unimport_mr => nothing,
    ibv_unimport_pd => nothing,
}

absent! {
    "@@IBVERBS_1.12"
    ibv_reg_dmabuf_mr => null,
}

absent! {
    "@@IBVERBS_1.13"
    ibv_import_dm => null,
    ibv_unimport_dm => nothing,
}

// The ABI from before 2007, with other structures. No program that still runs calls it, but these
// names must exist.
absent! {
    "@IBVERBS_1.0"
    ibv_ack_async_event => nothing,
    ibv_ack_cq_events => nothing,
    ibv_alloc_pd => null,
    ibv_attach_mcast => errno,
    ibv_close_device => errno,
    ibv_create_ah => null,
    ibv_create_cq => null,
    ibv_create_qp => null,
    ibv_create_srq => null,
    ibv_dealloc_pd => errno,
    ibv_dereg_mr => errno,
    ibv_destroy_ah => errno,
    ibv_destroy_cq => errno,
    ibv_destroy_qp => errno,
    ibv_destroy_srq => errno,
    ibv_detach_mcast => errno,
    ibv_free_device_list => nothing,
    ibv_get_async_event => errno,
    ibv_get_cq_event => errno,
    ibv_get_device_guid => errno,
    ibv_get_device_list => null,
    ibv_get_device_name => null,
    ibv_modify_qp => errno,
    ibv_modify_srq => errno,
    ibv_open_device => null,
    ibv_query_device => errno,
    ibv_query_gid => errno,
    ibv_query_pkey => errno,
    ibv_query_port => errno,
    ibv_query_qp => errno,
    ibv_query_srq => errno,
    ibv_reg_mr => null,
    ibv_resize_cq => errno,
}

absent! {
    "@IBVERBS_1.1"
    ibv_register_driver => nothing,
}

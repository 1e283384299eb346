//! librdmacm: every `rdma_` name of rdma-core 44 (RDMACM_1.0 to 1.3).

use super::absent_names as absent;

absent! {
    "@@RDMACM_1.0"
    rdma_accept => minus_one,
    rdma_ack_cm_event => minus_one,
    rdma_bind_addr => minus_one,
    rdma_connect => minus_one,
    rdma_create_ep => minus_one,
    rdma_create_event_channel => null,
    rdma_create_id => minus_one,
    rdma_create_qp => minus_one,
    rdma_create_qp_ex => minus_one,
    rdma_create_srq => minus_one,
    rdma_create_srq_ex => minus_one,
    rdma_destroy_ep => nothing,
    rdma_destroy_event_channel => nothing,
    rdma_destroy_id => minus_one,
    rdma_destroy_qp => nothing,
    rdma_destroy_srq => nothing,
    rdma_disconnect => minus_one,
    rdma_event_str => null,
    rdma_free_devices => nothing,
    rdma_freeaddrinfo => nothing,
    rdma_get_cm_event => minus_one,
    rdma_get_devices => null,
    rdma_get_dst_port => nothing,
    rdma_get_request => minus_one,
    rdma_get_src_port => nothing,
    rdma_getaddrinfo => minus_one,
    rdma_join_multicast => minus_one,
    rdma_leave_multicast => minus_one,
    rdma_listen => minus_one,
    rdma_migrate_id => minus_one,
    rdma_notify => minus_one,
    rdma_reject => minus_one,
    rdma_resolve_addr => minus_one,
    rdma_resolve_route => minus_one,
    rdma_set_option => minus_one,
}

absent! {
    "@@RDMACM_1.1"
    rdma_join_multicast_ex => minus_one,
}

absent! {
    "@@RDMACM_1.2"
    rdma_establish => minus_one,
    rdma_init_qp_attr => minus_one,
}

absent! {
    "@@RDMACM_1.3"
    rdma_get_remote_ece => minus_one,
    rdma_reject_ece => minus_one,
    rdma_set_local_ece => minus_one,
}

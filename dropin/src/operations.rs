//! Functions that the inline functions of `verbs.h` call through a context. If a function is not
//! implemented, its pointer is NULL, and the inline function returns `EOPNOTSUPP`.

use crate::abi::verbs_context;
use crate::qp::post;
use crate::{cq, cq_ex, mw, qp, query, srq};

/// Sets the function pointers.
pub(crate) fn fill(context: &mut verbs_context) {
    context.query_port = Some(query::query_port_of);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_qp_ex = Some(qp::create_qp_ex);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.create_srq_ex = Some(srq::create_srq_ex);
    context.get_srq_num = Some(srq::get_srq_num);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    ops.post_srq_recv = Some(srq::post_srq_recv);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
}

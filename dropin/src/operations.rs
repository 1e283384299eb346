//! The functions that inline functions of `verbs.h` find in a context. What is not there is NULL, and the inline function answers
//! `EOPNOTSUPP`.

use crate::abi::verbs_context;
use crate::qp::post;
use crate::{cq, qp, query};

/// Fills them in.
pub(crate) fn fill(context: &mut verbs_context) {
    context.query_port = Some(query::query_port_of);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_qp_ex = Some(qp::create_qp_ex);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

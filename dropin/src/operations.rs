//! The functions that inline functions of `verbs.h` find in a context. What is not there is NULL, and the inline function answers
//! `EOPNOTSUPP`.

use crate::abi::verbs_context;
use crate::query;

/// Fills them in.
pub(crate) fn fill(context: &mut verbs_context) {
    context.query_port = Some(query::query_port_of);
    context.query_device_ex = Some(query::query_device_ex);
}

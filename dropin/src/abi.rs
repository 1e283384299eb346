//! The C interface: layouts of rdma-core's structures, which programs access in memory.

#[allow(
    missing_docs,
    dead_code,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_code,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated from C headers"
)]
#[rustfmt::skip]
mod generated;

pub(crate) use generated::*;

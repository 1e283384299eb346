//! librdmacm: ids, events on channels, addresses, connections.
//!
//! ```text
//!   rdma_cm_id ──────► IdInner ────► uwarp_verbs::CmId ──┐ events
//!   rdma_event_channel ► EventChannel ◄──────────────────┘
//!        │ rdma_get_cm_event
//!        ▼
//!   rdma_cm_event ───► CmEvent: rdma_ack_cm_event drops it, which acknowledges the event
//! ```
//!
//! Events and their status are those of the kernel for iWARP: there is no `CONNECT_RESPONSE`, and
//! both sides get `ESTABLISHED`. The queue pair is then ready without `ibv_modify_qp`. An id
//! without a channel is synchronous: each of its calls waits for its event (`sync.rs`).

pub(crate) mod address;
pub(crate) mod addrinfo;
pub(crate) mod attributes;
pub(crate) mod channel;
pub(crate) mod common;
pub(crate) mod connect;
pub(crate) mod endpoint;
pub(crate) mod event;
mod failure;
pub(crate) mod id;
pub(crate) mod listen;
pub(crate) mod option;
pub(crate) mod queues;
pub(crate) mod shared;
mod sockaddr;
mod sync;
#[cfg(test)]
mod tests;

use core::ffi::c_int;

use crate::errno;

/// Converts a result to the return value of most librdmacm functions: 0, or -1 with `errno` set.
fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

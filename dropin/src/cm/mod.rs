//! librdmacm: ids, events on channels, addresses, connections.
//!
//! ```text
//!   rdma_cm_id ──────► IdKept ─────► uwarp_verbs::CmId ──┐ events
//!   rdma_event_channel ► EventChannel ◄──────────────────┘
//!        │ rdma_get_cm_event
//!        ▼
//!   rdma_cm_event ───► CmEvent: its drop, by rdma_ack_cm_event, acknowledges
//! ```
//!
//! Which event comes with which status is that of the kernel for iWARP: there is no `CONNECT_RESPONSE`, both sides get `ESTABLISHED`,
//! and the queue pair is ready by then without `ibv_modify_qp`. An id without a channel is synchronous: each call of it waits for
//! its event (`sync.rs`).

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

/// What most functions of librdmacm give: 0, or -1 with `errno`.
fn status(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            errno::set(error);
            -1
        }
    }
}

//! Queues: messages that wait for a receive, full completion queues, drains, and reuse of entries.

#[path = "../common/mod.rs"]
mod common;
mod cq;
mod hold;
mod places;
mod send_queue;

use common::{
    CqHandle, Ends, LIMIT, Setup, Side, Wire, both_ways, join, placed_only, raw_peer, raw_settings,
};
use uwarp_verbs::{
    AcceptOptions, AsyncEvent, Completion, ConnectOptions, EndReason, Listener, MemoryRegion,
    OnNoReceive, PostErrorKind, Qp, QpCaps, QpState, RecvWr, RemoteBuffer, ResizeCqError, SendWr,
    Srq, SrqAttr, Status, WcOpcode,
};

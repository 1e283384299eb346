//! Queues: messages that wait for a receive, completion queues that are full, draining, reclaim.

#[path = "../common/mod.rs"]
mod common;
mod cq;
mod hold;
mod sends;

use common::{
    CqHandle, LIMIT, Setup, Side, Wire, both_ways, join, placed_only, raw_peer, raw_settings, until,
};
use uwarp_verbs::{
    AsyncEvent, Completion, EndReason, MemoryRegion, OnNoReceive, Qp, QpCaps, QpState, RecvWr,
    ResizeCqError, SendWr, Srq, SrqAttr, Status, WcOpcode,
};

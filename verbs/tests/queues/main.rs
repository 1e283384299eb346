//! Queues: messages that wait for a receive, completion queues that are full, draining, reclaim.

#[path = "../common/mod.rs"]
mod common;
mod cq;
mod hold;
mod sends;

use common::{CqHandle, LIMIT, Setup, Side, Wire, both_ways, join, raw_peer, raw_settings, until};
use uwarp_verbs::{
    AsyncEvent, EndReason, OnNoReceive, Qp, QpCaps, QpState, RecvWr, ResizeCqError, SendWr,
    SrqAttr, Status,
};

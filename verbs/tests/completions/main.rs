//! Work requests from post to completion: order, signals, lists, errors of posts, QP states,
//! events.

#[path = "../common/mod.rs"]
mod common;
mod events;
mod order;
mod refused;
mod states;
mod written;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use common::{
    CqHandle, LIMIT, Setup, Side, Wire, bell, beside_raw_peer, both_ways, content, join, pair,
    pattern, raw_settings, until,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_verbs::{
    Access, ChannelError, Completion, CompletionChannel, Device, DeviceError, LocalFaultKind,
    MemoryRegion, Notify, PostErrorKind, Qp, QpCaps, QpState, RecvWr, RemoteBuffer, SendWr,
    Settings, Sge, Status, WcOpcode,
};

/// Waits at most `limit` and returns true if the descriptor is readable.
fn readable(fd: BorrowedFd<'_>, limit: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
}

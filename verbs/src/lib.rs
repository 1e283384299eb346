//! Software RNIC: RDMA verbs over iWARP (RFC 5040 to 5042, 5044, 6581 and 7306) in user space.
//!
//! Two machines with plain TCP exchange Sends, Immediate Data, and one-sided Writes, Reads and
//! atomics. They need no RDMA hardware, no kernel module and no root. The bytes on the wire are
//! those of the RFCs. The peer may be another uwarp, the Linux `siw` driver or a hardware iWARP
//! RNIC.
//!
//! # The objects
//! A [`Device`] is one software RNIC over one network. It creates protection domains ([`Pd`]),
//! completion queues ([`Cq`]) and [`Listener`]s. A `Pd` registers memory ([`MemoryRegion`]) and
//! creates queue pairs ([`Qp`]). Work requests ([`SendWr`], [`RecvWr`]) are posted to a QP. Each
//! completes with a [`Completion`] in a CQ of the QP.
//!
//! Further objects:
//! * [`Srq`]: receives that several QPs share.
//! * [`MemoryWindow`] and [`FastRegion`]: STags for parts of a region.
//! * [`CmId`] and [`EventChannel`]: connection management by events, for programs that may not
//!   block.
//! * [`aio`]: an async API.
//! * [`Limits`]: bounds on the resources of a device, in all, for each peer and for each protection
//!   domain.
//!
//! # Atomics and Immediate Data
//! [`SendWr::fetch_add`], [`SendWr::compare_swap`] and [`SendWr::swap`] change a word of 8 bytes in
//! the peer's memory and return its previous value. The region needs [`Access::REMOTE_ATOMIC`].
//! [`SendWr::write_with_immediate`] is a Write that completes a receive of the peer and delivers 8
//! bytes with it. A peer that does not know RFC 7306 ends the connection:
//! [`EndReason::PeerLacksRfc7306`]. [`SendWr::send_with_immediate`] exists between QPs that are
//! connected by their numbers.
//!
//! Other RDMA interfaces have 4 bytes of Immediate Data. On the wire these are the first 4 of the 8
//! bytes, followed by zeros. A uwarp program may use all 8. Other interfaces also report the length
//! of the preceding Write as `byte_len` of the receive. In uwarp [`Completion::byte_len`] is 0,
//! because Immediate Data is a separate message that places no byte in memory.
//! [`Completion::written`] has the length of the Write.
//!
//! # Example
//! The example runs both ends in one process. Usually they are two programs.
//! ```
//! use std::time::Duration;
//! use uwarp_verbs::{
//!     AcceptOptions, Access, ConnectOptions, Device, QpCaps, RecvWr, RemoteBuffer, SendWr, Status,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let second = Some(Duration::from_secs(5));
//! let device = Device::tcp()?;
//! let listener = device.listen("127.0.0.1:0".parse()?)?;
//! let addr = listener.local_addr();
//!
//! // The server registers a region for its client and advertises it in the private data.
//! type Outcome = Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;
//! let server = std::thread::spawn(move || -> Outcome {
//!     let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//!     let region = pd.register(vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!     let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
//!     qp.post_recv(&RecvWr::new(1, &[]))?; // for the empty Send after the Write
//!     let request = listener.wait_request(second)?;
//!     request.accept(&qp, &AcceptOptions::default().private_data(region.remote().to_bytes()))?;
//!     let done = cq.wait(second).ok_or("the client did not write")?;
//!     assert_eq!((done.wr_id, done.status), (1, Status::Success));
//!     let mut bytes = vec![0; 5];
//!     region.read_at(0, &mut bytes)?;
//!     Ok(bytes)
//! });
//!
//! // The client writes into the region with a one-sided Write.
//! let device = Device::tcp()?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//! let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
//! let connected = qp.connect(addr, &ConnectOptions::default())?;
//! let lent = RemoteBuffer::from_bytes(&connected.private_data).ok_or("the server lends nothing")?;
//! let local = pd.register(b"hello".to_vec(), Access::NONE)?;
//! qp.post_send_list(&[
//!     SendWr::write(2, &[local.sge(0, 5)], lent.slice(0, 5)?).unsignaled(),
//!     SendWr::send(3, &[]),
//! ])?;
//! let sent = cq.wait(second).ok_or("not sent")?;
//! assert_eq!((sent.wr_id, sent.status), (3, Status::Success));
//! assert_eq!(server.join().unwrap().map_err(|error| error.to_string())?, b"hello");
//! # Ok(()) }
//! ```
//!
//! # Rules that matter
//! * **Progress**: a thread that polls an empty CQ drives the connections of that CQ. When no
//!   thread polls, a background thread takes over, so one-sided operations complete while the
//!   target sleeps.
//! * **Memory** that a work request names belongs to the library until the completion. Do not
//!   change the source of a Send or Write, and do not use the target of a receive, Read or atomic.
//! * **A fork** leaves all objects to the parent. In the child, calls on them fail with
//!   [`Inherited`], and dropping them does nothing. The child opens its own device.
//! * **Errors** end the connection, as in every RDMA transport. Outstanding work requests complete
//!   as flushed. An [`AsyncEvent`] and [`Qp::end_reason`] report the reason in words. Other
//!   connections are not affected.

#![allow(
    unexpected_cfgs,
    reason = "the manifest, which is published, does not name `uwarp_mutants`"
)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests wait by the clock of the machine"
    )
)]

pub mod aio;
mod clock;
mod cm;
mod completion;
mod connection;
mod cq;
mod datagram;
mod device;
mod device_attr;
pub mod environment;
mod event_queue;
pub mod headroom;
pub mod messages;
mod mr;
#[cfg(not(uwarp_mutants))]
mod mutants;
#[cfg(uwarp_mutants)]
#[doc(hidden)]
pub mod mutants;
mod mw;
pub mod options;
mod pd;
mod policy;
mod progress;
mod qp;
mod refused;
mod rendezvous;
mod settings;
mod srq;
mod trace;
mod traffic;
mod usage;
mod wait;
mod wakers;

pub use clock::TimeSource;
pub use cm::{
    AcceptError, AcceptOptions, Arrival, Attempt, CmError, CmEvent, CmEventKind, CmId, CmReason,
    CmState, CmWaitError, ConnectError, ConnectOptions, ConnectRequest, Connected, EventChannel,
    ListenError, Listener, RejectOptions, RequestError, ResolveError, StreamOptions, WrongState,
};
pub use completion::{
    ChannelError, Completion, CompletionChannel, CqEvent, DatagramSource, Notify, ResizeCqError,
    Status, WcOpcode, WorkError,
};
pub use cq::{Cq, DestroyCqError};
pub use datagram::{DatagramPath, DatagramWr};
pub use device::{Device, DeviceError};
pub use device_attr::{AtomicCap, DeviceAttr, Gid, PortAttr, PortState, QueryError, device_cap};
pub use event_queue::UnackedEvent;
pub use mr::{FastRegion, MemoryRegion, RegionBuilder, Reregister};
pub use mw::MemoryWindow;
pub use pd::Pd;
pub use progress::WouldWait;
pub use qp::DestroyQpError;
pub use qp::attr::{QpAttr, QpInit};
pub use qp::builder::QpBuilder;
pub use qp::modify::{IbvQpState, ModifyError, QpModify, WantedState};
pub use qp::{ConnectionInfo, Qp, QpCaps};
pub use rendezvous::{PairError, PairOptions, PeerQp, Rendezvous, RendezvousOptions};
pub use settings::{Limits, OnNoReceive, PdLimits, PeerLimits, Progress, Settings, Timeouts};
pub use srq::{DestroySrqError, ModifySrqError, Srq, SrqAttr, SrqModify};
pub use traffic::Traffic;
pub use usage::DeviceUsage;
pub use uwarp_engine::cause::{Cause, CauseCode, Layer, Who};
pub use uwarp_engine::connection::{
    Direction, FlightRecord, PostError, PostErrorKind, RecordedFrame,
};
// For the fuzz target only.
#[doc(hidden)]
pub use uwarp_engine::datagram as datagram_format;
pub use uwarp_engine::event::{AsyncEvent, EndReason, EventObject};
pub use uwarp_engine::limits::LimitReached;
pub use uwarp_engine::peer::PrivateDataLimit;
pub use uwarp_engine::wr::{BindWr, RecvWr, SendWr};

pub use uwarp_engine::fork_guard::Inherited;
pub use uwarp_engine::mem::{
    Access, Buffer, BufferError, DeregisterError, FastRegister, LocalFault, LocalFaultKind,
    MapError, OutOfRange, RegisterError, RemoteBuffer, ReregisterError, Sge, WindowBind,
    WindowKind, inc_rkey,
};
pub use uwarp_engine::state::QpState;
pub use uwarp_llp::Keepalive;

/// Captures of the traffic on the wire.
pub use uwarp_capture as capture;
/// Networks: kernel TCP, or smoltcp over a link in memory or an Ethernet.
pub use uwarp_llp as llp;
pub use uwarp_mpa::{FpduSegments, FpduSegmentsError, Revision, RtrKinds, StartupError};
pub use uwarp_rdmap::{
    AccessError, Opcode, Peer, Requirement, StreamError, Terminate, TerminateCode,
};

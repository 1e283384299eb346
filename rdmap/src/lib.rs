//! RDMAP (RFC 5040, with the extensions of RFC 7306): the RDMA protocol, sans-IO. It is layered on
//! DDP (5040-3.1-01): every message is sent and received as segments of `uwarp-ddp`.
//!
//! # Contract
//!
//! A [`Stream`] is one RDMAP stream in both directions. It owns no socket, no clock, no thread, no
//! payload and no buffers:
//!
//! * **Receiving:** the caller passes the first bytes and the length of each ULPDU, in order
//!   ([`Stream::receive`]). The stream checks the segment, asks the owner of memory through
//!   [`Memory`], and returns an [`Inbound`]. The result names the kind of the segment, the bytes to
//!   place and their destination. If the segment completes a message, the result also names the
//!   delivered message. The caller places the bytes before it passes the next ULPDU.
//! * **Sending:** [`Stream::begin_send`], [`begin_write`](Stream::begin_write),
//!   [`begin_read`](Stream::begin_read), [`begin_immediate`](Stream::begin_immediate) and
//!   [`begin_atomic`](Stream::begin_atomic) start a message.
//!   [`begin_read_response`](Stream::begin_read_response) and
//!   [`begin_atomic_response`](Stream::begin_atomic_response) start the answer to a request of the
//!   peer; [`next_request`](Stream::next_request) returns these requests in the order of arrival.
//!   The [`OutMessage`] then yields one segment after the other. The order of the `begin_*` calls
//!   must be the order on the wire: send all segments of one message before those of the next.
//! * **Errors:** the first [`StreamError`] ends the stream. [`Stream::terminate_for`] creates the
//!   Terminate Message for the peer, [`Stream::begin_terminate`] sends it, and nothing can be sent
//!   after it. A Terminate Message of the peer arrives as [`Inbound::Terminate`]; its `Display`
//!   explains the error that the peer reports.
//!
//! The LLP must be reliable and in order, as MPA over TCP is. Memory is allocated when a stream is
//! created (for IRD and ORD), not per message. Nothing that a peer can send causes a panic.
//!
//! # Example
//!
//! Two streams, one Send, no network:
//!
//! ```
//! use uwarp_ddp::{STag, TaggedFault};
//! use uwarp_rdmap::{AtomicFault, Inbound, MAX_HEADER, Memory, SendKind, Stream, StreamConfig};
//!
//! /// One posted receive of 64 bytes, and no registered memory.
//! struct OneReceive;
//!
//! impl Memory for OneReceive {
//!     type Target = ();
//!     fn check_write(&self, _: STag, _: u64, _: u32) -> Result<(), TaggedFault> {
//!         Err(TaggedFault::InvalidSTag)
//!     }
//!     fn check_read(&self, _: STag, _: u64, _: u32) -> Result<(), TaggedFault> {
//!         Err(TaggedFault::InvalidSTag)
//!     }
//!     fn check_atomic(&self, _: STag, _: u64) -> Result<(), AtomicFault> {
//!         Err(AtomicFault::Tagged(TaggedFault::InvalidSTag))
//!     }
//!     fn check_invalidate(&self, _: STag) -> Result<(), TaggedFault> {
//!         Err(TaggedFault::InvalidSTag)
//!     }
//!     fn receive_buffer(&self) -> Option<u32> {
//!         Some(64)
//!     }
//! }
//!
//! let mut ours = Stream::new(StreamConfig { ird: 4, ord: 4 });
//! let mut theirs = Stream::new(StreamConfig { ird: 4, ord: 4 });
//! let mut buffer = [0; 64];
//!
//! let message = b"hello";
//! let mut out = ours.begin_send(SendKind::default(), message.len() as u32);
//! let mut header = [0; MAX_HEADER];
//! while let Some(segment) = out.next_segment(1500, &mut header) {
//!     // The ULPDU, as MPA would carry it.
//!     let mut ulpdu = header[..segment.header_len].to_vec();
//!     ulpdu.extend_from_slice(&message[segment.range()]);
//!
//!     match theirs.receive(&OneReceive, &ulpdu, ulpdu.len())? {
//!         Inbound::Send { payload_at, offset, len, delivered } => {
//!             let (at, len) = (offset as usize, len as usize);
//!             buffer[at..at + len].copy_from_slice(&ulpdu[payload_at..payload_at + len]);
//!             assert!(delivered.is_some_and(|message| message.len == 5));
//!         }
//!         other => unreachable!("{other:?}"),
//!     }
//! }
//! assert_eq!(&buffer[..5], message);
//! # Ok::<(), uwarp_rdmap::StreamError>(())
//! ```

#![allow(
    unexpected_cfgs,
    reason = "the manifest, which is published, does not name `uwarp_mutants`"
)]
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

extern crate alloc;

mod atomic;
mod code;
mod error;
mod inbound;
mod memory;
mod message;
#[cfg(not(uwarp_mutants))]
mod mutants;
#[cfg(uwarp_mutants)]
#[doc(hidden)]
pub mod mutants;
mod opcode;
mod peer;
mod read_request;
mod requirement;
mod state;
mod stream;
mod terminate;

pub use atomic::{
    ATOMIC_REQUEST_HEADER, ATOMIC_RESPONSE_HEADER, AtomicOp, AtomicRequestHeader,
    AtomicResponseHeader,
};
pub use code::TerminateCode;
pub use error::{AccessError, AtomicFault, Blame, OrdExhausted, ReadResponseFault, StreamError};
pub use inbound::{Inbound, SendDelivered};
pub use memory::Memory;
pub use message::{OutMessage, OutSegment};
pub use opcode::{
    Opcode, QN_ATOMIC_RESPONSE, QN_READ_REQUEST, QN_SEND, QN_TERMINATE, RDMAP_VERSION, control,
};
pub use peer::Peer;
pub use read_request::{READ_REQUEST_HEADER, ReadRequestHeader};
pub use requirement::Requirement;
pub use state::{StreamEvent, StreamState};
pub use stream::{
    AtomicJob, Job, ReadJob, SendKind, SendSegment, Stream, StreamConfig, WriteSegment,
};
pub use terminate::{MAX_TERMINATE_HEADER, Terminate};

/// Maximum length in bytes of the DDP and RDMAP headers of a segment. Two messages have headers of
/// this length: an Atomic Request, and a Terminate Message that carries the headers of a Read
/// Request.
pub const MAX_HEADER: usize = uwarp_ddp::UNTAGGED_HEADER + MAX_TERMINATE_HEADER;

/// Number of bytes of a ULPDU that [`Stream::receive`] reads. Pass this many, or the whole ULPDU if
/// it is shorter.
pub const HEAD_LEN: usize = MAX_HEADER;

//! DDP (RFC 5041): direct data placement, sans-IO.
//!
//! # Contract
//!
//! This crate owns no socket, no clock, no thread and no memory that a peer may access. It converts
//! DDP headers to bytes and back, cuts messages into segments, and checks whether and where a
//! segment may be placed. The caller owns the payload:
//!
//! * **Sending:** a [`Segmenter`] selects the bytes of a message for the next segment, and
//!   [`Header::emit`] writes the header before them.
//! * **Receiving:** [`Header::parse`] takes the first bytes of one ULPDU. Untagged segments go to
//!   the [`UntaggedReceiver`] of their queue. The receiver enforces the rules for MSN and MO, and
//!   returns an [`UntaggedPlacement`]. Tagged segments are checked by the owner of the memory, with
//!   [`TaggedRange`] for the arithmetic. The owner reports a [`TaggedFault`] if a segment may not
//!   be placed.
//! * **Errors** carry the type and code of RFC 5041 section 7.2: [`DdpError::etype`] and
//!   [`DdpError::code`], or [`TaggedFault::ETYPE`] and [`TaggedFault::code`]. DDP only reports the
//!   error and never ends a stream. The ULP ends the stream (5041-6.2-01) after it has reported the
//!   error to the peer (5041-6.2.2-06).
//!
//! The LLP must be reliable and deliver segments in the order in which they were sent, as MPA over
//! TCP does.
//!
//! This crate does not allocate, and nothing that a peer can send makes it panic.
//!
//! # Example
//!
//! ```
//! use uwarp_ddp::{Header, MAX_HEADER, Msn, Qn, Segmenter, UntaggedHeader, UntaggedReceiver};
//!
//! let message = b"a message for the peer's first receive buffer";
//! let mut placed = [0u8; 64];
//! let mut receiver = UntaggedReceiver::new(Qn(0));
//!
//! let mut segmenter = Segmenter::new(message.len() as u32);
//! while let Some(segment) = segmenter.next_segment(18, 40) {
//!     // The sender: header, then the segment's part of the message.
//!     let header = Header::Untagged(UntaggedHeader {
//!         last: segment.last,
//!         ulp: 0x43,
//!         ulp_word: 0,
//!         qn: Qn(0),
//!         msn: Msn::FIRST,
//!         mo: segment.offset,
//!     });
//!     let mut bytes = [0; MAX_HEADER];
//!     let header_len = header.emit(&mut bytes);
//!     let payload = &message[segment.range()];
//!
//!     // The receiver.
//!     let (Header::Untagged(header), _) = Header::parse(&bytes[..header_len])? else {
//!         unreachable!("it was emitted as untagged");
//!     };
//!     let place = receiver.accept(&header, payload.len() as u32, Some(placed.len() as u32))?;
//!     placed[place.range()].copy_from_slice(payload);
//!     if place.last {
//!         assert_eq!(&placed[..place.message_len as usize], message);
//!     }
//! }
//! # Ok::<(), uwarp_ddp::DdpError>(())
//! ```

#![allow(
    unexpected_cfgs,
    reason = "the manifest, which is published, does not name `uwarp_mutants`"
)]
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate alloc;

mod error;
mod header;
#[cfg(not(uwarp_mutants))]
mod mutants;
#[cfg(uwarp_mutants)]
#[doc(hidden)]
pub mod mutants;
mod segment;
mod tagged;
mod types;
mod untagged;

pub use error::{DdpError, TaggedFault, UntaggedFault};
pub use header::{
    DDP_VERSION, Header, MAX_HEADER, TAGGED_HEADER, TaggedHeader, UNTAGGED_HEADER, UntaggedHeader,
};
pub use segment::{MAX_ULPDU, Segment, Segmenter};
pub use tagged::TaggedRange;
pub use types::{Msn, Qn, STag, TaggedOffset};
pub use untagged::{UntaggedPlacement, UntaggedReceiver};

//! MPA (RFC 5044, with the enhanced startup of RFC 6581). It negotiates an RDMA connection over TCP
//! and frames records (ULPDUs) as FPDUs in the TCP byte stream.
//!
//! # Contract
//! This crate is sans-IO. It opens no socket, reads no clock, starts no thread, and knows nothing
//! of the layer above (DDP). Bytes come in as slices and go out as slices and vectors. The caller
//! calls a method to report that a time limit ran out or that the connection ended. The crate has
//! no `unsafe` code, and nothing that a peer can send makes it panic.
//!
//! A connection goes through two phases:
//!
//! 1. **Startup.** An [`Initiator`] produces its Request and processes the Reply. A [`Responder`]
//!    processes the Request, passes it to the ULP, and produces the Reply. Both end with the same
//!    [`Negotiated`] parameters.
//! 2. **Full Operation.** A [`Framer`] turns outgoing ULPDUs into FPDUs. A [`Deframer`] extracts
//!    verified [`Ulpdu`]s from incoming bytes. The responder's [`SendGate`] stays closed until the
//!    first verified FPDU arrives.
//!
//! Every error caused by the peer maps to an [`MpaErrorCode`], for a Terminate or a local report.
//!
//! # Example
//! ```
//! use uwarp_mpa::*;
//!
//! // Startup. The bytes of `request` and `reply` would travel over TCP.
//! let mut initiator = Initiator::new(InitiatorConfig {
//!     revision: Revision::Two,
//!     crc: true,
//!     markers: false,
//!     ird: 16,
//!     ord: 16,
//!     max_ird: 32,
//!     model: Model::PeerToPeer(RtrKinds::ALL),
//!     private_data: b"hello".to_vec(),
//! })?;
//! let mut responder = Responder::new(ResponderConfig {
//!     crc: true,
//!     markers: false,
//!     max_revision: Revision::Two,
//!     max_ird: 32,
//!     rtr: RtrKinds::ALL,
//! })?;
//! let (_, request) = responder.receive(initiator.request())?;
//! assert_eq!(request.unwrap().private_data, b"hello");
//! let (reply, theirs) = responder.accept(Accept { ird: 16, ord: 4, private_data: b"welcome" })?;
//! let (_, outcome) = initiator.receive(&reply)?;
//! let Some(Outcome::Accepted(ours)) = outcome else { panic!("not accepted") };
//! assert_eq!((ours.ord, theirs.ord, ours.rtr), (16, 4, Some(Rtr::Write)));
//!
//! // Full Operation: one ULPDU as one FPDU.
//! let mut framer = Framer::new(ours.crc, ours.tx_markers);
//! let mut stream = Vec::new();
//! framer.frame(b"header", b"payload", 0, 7, &mut stream)?;
//!
//! let mut deframer = Deframer::new(theirs.crc, theirs.rx_markers);
//! let mut gate = theirs.send_gate();
//! assert!(!gate.may_send());
//! if let Step::Fpdu(ulpdu) = deframer.next(&stream)? {
//!     gate.fpdu_validated();
//!     let bytes: Vec<u8> = ulpdu.pieces(0, ulpdu.len()).flatten().copied().collect();
//!     assert_eq!(bytes, b"headerpayload");
//!     stream.drain(..ulpdu.wire_len());
//! }
//! assert!(gate.may_send() && stream.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//! `std` (default) enables the fast CRC32C. Without it the crate is `no_std` with `alloc`, and the
//! CRC is computed by table.

#![allow(
    unexpected_cfgs,
    reason = "the manifest, which is published, does not name `uwarp_mutants`"
)]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod crc;
mod deframer;
mod error;
mod framer;
mod layout;
mod mulpdu;
#[cfg(not(uwarp_mutants))]
mod mutants;
#[cfg(uwarp_mutants)]
#[doc(hidden)]
pub mod mutants;
mod payload;
mod startup;
#[cfg(test)]
mod testing;

pub use crc::{Crc32c, crc32c};
pub use deframer::{DeframeError, Deframer, Pieces, Step, Ulpdu};
pub use error::MpaErrorCode;
pub use framer::{FrameError, Framer, Trailer};
pub use mulpdu::{FpduSegments, FpduSegmentsError, MAX_ULPDU, MIN_MULPDU, mulpdu};
pub use payload::Payload;
pub use startup::{
    Accept, ConfigError, Enhanced, FirstBytes, FrameKind, Initiator, InitiatorConfig,
    MAX_PRIVATE_DATA, Model, NO_AUTO, Negotiated, Outcome, Parsed, Rejection, Request, Responder,
    ResponderConfig, Revision, Role, Rtr, RtrKinds, SendGate, StartupError, StartupFrame,
};

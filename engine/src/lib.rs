//! The engine of uwarp's software RNIC: one connection with its queues, its own or shared
//! ([`connection`]), registered memory ([`mem`]), work requests and completions ([`wr`],
//! [`completion`]), the causes of failures ([`cause`], [`event`]), and limits on what peers can
//! make a device hold ([`limits`]).
//!
//! It is sans-IO: bytes, time and completions go in and out as values. It has no thread, socket or
//! clock. Transports are in the crate `uwarp-llp`.
//!
//! Programs use the crate `uwarp-verbs`, which has the whole interface of a software RNIC and
//! re-exports the types of this crate that belong to it. The rest of this interface may change with
//! every release.
//!
//! # Example
//! Two connections in one function. The bytes are handed across by hand, and a Write of one places
//! its payload in the memory of the other.
//! ```
//! use std::sync::Arc;
//! use std::time::Instant;
//! use uwarp_engine::completion::{QueueOfRing, Ring, Status};
//! use uwarp_engine::connection::{
//!     BufferPool, Connection, PARTS_PER_CALL, QpContext, QueueCaps, ReceiveBuffer,
//! };
//! use uwarp_engine::llp::Piece;
//! use uwarp_engine::mem::{Access, Backing, Buffer, RegionSpec, RegionTable, RemoteBuffer};
//! use uwarp_engine::settings::{ConnectionSettings, OnNoReceive};
//! use uwarp_engine::wr::SendWr;
//! use uwarp_mpa::{
//!     Accept, InitiatorConfig, Model, Responder, ResponderConfig, Revision, RtrKinds,
//! };
//!
//! /// Creates a QP without a connection.
//! fn qp(table: &Arc<RegionTable>, ring: &Arc<Ring>) -> Connection<QueueOfRing> {
//!     let context = QpContext {
//!         qp_num: 2,
//!         pd: 1,
//!         table: Arc::clone(table),
//!         send_cq: ring.attach(Arc::default()),
//!         recv_cq: ring.attach(Arc::default()),
//!         settings: Arc::new(ConnectionSettings::default()),
//!         caps: QueueCaps {
//!             max_send_wr: 16,
//!             max_recv_wr: 16,
//!             max_send_sge: 1,
//!             max_recv_sge: 1,
//!             max_inline_data: 64,
//!         },
//!         srq: None,
//!         on_no_receive: OnNoReceive::Terminate,
//!         access: Access::ALL,
//!         signal_all: true,
//!         late_faults: false,
//!         placed_writes: false,
//!         unreliable: false,
//!         datagrams: None,
//!         keepalive: None,
//!     };
//!     Connection::new(Arc::new(context), Instant::now())
//! }
//!
//! /// Takes the bytes that a connection has to send, as its transport would.
//! fn sent(from: &mut Connection<QueueOfRing>) -> Vec<u8> {
//!     let mut bytes = Vec::new();
//!     loop {
//!         from.fill();
//!         let mut pieces = [Piece::from(&[]); PARTS_PER_CALL];
//!         let count = from.tx.pieces(&mut pieces);
//!         let before = bytes.len();
//!         for piece in &pieces[..count] {
//!             piece.append_to(piece.len(), &mut bytes);
//!         }
//!         let taken = bytes.len() - before;
//!         if taken == 0 {
//!             return bytes;
//!         }
//!         from.taken(taken);
//!     }
//! }
//!
//! /// Hands bytes to a connection that it has received.
//! fn receive(
//!     to: &mut Connection<QueueOfRing>,
//!     buffer: &mut ReceiveBuffer,
//!     pool: &BufferPool,
//!     bytes: &[u8],
//! ) {
//!     let space = buffer.space(pool).expect("a peer may always send one FPDU");
//!     space[..bytes.len()].copy_from_slice(bytes);
//!     buffer.received(bytes.len());
//!     to.receive(buffer);
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (table, pool) = (Arc::new(RegionTable::new(16, 16, None)?), BufferPool::default());
//! let region = table.insert(RegionSpec {
//!     memory: Backing::buffer(Arc::new(Buffer::from(vec![0; 64]))),
//!     to_base: Some(0),
//!     pd: 1,
//!     qp: None,
//!     access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
//! })?;
//! let (done, ring) = (Ring::new(1, 16), Ring::new(2, 16));
//! let (mut client, mut server) = (qp(&table, &done), qp(&table, &ring));
//! let (mut at_client, mut at_server) = (ReceiveBuffer::default(), ReceiveBuffer::default());
//!
//! // MPA startup: the client's Request and the server's Reply.
//! let config = InitiatorConfig {
//!     revision: Revision::Two,
//!     crc: true,
//!     markers: false,
//!     ird: 4,
//!     ord: 4,
//!     max_ird: 16,
//!     model: Model::ClientServer,
//!     private_data: Vec::new(),
//! };
//! client.start_initiator(config, false)?;
//! client.tcp_connected();
//! let request = sent(&mut client);
//! let mut responder = Responder::new(ResponderConfig {
//!     crc: true,
//!     markers: false,
//!     max_revision: Revision::Two,
//!     max_ird: 16,
//!     rtr: RtrKinds::ALL,
//! })?;
//! let (taken, whole) = responder.receive(&request)?;
//! assert!(whole.is_some() && taken == request.len());
//! let (reply, negotiated) = responder.accept(Accept { ird: 4, ord: 4, private_data: b"" })?;
//! server.start_responder(&request, &reply, negotiated, 1460);
//! receive(&mut client, &mut at_client, &pool, &sent(&mut server));
//!
//! // One RDMA Write.
//! client.post_send(&SendWr::write_inline(7, b"hello", RemoteBuffer::at(16, region.stag().0)))?;
//! receive(&mut server, &mut at_server, &pool, &sent(&mut client));
//! let mut bytes = [0; 5];
//! region.read_at(16, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! let completion = done.poll().expect("the Write is done");
//! assert_eq!((completion.wr_id, completion.status), (7, Status::Success));
//! # Ok(()) }
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests have threads, and wait by the clock of the machine"
    )
)]
#![allow(
    unexpected_cfgs,
    reason = "the manifest, which is published, does not name `uwarp_mutants`"
)]

#[cfg(test)]
extern crate self as uwarp_engine;

pub mod cause;
pub mod close_timer;
pub mod completion;
pub mod connection;
pub mod datagram;
pub mod event;
pub mod fork_guard;
pub mod headroom;
pub mod hello;
pub mod limits;
pub mod llp;
pub mod mem;
#[cfg(not(uwarp_mutants))]
mod mutants;
#[cfg(uwarp_mutants)]
#[doc(hidden)]
pub mod mutants;
pub mod peer;
pub mod policy;
pub mod settings;
mod short_wait;
pub mod state;
mod status;
pub mod timers;
pub mod times;
pub mod wr;

mod setters;
pub use llp::Piece;

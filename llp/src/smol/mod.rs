//! TCP in user space, by smoltcp, over an in-memory link between two hosts of one process.
//!
//! smoltcp looks at every socket of a set for every packet, so each connection is an interface and
//! a set of one socket by itself, and a demultiplexer of our own stands in front:
//! ```text
//!  owner of a connection                            owner of its peer
//!  SmolConnection: Interface + 1 socket             SmolConnection
//!        | transmit                                       ^ drive, try_recv, try_send
//!        v                                                |
//!      Link ---> Stack of the other host: table ---> Mailbox: packets + eventfd
//!                    | SYN                                ^
//!                    +---> Backlog ---> SmolListener -----+ (begins a connection per SYN)
//! ```
//! The thread that sends a packet puts it into the inbox of the connection it is for and raises
//! that connection's descriptor. The rest of the work is done by whoever drives that connection.
//!
//! # Locks
//! A connection or a listener has one owner and no lock. What threads share is locked by leaves
//! only: the table of a stack, the queue of a mailbox, of a backlog, and the pool of buffers. **No
//! thread holds two of them at a time** (a drop of a packet, an answer of the stack and a signal
//! all happen after the lock that led to them was released), and none is held across a call of
//! smoltcp or a system call. So there is no order to keep and no way to wait in a circle: in
//! particular, sending never waits for the connection at the other end, however long its owner
//! keeps it. Why no wake-up is lost is told at `Signal`.
//!
//! # Full inboxes, and loss
//! The link keeps the order and damages nothing. An inbox holds a bounded number of packets
//! ([`MemorySettings::inbox`]). When it is full, the connection at the other end holds its packets
//! back, as if the queue of its network card were full, and its descriptor is raised once the inbox
//! was emptied. Only what TCP sends in answer to a segment does not wait for that; well
//! beyond the bound it is dropped. SYNs beyond a listener's backlog are ignored and come again after a second.
//!
//! # Segments and FPDUs
//! What [`Llp::try_send`](crate::Llp::try_send) takes is one run of the stream. As long as
//! everything before was sent, the peer's window (and that of congestion control) is open and the
//! whole call fits the send buffer, the first segment starts with the first octet of the call and
//! every segment but the last carries exactly [`Llp::emss`](crate::Llp::emss) octets. A batch of
//! FPDUs of EMSS octets each then goes out as one FPDU a segment, as RFC 5044 section 3 asks of an
//! MPA-aware TCP. A window that fills up, a call taken in parts and a retransmission may cut
//! elsewhere; no receiver may rely on it (RFC 5044 section 5).
//!
//! EMSS is computed here: the smaller of what the MTU leaves after the IP and TCP headers and of
//! the MSS that the peer's SYN named (536 without one). TCP options that would shorten a data
//! segment are not used.

mod backlog;
mod clock;
mod connection;
mod device;
mod fault;
mod listener;
mod mailbox;
mod memory;
mod packet;
mod promises;
mod segment;
mod settings;
mod signal;
mod stack;

pub(crate) use connection::{SmolConnection, local_for};
pub(crate) use listener::SmolListener;
pub(crate) use mailbox::{Mailbox, Notice};
pub(crate) use packet::{Packet, Pool, Spares};
pub(crate) use segment::{FlowKey, Segment};
pub(crate) use settings::{MIN_IPV6_MTU, StackSettings};
pub(crate) use signal::Signal;
pub(crate) use stack::{Link, Route, Stack};

pub use clock::{Clock, SystemClock};

pub use fault::FaultSettings;
pub use memory::{MemoryNetwork, MemorySettings};
pub use settings::Congestion;

//! Lower-layer protocol of uwarp: TCP by the kernel and TCP by smoltcp.
//!
//! This is the only crate of uwarp that owns sockets and a TCP stack. The layers above see three
//! traits: [`Network`] makes connections, [`LlpListener`] accepts them, and [`Llp`] is one
//! connection. All calls are non-blocking. The driver of a connection waits on [`Llp::fd`] and, for
//! a stack in user space, until [`Llp::deadline`].
//!
//! | implementation | description |
//! |---|---|
//! | [`kernel::KernelNetwork`] | the kernel's TCP; needs no privilege |
//! | [`smol::MemoryNetwork`] | smoltcp at both ends of an in-memory link, in one process |
//! | [`ethernet::EthernetNetwork`] | smoltcp over an attachment to an Ethernet |
//! | [`Captured`] | wraps any [`Llp`] and writes its bytes to a capture file |
//!
//! # How to drive a connection
//! One thread at a time owns an [`Llp`] (`&mut self`). The loop of that thread is:
//! 1. Call [`Llp::clear_readiness`], then [`Llp::drive`]. This order loses no event: data that
//!    arrives between the two calls makes the descriptor readable again.
//! 2. Call [`Llp::try_recv`] until it returns [`Recv::WouldBlock`], and [`Llp::try_send`] while it
//!    accepts bytes. A thread that stops receiving earlier must repeat the loop without waiting.
//! 3. Ask for [`Llp::deadline`] *after* that, because any call may have moved it. Wait until
//!    [`Llp::fd`] is readable or the deadline is reached. Wait for "writable" too if bytes are left
//!    to send and [`Llp::wants_write_event`] returns true.
//!
//! A thread that only spins needs none of the waiting calls: `try_recv` and `try_send` drive the
//! connection themselves.
//!
//! # Example
//! ```
//! use uwarp_llp::{SendHints, Llp, Network, Piece, Recv, kernel::KernelNetwork};
//!
//! # fn main() -> Result<(), uwarp_llp::LlpError> {
//! let network = KernelNetwork::default();
//! let mut listener = network.listen("127.0.0.1:0".parse().unwrap(), 16)?;
//! let mut client = network.connect(None, listener.local_addr())?;
//! while !client.connect_progress()? {}
//! let mut server = loop {
//!     if let Some(accepted) = listener.try_accept()? {
//!         break accepted;
//!     }
//! };
//! let pieces = [Piece::from(b"MPA ID "), Piece::from(b"Req Frame")];
//! assert_eq!(client.try_send(&pieces, SendHints::NONE)?, 16);
//! let mut bytes = [0; 16];
//! let mut have = 0;
//! while have < bytes.len() {
//!     if let Recv::Data(n) = server.try_recv(&mut bytes[have..])? {
//!         have += n;
//!     }
//! }
//! assert_eq!(&bytes, b"MPA ID Req Frame");
//! # Ok(())
//! # }
//! ```

mod captured;
pub mod ethernet;
mod info;
pub mod kernel;
pub mod policy;
mod raw;
pub mod smol;
mod spec;
pub mod thread;
mod traits;
mod wire;

pub use captured::Captured;
pub use info::NetworkInfo;
pub use spec::{DeviceSpec, SpecError};
pub use traits::{
    BoundPort, DatagramSocket, Llp, LlpListener, Network, NetworkEvent, NetworkWatcher, Recv,
};
pub use uwarp_engine::llp::{Keepalive, LlpError, Piece, SendHints};
pub use wire::{AttachError, InterfaceName, OpenError, remove_socket_files};

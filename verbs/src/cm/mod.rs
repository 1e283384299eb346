//! Connection management: connect, listen, accept, reject.

mod connect;
mod incoming;
mod listener;

pub(crate) use connect::connect;
pub use connect::{ConnectError, ConnectOptions, Connected};
pub use incoming::{AcceptError, AcceptOptions, ConnectRequest};
pub use listener::{AcceptTimeout, Listener};

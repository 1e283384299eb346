//! Connection management: connect, listen, accept, reject.

mod connect;
mod incoming;
mod listener;

pub use connect::{ConnectError, ConnectOptions, Connected};
pub(crate) use connect::{connect, connect_over};
pub(crate) use incoming::request_over;
pub use incoming::{AcceptError, AcceptOptions, ConnectRequest, RequestError};
pub use listener::{AcceptTimeout, Listener};

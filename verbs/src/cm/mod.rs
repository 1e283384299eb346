//! Connection management: connect, listen, accept, reject.

mod connect;
mod incoming;
mod listener;
mod request;
mod requests;

pub use connect::{ConnectError, ConnectOptions, Connected};
pub(crate) use connect::{begin_connect, connect, connect_outcome, connect_over};
pub use incoming::RequestError;
pub(crate) use incoming::request_over;
pub use request::{AcceptError, AcceptOptions, ConnectRequest, RejectOptions};
pub use requests::{Arrival, ListenError, Listener};

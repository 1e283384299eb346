//! Connection management: connect, listen, accept and reject, as blocking calls or by events.
//!
//! ```text
//!   Qp::connect ──────────────┐                        ┌──► waits for the state of the connection
//!   CmId::connect ────────────┴─► connect::start ─► QP ┴──► Observer: the id ─► EventChannel
//!
//!   Listener ─┐                                                ┌──► RequestQueue
//!   CmId ─────┴─► Listening ─► PendingStartup ─► ConnectRequest ─┴──► the id ─► EventChannel
//!                 (TCP)        (MPA Request)
//! ```

mod attach;
mod attempts;
mod calls;
mod causes;
mod channel;
mod connect;
mod connect_request;
mod event;
mod failures;
mod id;
mod inner;
mod listener;
mod pending_startup;
mod request_queue;
mod resolve;
mod state;
mod status;

pub use attach::StreamOptions;
pub use attempts::{Attempt, ResolveError};
pub(crate) use attempts::{Attempts, resolve};
pub use channel::{CmWaitError, EventChannel};
pub use connect::{ConnectError, ConnectOptions, Connected};
pub(crate) use connect::{connect_outcome, connect_pair};
pub use connect_request::{AcceptError, AcceptOptions, ConnectRequest, RejectOptions};
pub use event::{CmEvent, CmEventKind, CmReason};
pub use id::{CmError, CmId};
pub(crate) use listener::Listening;
pub use pending_startup::RequestError;
pub(crate) use pending_startup::RequestSink;
pub use request_queue::{Arrival, ListenError, Listener};
pub use state::{CmState, WrongState};
#[cfg(test)]
pub(crate) use status::of_failure;

//! What can go wrong in the async API.

use crate::completion::WorkError;
use crate::device::DeviceError;
use crate::event::EndReason;
use crate::mem::{BufferError, RegisterError};
use crate::{AcceptError, ConnectError, PostError};

/// Why an operation was not done (what `ibv_post_send` returns, and `ibv_wc` carries later).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// It was refused before anything was sent: a length, a right, a buffer of another domain. The connection
    /// stands.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The remote memory and the buffer do not fit each other. The connection stands.
    #[error("{octets} bytes do not fit into {room}: {which} is too small")]
    TooSmall {
        /// Bytes to be moved.
        octets: u64,
        /// Bytes that there is room for.
        room: u64,
        /// Which of the two is too small.
        which: &'static str,
    },
    /// There is no memory for the result of an atomic operation. The connection stands.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// It ended with an error; the connection has ended too, or is about to.
    #[error("{error}{}", because(.reason.as_deref()))]
    Failed {
        /// How it ended.
        error: WorkError,
        /// Why the connection ended, as far as it is known.
        reason: Option<Box<EndReason>>,
    },
}

fn because(reason: Option<&EndReason>) -> String {
    reason.map_or_else(String::new, |reason| format!(" (the connection: {reason})"))
}

impl Error {
    /// The connection has ended or is ending. False: it was this operation only.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Error::Failed { .. })
    }
}

/// Why there is no pool of buffers (no memory, or `ibv_reg_mr` failed).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The system has no memory of that size.
    #[error(transparent)]
    Memory(#[from] BufferError),
    /// The device did not register it.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Why [`Domain::connect`](super::Domain::connect) or [`Request::accept`](super::Request::accept) gave no connection
/// (`ibv_create_qp`, then `rdma_connect` or `rdma_accept`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device has no queue pair for it.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// It was not connected.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It was not accepted.
    #[error(transparent)]
    Accept(#[from] AcceptError),
}

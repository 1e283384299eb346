//! Errors of the async API.

use uwarp_engine::mem::{BufferError, RegisterError};

use crate::completion::WorkError;
use crate::device::DeviceError;
use crate::{AcceptError, ConnectError, PostError};
use uwarp_engine::event::EndReason;

/// Reason why an operation failed (the return value of `ibv_post_send`, or the status in `ibv_wc`).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation was refused before anything was sent, for example because of a length, an
    /// access right or a buffer of another domain. The connection stays up.
    #[error(transparent)]
    Refused(#[from] PostError),
    /// The bytes to transfer do not fit into their destination. The connection stays up.
    #[error("{len} bytes do not fit into {room}: {which} is too small")]
    TooSmall {
        /// Number of bytes to transfer.
        len: u64,
        /// Number of bytes available at the destination.
        room: u64,
        /// Name of the side that is too small.
        which: &'static str,
    },
    /// No memory could be allocated for the result of an atomic operation, or the bytes to send
    /// could not be registered. The connection stays up.
    #[error(transparent)]
    Memory(#[from] PoolError),
    /// The operation completed with an error. The connection has ended or is about to end.
    #[error("{error}{}", because(.reason.as_deref()))]
    Failed {
        /// Error of the completion.
        error: WorkError,
        /// Reason for the end of the connection, if it is known.
        reason: Option<Box<EndReason>>,
    },
}

fn because(reason: Option<&EndReason>) -> String {
    reason.map_or_else(String::new, |reason| format!(" (the connection: {reason})"))
}

impl Error {
    /// Returns true if the connection has ended or is ending, false if only this operation failed.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Error::Failed { .. })
    }
}

/// Reason why a pool could not be allocated (no memory, or `ibv_reg_mr` failed).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The system has too little memory for the pool.
    #[error(transparent)]
    Memory(#[from] BufferError),
    /// The device refused to register the memory.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

/// Reason why [`Domain::connect`](super::Domain::connect) or
/// [`Request::accept`](super::Request::accept) failed (`ibv_create_qp`, then `rdma_connect` or
/// `rdma_accept`).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The device could not create a queue pair.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The connection attempt failed.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Accepting the connection failed.
    #[error(transparent)]
    Accept(#[from] AcceptError),
}

//! The connection object of `uwarp-engine`, with the completion queues of this crate.

use uwarp_engine::connection;

use crate::completion::CqOfQueue;

pub(crate) type Connection = connection::Connection<CqOfQueue>;
pub(crate) type QpContext = connection::QpContext<CqOfQueue>;

//! The connection of a QP: the object of `uwarp-engine` with the completion queues of this crate,
//! its lock, its driver, and its reports. Handles ([`Qp`](crate::Qp)), polls and the background
//! share it.

pub(crate) mod guard;
pub(crate) mod inner;
pub(crate) mod meeting;
pub(crate) mod observer;
mod polling;
pub(crate) mod posting;
mod transport;

use uwarp_engine::connection;

use crate::completion::CqOfQueue;

pub(crate) type Connection = connection::Connection<CqOfQueue>;
pub(crate) type QpContext = connection::QpContext<CqOfQueue>;

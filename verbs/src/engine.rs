//! One connection of the software RNIC, sans-IO. Received bytes go in; a gather list, completions
//! and events come out.
//!
//! [`Connection`] is the one place where MPA, DDP, RDMAP and the queues of a QP meet. It owns no
//! socket, clock or thread. The holder of the QP's lock drives it (see `progress`).
//!
//! ```text
//!   post_send ─► SendQueue ─► rdmap::Stream ─► mpa::Framer ─► TxBatch ─► (LLP)
//!                                  ▲ │
//!                   Read Requests  │ ▼ completions
//!   post_recv ─► Receives* ─► rdmap::Stream ◄─ mpa::Deframer ◄─ ReceiveBuffer ◄─ (LLP)
//!                                  │
//!                                  └─► mem::Target: one copy into place
//! ```
//! \* [`receive_queue::ReceiveQueue`]: the QP's own receive queue, or its share of an SRQ.
//!
//! Rule for the driver: after every call that changes the connection (`receive`, `post_*`,
//! `disconnect`, `lost` ...), call [`Connection::fill`] and hand the batch to the LLP. Then read
//! [`Connection::llp_order`].

mod buffer_pool;
mod closing;
mod connection;
mod datagram;
mod inbound;
mod local;
mod outbound;
mod page_offset_buffer;
mod pair;
mod post;
mod receive_buffer;
mod receive_fast_path;
mod receive_queue;
mod recorder;
mod send_fast_path;
mod send_immediate;
mod srq;
mod staging_account;
mod startup;
mod teardown;
#[cfg(test)]
mod tests;
mod transmit;
mod wake_up;
mod work;
mod write_fast_path;

pub(crate) use buffer_pool::BufferPool;
pub(crate) use connection::{Connection, LlpOrder, QpContext};
pub(crate) use pair::Pair;
pub(crate) use post::QueueCaps;
pub(crate) use post::each;
pub use post::{PostError, PostErrorKind};
pub(crate) use receive_buffer::ReceiveBuffer;
pub(crate) use receive_queue::{NO_QP, PostRules, ReceiveWaiter, RecvStore, RecvWqe};
pub use recorder::{Direction, FlightRecord, RecordedFrame};
pub(crate) use srq::{Counts, Limit, SrqInner};
pub(crate) use transmit::PARTS_PER_CALL;
pub(crate) use work::SendQueue;

//! Results of receiving a segment.

use uwarp_ddp::STag;

use crate::terminate::Terminate;

/// A segment that passed all checks, and the action that the caller has to take.
///
/// All offsets and lengths are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inbound<T> {
    /// A segment of an RDMA Write. Place the payload. The ULP is not informed (5040-5.1-02).
    Write {
        /// Destination of the payload. `None` without payload, because STag and TO are then not
        /// checked.
        target: Option<T>,
        /// Offset of the payload in the ULPDU.
        payload_at: usize,
        /// Length of the payload in bytes.
        len: u32,
        /// True if this is the last segment of the message.
        last: bool,
    },
    /// A segment of a Send. Place the payload in the receive at the head of the queue.
    Send {
        /// Offset of the payload in the ULPDU.
        payload_at: usize,
        /// Offset in the receive buffer where the payload goes.
        offset: u32,
        /// Length of the payload in bytes.
        len: u32,
        /// Set if this segment completes the message. After placing the payload, remove the receive
        /// from the queue.
        delivered: Option<SendDelivered>,
    },
    /// A Read Request. The stream queued it; [`Stream::next_request`](crate::Stream::next_request)
    /// returns it.
    ReadRequest,
    /// A segment of the Response to the oldest outstanding Read. Place the payload in the Read's
    /// sink.
    ReadResponse {
        /// Offset of the payload in the ULPDU.
        payload_at: usize,
        /// Offset in the sink where the payload goes.
        offset: u32,
        /// Length of the payload in bytes.
        len: u32,
        /// True if this segment completes the Read, which is then no longer outstanding.
        complete: bool,
    },
    /// Immediate Data. It consumes the receive at the head of the queue. The receive's memory stays
    /// unchanged.
    Immediate {
        /// The 8 bytes in wire order.
        data: [u8; 8],
        /// True if the peer requests a solicited event.
        solicited: bool,
    },
    /// An Atomic Request. The stream queued it;
    /// [`Stream::next_request`](crate::Stream::next_request) returns it.
    AtomicRequest,
    /// The Response to the oldest outstanding request of this side, an Atomic Operation. The
    /// operation is complete and no longer outstanding.
    AtomicResponse {
        /// Value of the peer's word before the operation.
        original: u64,
    },
    /// The peer ended the stream, for the reason in the message.
    Terminate(Terminate),
}

/// A Send that arrived completely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendDelivered {
    /// Length of the message in bytes.
    pub len: u32,
    /// True if the peer requests a solicited event.
    pub solicited: bool,
    /// STag to invalidate. The stream has checked it. Invalidate it before the Send is reported
    /// (5040-5.3-11).
    pub invalidated: Option<STag>,
}

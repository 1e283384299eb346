//! What a received segment turned out to be.

use uwarp_ddp::STag;

use crate::terminate::Terminate;

/// A segment that passed all checks, and what the caller has to do with it.
///
/// `payload_at` is where the payload starts in the ULPDU, in octets; `len` is how long it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Inbound<T> {
    /// A segment of an RDMA Write. Place the payload. No ULP hears of it (5040-5.1-02).
    Write {
        /// Where to. `None` if there is no payload: then nothing was checked.
        target: Option<T>,
        /// Where the payload starts in the ULPDU.
        payload_at: usize,
        /// Octets of payload.
        len: u32,
        /// It is the last segment of the message.
        last: bool,
    },
    /// A segment of a Send. Place the payload in the receive at the head of the queue.
    Send {
        /// Where the payload starts in the ULPDU.
        payload_at: usize,
        /// Where it goes in the receive buffer.
        offset: u32,
        /// Octets of payload.
        len: u32,
        /// With this segment placed, the message is delivered: take the receive off the queue.
        delivered: Option<SendDelivered>,
    },
    /// A Read Request. It was queued, and comes out of
    /// [`Stream::next_request`](crate::Stream::next_request).
    ReadRequest,
    /// A segment of the Response to the oldest outstanding Read. Place the payload in its sink.
    ReadResponse {
        /// Where the payload starts in the ULPDU.
        payload_at: usize,
        /// Where it goes in the sink.
        offset: u32,
        /// Octets of payload.
        len: u32,
        /// With this segment placed, the Read is complete and not outstanding any more.
        complete: bool,
    },
    /// Immediate Data: it takes the receive at the head of the queue, whose memory stays as it is.
    Immediate {
        /// The 8 octets, in the order of the wire.
        data: [u8; 8],
        /// The peer asks for an event.
        solicited: bool,
    },
    /// An Atomic Request. It was queued, and comes out of
    /// [`Stream::next_request`](crate::Stream::next_request).
    AtomicRequest,
    /// The Response to the oldest outstanding request, which is an Atomic Operation: it is complete,
    /// and not outstanding any more.
    AtomicResponse {
        /// What the peer's memory held before the operation.
        original: u64,
    },
    /// The peer has ended the stream, for the reason that it gives.
    Terminate(Terminate),
}

/// A Send that has arrived whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendDelivered {
    /// Octets of the message.
    pub len: u32,
    /// The peer asks for an event.
    pub solicited: bool,
    /// The STag to invalidate. It was checked; invalidate it before the Send is reported
    /// (5040-5.3-11).
    pub invalidated: Option<STag>,
}

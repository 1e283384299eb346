//! Events of a modelled stream, and its outstanding requests.

/// Effect of a received segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in uwarp_rdmap::Inbound")]
pub enum Event {
    Write {
        place: Option<(usize, usize)>,
        payload_at: usize,
        len: u32,
        last: bool,
    },
    Send {
        payload_at: usize,
        offset: u32,
        len: u32,
        delivered: Option<(u32, bool, Option<u32>)>,
    },
    ReadRequest,
    ReadResponse {
        payload_at: usize,
        offset: u32,
        len: u32,
        complete: bool,
    },
    Immediate {
        data: [u8; 8],
        solicited: bool,
    },
    AtomicRequest,
    AtomicResponse {
        original: u64,
    },
    Terminate,
}

/// A request that was sent and has no response yet.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "as in the headers")]
pub enum Waiting {
    Read {
        stag: u32,
        to: u64,
        len: u32,
        got: u32,
    },
    Atomic {
        id: u32,
    },
}

/// A request from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in the headers")]
pub enum Asked {
    Read {
        sink_stag: u32,
        sink_to: u64,
        len: u32,
        stag: u32,
        to: u64,
    },
    Atomic {
        id: u32,
        stag: u32,
        to: u64,
        /// Add or swap data and mask, compare data and mask.
        data: [u64; 4],
        swap: bool,
    },
}

//! Data types of a test case.

/// Length in bytes of the region that Sends and Writes are sent from. Its content never changes.
pub(crate) const SOURCE: usize = 1 << 18;
/// Length in bytes of the region that the peer writes to and reads from.
pub(crate) const INBOX: usize = 1 << 18;
/// Length in bytes of the longest message.
pub(crate) const LONGEST: usize = 150_000;
/// Length in bytes of the longest inline data.
pub(crate) const INLINE: usize = 200;
/// Maximum number of scatter/gather elements of a request.
pub(crate) const SGES: usize = 4;
/// A test case, which consists of the settings of a connection and several phases.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) link: Link,
    pub(crate) phases: Vec<Phase>,
}

/// Operations of both sides that run at the same time, and the event after them. All receives of a
/// phase are posted before its operations.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) ops: [Vec<Op>; 2],
    pub(crate) then: Then,
}

/// Settings of the connection and of both sides.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) crc: [bool; 2],
    pub(crate) markers: [bool; 2],
    pub(crate) revision_1: bool,
    pub(crate) peer_to_peer: bool,
    pub(crate) mtu: usize,
    pub(crate) buffer: usize,
    pub(crate) depth: u16,
    pub(crate) send_queue: u32,
    pub(crate) batch: usize,
    /// True for a side that takes its receives from an SRQ.
    pub(crate) srq: [bool; 2],
}

/// One request of a side, and its options.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    /// True if the CQs are polled before the request.
    pub(crate) poll: bool,
    /// New depth of the send CQ, set before the request.
    pub(crate) resize: Option<u32>,
}

/// Selects an STag for the peer's inbox: that of the first usable slot with this index or a higher
/// one. If no slot is usable, the STag of the inbox itself is used.
pub(crate) type Via = usize;

#[derive(Clone, Debug)]
pub(crate) enum What {
    Send {
        data: Data,
        solicited: bool,
        /// Slot to invalidate. If no slot can be invalidated, a region is registered for this
        /// purpose.
        invalidate: Option<Via>,
        receive: Receive,
    },
    Write {
        data: Data,
        at: usize,
        via: Via,
        immediate: Option<(Immediate, Receive)>,
    },
    Read {
        len: usize,
        from_source: bool,
        at: usize,
        offset: usize,
        via: Via,
    },
    Atomic {
        at: usize,
        offset: usize,
        via: Via,
        what: Atomic,
    },
    Immediate(Immediate, Receive),
    /// Lends a part of the inbox under another STag.
    Lend(Lend),
    /// Ends the loan of this slot.
    Recall(usize),
    /// Invalidates the sink of the phase's last Read, after a fence.
    EndSink,
    /// Posts a request that must be refused.
    Refused(Refused),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Immediate {
    pub(crate) bytes: [u8; 8],
    pub(crate) solicited: bool,
}

/// An atomic operation. With `compare: None` it compares with the current value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Atomic {
    Add {
        add: u64,
        mask: u64,
    },
    Swap {
        compare: Option<u64>,
        compare_mask: u64,
        swap: u64,
        swap_mask: u64,
    },
}

/// A part of the inbox to lend, and the slot whose STag it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lend {
    pub(crate) slot: usize,
    /// Offset of the first byte in the inbox, a multiple of 8.
    pub(crate) from: usize,
    /// Address of this byte for the peer, a multiple of 8. For a window it is either 0 or the
    /// address in the region.
    pub(crate) base: u64,
    pub(crate) rights: u32,
}

/// Rule that a request breaks, so that posting refuses the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    TooManySges,
    NoSink,
    InlineTooLong,
    ImmediateUnfit,
    SendWithImmediate,
    AtomicSink,
    Memory,
}

/// Event between two phases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    GoOn,
    /// One side reregisters its inbox.
    Reregister {
        who: usize,
        base: u64,
    },
    /// The connection ends. Both QPs are reset and connected again.
    Anew {
        who: usize,
        how: End,
        /// Number of additional receives that stay unused, or of Reads posted after a wrong
        /// request.
        more: usize,
    },
}

impl Then {
    /// Index of the side that acts.
    pub(crate) fn who(self) -> usize {
        match self {
            Then::GoOn => 0,
            Then::Reregister { who, .. } | Then::Anew { who, .. } => who,
        }
    }
}

/// Kind of end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Disconnect,
    Abort,
    /// An abort with Writes in flight.
    AbortBusy,
    /// The peer refuses a request of `who`.
    Refused(Wrong),
    /// A local request of `who` fails.
    Failed(WrongLocal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// The STag never existed, or is no longer valid.
    ReadKey(usize),
    WriteKey(usize),
    AtomicKey(usize),
    /// The request exceeds the region by one byte.
    ReadBounds,
    WriteBounds,
    /// The region does not allow the operation.
    AtomicRight,
    /// The QP does not allow the operation.
    ReadQpRight,
    WriteQpRight,
    AtomicQpRight,
    /// A Send that is longer than its receive.
    LongSend,
    /// A Send that invalidates an STag which no peer may invalidate.
    Invalidate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WrongLocal {
    Bind,
    Register,
    Invalidate,
}

/// Payload of a Send or a Write.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) len: usize,
    pub(crate) inline: bool,
    /// Offsets at which the payload is cut into pieces, modulo the length.
    pub(crate) cuts: Vec<usize>,
    pub(crate) at: usize,
    /// True if the payload is taken from the sink of an earlier Read of the phase. It applies only
    /// if a sink is long enough.
    pub(crate) from_read: bool,
}

/// Receive for a Send or for Immediate Data.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) slack: usize,
    pub(crate) cuts: Vec<usize>,
}

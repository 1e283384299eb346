//! What a case is.

/// Bytes of the region that Sends and Writes come from; never changed.
pub(crate) const SOURCE: usize = 1 << 18;
/// Bytes of the region that the peer writes to and reads from.
pub(crate) const INBOX: usize = 1 << 18;
/// The longest message.
pub(crate) const LONGEST: usize = 150_000;
/// The longest inline data.
pub(crate) const INLINE: usize = 200;
/// Scatter/gather elements of a request at most.
pub(crate) const SGES: usize = 4;
/// What a case consists of.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) link: Link,
    pub(crate) phases: Vec<Phase>,
}

/// What each side does at the same time: receives for a whole phase are posted before it begins. Then, what comes before
/// the next phase.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) ops: [Vec<Op>; 2],
    pub(crate) then: Then,
}

/// What the two sides ask for.
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
    /// Whether it takes its receives from an SRQ.
    pub(crate) srq: [bool; 2],
}

/// One request of a side, and what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    /// Poll the CQs before it.
    pub(crate) poll: bool,
    /// Give the send CQ this depth before it.
    pub(crate) resize: Option<u32>,
}

/// Which of the STags of the peer's inbox a request uses: the first one, from this one on, that can be used; else the
/// inbox's own.
pub(crate) type Via = usize;

#[derive(Clone, Debug)]
pub(crate) enum What {
    Send {
        data: Data,
        solicited: bool,
        /// What it invalidates; a region made for that, if there is nothing else.
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
    /// Lends a part of the inbox by another STag.
    Lend(Lend),
    /// Ends what was lent by that slot.
    Recall(usize),
    /// Invalidates the sink of the last Read of the phase, behind a fence.
    EndSink,
    /// Is refused when it is posted.
    Refused(Refused),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Immediate {
    pub(crate) octets: [u8; 8],
    pub(crate) solicited: bool,
}

/// An atomic operation. `compare: None` compares with what is there.
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

/// A part of the inbox, by the STag of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lend {
    pub(crate) slot: usize,
    /// First byte of the inbox that it shows, a multiple of 8.
    pub(crate) from: usize,
    /// Address of that byte for the peer, a multiple of 8; a window has either 0 or that of the region.
    pub(crate) base: u64,
    pub(crate) rights: u32,
}

/// What is refused at post, by the rule that it breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    TooManySges,
    ReadSges,
    InlineTooLong,
    ImmediateUnfit,
    AtomicSink,
    Memory,
}

/// What comes between two phases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    GoOn,
    /// One side registers its inbox anew.
    Reregister {
        who: usize,
        base: u64,
    },
    /// The connection ends, both QPs are reset, and connected again.
    Anew {
        who: usize,
        how: End,
        /// Receives that are then posted and not used, or Reads behind a wrong request.
        more: usize,
    },
}

impl Then {
    /// The side that it speaks of.
    pub(crate) fn who(self) -> usize {
        match self {
            Then::GoOn => 0,
            Then::Reregister { who, .. } | Then::Anew { who, .. } => who,
        }
    }
}

/// How a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Disconnect,
    Abort,
    /// With Writes under way.
    AbortBusy,
    /// The peer refuses what `who` asks for.
    Refused(Wrong),
    /// What `who` asks of itself cannot be done.
    Failed(WrongLocal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// An STag that was never there, or is not valid any more.
    ReadKey(usize),
    WriteKey(usize),
    AtomicKey(usize),
    /// One byte beyond the end.
    ReadBounds,
    WriteBounds,
    /// The region does not allow it.
    AtomicRight,
    /// The QP does not allow it.
    ReadQpRight,
    WriteQpRight,
    AtomicQpRight,
    /// A Send that is longer than its receive.
    LongSend,
    /// A Send that invalidates what no peer may invalidate.
    Invalidate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WrongLocal {
    Bind,
    Register,
    Invalidate,
}

/// What a Send or a Write carries.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) len: usize,
    pub(crate) inline: bool,
    /// Where the pieces begin and how long they are, in parts of the whole.
    pub(crate) cuts: Vec<usize>,
    pub(crate) at: usize,
    /// Take it from what an earlier Read of the phase has brought, if there is one that is long enough.
    pub(crate) from_read: bool,
}

/// The receive that a Send or Immediate Data goes into.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) slack: usize,
    pub(crate) cuts: Vec<usize>,
}

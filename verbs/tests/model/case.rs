//! What a case is, and how it is made at random.

use proptest::prelude::*;

/// Octets of the region that Sends and Writes come from; never changed.
pub(crate) const SOURCE: usize = 1 << 18;
/// Octets of the region that the peer writes to and reads from.
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
    /// What each side does, phase by phase: receives for a whole phase are posted before it begins.
    pub(crate) phases: Vec<[Vec<Op>; 2]>,
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
}

/// One request of a side, and what follows from it.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) what: What,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    /// Poll the CQs before it.
    pub(crate) poll: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Send {
        data: Data,
        solicited: bool,
        invalidate: bool,
        receive: Receive,
    },
    Write {
        data: Data,
        at: usize,
    },
    Read {
        len: usize,
        from_source: bool,
        at: usize,
        offset: usize,
    },
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

/// The receive that a Send goes into.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) slack: usize,
    pub(crate) cuts: Vec<usize>,
}

pub(crate) fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(0_usize),
        6 => 1..100_usize,
        6 => 100..3000_usize,
        2 => 1400..1500_usize,
        2 => 3000..40_000_usize,
        1 => 64_700..64_800_usize,
        1 => 40_000..LONGEST,
    ]
}

pub(crate) fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..LONGEST, 0..SGES)
}

pub(crate) fn data() -> impl Strategy<Value = Data> {
    (
        length(),
        any::<bool>(),
        cuts(),
        0..SOURCE - LONGEST - 7 * SGES,
        proptest::bool::weighted(0.2),
    )
        .prop_map(|(len, inline, cuts, at, from_read)| Data {
            len,
            inline: inline && len <= INLINE,
            cuts,
            at,
            from_read,
        })
}

pub(crate) fn operation() -> impl Strategy<Value = Op> {
    let receive = (prop_oneof![Just(0_usize), 1..50_usize], cuts())
        .prop_map(|(slack, cuts)| Receive { slack, cuts });
    let what = prop_oneof![
        3 => (data(), any::<bool>(), proptest::bool::weighted(0.2), receive)
            .prop_map(|(data, solicited, invalidate, receive)| What::Send { data, solicited, invalidate, receive }),
        3 => (data(), 0..INBOX - LONGEST).prop_map(|(data, at)| What::Write { data, at }),
        2 => (length(), any::<bool>(), 0..INBOX - LONGEST, 0..64_usize)
            .prop_map(|(len, from_source, at, offset)| What::Read { len, from_source, at, offset }),
    ];
    (
        what,
        proptest::bool::weighted(0.6),
        proptest::bool::weighted(0.15),
        proptest::bool::weighted(0.3),
    )
        .prop_map(|(what, signaled, fence, poll)| Op {
            what,
            signaled,
            fence,
            poll,
        })
}

pub(crate) fn link() -> impl Strategy<Value = Link> {
    (
        any::<[bool; 2]>(),
        any::<[bool; 2]>(),
        proptest::bool::weighted(0.3),
        any::<bool>(),
        prop_oneof![Just(576_usize), Just(1500), Just(9000), 600..20_000_usize],
        prop_oneof![Just(2048_usize), 2048..100_000_usize, Just(256 << 10)],
        prop_oneof![Just(1_u16), 1..20_u16],
        1..40_u32,
        1..12_usize,
    )
        .prop_map(
            |(crc, markers, revision_1, peer_to_peer, mtu, buffer, depth, send_queue, batch)| {
                Link {
                    crc,
                    markers,
                    revision_1,
                    // Revision 1 has no peer-to-peer model.
                    peer_to_peer: peer_to_peer && !revision_1,
                    mtu,
                    buffer,
                    depth,
                    send_queue,
                    batch,
                }
            },
        )
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let ops = || proptest::collection::vec(operation(), 0..24);
    let phase = (ops(), ops()).prop_map(|(a, b)| [a, b]);
    (link(), proptest::collection::vec(phase, 1..4))
        .prop_map(|(link, phases)| Case { link, phases })
}

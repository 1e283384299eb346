//! Generates random cases.

use proptest::option::weighted as maybe;
use proptest::prelude::*;

use crate::case::{
    Atomic, Case, Data, End, INBOX, INLINE, Immediate, LONGEST, Lend, Link, Op, Phase, Receive,
    Refused, SGES, SOURCE, Then, What, Wrong, WrongLocal,
};
use crate::loan::SLOTS;

fn length() -> impl Strategy<Value = usize> {
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

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..LONGEST, 0..SGES)
}

fn data() -> impl Strategy<Value = Data> {
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

fn receive() -> impl Strategy<Value = Receive> {
    (prop_oneof![Just(0_usize), 1..50_usize], cuts())
        .prop_map(|(slack, cuts)| Receive { slack, cuts })
}

fn immediate() -> impl Strategy<Value = Immediate> {
    (any::<[u8; 8]>(), any::<bool>()).prop_map(|(bytes, solicited)| Immediate { bytes, solicited })
}

/// Generates a mask with one field, many fields, no field, or random fields.
fn mask() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(u64::MAX),
        Just(1 << 63 | 1 << 31),
        any::<u64>()
    ]
}

fn atomic() -> impl Strategy<Value = Atomic> {
    let swap = (maybe(0.3, any::<u64>()), mask(), any::<u64>(), mask()).prop_map(
        |(compare, compare_mask, swap, swap_mask)| Atomic::Swap {
            compare,
            compare_mask,
            swap,
            swap_mask,
        },
    );
    prop_oneof![
        (any::<u64>(), mask()).prop_map(|(add, mask)| Atomic::Add { add, mask }),
        swap,
    ]
}

fn lend() -> impl Strategy<Value = Lend> {
    (0..SLOTS, 0..8_usize, 0..3_u64, 1..8_u32).prop_map(|(slot, from, base, rights)| Lend {
        slot,
        from: from * 8,
        base: base << 33,
        // The rights are remote write, read and atomic.
        rights: rights << 1,
    })
}

fn refused() -> impl Strategy<Value = Refused> {
    prop_oneof![
        Just(Refused::TooManySges),
        Just(Refused::NoSink),
        Just(Refused::InlineTooLong),
        Just(Refused::ImmediateUnfit),
        Just(Refused::SendWithImmediate),
        Just(Refused::AtomicSink),
        Just(Refused::Memory),
    ]
}

fn what() -> impl Strategy<Value = What> {
    let place = || 0..INBOX - LONGEST;
    // Many operations use few words, so that they overlap.
    let word = prop_oneof![(0..4_usize), 0..INBOX / 8 - 1].prop_map(|word| word * 8);
    prop_oneof![
        6 => (data(), any::<bool>(), maybe(0.2, 0..SLOTS), receive())
            .prop_map(|(data, solicited, invalidate, receive)| What::Send { data, solicited, invalidate, receive }),
        6 => (data(), place(), 0..SLOTS, maybe(0.2, (immediate(), receive())))
            .prop_map(|(data, at, via, immediate)| What::Write { data, at, via, immediate }),
        4 => (length(), any::<bool>(), place(), 0..64_usize, 0..SLOTS)
            .prop_map(|(len, from_source, at, offset, via)| What::Read { len, from_source, at, offset, via }),
        4 => (word, 0..8_usize, 0..SLOTS, atomic())
            .prop_map(|(at, offset, via, what)| What::Atomic { at, offset, via, what }),
        1 => (immediate(), receive()).prop_map(|(immediate, receive)| What::Immediate(immediate, receive)),
        3 => lend().prop_map(What::Lend),
        2 => (0..SLOTS).prop_map(What::Recall),
        1 => Just(What::EndSink),
        1 => refused().prop_map(What::Refused),
    ]
}

fn operation() -> impl Strategy<Value = Op> {
    (
        what(),
        proptest::bool::weighted(0.6),
        proptest::bool::weighted(0.15),
        proptest::bool::weighted(0.3),
        maybe(0.05, 256..600_u32),
    )
        .prop_map(|(what, signaled, fence, poll, resize)| Op {
            what,
            signaled,
            fence,
            poll,
            resize,
        })
}

fn end() -> impl Strategy<Value = End> {
    let wrong = prop_oneof![
        (0..SLOTS + 1).prop_map(Wrong::ReadKey),
        (0..SLOTS + 1).prop_map(Wrong::WriteKey),
        (0..SLOTS + 1).prop_map(Wrong::AtomicKey),
        Just(Wrong::ReadBounds),
        Just(Wrong::WriteBounds),
        Just(Wrong::AtomicRight),
        Just(Wrong::ReadQpRight),
        Just(Wrong::WriteQpRight),
        Just(Wrong::AtomicQpRight),
        Just(Wrong::LongSend),
        Just(Wrong::Invalidate),
    ];
    let failed = prop_oneof![
        Just(WrongLocal::Bind),
        Just(WrongLocal::Register),
        Just(WrongLocal::Invalidate)
    ];
    prop_oneof![
        2 => Just(End::Disconnect),
        2 => Just(End::Abort),
        2 => Just(End::AbortBusy),
        4 => wrong.prop_map(End::Refused),
        1 => failed.prop_map(End::Failed),
    ]
}

fn then() -> impl Strategy<Value = Then> {
    prop_oneof![
        2 => Just(Then::GoOn),
        1 => (0..2_usize, 0..4_u64).prop_map(|(who, base)| Then::Reregister { who, base: base << 35 }),
        3 => (0..2_usize, end(), 0..4_usize).prop_map(|(who, how, more)| Then::Anew { who, how, more }),
    ]
}

fn link() -> impl Strategy<Value = Link> {
    (
        any::<[bool; 2]>(),
        any::<[bool; 2]>(),
        (proptest::bool::weighted(0.3), any::<bool>()),
        prop_oneof![Just(576_usize), Just(1500), Just(9000), 600..20_000_usize],
        prop_oneof![Just(2048_usize), 2048..100_000_usize, Just(256 << 10)],
        prop_oneof![Just(1_u16), 1..20_u16],
        1..40_u32,
        1..12_usize,
        [proptest::bool::weighted(0.3), proptest::bool::weighted(0.3)],
    )
        .prop_map(
            |(
                crc,
                markers,
                (revision_1, peer_to_peer),
                mtu,
                buffer,
                depth,
                send_queue,
                batch,
                srq,
            )| {
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
                    srq,
                }
            },
        )
}

pub(crate) fn case() -> impl Strategy<Value = Case> {
    let ops = || proptest::collection::vec(operation(), 0..24);
    let phase = ([ops(), ops()], then()).prop_map(|(ops, then)| Phase { ops, then });
    (link(), proptest::collection::vec(phase, 1..5))
        .prop_map(|(link, phases)| Case { link, phases })
}

//! Sends and receives: the four kinds of Send, scatter and gather, inline data, and sizes.

mod common;

use common::{
    FILL, SIZES, Setup, Side, Wire, bell, brief, content, pair, pattern, peers, placed_only, same,
};
use uwarp_verbs::{
    Access, LocalFaultKind, PostErrorKind, QpCaps, RecvWr, RemoteBuffer, SendWr, Sge, Status,
    WcOpcode,
};

/// Kind of Send: solicited, invalidating, number of bytes.
type Kind = (bool, bool, usize);

fn every_kind() -> impl Iterator<Item = Kind> {
    [0, 1, 100, 5000].into_iter().flat_map(|len| {
        [(false, false), (true, false), (false, true), (true, true)]
            .map(|(solicited, invalidate)| (solicited, invalidate, len))
    })
}

fn one_send_of_a_kind(a: &Side, b: &Side, (solicited, invalidate, len): Kind) {
    let what = format!("solicited {solicited}, invalidate {invalidate}, {len} bytes");
    let lent =
        b.pd.register_for(&b.qp, vec![1; 8], Access::REMOTE_READ)
            .unwrap();
    let (source, sink) = (a.filled(len as u64, len), b.blank(len + 10));
    b.post_whole(7, &sink);
    let sges = [source.sge(0, len as u32)];
    let mut wr = SendWr::send(3, &sges);
    if solicited {
        wr = wr.solicited();
    }
    if invalidate {
        wr = wr.invalidate(lent.rkey());
    }
    a.qp.post_send(&wr).unwrap();

    assert_eq!(
        brief(&a.send_cq.next()),
        (3, Status::Success, WcOpcode::Send, 0),
        "{what}"
    );
    let received = b.recv_cq.next();
    assert_eq!(
        brief(&received),
        (7, Status::Success, WcOpcode::Recv, len as u32),
        "{what}"
    );
    assert_eq!(received.qp_num, b.qp.qp_num());
    assert_eq!(received.solicited, solicited, "{what}");
    assert_eq!(
        received.invalidated,
        invalidate.then_some(lent.rkey()),
        "{what}"
    );
    placed_only(&sink, 0, &pattern(len as u64, len), &what);

    // The STag is invalid now if the Send invalidated it, and otherwise still valid.
    let byte = a.blank(1);
    if !invalidate {
        a.post_whole(9, &byte);
    }
    let posted = b.qp.post_send(&SendWr::send(1, &[lent.sge(0, 1)]).fence());
    if invalidate {
        let kind = posted.unwrap_err().kind;
        let PostErrorKind::Memory(fault) = kind else {
            panic!("{what}: {kind:?}")
        };
        assert_eq!(
            fault.kind,
            LocalFaultKind::InvalidKey { lkey: lent.lkey() },
            "{what}"
        );
        return;
    }
    posted.unwrap();
    b.send_cq.success(1);
    a.recv_cq.success(9);
}

#[test]
fn each_kind_of_send_tells_what_it_is() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        for kind in every_kind() {
            one_send_of_a_kind(&a, &b, kind);
        }
    }
}

#[test]
fn each_kind_of_send_goes_from_the_responder_too() {
    let (a, b) = peers(Wire::MEMORY);
    for kind in every_kind() {
        one_send_of_a_kind(&b, &a, kind);
    }
}

#[test]
fn a_region_whose_stag_the_peer_invalidated_is_still_this_sides_memory() {
    let (a, b) = pair(Wire::MEMORY);
    let lent =
        b.pd.register_for(&b.qp, b"mine".to_vec(), Access::NONE)
            .unwrap();
    b.post_empty(1);
    a.qp.post_send(&SendWr::send(1, &[]).invalidate(lent.rkey()))
        .unwrap();
    assert_eq!(b.recv_cq.success(1).invalidated, Some(lent.rkey()));
    assert_eq!(content(&lent), b"mine");
    lent.deregister().unwrap();
}

#[test]
fn a_send_of_every_size_arrives_and_nothing_around_it_changes() {
    // 5041-5.4-02, 5041-5.4-i01: the completion reports the length, even for messages with many
    // segments.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let longest = *SIZES.iter().max().unwrap();
        let source = a.filled(1, longest + 1);
        let data = content(&source);
        for (index, len) in SIZES.into_iter().enumerate() {
            let sink = b.blank(len + 40);
            let sges = [sink.sge(13, len as u32 + 5)];
            b.qp.post_recv(&RecvWr::new(index as u64, &sges)).unwrap();
            a.qp.post_send(&SendWr::send(1, &[source.sge(1, len as u32)]))
                .unwrap();
            assert_eq!(b.recv_cq.success(index as u64).byte_len, len as u32);
            a.send_cq.success(1);
            placed_only(&sink, 13, &data[1..=len], &format!("{wire:?}, {len} bytes"));
        }
    }
}

#[test]
fn a_message_is_gathered_and_scattered_piece_by_piece() {
    for wire in Wire::BOTH {
        let caps = QpCaps::default().max_recv_sge(5);
        let (a, b) = Setup {
            caps,
            ..Setup::new(wire)
        }
        .connected();
        let (one, two, sink, other) = (
            a.filled(1, 9000),
            a.filled(2, 70_000),
            b.blank(50_000),
            b.blank(60_000),
        );
        // An empty element in the middle is allowed. So is the same region twice, in reverse order.
        let gather = [
            two.sge(50_001, 7),
            one.sge(3, 8191),
            one.sge(0, 0),
            two.sge(1, 50_000),
        ];
        let (first, second) = (content(&one), content(&two));
        let message = [&second[50_001..50_008], &first[3..8194], &second[1..50_001]].concat();
        let scatter = [
            sink.sge(5, 1),
            other.sge(1000, 4096),
            sink.sge(77, 0),
            sink.sge(4097, 1),
            other.sge(5100, 54_900),
        ];
        b.qp.post_recv(&RecvWr::new(1, &scatter)).unwrap();
        a.qp.post_send(&SendWr::send(2, &gather)).unwrap();
        a.send_cq.success(2);
        assert_eq!(b.recv_cq.success(1).byte_len, message.len() as u32);

        let (mut in_sink, mut in_other) = (vec![FILL; 50_000], vec![FILL; 60_000]);
        in_sink[5] = message[0];
        in_other[1000..5096].copy_from_slice(&message[1..4097]);
        in_sink[4097] = message[4097];
        let rest = &message[4098..];
        in_other[5100..5100 + rest.len()].copy_from_slice(rest);
        same(&content(&sink), &in_sink, "sink");
        same(&content(&other), &in_other, "other");
    }
}

#[test]
fn a_message_may_fill_its_receive_to_the_last_byte() {
    let (a, b) = pair(Wire::MEMORY);
    for len in [1, 1449, 8192, 100_000] {
        let (source, sink) = (a.filled(len, len as usize), b.blank(len as usize));
        b.post_whole(1, &sink);
        a.qp.post_send(&SendWr::send(1, &[source.sge(0, len as u32)]))
            .unwrap();
        a.send_cq.success(1);
        assert_eq!(b.recv_cq.success(1).byte_len, len as u32);
        same(&content(&sink), &content(&source), "the message");
    }
}

#[test]
fn an_empty_send_uses_up_a_receive_and_touches_nothing() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let sink = b.blank(64);
        b.post_whole(1, &sink);
        b.post_empty(2);
        b.post_whole(3, &sink);
        let source = a.filled(1, 64);
        for sges in [
            &[][..],
            &[source.sge(0, 0)],
            &[source.sge(0, 0), source.sge(64, 0)],
        ] {
            a.qp.post_send(&SendWr::send(1, sges)).unwrap();
            a.send_cq.success(1);
        }
        for wr_id in [1, 2, 3] {
            assert_eq!(b.recv_cq.success(wr_id).byte_len, 0);
        }
        placed_only(&sink, 0, &[], "sink");
    }
}

#[test]
fn receives_are_used_in_the_order_in_which_they_were_posted() {
    // 5041-5.3-04, 5040-5.3-04, 5040-5.5-01: messages are delivered in the order in which they were
    // sent.
    let (a, b) = pair(Wire::MEMORY);
    let (source, sink) = (a.filled(5, 1000), b.blank(1000));
    let sges: Vec<[Sge; 1]> = (0..10).map(|i| [sink.sge(i * 100, 100)]).collect();
    let wrs: Vec<RecvWr<'_>> = sges
        .iter()
        .zip(100..)
        .map(|(sges, wr_id)| RecvWr::new(wr_id, sges))
        .collect();
    b.qp.post_recv_list(&wrs).unwrap();
    let expected = content(&source);
    for i in 0..10u64 {
        a.qp.post_send(&SendWr::send(i, &[source.sge(i * 100, 100)]))
            .unwrap();
    }
    a.send_cq.successes(0..10);
    b.recv_cq.successes(100..110);
    same(&content(&sink), &expected, "sink");
}

#[test]
fn inline_data_is_taken_when_it_is_posted() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let target = b.blank(600);
        for len in [0, 1, 7, 255, 256] {
            let sink = b.blank(256);
            b.post_whole(1, &sink);
            let mut data = pattern(len as u64, len);
            let remote = target.remote();
            a.qp.post_send(&SendWr::write_inline(
                1,
                &data,
                RemoteBuffer::at(remote.addr + 300, remote.rkey),
            ))
            .unwrap();
            a.qp.post_send(&SendWr::send_inline(2, &data).solicited())
                .unwrap();
            data.fill(0xEE);
            a.send_cq.successes([1, 2]);
            let received = b.recv_cq.success(1);
            assert_eq!((received.byte_len, received.solicited), (len as u32, true));
            placed_only(&sink, 0, &pattern(len as u64, len), "sent");
            same(
                &content(&target)[300..300 + len],
                &pattern(len as u64, len),
                "written",
            );
        }
    }
}

/// A responder may not send before the initiator's first FPDU. Therefore nothing is sent before the
/// test allows it.
#[test]
fn inline_data_is_kept_while_the_request_waits() {
    let (a, b) = pair(Wire::MEMORY);
    let mut data = *b"the first";
    let sink = a.blank(40);
    a.post_whole(1, &sink);
    a.post_whole(2, &sink);
    b.qp.post_send(&SendWr::send_inline(1, &data)).unwrap();
    data.fill(0);
    b.qp.post_send(&SendWr::send_inline(2, b"xyz")).unwrap();
    b.send_cq.assert_empty();
    bell(&a, &b);
    b.send_cq.successes([1, 2]);
    assert_eq!(
        [1, 2].map(|wr_id| a.recv_cq.success(wr_id).byte_len),
        [9, 3]
    );
    placed_only(&sink, 0, b"xyz first", "sink");
}

#[test]
fn both_directions_carry_sends_at_once() {
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        const COUNT: u64 = 40;
        const LEN: usize = 30_000;
        std::thread::scope(|scope| {
            let sinks = [&a, &b].map(|side| {
                let sink = side.blank(LEN * COUNT as usize);
                for i in 0..COUNT {
                    side.qp
                        .post_recv(&RecvWr::new(i, &[sink.sge(i * LEN as u64, LEN as u32)]))
                        .unwrap();
                }
                sink
            });
            for ((side, seed), sink) in [(&a, 1), (&b, 2)].into_iter().zip(sinks) {
                let source = side.filled(seed, LEN * COUNT as usize);
                scope.spawn(move || {
                    for i in 0..COUNT {
                        side.qp
                            .post_send(&SendWr::send(i, &[source.sge(i * LEN as u64, LEN as u32)]))
                            .unwrap();
                    }
                    side.send_cq.successes(0..COUNT);
                    side.recv_cq.successes(0..COUNT);
                    same(
                        &content(&sink),
                        &pattern(3 - seed, LEN * COUNT as usize),
                        "what the other side sent",
                    );
                });
            }
        });
    }
}

#[test]
fn a_posted_receive_takes_any_source_layout_of_the_sender() {
    let (a, b) = pair(Wire::MEMORY);
    let source = a.filled(8, 4000);
    let data = content(&source);
    for cut in [0, 1, 1999, 3999, 4000] {
        let sink = b.blank(4000);
        b.post_whole(1, &sink);
        let sges = [source.sge(0, cut), source.sge(u64::from(cut), 4000 - cut)];
        a.qp.post_send(&SendWr::send(1, &sges)).unwrap();
        a.send_cq.success(1);
        b.recv_cq.success(1);
        same(&content(&sink), &data, &format!("cut at {cut}"));
    }
}

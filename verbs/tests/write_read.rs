//! One-sided operations: RDMA Write and RDMA Read, their sizes, their order, and the fence.

mod common;

use common::{
    FILL, SIZES, Setup, Side, Wire, bell, brief, content, pair, pattern, peers, placed_only, same,
};
use uwarp_verbs::{Access, RemoteBuffer, SendWr, Sge, Status, WcOpcode};

const KINDS_OF_MARKERS: [[bool; 2]; 2] = [[false, false], [true, true]];

fn with_markers(wire: Wire, markers: [bool; 2]) -> Setup {
    let mut setup = Setup::new(wire);
    for (settings, markers) in setup.settings.iter_mut().zip(markers) {
        settings.markers = markers;
    }
    setup
}

/// Writes `len` bytes to an odd address, and reads them back to another odd address.
fn write_and_read_back(
    a: &Side,
    b: &Side,
    len: usize,
    source: &uwarp_verbs::MemoryRegion,
    data: &[u8],
) {
    let (target, sink) = (b.blank(len + 60), a.blank(len + 60));
    let remote = target.remote();
    let from = [source.sge(1, len as u32)];
    a.qp.post_send(&SendWr::write(
        1,
        &from,
        RemoteBuffer::at(remote.addr + 21, remote.rkey),
    ))
    .unwrap();
    let to = [sink.sge(35, len as u32)];
    a.qp.post_send(&SendWr::read(
        2,
        &to,
        RemoteBuffer::at(remote.addr + 21, remote.rkey),
    ))
    .unwrap();
    let what = format!("{len} bytes");
    assert_eq!(
        brief(&a.send_cq.next()),
        (1, Status::Success, WcOpcode::RdmaWrite, 0),
        "{what}"
    );
    assert_eq!(
        brief(&a.send_cq.next()),
        (2, Status::Success, WcOpcode::RdmaRead, len as u32),
        "{what}"
    );
    placed_only(&target, 21, &data[1..=len], &format!("written, {what}"));
    placed_only(&sink, 35, &data[1..=len], &format!("read, {what}"));
}

#[test]
fn writes_and_reads_of_every_size() {
    // 5040-5.1-02, 5040-5.2.1-04: see the checks of the target's queues below.
    for wire in Wire::BOTH {
        for markers in KINDS_OF_MARKERS {
            let (a, b) = with_markers(wire, markers).connected();
            let source = a.filled(1, (1 << 20) + 2);
            let data = content(&source);
            for len in SIZES {
                write_and_read_back(&a, &b, len, &source, &data);
            }
            // The operations must cause no completions at the target.
            b.recv_cq.assert_empty();
            b.send_cq.assert_empty();
        }
    }
}

#[test]
fn writes_and_reads_of_16_mib() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let source = a.filled(1, (16 << 20) + 1);
        let data = content(&source);
        write_and_read_back(&a, &b, 16 << 20, &source, &data);
    }
}

#[test]
fn a_write_gathers_its_pieces_in_order() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (one, two, target) = (a.filled(1, 100_000), a.filled(2, 20), b.blank(200_000));
        let remote = target.remote();
        let sges = [
            two.sge(1, 3),
            one.sge(1, 99_999),
            one.sge(0, 0),
            two.sge(0, 20),
        ];
        a.qp.post_send(&SendWr::write(
            1,
            &sges,
            RemoteBuffer::at(remote.addr + 7, remote.rkey),
        ))
        .unwrap();
        a.send_cq.success(1);
        bell(&a, &b);
        let (first, second) = (content(&one), content(&two));
        placed_only(
            &target,
            7,
            &[&second[1..4], &first[1..], &second[..]].concat(),
            "target",
        );
    }
}

#[test]
fn the_responder_writes_and_reads_as_well() {
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        let source = b.filled(4, 100_001);
        let data = content(&source);
        for len in [0, 1, 1449, 100_000] {
            write_and_read_back(&b, &a, len, &source, &data);
        }
    }
}

#[test]
fn zero_length_operations_look_at_no_key_and_no_address() {
    // RFC 5041 section 5.2, RFC 5040 section 7.2: neither STag nor TO is checked.
    let (a, b) = pair(Wire::MEMORY);
    let nowhere: [Sge; 0] = [];
    a.qp.post_send(&SendWr::write(
        1,
        &nowhere,
        RemoteBuffer::at(u64::MAX, 0xDEAD_BEEF),
    ))
    .unwrap();
    a.qp.post_send(&SendWr::read(
        2,
        &nowhere,
        RemoteBuffer::at(u64::MAX, 0xDEAD_BEEF),
    ))
    .unwrap();
    assert_eq!(
        brief(&a.send_cq.next()),
        (1, Status::Success, WcOpcode::RdmaWrite, 0)
    );
    assert_eq!(
        brief(&a.send_cq.next()),
        (2, Status::Success, WcOpcode::RdmaRead, 0)
    );
    bell(&a, &b);
}

#[test]
fn sources_and_sinks_need_no_remote_right() {
    let (a, b) = pair(Wire::MEMORY);
    let source = a.pd.register(pattern(1, 5000), Access::NONE).unwrap();
    let sink =
        a.pd.register(vec![FILL; 5000], Access::LOCAL_WRITE)
            .unwrap();
    let target =
        b.pd.register(vec![0; 5000], Access::LOCAL_WRITE | Access::REMOTE_WRITE)
            .unwrap();
    let lent =
        b.pd.register(pattern(2, 5000), Access::REMOTE_READ)
            .unwrap();
    let (to, from) = (target.remote(), lent.remote());
    a.qp.post_send(&SendWr::write(
        1,
        &[source.sge(0, 5000)],
        RemoteBuffer::at(to.addr, to.rkey),
    ))
    .unwrap();
    a.qp.post_send(&SendWr::read(
        2,
        &[sink.sge(0, 5000)],
        RemoteBuffer::at(from.addr, from.rkey),
    ))
    .unwrap();
    a.send_cq.successes([1, 2]);
    same(&content(&target), &pattern(1, 5000), "target");
    same(&content(&sink), &pattern(2, 5000), "sink");
}

#[test]
fn reads_beyond_ord_wait_their_turn_and_complete_in_order() {
    // 5040-5.5-02, 5040-6.1-04.
    const READS: u64 = 100;
    const LEN: u64 = 3001;
    for wire in Wire::BOTH {
        for ord in [1, 2, 16] {
            let mut setup = Setup::new(wire);
            setup.connect.ord = ord;
            setup.accept.ird = ord;
            let (a, b) = setup.connected();
            assert_eq!(a.qp.connection().unwrap().ord, ord);
            let (lent, sink) = (
                b.filled(9, (READS * LEN) as usize),
                a.blank((READS * LEN) as usize),
            );
            let remote = lent.remote();
            for i in 0..READS {
                // The Reads are in reverse order of addresses, so that a misplaced Response is
                // found.
                let at = (READS - 1 - i) * LEN;
                let sges = [sink.sge(at, LEN as u32)];
                a.qp.post_send(&SendWr::read(
                    i,
                    &sges,
                    RemoteBuffer::at(remote.addr + at, remote.rkey),
                ))
                .unwrap();
            }
            for i in 0..READS {
                assert_eq!(
                    brief(&a.send_cq.next()),
                    (i, Status::Success, WcOpcode::RdmaRead, LEN as u32)
                );
            }
            same(
                &content(&sink),
                &content(&lent),
                &format!("{wire:?}, ORD {ord}"),
            );
        }
    }
}

#[test]
fn reads_go_both_ways_at_once_with_a_depth_of_one() {
    let mut setup = Setup::new(Wire::MEMORY).peer_to_peer();
    (setup.connect.ird, setup.connect.ord) = (1, 1);
    (setup.accept.ird, setup.accept.ord) = (1, 1);
    let (a, b) = setup.connected();
    const READS: u64 = 50;
    const LEN: usize = 20_000;
    let lent = [a.filled(1, LEN), b.filled(2, LEN)];
    std::thread::scope(|scope| {
        for (side, remote, seed) in [(&a, lent[1].remote(), 2), (&b, lent[0].remote(), 1)] {
            scope.spawn(move || {
                let sink = side.blank(LEN);
                for i in 0..READS {
                    side.qp
                        .post_send(&SendWr::read(
                            i,
                            &[sink.sge(0, LEN as u32)],
                            RemoteBuffer::at(remote.addr, remote.rkey),
                        ))
                        .unwrap();
                }
                side.send_cq.successes(0..READS);
                same(&content(&sink), &pattern(seed, LEN), "read");
            });
        }
    });
}

#[test]
fn writes_and_sends_behind_waiting_reads_keep_their_place() {
    let mut setup = Setup::new(Wire::MEMORY);
    setup.connect.ord = 1;
    let (a, b) = setup.connected();
    let (lent, sink, note) = (b.filled(1, 50_000), a.blank(50_000), b.blank(8));
    let (from, to) = (lent.remote(), note.remote());
    b.post_empty(50);
    let sges = [sink.sge(0, 50_000)];
    let bytes = [sink.sge(0, 0)];
    a.qp.post_send_list(&[
        SendWr::read(1, &sges, RemoteBuffer::at(from.addr, from.rkey)),
        SendWr::read(2, &sges, RemoteBuffer::at(from.addr, from.rkey)),
        SendWr::write_inline(3, b"written!", RemoteBuffer::at(to.addr, to.rkey)),
        SendWr::read(4, &sges, RemoteBuffer::at(from.addr, from.rkey)),
        SendWr::send(5, &bytes),
    ])
    .unwrap();
    a.send_cq.successes([1, 2, 3, 4, 5]);
    b.recv_cq.success(50);
    assert_eq!(content(&note), b"written!");
    same(&content(&sink), &pattern(1, 50_000), "read");
}

#[test]
fn a_fenced_request_starts_when_the_reads_before_it_are_complete() {
    // The requests after the fence send the bytes that the Reads return.
    const LEN: usize = 200_000;
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (lent, middle) = (b.filled(1, LEN), a.blank(LEN));
        let (target, sink) = (b.blank(LEN), b.blank(LEN));
        let (from, to) = (lent.remote(), target.remote());
        b.post_whole(50, &sink);
        let halves = [
            [middle.sge(0, LEN as u32 / 2)],
            [middle.sge(LEN as u64 / 2, LEN as u32 / 2)],
        ];
        let whole = [middle.sge(0, LEN as u32)];
        a.qp.post_send_list(&[
            SendWr::read(1, &halves[0], RemoteBuffer::at(from.addr, from.rkey)).unsignaled(),
            SendWr::read(
                2,
                &halves[1],
                RemoteBuffer::at(from.addr + LEN as u64 / 2, from.rkey),
            )
            .unsignaled(),
            SendWr::write(3, &whole, RemoteBuffer::at(to.addr, to.rkey)).fence(),
            SendWr::send(4, &whole).fence(),
        ])
        .unwrap();
        a.send_cq.successes([3, 4]);
        assert_eq!(b.recv_cq.success(50).byte_len, LEN as u32);
        same(&content(&target), &pattern(1, LEN), "written");
        same(&content(&sink), &pattern(1, LEN), "sent");
    }
}

#[test]
fn a_fence_without_reads_before_it_holds_nothing_up() {
    let (a, b) = pair(Wire::MEMORY);
    b.post_empty(1);
    a.qp.post_send(&SendWr::send(1, &[]).fence()).unwrap();
    a.send_cq.success(1);
    b.recv_cq.success(1);
}

#[test]
fn a_read_sees_what_was_written_before_it_and_the_last_write_wins() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (target, sink) = (b.blank(10_000), a.blank(10_000));
        let remote = target.remote();
        let sources: Vec<_> = (0..20).map(|i| a.filled(i, 10_000)).collect();
        let mut expected = vec![FILL; 10_000];
        for (i, source) in sources.iter().enumerate() {
            let (at, len) = (i * 331 % 5000, 5000 - i * 97);
            let sges = [source.sge(at as u64, len as u32)];
            a.qp.post_send(
                &SendWr::write(
                    1,
                    &sges,
                    RemoteBuffer::at(remote.addr + at as u64, remote.rkey),
                )
                .unsignaled(),
            )
            .unwrap();
            expected[at..at + len].copy_from_slice(&pattern(i as u64, 10_000)[at..at + len]);
        }
        a.qp.post_send(&SendWr::read(
            2,
            &[sink.sge(0, 10_000)],
            RemoteBuffer::at(remote.addr, remote.rkey),
        ))
        .unwrap();
        a.send_cq.success(2);
        same(&content(&sink), &expected, "read");
        same(&content(&target), &expected, "target");
    }
}

#[test]
fn a_send_arrives_after_everything_written_before_it() {
    // 5041-4.1-07, 5041-5.4-01: a Send is delivered when everything before it is placed.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let target = b.blank(100_000);
        let remote = target.remote();
        for round in 0..10 {
            let source = a.filled(round, 100_000);
            b.post_empty(round);
            a.qp.post_send_list(&[
                SendWr::write(
                    1,
                    &[source.sge(0, 100_000)],
                    RemoteBuffer::at(remote.addr, remote.rkey),
                )
                .unsignaled(),
                SendWr::send(2, &[]),
            ])
            .unwrap();
            b.recv_cq.success(round);
            same(
                &content(&target),
                &pattern(round, 100_000),
                &format!("round {round}"),
            );
            a.send_cq.success(2);
        }
    }
}

#[test]
fn many_writes_of_one_byte_are_all_placed() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (source, target) = (a.filled(3, 1000), b.blank(1000));
        let remote = target.remote();
        let sges: Vec<[Sge; 1]> = (0..1000).map(|i| [source.sge(i, 1)]).collect();
        for (chunk, at) in sges.chunks(100).zip((0..).step_by(100)) {
            let mut wrs: Vec<SendWr<'_>> = chunk
                .iter()
                .zip(at..)
                .map(|(sges, at): (_, u64)| {
                    SendWr::write(at, sges, RemoteBuffer::at(remote.addr + at, remote.rkey))
                        .unsignaled()
                })
                .collect();
            wrs.push(SendWr::write(at, &[], RemoteBuffer::at(0, 0)));
            a.qp.post_send_list(&wrs).unwrap();
            a.send_cq.success(at);
        }
        bell(&a, &b);
        same(&content(&target), &content(&source), "target");
    }
}

#[test]
fn a_program_may_reach_its_own_regions_through_a_connection_to_itself() {
    // Both ends are in one device and one PD. The same region is source, target and sink.
    let setup = Setup::new(Wire::Kernel);
    let ends = setup.unconnected();
    let b = &ends.b;
    let other = b.another_qp();
    common::join(&ends.listener, &other, &b.qp, &setup.connect, &setup.accept);
    let region = b.filled(1, 3000);
    let remote = region.remote();
    other
        .post_send(&SendWr::write(
            1,
            &[region.sge(0, 1000)],
            RemoteBuffer::at(remote.addr + 1000, remote.rkey),
        ))
        .unwrap();
    other
        .post_send(&SendWr::read(
            2,
            &[region.sge(2000, 1000)],
            RemoteBuffer::at(remote.addr + 1000, remote.rkey),
        ))
        .unwrap();
    b.send_cq.successes([1, 2]);
    let first = pattern(1, 1000);
    same(
        &content(&region),
        &[&first[..], &first, &first].concat(),
        "region",
    );
}

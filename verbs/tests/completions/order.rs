//! Order of completions, signaled and unsignaled requests, and the results of a poll.

use super::*;

#[test]
fn completions_come_in_the_order_of_posting() {
    // 5040-5.5-07, 5040-5.5-02.
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (local, remote) = (a.filled(1, 70_000), b.filled(2, 70_000));
        let to = remote.remote();
        let lens = [0, 70_000, 1, 3000, 20_000, 64];
        for i in 0..30 {
            b.post_whole(i, &remote);
        }
        let sges: Vec<[Sge; 1]> = (0..90)
            .map(|i| [local.sge(0, lens[i * 7 % lens.len()])])
            .collect();
        let wrs: Vec<SendWr<'_>> = (0..90)
            .map(|i| match i % 3 {
                0 => SendWr::write(i as u64, &sges[i], RemoteBuffer::at(to.addr, to.rkey)),
                1 => SendWr::send(i as u64, &sges[i]),
                _ => SendWr::read(i as u64, &sges[i], RemoteBuffer::at(to.addr, to.rkey)),
            })
            .collect();
        a.qp.post_send_list(&wrs).unwrap();
        for i in 0..90 {
            let opcode = [WcOpcode::RdmaWrite, WcOpcode::Send, WcOpcode::RdmaRead][i % 3];
            let byte_len = if i % 3 == 2 { sges[i][0].len } else { 0 };
            let completion = a.send_cq.next();
            assert_eq!(
                common::brief(&completion),
                (i as u64, Status::Success, opcode, byte_len)
            );
            assert_eq!(completion.qp_num, a.qp.qp_num());
        }
        for i in 0..30 {
            assert_eq!(
                b.recv_cq.success(i).byte_len,
                sges[i as usize * 3 + 1][0].len
            );
        }
    }
}

/// Connects a QP that reports invalid elements only when a request runs (`late_faults`), and its
/// peer.
fn late(wire: Wire) -> (Side, Qp, Side, Qp) {
    let setup = Setup::new(wire);
    let common::Ends { a, b, listener, .. } = setup.unconnected();
    let builder = a.pd.qp().late_faults(true);
    let (qp, peer) = (
        builder.build(&a.send_cq, &a.recv_cq).unwrap(),
        b.another_qp(),
    );
    join(&listener, &qp, &peer, &setup.connect, &setup.accept);
    (a, qp, b, peer)
}

/// As on adapters, a request that fails locally flushes the requests after it, but none before it.
#[test]
fn requests_before_one_that_fails_complete_and_those_behind_it_are_flushed() {
    for wire in Wire::BOTH {
        let failing = [
            SendWr::local_invalidate(4, 0x1234_5678),
            SendWr::send(
                4,
                &[Sge {
                    addr: 4096,
                    len: 1,
                    lkey: 0x1234_5678,
                }],
            ),
        ];
        for (wrong, status) in failing
            .iter()
            .zip([Status::LocalQpOperation, Status::LocalProtection])
        {
            let (a, qp, b, peer) = late(wire);
            let (local, remote) = (a.filled(1, 70_000), b.filled(2, 70_000));
            let to = remote.remote();
            let whole = [remote.sge(0, 70_000)];
            peer.post_recv(&RecvWr::new(1, &whole)).unwrap();
            let sges = [local.sge(0, 70_000)];
            qp.post_send_list(&[
                SendWr::send(1, &sges),
                SendWr::read(2, &sges, RemoteBuffer::at(to.addr, to.rkey)),
                SendWr::write(3, &sges, RemoteBuffer::at(to.addr, to.rkey)).unsignaled(),
                *wrong,
                SendWr::write(5, &sges, RemoteBuffer::at(to.addr, to.rkey)),
            ])
            .unwrap();
            a.send_cq.successes([1, 2]);
            let failed = a.send_cq.next();
            assert_eq!((failed.wr_id, failed.status), (4, status));
            let flushed = a.send_cq.next();
            assert_eq!((flushed.wr_id, flushed.status), (5, Status::WrFlush));
            b.recv_cq.success(1);
        }
    }
}

#[test]
fn unsignaled_requests_complete_without_a_word() {
    let (a, b) = pair(Wire::MEMORY);
    let (local, remote) = (a.filled(1, 100), b.filled(2, 100));
    let to = remote.remote();
    b.post_whole(7, &remote);
    let sges = [local.sge(0, 100)];
    a.qp.post_send_list(&[
        SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey)).unsignaled(),
        SendWr::read(2, &sges, RemoteBuffer::at(to.addr, to.rkey)).unsignaled(),
        SendWr::send(3, &sges).unsignaled(),
        SendWr::write(4, &[], RemoteBuffer::at(0, 0)),
    ])
    .unwrap();
    a.send_cq.success(4);
    b.recv_cq.success(7);
    a.send_cq.assert_empty();
}

#[test]
fn unsignaled_requests_give_their_places_back_with_the_next_completion() {
    let caps = QpCaps::default().max_send_wr(4);
    for wire in Wire::BOTH {
        let (a, b) = Setup {
            caps,
            ..Setup::new(wire)
        }
        .connected();
        let (local, remote) = (a.filled(1, 3000), b.blank(3000));
        let to = remote.remote();
        for i in 0..500u64 {
            let sges = [local.sge(i, 2000)];
            let wr = match i % 4 {
                3 => SendWr::read(i, &sges, RemoteBuffer::at(to.addr, to.rkey)),
                1 => SendWr::read(i, &sges, RemoteBuffer::at(to.addr, to.rkey)).unsignaled(),
                _ => SendWr::write(i, &sges, RemoteBuffer::at(to.addr + i, to.rkey)).unsignaled(),
            };
            assert_eq!(a.qp.send_room(), 4 - (i % 4) as usize);
            a.qp.post_send(&wr).unwrap();
            if i % 4 == 3 {
                a.send_cq.success(i);
            }
        }
        a.send_cq.assert_empty();
    }
}

#[test]
fn one_cq_serves_both_queues_of_several_qps() {
    let setup = Setup::new(Wire::MEMORY).peer_to_peer();
    let ends = setup.unconnected();
    let cq = ends.b.device.create_cq(64).unwrap();
    let qps: Vec<Qp> = (0..4)
        .map(|_| ends.b.pd.create_qp(&cq, &cq, QpCaps::default()).unwrap())
        .collect();
    let clients: Vec<Qp> = (0..4).map(|_| ends.a.another_qp()).collect();
    for (client, qp) in clients.iter().zip(&qps) {
        qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        client.post_recv(&RecvWr::new(1, &[])).unwrap();
        join(&ends.listener, client, qp, &setup.connect, &setup.accept);
    }
    for (client, qp) in clients.iter().zip(&qps) {
        client.post_send(&SendWr::send(2, &[])).unwrap();
        qp.post_send(&SendWr::send(3, &[])).unwrap();
    }
    let mut seen: Vec<(u32, u64)> = (0..8)
        .map(|_| {
            let completion = CqHandle(cq.clone()).next();
            assert_eq!(completion.status, Status::Success);
            (completion.qp_num, completion.wr_id)
        })
        .collect();
    seen.sort_unstable();
    let mut expected: Vec<(u32, u64)> = qps
        .iter()
        .flat_map(|qp| [(qp.qp_num(), 1), (qp.qp_num(), 3)])
        .collect();
    expected.sort_unstable();
    assert_eq!(seen, expected);
}

#[test]
fn a_poll_takes_as_many_as_there_is_room_for() {
    let (a, _b) = pair(Wire::MEMORY);
    let wrs: Vec<SendWr<'_>> = (0..10)
        .map(|i| SendWr::write(i, &[], RemoteBuffer::at(0, 0)))
        .collect();
    a.qp.post_send_list(&wrs).unwrap();
    let mut taken = Vec::new();
    until("ten completions", || {
        let mut some = [Completion::default(); 3];
        let count = a.send_cq.poll(&mut some);
        taken.extend(some[..count].iter().map(|completion| completion.wr_id));
        taken.len() == 10
    });
    assert_eq!(taken, (0..10).collect::<Vec<_>>());
    assert_eq!(a.send_cq.poll(&mut []), 0);
}

#[test]
fn a_wait_without_time_is_a_poll() {
    let (a, _b) = pair(Wire::MEMORY);
    assert_eq!(a.send_cq.wait(Some(Duration::ZERO)), None);
    assert_eq!(a.send_cq.wait(Some(Duration::from_millis(5))), None);
    a.qp.post_send(&SendWr::write(1, &[], RemoteBuffer::at(0, 0)))
        .unwrap();
    until("the completion", || {
        a.send_cq.wait(Some(Duration::ZERO)).is_some()
    });
}

//! Connections without work: they cost no CPU time, and nothing is left of those that ended.

use super::*;

use std::io::Write;
use std::net::Shutdown;
use std::time::Instant;

use uwarp_oracle::{Crc, Untagged, fpdu};

/// Returns the number of descriptors of this process, and the number of the library's threads.
fn in_use() -> (usize, usize) {
    let count = |path| std::fs::read_dir(path).unwrap().flatten();
    let threads = count("/proc/self/task").filter(|task| {
        std::fs::read_to_string(task.path().join("comm"))
            .is_ok_and(|name| name.starts_with("uwarp"))
    });
    (count("/proc/self/fd").count(), threads.count())
}

#[test]
fn nothing_is_left_of_connections_that_came_and_went() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    // Objects that earlier tests of this process dropped may take a moment to end.
    until("the end of other devices", || in_use().1 == 0);
    let before = in_use();
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire);
        for settings in &mut setup.settings {
            (settings.limits.max_qp, settings.limits.max_mr) = (3, 4);
        }
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        // A CQ gets its descriptor when a thread waits on it for the first time.
        assert_eq!(a.send_cq.wait(Some(Duration::from_millis(1))), None);
        let idle = in_use();
        let qp_of = |side: &Side| {
            let mut qp = None;
            // A QP counts towards the limit until its connection has ended.
            until("room for a QP", || {
                qp = side
                    .pd
                    .create_qp(&side.send_cq, &side.recv_cq, QpCaps::default())
                    .ok();
                qp.is_some()
            });
            qp.unwrap()
        };
        for round in 0..24_u64 {
            let (mine, theirs) = (qp_of(a), qp_of(b));
            if round % 6 == 5 {
                let (listener, connect) = (&ends.listener, &setup.connect);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        listener
                            .wait_request(Some(LIMIT))
                            .unwrap()
                            .reject(b"no")
                            .unwrap();
                    });
                    mine.connect(listener.local_addr(), connect).unwrap_err();
                });
                continue;
            }
            join(
                &ends.listener,
                &mine,
                &theirs,
                &setup.connect,
                &setup.accept,
            );
            let (source, sink) = (a.filled(round, 1 << 20), b.blank(1 << 20));
            let remote = sink.remote();
            let sges = [source.sge(0, 1 << 20)];
            mine.post_send(
                &SendWr::write(round, &sges, RemoteBuffer::at(remote.addr, remote.rkey))
                    .unsignaled(),
            )
            .unwrap();
            mine.post_send(&SendWr::read(
                round,
                &sges,
                RemoteBuffer::at(remote.addr, remote.rkey),
            ))
            .unwrap();
            match round % 6 {
                // A QP of either side is dropped with requests in flight.
                0 => drop(mine),
                1 => drop(theirs),
                // Memory that requests use is dropped first.
                2 => drop(sink),
                3 => drop(source),
                // The connection is closed gracefully.
                _ => {
                    // Flushed completions of earlier rounds may come first.
                    while a.send_cq.next().wr_id < round {}
                    mine.disconnect();
                    assert!(mine.wait_closed(LIMIT) && theirs.wait_closed(LIMIT));
                }
            }
        }
        until("the end of all connections", || in_use().0 <= idle.0);
        drop(ends);
        until("the end of the devices", || {
            let (fds, threads) = in_use();
            fds <= before.0 && threads == 0
        });
    }
}

/// Returns the CPU time of this process, including threads that have ended.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name in parentheses, `utime` and `stime` are fields 14 and 15 of proc_pid_stat(5).
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    let ticks: u64 = [11, 12]
        .into_iter()
        .map(|field: usize| fields[field].parse::<u64>().unwrap())
        .sum();
    // A tick is 10 ms, because USER_HZ is 100 on every Linux that runs this test.
    Duration::from_millis(ticks * 10)
}

/// Sleeps for 200 ms, waiting on `cq` if there is one. Asserts that this needs little CPU time.
#[track_caller]
fn costs_nothing(cq: Option<&CqHandle>) {
    let (cpu, start) = (cpu_time(), Instant::now());
    let idle = Duration::from_millis(200);
    match cq {
        Some(cq) => assert_eq!(cq.wait(Some(idle)), None),
        // This sleep does not wait for an event. It is the idle time that is measured.
        None => std::thread::sleep(idle),
    }
    let (spent, passed) = (cpu_time() - cpu, start.elapsed());
    // A spinning thread would use all of this time, or its share on a busy machine.
    assert!(
        spent < passed / 5,
        "{spent:?} of CPU time in {passed:?} of idleness"
    );
}

#[test]
fn idle_connections_cost_no_cpu() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let pairs: Vec<(Side, Side)> = (0..6).map(|i| pair(Wire::BOTH[i % 2])).collect();
    for (a, b) in &pairs {
        both_ways(a, b);
        // The connections cover every idle state: never polled, just polled, armed, and waited on.
        a.send_cq.assert_empty();
        b.recv_cq.req_notify(Notify::Any);
    }
    // These connections share one CQ.
    let setup = Setup::new(Wire::Kernel);
    let ends = setup.unconnected();
    let many: Vec<(Qp, Qp)> = (0..8)
        .map(|_| (ends.a.another_qp(), ends.b.another_qp()))
        .collect();
    for (mine, theirs) in &many {
        join(&ends.listener, mine, theirs, &setup.connect, &setup.accept);
        theirs.post_recv(&RecvWr::new(1, &[])).unwrap();
        mine.post_send(&SendWr::send(1, &[])).unwrap();
        ends.a.send_cq.success(1);
        ends.b.recv_cq.success(1);
    }
    costs_nothing(Some(&ends.b.recv_cq));
    // One connection has ended.
    pairs[0].0.qp.disconnect();
    pairs[0].1.wait_end();
    pairs[0].0.wait_end();
    costs_nothing(None);
    for (a, _) in &pairs[1..3] {
        costs_nothing(Some(&a.recv_cq));
    }
}

/// The connections share one CQ. Together they cover every state in which a socket may be ready
/// although there is nothing to do.
#[test]
fn many_connections_that_have_nothing_to_do_cost_no_cpu() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0] = raw_settings().on_no_receive(OnNoReceive::Hold(Duration::from_secs(600)));
    let a = setup.unconnected().a;
    let source = a.filled(1, 32 << 20);
    let qps: Vec<Qp> = (0..7).map(|_| a.another_qp()).collect();
    let mut peers: Vec<_> = qps.iter().map(raw_peer).collect();
    // Two peers read nothing. The second of them has also closed its half.
    for qp in &qps[..2] {
        qp.post_send(&SendWr::write(
            1,
            &[source.sge(0, 32 << 20)],
            RemoteBuffer::at(1, 1),
        ))
        .unwrap();
    }
    peers[1].stream.shutdown(Shutdown::Write).unwrap();
    until("the peer's FIN", || qps[1].state() == QpState::Closing);
    // On two connections a message without a receive is followed by more bytes. The second peer
    // also sends a FIN.
    let send = fpdu(&Untagged::send(1).bytes(), Crc::Zero);
    for peer in &mut peers[2..4] {
        for _ in 0..1000 {
            peer.stream.write_all(&send).unwrap();
        }
    }
    peers[3].stream.shutdown(Shutdown::Write).unwrap();
    // On this connection, this side has closed its half, and the peer has not.
    qps[4].disconnect();
    // This connection was closed by both sides.
    peers.remove(5);
    assert!(qps[5].wait_closed(LIMIT));
    costs_nothing(None);
    for cq in [&a.send_cq, &a.recv_cq] {
        while cq.poll_one().is_some() {}
        costs_nothing(Some(cq));
        costs_nothing(None);
    }
    assert_eq!(qps[2].state(), QpState::Rts, "{:?}", qps[2].end_reason());
    drop(peers);
}

#[test]
fn a_peer_that_has_closed_its_half_and_takes_no_more_bytes_costs_no_cpu() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    for wait in [false, true] {
        let (a, peer, _source) = beside_idle_peer();
        peer.stream.shutdown(Shutdown::Write).unwrap();
        until("the peer's FIN", || a.qp.state() == QpState::Closing);
        costs_nothing(wait.then_some(&a.send_cq));
        drop(peer);
        a.wait_end();
        a.send_cq.flushed(1);
    }
}

#[test]
fn a_peer_that_takes_no_bytes_costs_no_cpu() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    for wait in [false, true] {
        let (a, peer, _source) = beside_idle_peer();
        costs_nothing(wait.then_some(&a.send_cq));
        drop(peer);
        a.wait_end();
    }
}

#[test]
fn a_peer_that_does_not_close_costs_no_cpu() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let (a, peer) = beside_raw_peer(raw_settings());
    a.qp.disconnect();
    costs_nothing(None);
    costs_nothing(Some(&a.send_cq));
    drop(peer);
    a.wait_end();
}

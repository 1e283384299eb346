//! Progress of connections, whichever thread drives them, and without calls of the program.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod common;

use std::io::Write;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use common::{
    CqHandle, LIMIT, Setup, Side, Wire, both_ways, content, join, pair, pattern, peers, raw_peer,
    raw_settings, same, slice, until,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use uwarp_verbs::{
    Completion, MemoryRegion, Notify, OnNoReceive, Qp, QpCaps, QpState, RecvWr, RemoteBuffer,
    Revision, SendWr, Status,
};

/// Lock that lets the tests which measure CPU time run alone.
static QUIET: RwLock<()> = RwLock::new(());

fn busy() -> RwLockReadGuard<'static, ()> {
    QUIET.read().unwrap_or_else(PoisonError::into_inner)
}

/// The program behaves like ib_write_lat: it polls once for each message, and makes no call while
/// it waits for the answer in memory.
#[test]
fn what_comes_to_a_program_that_polls_now_and_then_does_not_wait_for_the_takeover() {
    let _busy = busy();
    let mut setup = Setup::new(Wire::Kernel);
    for settings in &mut setup.settings {
        settings.takeover = Duration::from_secs(3600);
    }
    let (a, b) = setup.connected();
    let (target, source) = (b.blank(8), a.filled(1, 8));
    let to = target.remote();
    for round in 1..=10 {
        source.write_at(0, &[round; 8]).unwrap();
        let sges = [source.sge(0, 8)];
        b.recv_cq.assert_empty();
        a.qp.post_send(&SendWr::write(
            round.into(),
            &sges,
            RemoteBuffer::at(to.addr, to.rkey),
        ))
        .unwrap();
        a.send_cq.success(round.into());
        until("it is there", || content(&target) == [round; 8]);
    }
}

#[test]
fn one_sided_operations_complete_while_the_target_calls_nothing() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (target, lent) = (b.blank(1 << 20), b.filled(2, 1 << 20));
        // From here on, no thread of the target calls the library until all operations are
        // complete.
        let (to, from) = (target.remote(), lent.remote());
        let (source, sink) = (a.filled(1, 1 << 20), a.blank(1 << 20));
        for i in 0..10 {
            a.qp.post_send(&SendWr::write(
                2 * i,
                &[source.sge(0, 1 << 20)],
                RemoteBuffer::at(to.addr, to.rkey),
            ))
            .unwrap();
            a.qp.post_send(&SendWr::read(
                2 * i + 1,
                &[sink.sge(0, 1 << 20)],
                RemoteBuffer::at(from.addr, from.rkey),
            ))
            .unwrap();
        }
        a.send_cq.successes(0..20);
        same(&content(&sink), &pattern(2, 1 << 20), "read");
        // The Reads were answered after the Writes had been placed.
        same(&content(&target), &pattern(1, 1 << 20), "written");
    }
}

#[test]
fn the_initiator_may_sleep_too_once_it_has_posted() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let (lent, sink) = (b.filled(1, 4 << 20), a.blank(4 << 20));
        let from = lent.remote();
        a.qp.post_send(&SendWr::read(
            1,
            &[sink.sge(0, 4 << 20)],
            RemoteBuffer::at(from.addr, from.rkey),
        ))
        .unwrap();
        // Only the memory is read, and no CQ is polled. The last bytes of the pattern differ from
        // FILL.
        let last = pattern(1, 4 << 20)[(4 << 20) - 8..].to_vec();
        until("the end of the Response", || {
            slice(&sink, (4 << 20) - 8, 8) == last
        });
        same(&content(&sink), &content(&lent), "read");
        a.send_cq.success(1);
    }
}

#[test]
fn a_program_may_poll_the_last_byte_of_what_the_peer_writes() {
    let _busy = busy();
    for wire in Wire::BOTH {
        for len in [1, 64, 1450, 70_000] {
            let (a, b) = pair(wire);
            let target = b.blank(len);
            let to = target.remote();
            let mut data = pattern(3, len);
            for round in 0..20_u8 {
                data.fill(round);
                let source =
                    a.pd.register(data.clone(), uwarp_verbs::Access::NONE)
                        .unwrap();
                a.qp.post_send(&SendWr::write(
                    1,
                    &[source.sge(0, len as u32)],
                    RemoteBuffer::at(to.addr, to.rkey),
                ))
                .unwrap();
                until("the last byte", || slice(&target, len - 1, 1) == [round]);
                // The last byte is placed last, so everything before it must be in memory.
                same(
                    &content(&target),
                    &data,
                    &format!("{wire:?}, {len} bytes, round {round}"),
                );
                a.send_cq.success(1);
            }
        }
    }
}

/// Both programs behave like ib_write_lat: they post, poll once, and then watch the buffer without
/// any call.
#[test]
fn two_programs_play_ping_pong_by_writes_alone() {
    let _busy = busy();
    const ROUNDS: u8 = 200;
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        let (mine, theirs) = (a.blank(1), b.blank(1));
        let play = |side: &Side, own: &MemoryRegion, to: RemoteBuffer, first: bool| {
            for round in 1..=ROUNDS {
                if !first || round > 1 {
                    let awaited = if first { round - 1 } else { round };
                    until("the ball", || slice(own, 0, 1) == [awaited]);
                }
                let wr_id = u64::from(round);
                side.qp
                    .post_send(&SendWr::write_inline(
                        wr_id,
                        &[round],
                        RemoteBuffer::at(to.addr, to.rkey),
                    ))
                    .unwrap();
                let _ = side.send_cq.poll(&mut [Completion::default(); 4]);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play(&a, &mine, theirs.remote(), true));
            scope.spawn(|| play(&b, &theirs, mine.remote(), false));
        });
        until("the last ball", || content(&mine) == [ROUNDS]);
    }
}

#[test]
fn several_threads_may_wait_on_one_cq() {
    let _busy = busy();
    const SENDS: u64 = 200;
    const THREADS: u64 = 4;
    let caps = QpCaps::default().max_recv_wr(256);
    for wire in Wire::BOTH {
        let (a, b) = Setup {
            caps,
            ..Setup::new(wire)
        }
        .connected();
        for wr_id in 0..SENDS + THREADS {
            b.post_empty(wr_id);
        }
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    // The last Sends, one for each thread, mark the end.
                    let mut last = 0;
                    while last < SENDS {
                        let completion = b.recv_cq.next();
                        assert_eq!(completion.status, Status::Success);
                        last = completion.wr_id;
                        seen.lock().unwrap().push(last);
                    }
                });
            }
            for wr_id in 0..SENDS + THREADS {
                // Some Sends are posted together, and others one after the other.
                if wr_id % 64 > 32 {
                    until("the ones before", || {
                        seen.lock().unwrap().len() as u64 >= wr_id
                    });
                }
                a.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
                a.send_cq.success(wr_id);
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..SENDS + THREADS).collect::<Vec<_>>());
    }
}

#[test]
fn two_threads_may_poll_one_cq_while_two_others_post() {
    let _busy = busy();
    const EACH: u64 = 300;
    for wire in Wire::BOTH {
        // A request leaves the queue even if its completion is not polled, so the CQ must have room
        // for all completions.
        let (a, b) = Setup {
            cq_depth: 2 * EACH as u32,
            ..Setup::new(wire)
        }
        .connected();
        let target = b.blank(64);
        let to = target.remote();
        let taken = AtomicUsize::new(0);
        let seen = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for first in [0, 1000] {
                let a = &a;
                scope.spawn(move || {
                    for wr_id in first..first + EACH {
                        until("a place in the send queue", || {
                            a.qp.post_send(&SendWr::write_inline(
                                wr_id,
                                &[1; 64],
                                RemoteBuffer::at(to.addr, to.rkey),
                            ))
                            .is_ok()
                        });
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    until("all completions", || {
                        let mut some = [Completion::default(); 5];
                        let count = a.send_cq.poll(&mut some);
                        taken.fetch_add(count, Ordering::Relaxed);
                        seen.lock()
                            .unwrap()
                            .extend(some[..count].iter().map(|completion| completion.wr_id));
                        taken.load(Ordering::Relaxed) == 2 * EACH as usize
                    });
                });
            }
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        assert_eq!(seen, (0..EACH).chain(1000..1000 + EACH).collect::<Vec<_>>());
        both_ways(&a, &b);
    }
}

#[test]
fn a_cq_may_be_polled_from_one_thread_and_waited_on_by_another() {
    let _busy = busy();
    const COUNT: usize = 200;
    for wire in Wire::BOTH {
        let (a, _b) = pair(wire);
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while taken.load(Ordering::SeqCst) < COUNT {
                    let count =
                        usize::from(a.send_cq.wait(Some(Duration::from_millis(10))).is_some());
                    taken.fetch_add(count, Ordering::SeqCst);
                }
            });
            for wr_id in 0..COUNT as u64 {
                a.qp.post_send(&SendWr::write(wr_id, &[], RemoteBuffer::at(0, 0)))
                    .unwrap();
                until("a completion", || {
                    let count = usize::from(a.send_cq.poll_one().is_some());
                    taken.fetch_add(count, Ordering::SeqCst) + count > wr_id as usize
                });
            }
        });
        assert_eq!(taken.into_inner(), COUNT);
    }
}

/// The programs on both sides sleep only in `poll(2)`.
#[test]
fn programs_that_sleep_on_the_channels_descriptor_are_woken() {
    let _busy = busy();
    const ROUNDS: u64 = 100;
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let sides: Vec<_> = [&ends.a, &ends.b]
            .into_iter()
            .map(|side| {
                let channel = side.device.create_channel().unwrap();
                let cq = side.device.create_cq_on(64, &channel, 0).unwrap();
                let qp = side
                    .pd
                    .create_qp(&side.send_cq, &cq, QpCaps::default())
                    .unwrap();
                qp.post_recv(&RecvWr::new(0, &[])).unwrap();
                (channel, CqHandle(cq), qp)
            })
            .collect();
        join(
            &ends.listener,
            &sides[0].2,
            &sides[1].2,
            &setup.connect,
            &setup.accept,
        );
        std::thread::scope(|scope| {
            for (number, (channel, cq, qp)) in sides.iter().enumerate() {
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        cq.req_notify(Notify::Any);
                        if number == 0 {
                            qp.post_send(&SendWr::send(round, &[]).unsignaled())
                                .unwrap();
                        }
                        let received = loop {
                            // A completion before the CQ was armed raises no event.
                            if let Some(completion) = cq.poll_one() {
                                break completion;
                            }
                            let fd = channel.as_fd();
                            let limit = Timespec {
                                tv_sec: LIMIT.as_secs() as i64,
                                tv_nsec: 0,
                            };
                            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                            assert_eq!(
                                rustix::event::poll(&mut fds, Some(&limit)).unwrap(),
                                1,
                                "round {round}: the descriptor did not become ready"
                            );
                            drop(channel.get_event(Some(LIMIT)).unwrap());
                            cq.req_notify(Notify::Any);
                        };
                        assert_eq!((received.wr_id, received.status), (round, Status::Success));
                        qp.post_recv(&RecvWr::new(round + 1, &[])).unwrap();
                        if number == 1 {
                            qp.post_send(&SendWr::send(round, &[]).unsignaled())
                                .unwrap();
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn a_thread_that_polls_and_then_sleeps_elsewhere_leaves_nothing_undone() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let target = b.blank(8);
        let to = target.remote();
        for round in 0..100_u64 {
            // The target polls and then stops. The background has not taken its connection over
            // yet.
            b.recv_cq.assert_empty();
            a.qp.post_send(&SendWr::write_inline(
                round,
                &round.to_be_bytes(),
                RemoteBuffer::at(to.addr, to.rkey),
            ))
            .unwrap();
            a.send_cq.success(round);
            until("the Write", || content(&target) == round.to_be_bytes());
        }
    }
}

#[test]
fn a_wait_ends_when_another_thread_drives_the_connection() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        b.post_empty(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.next());
            // The send CQ belongs to the same connection, so polling it also drives the receive
            // side.
            a.qp.post_send(&SendWr::send(1, &[])).unwrap();
            until("the wait's end", || {
                b.send_cq.assert_empty();
                waiting.is_finished()
            });
            assert_eq!(waiting.join().unwrap().wr_id, 1);
        });
        // The end of the connection flushes the receive, which ends the wait as well.
        b.post_empty(2);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.next());
            a.qp.disconnect();
            assert_eq!(waiting.join().unwrap().status, Status::WrFlush);
        });
    }
}

#[test]
fn two_threads_may_wait_each_on_one_cq_of_a_qp() {
    let _busy = busy();
    const COUNT: u64 = 50;
    for wire in Wire::BOTH {
        let (a, b) = peers(wire);
        for side in [&a, &b] {
            for wr_id in 0..COUNT {
                side.post_empty(wr_id);
            }
        }
        std::thread::scope(|scope| {
            for side in [&a, &b] {
                scope.spawn(|| side.recv_cq.successes(0..COUNT));
                scope.spawn(|| {
                    for wr_id in 0..COUNT {
                        side.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
                        side.send_cq.success(wr_id);
                    }
                });
            }
        });
    }
}

#[test]
fn a_thread_may_wait_before_there_is_a_connection() {
    let _busy = busy();
    for wire in Wire::BOTH {
        for retry in [false, true] {
            let mut setup = Setup::new(wire);
            if retry {
                setup.settings[0].retry_with_revision_1 = true;
                setup.settings[1].accept_revision = Revision::One;
            }
            let ends = setup.unconnected();
            for side in [&ends.a, &ends.b] {
                side.post_empty(1);
            }
            std::thread::scope(|scope| {
                let waiting =
                    [&ends.a, &ends.b].map(|side| scope.spawn(|| side.recv_cq.success(1)));
                ends.join();
                ends.a.qp.post_send(&SendWr::send(2, &[])).unwrap();
                ends.b.qp.post_send(&SendWr::send(2, &[])).unwrap();
                for thread in waiting {
                    thread.join().unwrap();
                }
            });
        }
    }
}

#[test]
fn a_thread_may_wait_on_while_its_qp_loses_one_connection_and_gets_another() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let ends = Setup::new(wire).unconnected();
        let (a, b) = (&ends.a, &ends.b);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.success(1));
            for _ in 0..5 {
                ends.join();
                a.qp.disconnect();
                for side in [a, b] {
                    side.wait_end();
                    assert!(side.qp.reset());
                }
            }
            b.post_empty(1);
            ends.join();
            a.qp.post_send(&SendWr::send(1, &[])).unwrap();
            waiting.join().unwrap();
        });
    }
}

#[test]
fn a_qp_may_be_dropped_while_a_thread_waits_on_its_cq() {
    let _busy = busy();
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        ends.join();
        let others: Vec<(Qp, Qp)> = (0..4).map(|_| (a.another_qp(), b.another_qp())).collect();
        for (mine, theirs) in &others {
            join(&ends.listener, mine, theirs, &setup.connect, &setup.accept);
        }
        b.post_empty(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.recv_cq.success(1));
            for (index, (mine, theirs)) in others.into_iter().enumerate() {
                // The connection ends gracefully, or with requests in flight.
                if index % 2 == 1 {
                    theirs.post_send(&SendWr::send(7, &[])).unwrap();
                }
                drop(theirs);
                assert!(mine.wait_closed(LIMIT));
            }
            a.qp.post_send(&SendWr::send(2, &[])).unwrap();
            waiting.join().unwrap();
        });
        b.send_cq.flushed(7);
        b.send_cq.flushed(7);
    }
}

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
    let mut send = [0; 24];
    // These bytes are ULPDU_Length, the control fields of a Send in one untagged segment, and MSN
    // 1.
    (send[1], send[2], send[3], send[15]) = (18, 0x41, 0x43, 1);
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
        let mut setup = Setup::new(Wire::Kernel);
        setup.settings[0] = raw_settings();
        let a = setup.unconnected().a;
        let peer = raw_peer(&a.qp);
        let source = a.filled(1, 32 << 20);
        a.qp.post_send(&SendWr::write(
            1,
            &[source.sge(0, 32 << 20)],
            RemoteBuffer::at(1, 1),
        ))
        .unwrap();
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
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
        let mut setup = Setup::new(Wire::Kernel);
        setup.settings[0] = raw_settings();
        let a = setup.unconnected().a;
        let peer = raw_peer(&a.qp);
        let source = a.filled(1, 32 << 20);
        a.qp.post_send(&SendWr::write(
            1,
            &[source.sge(0, 32 << 20)],
            RemoteBuffer::at(1, 1),
        ))
        .unwrap();
        costs_nothing(wait.then_some(&a.send_cq));
        drop(peer);
        a.wait_end();
    }
}

#[test]
fn a_peer_that_does_not_close_costs_no_cpu() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0] = raw_settings();
    let a = setup.unconnected().a;
    let peer = raw_peer(&a.qp);
    a.qp.disconnect();
    costs_nothing(None);
    costs_nothing(Some(&a.send_cq));
    drop(peer);
    a.wait_end();
}

//! A fork between two operations. In the child, inherited objects return errors and do no harm. The
//! parent continues, and the child opens a device of its own.
//!
//! This test has no harness, so that the process has only this thread and those of the devices.

mod cm;
#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "a part of it is enough here")]
#[path = "../aio/executor.rs"]
mod executor;
mod network;
mod queues;
mod tasks;

use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_verbs::*;

fn main() {
    if std::env::var_os("QEMU_LD_PREFIX").is_some() {
        // The child would mistake the parent's objects for its own.
        eprintln!("SKIPPED: QEMU's user emulation takes MADV_WIPEONFORK and does not wipe");
        return;
    }
    for wire in Wire::BOTH {
        a_fork_between_two_operations(wire);
    }
    queues::memory_that_work_requests_register();
    queues::a_shared_receive_queue();
    cm::the_connection_manager();
    tasks::the_async_api();
    network::a_link_with_a_thread_of_its_own();
    cm::new_objects_on_channels_of_the_parent();
    a_child_of_a_child_has_a_device_of_its_own();
    many_connections_of_one_cq();
}

/// Objects of all kinds that a program may have.
struct World {
    ends: Ends,
    channel: CompletionChannel,
    sleeper: Cq,
    region: MemoryRegion,
    unacked: UnackedEvent,
}

impl World {
    fn new(wire: Wire) -> Self {
        let ends = Setup::new(wire).peer_to_peer().unconnected();
        let channel = ends.a.device.create_channel().unwrap();
        let sleeper = ends.a.device.create_cq_on(8, &channel, 7).unwrap();
        ends.join();
        both_ways(&ends.a, &ends.b);
        let region = ends.b.filled(3, 4096);
        let unacked = ends.a.device.get_event(Some(LIMIT)).unwrap();
        // A second connection has a pending event in the channel.
        let (one, other) = (
            ends.a.pd.qp().build(&sleeper, &sleeper).unwrap(),
            ends.b.another_qp(),
        );
        sleeper.req_notify(Notify::Any);
        join(
            &ends.listener,
            &one,
            &other,
            &ends.setup.connect,
            &ends.setup.accept,
        );
        one.post_recv(&RecvWr::new(9, &[])).unwrap();
        one.modify(&QpModify::new().state(QpState::Error)).unwrap();
        assert_eq!(channel.waiting(), 1);
        drop((one, other));
        World {
            ends,
            channel,
            sleeper,
            region,
            unacked,
        }
    }
}

fn a_fork_between_two_operations(wire: Wire) {
    let world = World::new(wire);
    in_a_child(|| in_the_child(&world));
    // Another child drops all of the objects.
    let world = AssertUnwindSafe(std::cell::Cell::new(Some(world)));
    in_a_child(|| drop(world.take()));
    let World {
        ends,
        channel,
        sleeper,
        region,
        unacked,
    } = world.take().unwrap();

    let Ends { a, b, .. } = ends;
    both_ways(&a, &b);
    let sink = a.blank(4096);
    let whole = [sink.sge(0, 4096)];
    let read = SendWr::read(1, &whole, RemoteBuffer::at(region.addr(), region.rkey()));
    a.qp.post_send(&read).unwrap();
    a.send_cq.success(1);
    assert_eq!(content(&sink), content(&region));
    // The children neither took an event nor added one.
    let event = channel.get_event(Some(LIMIT)).unwrap();
    assert_eq!(event.context(), 7);
    assert!(!readable(channel.as_fd()));
    drop((event, sleeper));
    let (qp, error) = a.qp.destroy(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error, DestroyQpError::Unacknowledged { events: 1 });
    drop(unacked);
    qp.disconnect();
    assert!(qp.wait_closed(LIMIT));
    assert!(matches!(qp.end_reason(), Some(EndReason::LocalDisconnect)));
    assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
}

/// Checks that every call in the child returns an error, and that none blocks.
fn in_the_child(world: &World) {
    let World {
        ends,
        channel,
        sleeper,
        ..
    } = world;
    let (device, qp) = (&ends.a.device, &ends.a.qp);
    let error = qp.post_send(&SendWr::send(1, &[])).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::Inherited(Inherited));
    assert!(error.to_string().contains("before a fork()"), "{error}");
    let error = qp.post_recv(&RecvWr::new(1, &[])).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::Inherited(Inherited));
    let to_error = QpModify::new().state(QpState::Error);
    assert_eq!(qp.modify(&to_error), Err(ModifyError::Inherited(Inherited)));
    qp.disconnect();
    qp.abort();
    assert!(!qp.reset() && qp.wait_closed(LIMIT));
    assert_eq!(
        (qp.state(), qp.query().state),
        (QpState::Error, QpState::Error)
    );
    assert!(qp.end_reason().is_none() && qp.connection().is_none());
    let to = ends.listener.local_addr();
    let error = qp.connect(to, &ConnectOptions::default()).unwrap_err();
    assert!(matches!(error, ConnectError::Inherited(_)), "{error}");

    sleeper.req_notify(Notify::Any);
    assert_eq!(sleeper.poll_one(), None);
    assert_eq!(sleeper.wait(None), None);
    let error = channel.get_event(None).unwrap_err();
    assert!(matches!(error, ChannelError::Inherited(_)), "{error}");
    assert_eq!((channel.waiting(), channel.cq_count()), (0, 0));
    assert_eq!(sleeper.capacity(), 0);
    assert!(device.datagram_path(None, to.ip()).is_err());

    let error = device.create_cq(1).unwrap_err();
    assert!(matches!(error, DeviceError::Inherited(_)), "{error}");
    let error = device.listen("127.0.0.1:0".parse().unwrap()).unwrap_err();
    assert!(matches!(error, DeviceError::Inherited(_)), "{error}");
    let error = ends.a.pd.qp().build(sleeper, sleeper).unwrap_err();
    assert!(matches!(error, DeviceError::Inherited(_)), "{error}");
    let error = ends.a.pd.register(vec![0], Access::NONE).unwrap_err();
    assert_eq!(error, RegisterError::Inherited(Inherited));
    assert!(device.poll_event().is_none() && device.get_event(None).is_none());
    assert!(ends.listener.poll_request().is_none());

    let (a, b) = pair(Wire::Kernel);
    both_ways(&a, &b);
}

fn a_child_of_a_child_has_a_device_of_its_own() {
    let (a, b) = pair(Wire::Kernel);
    in_a_child(|| {
        let (c, d) = pair(Wire::Kernel);
        in_a_child(|| {
            for dead in [&a, &b, &c, &d] {
                assert!(dead.device.create_cq(1).is_err());
            }
            let (e, f) = pair(Wire::Kernel);
            both_ways(&e, &f);
        });
        both_ways(&c, &d);
        assert!(a.device.create_cq(1).is_err());
    });
    both_ways(&a, &b);
}

/// The child must make no call on the connections' epoll set, and must remove no descriptor from
/// it.
fn many_connections_of_one_cq() {
    let ends = Setup::new(Wire::Kernel).peer_to_peer().unconnected();
    let (a, b) = (&ends.a, &ends.b);
    let pairs: Vec<(Qp, Qp)> = (0..8).map(|_| (a.another_qp(), b.another_qp())).collect();
    for (mine, theirs) in &pairs {
        let (connect, accept) = (&ends.setup.connect, &ends.setup.accept);
        join(&ends.listener, mine, theirs, connect, accept);
    }
    let serve = |pairs: &[(Qp, Qp)]| {
        for (mine, theirs) in pairs {
            theirs.post_recv(&RecvWr::new(1, &[])).unwrap();
            mine.post_send(&SendWr::send(1, &[])).unwrap();
            a.send_cq.success(1);
            b.recv_cq.success(1);
        }
    };
    serve(&pairs);
    // A message is in the socket, and either process could receive it.
    pairs[3].1.post_recv(&RecvWr::new(2, &[])).unwrap();
    pairs[3].0.post_send(&SendWr::send(2, &[])).unwrap();
    a.send_cq.success(2);
    let pairs = used_and_dropped_in_a_child(pairs, |pairs| {
        for cq in [&a.send_cq, &b.recv_cq] {
            assert!(!cq.req_notify(Notify::Any));
            assert_eq!((cq.poll_one(), cq.wait(None)), (None, None));
        }
        assert!(pairs[0].0.post_send(&SendWr::send(1, &[])).is_err());
    });
    b.recv_cq.success(2);
    serve(&pairs);
}

fn readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
}

/// Uses a value in one child, drops it in another child, and returns it in the parent.
#[track_caller]
fn used_and_dropped_in_a_child<T>(what: T, act: impl FnOnce(&T)) -> T {
    in_a_child(|| act(&what));
    let what = AssertUnwindSafe(std::cell::Cell::new(Some(what)));
    in_a_child(|| drop(what.take()));
    what.take().unwrap()
}

/// Forks, runs `act` in the child, and waits until the child ends.
#[track_caller]
#[expect(unsafe_code, reason = "a fork is what this test is about")]
fn in_a_child(act: impl FnOnce()) {
    // SAFETY: glibc makes its allocator usable in the child. Nothing else that the child uses is
    // held by another thread, which this test verifies.
    match unsafe { libc::fork() } {
        -1 => panic!("{}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: the call takes no pointers. A child that hangs is a failure, but must not
            // hang all tests.
            unsafe { libc::alarm(60) };
            let done = catch_unwind(AssertUnwindSafe(act));
            // SAFETY: ends the process without running the destructors of the parent.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is valid for writes.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 0), "the child failed");
        }
    }
}

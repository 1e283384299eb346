//! A program that drives its devices: its event loop, and the events that wake it up.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    AcceptOptions, CmEventKind, ConnectOptions, Device, EventChannel, Progress, QpCaps, QpState,
    RecvWr, RemoteBuffer, SendWr, Settings,
};

use crate::common::{LIMIT, Side, content, pattern};
use crate::{World, progress_threads, region};

/// The program sends, writes and reads, and both sides close.
#[test]
fn devices_by_hand_connect_and_transfer_without_a_thread() {
    let world = World::new();
    let ids = world.connect();
    assert_eq!(progress_threads(), 0);
    let [a, b] = &world.sides;
    let (source, target) = (region(a, pattern(1, 100_000)), region(b, vec![0; 100_000]));
    let (lent, sink) = (region(b, pattern(2, 100_000)), region(a, vec![0; 100_000]));
    let (to, from) = (target.remote(), lent.remote());
    b.qp.post_recv(&RecvWr::new(9, &[])).unwrap();
    let sges = [source.sge(0, 100_000)];
    (a.qp
        .post_send(&SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey))))
    .unwrap();
    let sges = [sink.sge(0, 100_000)];
    (a.qp.post_send(&SendWr::read(
        2,
        &sges,
        RemoteBuffer::at(from.addr, from.rkey),
    )))
    .unwrap();
    a.qp.post_send(&SendWr::send(3, &[])).unwrap();
    // No CQ is polled here. The rounds of progress alone complete everything.
    world.settle();
    a.send_cq.successes([1, 2, 3]);
    b.recv_cq.success(9);
    assert_eq!(content(&target), pattern(1, 100_000));
    assert_eq!(content(&sink), pattern(2, 100_000));
    ids[0].disconnect().unwrap();
    assert_eq!(world.next().kind(), CmEventKind::Disconnected);
    assert_eq!(world.next().kind(), CmEventKind::Disconnected);
    assert_eq!(
        (a.qp.state(), b.qp.state()),
        (QpState::Error, QpState::Error)
    );
    assert_eq!(progress_threads(), 0);
}

/// The program has an event loop, over the kernel's TCP and with the machine's clock.
#[test]
fn the_descriptor_and_the_time_that_is_given_are_all_that_a_program_waits_for() {
    let side = || {
        let settings = Settings::default().progress(Progress::Manual);
        let device = Device::open(Arc::new(KernelNetwork::default()), settings).unwrap();
        Side::new(device, QpCaps::default(), 16)
    };
    let (a, b) = (side(), side());
    let channel = EventChannel::new().unwrap();
    let server = channel.create_id(&b.device, 1);
    server.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
    server.listen(4).unwrap();
    let client = channel.create_id(&a.device, 2);
    client
        .resolve_addr(None, server.local_addr().unwrap())
        .unwrap();
    let (mut ids, mut established) = (Vec::new(), 0);
    b.qp.post_recv(&RecvWr::new(7, &[])).unwrap();
    let deadline = Instant::now() + LIMIT;
    loop {
        let due = [&a, &b]
            .into_iter()
            .filter_map(|side| side.device.progress());
        let until = due.min().unwrap_or(deadline).min(deadline);
        while let Some(event) = channel.try_get_event() {
            match event.kind() {
                CmEventKind::AddrResolved => client.resolve_route().unwrap(),
                CmEventKind::RouteResolved => {
                    client.connect(&a.qp, &ConnectOptions::default()).unwrap();
                }
                CmEventKind::ConnectRequest => {
                    event.id().accept(&b.qp, &AcceptOptions::default()).unwrap();
                    ids.push(event.id().clone());
                }
                CmEventKind::Established => {
                    established += 1;
                    if event.id().is(&client) {
                        a.qp.post_send(&SendWr::send(3, &[])).unwrap();
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        if established == 2 && b.recv_cq.0.poll_one().is_some() {
            break;
        }
        assert!(Instant::now() < deadline, "timed out waiting for the Send");
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap();
        let channel = channel.as_fd();
        let fds = [
            a.device.progress_fd().unwrap(),
            b.device.progress_fd().unwrap(),
            channel,
        ];
        let mut set = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
        poll(&mut set, Some(&timeout)).unwrap();
    }
    a.send_cq.success(3);
}

#[test]
fn what_arrives_between_two_rounds_makes_the_descriptor_readable() {
    let world = World::new();
    let [_, b] = &world.sides;
    assert_eq!(world.settle(), None);
    let listener = b.device.listen(crate::SERVER.parse().unwrap()).unwrap();
    let fd = b.device.progress_fd().unwrap();
    let is_readable = || {
        let mut set = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut set, Some(&Timespec::try_from(Duration::ZERO).unwrap())).unwrap() == 1
    };
    assert!(!is_readable());
    // The SYN of a client arrives.
    let _stream = world.networks[0]
        .connect(None, listener.local_addr())
        .unwrap();
    assert!(is_readable());
    world.settle();
    assert!(!is_readable());
}

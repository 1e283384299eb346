//! The reported resource usage of devices and QPs, which must return to zero.

use uwarp_verbs::llp::smol::{Clock, MemorySettings};
use uwarp_verbs::{DeviceUsage, Notify, RemoteBuffer, SendWr, Settings};

use crate::{World, region};

const LONG: usize = 1 << 20;

/// Creates two devices with small TCP buffers, so that the response to a Read takes a while.
fn small() -> World {
    let link = MemorySettings::default()
        .receive_buffer(8192)
        .send_buffer(8192);
    World::with(3, &Settings::default(), link)
}

#[test]
fn a_read_takes_a_place_of_ord_here_and_of_ird_there_until_it_is_answered() {
    let world = small();
    let _ids = world.connect();
    let [a, b] = &world.sides;
    let (sink, source) = (region(a, vec![0; LONG]), region(b, vec![7; LONG]));
    let used = || [a, b].map(|side| (side.qp.query().ord_used, side.qp.query().ird_used));
    assert_eq!(used(), [(0, 0); 2]);
    let (from, sges) = (source.remote(), [sink.sge(0, LONG as u32)]);
    a.qp.post_send(&SendWr::read(
        1,
        &sges,
        RemoteBuffer::at(from.addr, from.rkey),
    ))
    .unwrap();
    assert_eq!(used(), [(1, 0), (0, 0)]);
    // From here on the peer's response is not received, because only `b` is driven.
    let drive = || {
        b.device
            .progress()
            .is_some_and(|due| due <= world.clock.now())
    };
    while drive() {}
    assert_eq!(used(), [(1, 0), (0, 1)]);
    world.run_until(|| a.send_cq.poll_one().is_some());
    assert_eq!(used(), [(0, 0); 2]);
}

#[test]
fn what_a_device_holds_is_counted_and_comes_back() {
    let world = small();
    let used = |side: usize| world.sides[side].device.usage();
    let empty = used(1);
    assert_eq!((empty.qps, empty.cqs, empty.pds, empty.srqs), (1, 2, 1, 0));
    let ids = world.connect();
    let more = region(&world.sides[1], vec![0; 8]);
    let DeviceUsage {
        stags,
        half_open,
        connections,
        ird,
        ..
    } = used(1);
    assert_eq!((stags, half_open, connections), (empty.stags + 1, 0, 1));
    assert_eq!(ird, world.sides[1].qp.query().ird.into());
    // The initiator chose its peer, so the connection does not count towards a limit of the peer.
    assert_eq!(used(0).connections, 0);
    world.sides[0].qp.disconnect();
    world.run_until(|| used(1).connections == 0);
    drop((ids, more));
    assert_eq!(used(1), empty);
}

#[test]
fn what_has_come_is_in_memory_once_an_event_was_asked_for() {
    let world = World::new();
    let _ids = world.connect();
    let [a, b] = &world.sides;
    let (source, target) = (region(a, vec![7; 8]), region(b, vec![0; 8]));
    let (to, sges) = (target.remote(), [source.sge(0, 8)]);
    let content = || {
        let mut bytes = [0; 8];
        target.read_at(0, &mut bytes).unwrap();
        bytes
    };
    world.settle();
    a.qp.post_send(&SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey)))
        .unwrap();
    assert_eq!(content(), [0; 8], "received before an event was asked for");
    assert!(!b.recv_cq.req_notify(Notify::Any));
    assert_eq!(content(), [7; 8]);
}

#[test]
fn the_bytes_that_one_side_sends_are_those_that_the_other_receives() {
    let world = World::new();
    let _ids = world.connect();
    let [a, b] = &world.sides;
    let traffic = |side: usize| world.sides[side].device.traffic();
    world.settle();
    let before = [traffic(0), traffic(1)];
    let (source, target) = (region(a, vec![7; 5000]), region(b, vec![0; 5000]));
    let (to, sges) = (target.remote(), [source.sge(0, 5000)]);
    a.qp.post_send(&SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey)))
        .unwrap();
    world.run_until(|| a.send_cq.poll_one().is_some());
    world.settle();
    let (sent, received) = (
        traffic(0).sent_bytes - before[0].sent_bytes,
        traffic(1).received_bytes - before[1].received_bytes,
    );
    assert_eq!(sent, received);
    // Four FPDUs of up to 1,460 bytes carry 5,000 bytes, each with 2 + 14 + 4 more and padding.
    assert!((5080..=5092).contains(&sent), "{sent}");
    assert_eq!(traffic(1).sent_bytes, before[1].sent_bytes);
}

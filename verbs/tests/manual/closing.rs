//! Graceful closes over TCP in user space, at the pace of a clock that the test controls.

use std::time::Duration;

use uwarp_verbs::llp::smol::{Clock, MemorySettings};
use uwarp_verbs::{
    AsyncEvent, CmEvent, CmEventKind, CmId, EndReason, FpduSegments, MemoryRegion, QpModify,
    QpState, RemoteBuffer, SendWr, Settings, Status,
};

use crate::common::{Side, content, pattern, same};
use crate::{World, region};

const LEN: usize = 48 << 10;

/// Length in bytes of the Read that the second side requests. Its response needs several batches.
const ANSWER: usize = 512 << 10;

/// Connects two sides whose receive window has `window` bytes. Also returns their ids, which get
/// the events, and a region of each side.
fn connected(window: usize) -> (World, [CmId; 2], [MemoryRegion; 2]) {
    let link = MemorySettings::default().receive_buffer(window);
    let world = World::with(3, &Settings::default(), link);
    let ids = world.connect();
    let [a, b] = &world.sides;
    let regions = [region(a, pattern(1, LEN)), region(b, vec![0; LEN])];
    (world, ids, regions)
}

/// Writes the region of the first side to that of the second. Does not drive the second side.
fn write(world: &World, [source, target]: &[MemoryRegion; 2]) {
    let to = target.remote();
    let sges = [source.sge(0, LEN as u32)];
    let write = SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey));
    world.sides[0].qp.post_send(&write).unwrap();
}

/// Does the same as [`write`], and checks that the Write completes successfully.
fn write_whole(world: &World, regions: &[MemoryRegion; 2]) {
    write(world, regions);
    let done = world.sides[0].send_cq.poll_one();
    assert_eq!(done.map(|done| done.status), Some(Status::Success));
}

/// Drives the first side until nothing more is due at the current time.
fn drive_first(world: &World) {
    let device = &world.sides[0].device;
    while device
        .progress()
        .is_some_and(|due| due <= world.clock.now())
    {}
}

/// Takes the event that reports the end of the connection.
fn disconnected(world: &World) -> CmEvent {
    let event = world.channel.try_get_event().unwrap();
    assert_eq!(event.kind(), CmEventKind::Disconnected);
    event
}

/// Closes the first side while the peer takes one window of data in each turn. Checks that both
/// programs get the event of a graceful end. Returns the duration of the close.
fn closes_gracefully(world: &World, ids: &[CmId; 2]) -> Duration {
    let begin = world.clock.now();
    ids[0].disconnect().unwrap();
    while world.channel.waiting() == 0 {
        drive_first(world);
        world.sides[1].device.progress();
        world.clock.advance(Duration::from_secs(1));
    }
    let lasted = world.clock.now() - begin;
    world.run_until(|| world.channel.waiting() == 2);
    for _ in 0..2 {
        let event = disconnected(world);
        assert_eq!(event.status(), 0, "{event:?}");
    }
    let reason = world.sides[0].qp.end_reason().unwrap();
    assert!(matches!(reason, EndReason::LocalDisconnect), "{reason}");
    lasted
}

/// The peer takes one window of data in each turn. The close therefore lasts longer than the limit
/// for a close without progress.
#[test]
fn a_close_goes_on_while_the_peer_takes_something() {
    let (world, ids, regions) = connected(2048);
    write(&world, &regions);
    let lasted = closes_gracefully(&world, &ids);
    assert!(
        lasted > 2 * Settings::default().timeouts.close,
        "{lasted:?}"
    );
    let reason = world.sides[1].qp.end_reason().unwrap();
    assert!(matches!(reason, EndReason::PeerDisconnect), "{reason}");
    same(&content(&regions[1]), &pattern(1, LEN), "the Write");
}

/// Connects two sides, of which the second has a Read outstanding. The TCP buffers have `window`
/// bytes each.
fn asked(window: usize) -> (World, [CmId; 2], [MemoryRegion; 2]) {
    let link = MemorySettings::default()
        .receive_buffer(window)
        .send_buffer(window);
    let world = World::with(3, &Settings::default(), link);
    let ids = world.connect();
    let [a, b] = &world.sides;
    let regions = [region(a, pattern(1, ANSWER)), region(b, vec![0; ANSWER])];
    // A responder may send nothing before the initiator's first FPDU.
    a.qp.post_send(&SendWr::write(1, &[], regions[1].remote()))
        .unwrap();
    world.settle();
    let sink = [regions[1].sge(0, ANSWER as u32)];
    b.qp.post_send(&SendWr::read(2, &sink, regions[0].remote()))
        .unwrap();
    while a.qp.query().ird_used == 0 {
        drive_first(&world);
    }
    (world, ids, regions)
}

/// The FIN waits for the response. The response waits for the peer, which takes one window of data
/// in each turn.
#[test]
fn a_close_goes_on_while_the_peer_takes_the_answer_to_its_read() {
    let (world, ids, regions) = asked(16 << 10);
    let lasted = closes_gracefully(&world, &ids);
    assert!(
        lasted > 4 * Settings::default().timeouts.close,
        "{lasted:?}"
    );
    let done = world.sides[1].send_cq.poll_one();
    assert_eq!(done.map(|done| done.status), Some(Status::Success));
    same(&content(&regions[1]), &pattern(1, ANSWER), "the answer");
}

#[test]
fn a_close_with_an_answer_that_the_peer_does_not_take_is_not_a_clean_one() {
    let (world, ids, _regions) = asked(16 << 10);
    let a = &world.sides[0];
    let limit = Settings::default().timeouts.close;
    let begin = world.clock.now();
    ids[0].disconnect().unwrap();
    while world.channel.waiting() == 0 {
        drive_first(&world);
        world.clock.advance(Duration::from_millis(50));
    }
    let lasted = world.clock.now() - begin;
    assert!(lasted >= limit, "{lasted:?}");
    assert!(lasted <= limit + limit / 4, "{lasted:?}");
    let event = disconnected(&world);
    assert_eq!(event.status(), -110, "ETIMEDOUT: {event:?}");
    let reason = a.qp.end_reason().unwrap();
    assert!(
        matches!(reason, EndReason::CloseTimedOut { undelivered: 1.. }),
        "{reason}"
    );
}

/// TCP in user space takes only one window of data, but an FPDU in progress is sent completely.
/// Here one FPDU contains the whole Write.
#[test]
fn a_slow_peer_gets_the_fpdu_that_was_begun_and_then_the_terminate_message() {
    let settings = Settings::default().fpdu_segments(FpduSegments::MOST);
    let link = MemorySettings::default().receive_buffer(2048);
    let world = World::with(3, &settings, link);
    let _ids = world.connect();
    let [a, b] = &world.sides;
    let regions = [region(a, pattern(1, LEN)), region(b, vec![0; LEN])];
    write(&world, &regions);
    drive_first(&world);
    let begin = world.clock.now();
    a.qp.modify(&QpModify::new().state(QpState::Terminate))
        .unwrap();
    while a.qp.state() != QpState::Error {
        drive_first(&world);
        b.device.progress();
        world.clock.advance(Duration::from_secs(1));
    }
    let lasted = world.clock.now() - begin;
    let limit = Settings::default().timeouts.close;
    assert!(lasted > 2 * limit, "{lasted:?}");
    let reason = a.qp.end_reason().unwrap();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason}");
    world.run_until(|| b.qp.state() == QpState::Error);
    same(&content(&regions[1]), &pattern(1, LEN), "the Write");
    let reason = b.qp.end_reason().unwrap();
    assert!(
        matches!(reason, EndReason::TerminateReceived { .. }),
        "{reason}"
    );
}

#[test]
fn a_close_in_which_the_peer_takes_nothing_ends_at_the_limit_and_not_as_a_clean_one() {
    let (world, ids, regions) = connected(2 * LEN);
    write_whole(&world, &regions);
    let a = &world.sides[0];
    let limit = Settings::default().timeouts.close;
    let begin = world.clock.now();
    ids[0].disconnect().unwrap();
    while world.channel.waiting() == 0 {
        drive_first(&world);
        world.clock.advance(Duration::from_millis(50));
    }
    let lasted = world.clock.now() - begin;
    assert!(lasted >= limit, "{lasted:?}");
    assert!(lasted <= limit + limit / 4, "{lasted:?}");
    let event = disconnected(&world);
    assert_eq!(event.status(), -110, "ETIMEDOUT: {event:?}");
    let reason = a.qp.end_reason().unwrap();
    let EndReason::CloseTimedOut { undelivered } = reason else {
        panic!("{reason}");
    };
    assert!(undelivered > LEN as u64 / 2, "{reason}");
    // The graceful close was reported first. A second event corrects that report.
    let ends = std::iter::from_fn(|| a.device.poll_event()).filter_map(|event| match event {
        AsyncEvent::Ended { reason, .. } => Some(reason.is_orderly()),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [true, false]);
}

/// Both sides have sent their FIN, but the peer has not acknowledged our data.
#[test]
fn a_close_that_the_peer_began_waits_for_what_it_is_owed() {
    let (world, ids, regions) = connected(2 * LEN);
    ids[1].disconnect().unwrap();
    write_whole(&world, &regions);
    drive_first(&world);
    let a = &world.sides[0];
    assert!(a.qp.end_reason().is_some(), "the FIN is here");
    assert_eq!(world.channel.waiting(), 0);
    world.run_until(|| world.channel.waiting() == 2);
    for _ in 0..2 {
        let event = disconnected(&world);
        assert_eq!(event.status(), 0, "{event:?}");
    }
    same(&content(&regions[1]), &pattern(1, LEN), "the Write");
}

/// The connection of a dropped QP ends in the background when the time of its close is over. TCP
/// still sends the data that it has buffered.
#[test]
fn what_tcp_has_of_a_dropped_qp_arrives_after_the_time_of_its_close() {
    let (world, ids, regions) = connected(2 * LEN);
    write_whole(&world, &regions);
    let World {
        clock,
        sides: [a, b],
        ..
    } = world;
    let Side { device, qp, .. } = a;
    drop(ids);
    drop(qp);
    let limit = Settings::default().timeouts.close;
    let begin = clock.now();
    while b.qp.end_reason().is_none() {
        while device.progress().is_some_and(|due| due <= clock.now()) {}
        if clock.now() - begin > limit + limit / 2 {
            b.device.progress();
        }
        clock.advance(Duration::from_millis(50));
    }
    let reason = b.qp.end_reason().unwrap();
    assert!(matches!(reason, EndReason::PeerDisconnect), "{reason}");
    same(&content(&regions[1]), &pattern(1, LEN), "the Write");
}

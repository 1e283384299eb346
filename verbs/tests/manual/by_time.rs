//! Timeouts of devices with manual progress expire exactly at their time on the clock.

use std::time::Duration;

use uwarp_verbs::llp::smol::{Clock, MemorySettings};
use uwarp_verbs::llp::{Llp, Network, Piece, SendHints};
use uwarp_verbs::{
    CmEventKind, CmState, EndReason, Keepalive, QpState, RemoteBuffer, SendWr, Settings,
    StartupError, Timeouts,
};

use crate::common::pattern;
use crate::{SERVER, World, region};

/// 5044-7.1.2-18
#[test]
fn a_peer_without_a_request_is_given_up_when_the_clock_says_so() {
    let world = World::new();
    let listener = world.sides[1]
        .device
        .listen(SERVER.parse().unwrap())
        .unwrap();
    let mut stream = world.networks[0]
        .connect(None, listener.local_addr())
        .unwrap();
    let drive = |stream: &mut Box<dyn Llp>| {
        for _ in 0..4 {
            world.settle();
            stream.clear_readiness();
            stream.drive();
        }
    };
    drive(&mut stream);
    let limit = Settings::default().timeouts.request;
    world.clock.advance(limit - Duration::from_nanos(1));
    drive(&mut stream);
    assert!(listener.poll_failure().is_none());
    world.clock.advance(Duration::from_nanos(1));
    drive(&mut stream);
    let (_, error) = listener.poll_failure().unwrap();
    assert!(matches!(error, StartupError::TimedOut { .. }), "{error:?}");
}

/// A vanished peer must not be reported as a reset. The test uses a stream of the program, whose
/// keep-alive expires before the Request times out. With the device's own listener the Request
/// times out first.
#[test]
fn a_peer_that_vanishes_before_its_request_is_whole_has_not_reset_the_connection() {
    let keepalive = Keepalive {
        idle: Duration::from_millis(600),
        interval: Duration::from_millis(200),
        probes: 3,
    };
    let world = World::new();
    let addr = SERVER.parse().unwrap();
    let mut listener = world.networks[1].listen(addr, 1).unwrap();
    let mut theirs = world.networks[0].connect(None, addr).unwrap();
    let part = &b"MPA ID Req"[..];
    let (mut sent, mut ours) = (0, None);
    while sent < part.len() || ours.is_none() {
        theirs.drive();
        let pieces = [Piece::from(&part[sent..])];
        sent += theirs.try_send(&pieces, SendHints::NONE).unwrap_or(0);
        ours = ours.or_else(|| listener.try_accept().unwrap());
    }
    theirs.drive();
    let mut ours = ours.unwrap();
    ours.set_keepalive(keepalive).unwrap();
    let id = world.channel.create_id(&world.sides[1].device, 1);
    id.request_over(ours, &[]).unwrap();
    // The peer is not driven from here on.
    let begin = world.clock.now();
    world.run_until(|| id.state() == CmState::Idle);
    let lasted = world.clock.now() - begin;
    assert!(
        lasted < Settings::default().timeouts.request,
        "{lasted:?}: TCP should give up first"
    );
    let event = world.next();
    assert_eq!(event.kind(), CmEventKind::Unreachable, "{event:?}");
    let reason = event.reason().unwrap().to_string();
    assert!(
        reason.ends_with("sent nothing more for too long, after 10 bytes of its MPA Request"),
        "{reason}"
    );
}

#[test]
fn a_peer_that_takes_nothing_is_stalled_when_the_clock_says_so() {
    const LIMIT: Duration = Duration::from_secs(7);
    let settings = Settings::default().timeouts(Timeouts::default().stalled(Some(LIMIT)));
    let link = MemorySettings::default()
        .receive_buffer(8192)
        .send_buffer(8192);
    let world = World::with(1, &settings, link);
    let _ids = world.connect();
    let [a, b] = &world.sides;
    let (source, target) = (region(a, pattern(1, 1 << 20)), region(b, vec![0; 1 << 20]));
    let to = target.remote();
    let sges = [source.sge(0, 1 << 20)];
    a.qp.post_send(&SendWr::write(1, &sges, RemoteBuffer::at(to.addr, to.rkey)))
        .unwrap();
    // The peer is not driven from here on.
    let drive = || {
        while a
            .device
            .progress()
            .is_some_and(|due| due <= world.clock.now())
        {}
    };
    drive();
    world.clock.advance(LIMIT - Duration::from_nanos(1));
    drive();
    assert_eq!(a.qp.state(), QpState::Rts);
    // The first check found that TCP had taken more bytes, so the connection ends within twice the
    // limit.
    world.clock.advance(LIMIT + Duration::from_nanos(1));
    drive();
    let reason = a.qp.end_reason();
    assert!(
        matches!(reason, Some(EndReason::Stalled { sending: true })),
        "{reason:?}"
    );
}

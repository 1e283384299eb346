//! Timeouts come when the clock says so, and only then.

use std::time::Duration;

use uwarp_verbs::llp::smol::{Clock, MemorySettings};
use uwarp_verbs::llp::{Llp, Network};
use uwarp_verbs::{EndReason, QpState, SendWr, Settings, StartupError, Timeouts};

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

#[test]
fn a_peer_that_takes_nothing_is_stalled_when_the_clock_says_so() {
    const LIMIT: Duration = Duration::from_secs(7);
    let settings = Settings {
        timeouts: Timeouts {
            stalled: Some(LIMIT),
            ..Timeouts::default()
        },
        ..Settings::default()
    };
    let link = MemorySettings {
        receive_buffer: 8192,
        send_buffer: 8192,
        ..MemorySettings::default()
    };
    let world = World::with(1, &settings, link);
    let _ids = world.connect();
    let [a, b] = &world.sides;
    let (source, target) = (region(a, pattern(1, 1 << 20)), region(b, vec![0; 1 << 20]));
    let to = target.remote();
    let sges = [source.sge(0, 1 << 20)];
    a.qp.post_send(&SendWr::write(1, &sges, to.addr, to.rkey))
        .unwrap();
    // From here on nobody drives the peer.
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
    // The first look found octets that TCP took since: twice the limit at most.
    world.clock.advance(LIMIT + Duration::from_nanos(1));
    drive();
    let reason = a.qp.end_reason();
    assert!(
        matches!(reason, Some(EndReason::Stalled { sending: true })),
        "{reason:?}"
    );
}

//! A peer that vanishes. No test sleeps, because the tests advance the clock of the in-memory link.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::sync::Arc;

use uwarp_verbs::llp::smol::{FaultSettings, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_verbs::llp::{Llp, LlpError, Network, Piece, Recv, SendHints};

use super::*;

const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(600),
    interval: Duration::from_secs(100),
    probes: 3,
};

/// Connects `a` to a peer that answers the MPA Request. After that its TCP is not driven, so it
/// answers nothing.
fn vanished(a: &Side, second: &MemoryNetwork) -> Box<dyn Llp> {
    let mut listener = second.listen("192.0.2.2:7174".parse().unwrap(), 4).unwrap();
    let addr = listener.local_addr();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| a.qp.connect(addr, &ConnectOptions::default()));
        let mut peer = None;
        until("the connection", || {
            peer = listener.try_accept().unwrap();
            peer.is_some()
        });
        let mut peer = peer.unwrap();
        let mut request = [0; 20];
        let mut at = 0;
        until("the MPA Request", || {
            peer.drive();
            if let Recv::Data(bytes) = peer.try_recv(&mut request[at..]).unwrap() {
                at += bytes;
            }
            at == request.len()
        });
        let reply = b"MPA ID Rep Frame\x00\x01\x00\x00";
        let pieces = [Piece::from(&reply[..])];
        assert_eq!(peer.try_send(&pieces, SendHints::NONE), Ok(reply.len()));
        until("the Reply", || {
            peer.drive();
            connecting.is_finished()
        });
        connecting.join().unwrap().unwrap();
        peer
    })
}

fn over_memory(settings: Settings) -> (Side, MemoryNetwork, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let memory = MemorySettings::default()
        .clock(Arc::<ManualClock>::clone(&clock))
        // The link has no faults. The setting turns on its counters.
        .faults(Some(FaultSettings::default()));
    let (first, second) = MemoryNetwork::pair(&memory).unwrap();
    let device = Device::open(Arc::new(first), settings).unwrap();
    (Side::new(device, QpCaps::default(), 16), second, clock)
}

#[test]
fn a_peer_that_vanished_is_noticed_and_told_as_such() {
    let settings = raw_settings().keepalive(Some(KEEPALIVE));
    let (a, second, clock) = over_memory(settings);
    assert_eq!(a.qp.query().keepalive, Some(KEEPALIVE));
    a.post_empty(1);
    let _peer = vanished(&a, &second);
    // The end must not come too early.
    for _ in 0..8 {
        clock.advance(Duration::from_secs(100));
        a.recv_cq.assert_empty();
        assert_eq!(a.qp.state(), QpState::Rts);
    }
    clock.advance(Duration::from_secs(101));
    until("the end", || {
        let _ = a.send_cq.poll_one();
        a.qp.state() == QpState::Error
    });
    a.recv_cq.flushed(1);
    let reason = a.qp.end_reason().unwrap();
    let timed_out = matches!(
        reason,
        EndReason::LlpLost {
            error: LlpError::TimedOut { .. }
        }
    );
    assert!(timed_out, "{reason:?}");
    assert!(
        reason.to_string().starts_with("the peer vanished"),
        "{reason}"
    );
}

#[test]
fn without_a_keepalive_an_idle_connection_stands_for_ever() {
    let (a, second, clock) = over_memory(raw_settings());
    let _peer = vanished(&a, &second);
    clock.advance(Duration::from_secs(1_000_000));
    for _ in 0..10 {
        a.recv_cq.assert_empty();
    }
    assert_eq!(a.qp.state(), QpState::Rts);
    assert_eq!(a.qp.query().keepalive, None);
}

/// The peer has nothing to send, but answers the probes.
#[test]
fn a_peer_that_is_only_silent_is_not_given_up() {
    let settings = raw_settings().keepalive(Some(KEEPALIVE));
    let (a, second, clock) = over_memory(settings);
    let mut peer = vanished(&a, &second);
    let answers = || second.fault_counts().unwrap().packets;
    for _ in 0..30 {
        let before = answers();
        clock.advance(Duration::from_secs(100));
        // Each step waits for the answer to the previous probe, because the clock would otherwise
        // run ahead of a stalled thread.
        until("the answer to a question", || {
            a.recv_cq.assert_empty();
            peer.drive();
            answers() > before
        });
        a.recv_cq.assert_empty();
    }
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn a_qp_may_have_a_keepalive_of_its_own() {
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let qp = pd.qp().keepalive(KEEPALIVE).build(&cq, &cq).unwrap();
    assert_eq!(qp.query().keepalive, Some(KEEPALIVE));
}

#[test]
fn a_keepalive_that_cannot_be_is_refused_before_anything_is_made() {
    let never = Keepalive {
        probes: 0,
        ..KEEPALIVE
    };
    let settings = Settings::default().keepalive(Some(never));
    let error = Device::tcp_with(settings, None).unwrap_err();
    assert!(error.to_string().contains("1 to 127"), "{error}");
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    pd.qp().keepalive(never).build(&cq, &cq).unwrap_err();
}

//! Segments that are held back because smoltcp's congestion window (2048 bytes at first) has no
//! room for them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::sending::tests::Scene;
use crate::smol::settings::Congestion;
use crate::{Llp, LlpError, Piece, Recv, SendHints};

const FPDU: usize = 1000;

impl Scene {
    /// Offers `count` FPDUs, beginning with number `from`. Returns the number of FPDUs accepted.
    fn offer(&mut self, from: usize, count: usize) -> usize {
        let bytes = vec![7; FPDU * count];
        let ends: Vec<u64> = (1..=from + count).map(|end| (end * FPDU) as u64).collect();
        let hints = SendHints::new((from * FPDU) as u64, &ends[from..]);
        let taken = self.client.try_send(&[Piece::from(&bytes)], hints).unwrap();
        assert_eq!(taken % FPDU, 0);
        taken / FPDU
    }
}

/// Returns a scene with two FPDUs in flight and a third one held back.
fn held(v6: bool) -> Scene {
    let mut scene = Scene::with(v6, Congestion::Reno);
    assert_eq!(scene.offer(0, 9), 3);
    let headers = if v6 { 60 } else { 40 };
    assert_eq!(scene.lengths(), [headers + FPDU; 2]);
    assert_eq!(scene.client.unsent(), FPDU);
    scene
}

#[test]
fn an_acknowledgement_lets_a_held_segment_go_whole() {
    for v6 in [false, true] {
        let mut scene = held(v6);
        scene.client.drive();
        assert!(scene.lengths().is_empty());
        assert_eq!(scene.received(), 2 * FPDU);
        scene.client.drive();
        assert_eq!(scene.lengths(), [if v6 { 60 } else { 40 } + FPDU]);
        assert_eq!(scene.received(), FPDU);
    }
}

#[test]
fn a_fin_waits_for_a_held_segment() {
    let mut scene = held(false);
    scene.client.shutdown().unwrap();
    assert!(scene.lengths().is_empty() && !scene.client.flushed());
    assert_eq!(scene.received(), 2 * FPDU);
    scene.client.drive();
    assert_eq!(scene.lengths(), [40 + FPDU]);
    assert_eq!(scene.received(), FPDU);
    assert_eq!(scene.server.try_recv(&mut [0; 9]), Ok(Recv::Closed));
    scene.client.drive();
    assert!(scene.client.flushed());
}

#[test]
fn an_abort_does_not_wait_for_a_held_segment() {
    let mut scene = held(false);
    scene.client.abort();
    let error = loop {
        match scene.server.try_recv(&mut [0; 900]) {
            Ok(Recv::Data(_)) => {}
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LlpError::Reset { .. }), "{error}");
}

#[test]
fn a_held_segment_that_has_become_too_large_for_the_path_goes_out_in_parts() {
    let mut scene = held(false);
    scene.set_path_mtu(640);
    assert_eq!(scene.received(), 2 * FPDU);
    scene.client.drive();
    assert_eq!(scene.lengths(), [640, 440]);
    assert_eq!(scene.received(), FPDU);
}

/// The congestion window grows in some round trips of `burst` FPDUs each. Then all segments that it
/// allows are lost, while the segment that is held back was never sent.
#[test]
fn what_is_sent_again_fills_segments_whatever_is_held() {
    for (rounds, burst) in (1..12).flat_map(|rounds| [(rounds, 5), (rounds, 7), (rounds, 30)]) {
        let mut scene = Scene::with(false, Congestion::Reno);
        let mut sent = 0;
        for _ in 0..rounds {
            sent += scene.offer(sent, burst);
            while !scene.client.flushed() {
                scene.received();
                scene.client.drive();
            }
        }
        scene.lengths();
        scene.limit.store(0, Ordering::Relaxed);
        let lost = scene.offer(sent, 250);
        assert_eq!(scene.client.unsent(), FPDU);
        assert_eq!(scene.lengths(), vec![40 + FPDU; lost - 1]);
        scene.limit.store(usize::MAX, Ordering::Relaxed);
        scene.clock.advance(Duration::from_secs(2));
        scene.client.drive();
        let mut got = 0;
        while !scene.client.flushed() {
            got += scene.received();
            scene.client.drive();
        }
        assert_eq!(got, lost * FPDU);
        let (mut lengths, mut left) = (scene.lengths(), lost * FPDU);
        // smoltcp cuts at the end of the send buffer, which is not reached here.
        assert!((sent + lost) * FPDU < 256 << 10, "{sent} {lost}");
        lengths.pop();
        for len in lengths {
            assert_eq!(len, 1500, "{rounds} {burst}, {left} of {lost} FPDUs left");
            left -= len - 40;
        }
    }
}

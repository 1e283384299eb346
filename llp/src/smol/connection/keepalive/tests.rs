//! Keep-alive probes, and the end of connections to peers that do not acknowledge.

use std::time::Duration;

use super::super::sending::tests::Scene;
use crate::smol::segment::Segment;
use crate::{Keepalive, Llp, LlpError, Piece, Recv, SendHints};

const EVERY: Duration = Duration::from_secs(15);
const KEEPALIVE: Keepalive = Keepalive {
    idle: EVERY,
    interval: EVERY,
    probes: 9,
};

fn watched(v6: bool) -> Scene {
    let mut scene = Scene::new(v6);
    scene.client.set_keepalive(KEEPALIVE).unwrap();
    scene.server.set_keepalive(KEEPALIVE).unwrap();
    scene.drive();
    scene.packets();
    scene
}

impl Scene {
    fn drive(&mut self) {
        for _ in 0..4 {
            self.client.drive();
            self.server.drive();
        }
    }

    fn wait(&mut self, time: Duration) {
        self.clock.advance(time);
        self.drive();
    }
}

#[test]
fn a_question_carries_no_byte_and_is_answered() {
    for v6 in [false, true] {
        let mut scene = watched(v6);
        for bytes in [0, 5] {
            let sent = vec![7; bytes];
            let taken = scene
                .client
                .try_send(&[Piece::from(&sent)], SendHints::NONE);
            assert_eq!(taken, Ok(bytes));
            scene.drive();
            assert_eq!(scene.received(), bytes);
            scene.drive();
            scene.packets();
            for _ in 0..20 {
                scene.wait(EVERY - Duration::from_millis(1));
                assert!(scene.packets().is_empty());
                scene.wait(Duration::from_millis(1));
                // This side's probe, and the answer to the server's probe.
                let packets = scene.packets();
                assert_eq!(packets.len(), 2);
                for packet in packets {
                    assert_eq!(Segment::parse(&packet).unwrap().payload, 0);
                }
                assert_eq!(scene.server.try_recv(&mut [0; 9]), Ok(Recv::WouldBlock));
                assert_eq!(scene.client.try_recv(&mut [0; 9]), Ok(Recv::WouldBlock));
            }
        }
    }
}

#[test]
fn a_peer_that_never_sent_anything_is_asked_too() {
    let mut scene = watched(false);
    scene.clock.advance(EVERY);
    // The server has only answered a SYN.
    scene.server.drive();
    let before = scene.packets();
    scene.client.drive();
    let answers = scene.packets();
    // The client's answer to the server's probe, and the client's own probe.
    assert_eq!((before.len(), answers.len()), (0, 2));
}

#[test]
fn a_question_while_bytes_are_not_acknowledged_is_no_data_and_its_answer_a_sign_of_life() {
    let mut scene = watched(false);
    // The link drops segments with data and delivers others.
    scene.limit.store(40, std::sync::atomic::Ordering::Relaxed);
    let taken = scene
        .client
        .try_send(&[Piece::from(&[7; 100][..])], SendHints::NONE);
    assert_eq!(taken, Ok(100));
    let (mut questions, mut repetitions) = (0, 0);
    for _ in 0..170 {
        scene.wait(Duration::from_secs(1));
        for packet in scene.packets() {
            match Segment::parse(&packet).unwrap().payload {
                0 => questions += 1,
                bytes => {
                    assert_eq!(bytes, 100);
                    repetitions += 1;
                }
            }
        }
        // The connection lives longer than the keep-alive would wait for a silent peer.
        assert_eq!(scene.client.try_recv(&mut [0; 9]), Ok(Recv::WouldBlock));
        assert_eq!(scene.received(), 0);
    }
    assert!(
        questions >= 5 && repetitions >= 4,
        "{questions} {repetitions}"
    );
    scene
        .limit
        .store(usize::MAX, std::sync::atomic::Ordering::Relaxed);
    let arrived = (0..70).any(|_| {
        scene.wait(Duration::from_secs(1));
        scene.received() == 100
    });
    assert!(arrived);
}

#[test]
fn bytes_that_are_never_acknowledged_end_the_connection_although_the_peer_answers() {
    let mut scene = watched(false);
    scene.limit.store(40, std::sync::atomic::Ordering::Relaxed);
    let taken = scene
        .client
        .try_send(&[Piece::from(&[7; 100][..])], SendHints::NONE);
    assert_eq!(taken, Ok(100));
    let start = scene.clock.elapsed();
    let error = loop {
        scene.wait(Duration::from_secs(1));
        if let Err(error) = scene.client.try_recv(&mut [0; 9]) {
            break error;
        }
    };
    let addr = scene.client.peer_addr();
    assert_eq!(error, LlpError::TimedOut { addr });
    assert_eq!(scene.clock.elapsed() - start, 2 * KEEPALIVE.patience());
}

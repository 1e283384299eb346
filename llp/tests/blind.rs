//! Forged segments of an attacker who cannot see a connection and guesses its numbers (RFC 5961).
//! Two hosts use simulated time; the test carries their packets and adds forged ones.

mod common;

use std::time::Duration;

use common::carried::{Fields, World};
use uwarp_llp::smol::Congestion;
use uwarp_llp::{Llp, LlpError, LlpListener, Network, Piece, Recv, SendHints};

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const SECOND: Duration = Duration::from_secs(1);
/// Size in bytes of each host's receive buffer, which is its window when all bytes were read.
const WINDOW: u32 = 256 << 10;
/// Window scale shift of the hosts with this buffer.
const SHIFT: u32 = 3;

struct Scene {
    world: World,
    listener: Box<dyn LlpListener>,
    client: Box<dyn Llp>,
    server: Box<dyn Llp>,
    /// Sequence number that the server expects next.
    receive_next: u32,
    /// Next sequence number that the server sends.
    send_next: u32,
    /// Largest window in bytes that the client offered to the server.
    largest_window: u32,
}

impl Scene {
    fn new(v6: bool) -> Self {
        Self::of(World::new(v6))
    }

    fn of(world: World) -> Self {
        let mut listener = world.hosts[1].listen(world.at, 8).unwrap();
        let mut client = world.hosts[0].connect(None, world.at).unwrap();
        let server = loop {
            world.carry();
            client.drive();
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
        };
        let mut scene = Self {
            world,
            listener,
            client,
            server,
            receive_next: 0,
            send_next: 0,
            largest_window: 0,
        };
        scene.works();
        scene
    }

    fn settle(&mut self) {
        loop {
            self.client.drive();
            self.server.drive();
            if !self.world.carry() {
                return;
            }
        }
    }

    /// Sends bytes in both directions, and checks that exactly these bytes arrive. Then records the
    /// sequence numbers and the largest window.
    fn works(&mut self) {
        self.settle();
        let send = |llp: &mut dyn Llp| llp.try_send(&[Piece::from(b"right")], SendHints::NONE);
        assert_eq!(send(&mut *self.client), Ok(5));
        assert_eq!(send(&mut *self.server), Ok(5));
        self.settle();
        for llp in [&mut self.client, &mut self.server] {
            let mut bytes = [0; 100];
            assert_eq!(llp.try_recv(&mut bytes), Ok(Recv::Data(5)));
            assert_eq!(&bytes[..5], b"right");
            assert_eq!(llp.try_recv(&mut bytes), Ok(Recv::WouldBlock));
        }
        self.settle();
        for (host, fields) in std::mem::take(&mut self.world.wire.lock().sent) {
            if fields.flags & (SYN | RST) == 0 && host == 1 {
                self.receive_next = fields.ack;
                self.send_next = fields.seq.wrapping_add(fields.bytes);
            } else if fields.flags & (SYN | RST) == 0 {
                let window = u32::from(fields.window) << SHIFT;
                self.largest_window = self.largest_window.max(window);
            }
        }
    }

    /// Delivers a forged segment of the client to the server. Returns the server's answers.
    fn forge(&mut self, flags: u8, seq: u32, ack: u32, payload: &[u8]) -> Vec<Fields> {
        let (from, to) = (self.client.local_addr(), self.server.local_addr());
        let fields = Fields {
            ports: [from.port(), to.port()],
            seq,
            ack,
            flags,
            window: 1000,
            bytes: 0,
        };
        self.world.sent_by(1);
        let packet = fields.packet(from.ip(), to.ip(), payload);
        self.world.hosts[1].deliver(&packet);
        self.server.drive();
        self.world.sent_by(1)
    }

    /// Checks that `answers` consists of one challenge ACK if `challenge` is true, and is empty
    /// otherwise.
    fn check(&self, answers: &[Fields], challenge: bool, what: &str) {
        assert_eq!(answers.len(), usize::from(challenge), "{what}: {answers:?}");
        for answer in answers {
            let got = (answer.flags, answer.seq, answer.ack, answer.bytes);
            assert_eq!(got, (ACK, self.send_next, self.receive_next, 0), "{what}");
            assert!(
                u32::from(answer.window) << SHIFT >= WINDOW - 2 * 1460,
                "{what}"
            );
        }
    }

    fn ends_with_a_reset(&mut self) {
        let addr = self.server.peer_addr();
        assert_eq!(self.server.lost(), Some(LlpError::Reset { addr }));
    }
}

#[test]
fn rfc_5961_3_2_only_a_reset_with_the_exact_number_ends_a_connection() {
    for v6 in [false, true] {
        for flags in [RST, RST | ACK] {
            let mut scene = Scene::new(v6);
            for (offset, challenge) in [
                (1, true),
                (2, true),
                (3, true),
                (1000, true),
                (65_535, true),
                (WINDOW / 2, true),
                (WINDOW - 10, true),
                (WINDOW + 1, false),
                (1 << 30, false),
                ((1 << 31) - 1, false),
                (1 << 31, false),
                (0_u32.wrapping_sub(1 << 30), false),
                (0_u32.wrapping_sub(WINDOW), false),
                (0_u32.wrapping_sub(2), false),
                (0_u32.wrapping_sub(1), false),
            ] {
                scene.world.wait(SECOND);
                let seq = scene.receive_next.wrapping_add(offset);
                let answers = scene.forge(flags, seq, scene.send_next, b"");
                scene.check(&answers, challenge, &format!("offset {offset}"));
                scene.works();
            }
            let answers = scene.forge(flags, scene.receive_next, scene.send_next, b"");
            scene.check(&answers, false, "exact");
            scene.ends_with_a_reset();
        }
    }
}

#[test]
fn rfc_5961_4_2_a_syn_is_answered_and_dropped() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        for flags in [SYN, SYN | ACK] {
            for offset in [
                0,
                1,
                1000,
                WINDOW - 10,
                WINDOW + 1,
                1 << 31,
                u32::MAX,
                u32::MAX - 10,
            ] {
                scene.world.wait(SECOND);
                let seq = scene.receive_next.wrapping_add(offset);
                let answers = scene.forge(flags, seq, scene.send_next, b"");
                scene.check(&answers, true, &format!("offset {offset}"));
                scene.works();
            }
        }
    }
}

#[test]
fn rfc_5961_5_2_data_with_an_acknowledgement_out_of_range_is_answered_and_dropped() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        for payload in [&b"wrong"[..], b""] {
            for (from_sent, challenge) in [
                (true, 1),
                (true, 2),
                (true, 1 << 20),
                (true, 1 << 30),
                (false, 1),
                (false, 1000),
                (false, 1 << 30),
            ] {
                scene.world.wait(SECOND);
                // All bytes were acknowledged, so SND.UNA equals SND.NXT.
                let ack = if from_sent {
                    scene.send_next.wrapping_add(challenge)
                } else {
                    let oldest = scene.send_next.wrapping_sub(scene.largest_window);
                    oldest.wrapping_sub(challenge)
                };
                let answers = scene.forge(ACK, scene.receive_next, ack, payload);
                scene.check(&answers, true, &format!("{from_sent} {challenge}"));
                scene.works();
            }
            // The oldest acknowledgement in range can belong to a delayed segment, so it is not
            // answered.
            scene.world.wait(SECOND);
            let oldest = scene.send_next.wrapping_sub(scene.largest_window);
            let answers = scene.forge(ACK, scene.receive_next, oldest, payload);
            scene.check(&answers, false, "in range");
            scene.works();
        }
    }
}

#[test]
fn rfc_5961_7_challenges_are_few_in_a_second() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        for _ in 0..3 {
            scene.world.wait(SECOND);
            let mut answers = 0;
            for number in 1..300_u32 {
                let seq = scene.receive_next.wrapping_add(number * 100);
                let ack = scene.send_next;
                answers += match number % 3 {
                    0 => scene.forge(RST, seq, ack, b"").len(),
                    1 => scene.forge(SYN, seq, ack, b"").len(),
                    _ => scene
                        .forge(ACK, scene.receive_next, ack.wrapping_add(9), b"x")
                        .len(),
                };
                scene.world.wait(Duration::from_millis(3));
            }
            assert_eq!(answers, 2);
        }
        scene.works();
    }
}

/// The server has not received all bytes that the client sent, so the client's reset has a later
/// number than the server expects. The server's challenge ACK makes the client's host send a reset
/// with the expected number.
#[test]
fn rfc_5961_3_2_a_reset_after_lost_bytes_ends_the_connection_after_a_challenge() {
    for v6 in [false, true] {
        for bytes in [1, 5000, 200_000] {
            let mut scene = Scene::new(v6);
            scene.world.wire.lock().lossy = true;
            let data = vec![1; bytes];
            let sent = scene
                .client
                .try_send(&[Piece::from(&data)], SendHints::NONE);
            assert!(sent.is_ok_and(|sent| sent > 0));
            scene.client.abort();
            scene.settle();
            let resets: Vec<Fields> = (scene.world.sent_by(0).into_iter())
                .filter(|fields| fields.flags & RST != 0)
                .collect();
            assert_eq!(resets.len(), 2, "{resets:?}");
            assert_ne!(resets[0].seq, scene.receive_next);
            assert_eq!(resets[1].seq, scene.receive_next);
            scene.ends_with_a_reset();
        }
    }
}

/// TCP's timer has fired, and the congestion window is small. smoltcp itself would send a reset
/// with a number that the peer has received already.
#[test]
fn rfc_9293_3_10_5_an_abort_names_the_end_of_what_was_sent() {
    for v6 in [false, true] {
        let mut scene = Scene::of(World::with(v6, Congestion::Reno));
        let data = vec![1; 20_000];
        let send = |scene: &mut Scene| {
            let sent = (scene.client).try_send(&[Piece::from(&data)], SendHints::NONE);
            assert_eq!(sent, Ok(data.len()));
        };
        // The congestion window grows.
        for _ in 0..3 {
            send(&mut scene);
            scene.settle();
        }
        send(&mut scene);
        scene.world.carry();
        scene.server.drive();
        // The server has received the bytes, but its acknowledgements are lost.
        scene.world.wire.lock().in_flight.clear();
        scene.world.wait(Duration::from_secs(5));
        scene.world.wire.lock().lossy = true;
        scene.client.drive();
        let base = scene.receive_next;
        let end = |fields: &Fields| fields.seq.wrapping_sub(base) + fields.bytes;
        let sent = scene.world.sent_by(0).iter().map(end).max().unwrap();
        assert!(sent > 60_000);
        scene.client.abort();
        let resets = scene.world.sent_by(0);
        assert_eq!(resets.len(), 1);
        assert_eq!((resets[0].flags & RST, end(&resets[0])), (RST, sent));
        scene.settle();
        scene.ends_with_a_reset();
    }
}

/// With a closed window, the peer has not accepted the byte of a probe. The reset must therefore
/// have the number of this byte.
#[test]
fn rfc_5961_3_2_an_abort_into_a_closed_window_is_exact() {
    for v6 in [false, true] {
        for probes in [0, 1, 3] {
            let mut scene = Scene::new(v6);
            let data = vec![1; 1 << 20];
            while scene
                .client
                .try_send(&[Piece::from(&data)], SendHints::NONE)
                != Ok(0)
            {
                scene.settle();
            }
            for _ in 0..probes {
                scene.world.wait(Duration::from_secs(10));
                scene.settle();
            }
            let answers = scene.world.wire.lock().sent.clone();
            let last = answers.iter().rfind(|(host, _)| *host == 1).unwrap().1;
            scene.world.sent_by(0);
            scene.client.abort();
            scene.settle();
            let resets = scene.world.sent_by(0);
            let numbers: Vec<u32> = resets.iter().map(|reset| reset.seq).collect();
            assert_eq!(numbers, [last.ack]);
            scene.ends_with_a_reset();
        }
    }
}

#[test]
fn rfc_9293_3_10_7_3_a_reset_of_an_attempt_must_acknowledge_the_syn() {
    for v6 in [false, true] {
        let world = World::new(v6);
        let mut client = world.hosts[0].connect(None, world.at).unwrap();
        let [syn] = world.sent_by(0)[..] else {
            panic!("one SYN")
        };
        let reset = |flags, ack| Fields {
            ports: [syn.ports[1], syn.ports[0]],
            seq: 0,
            ack,
            flags,
            window: 0,
            bytes: 0,
        };
        let deliver = |fields: Fields| {
            let packet = fields.packet(world.at.ip(), client.local_addr().ip(), b"");
            world.hosts[0].deliver(&packet);
        };
        deliver(reset(RST, 0));
        for wrong in [0, 2, 3, 1 << 31, u32::MAX] {
            deliver(reset(RST | ACK, syn.seq.wrapping_add(wrong)));
        }
        assert_eq!(client.connect_progress(), Ok(false));
        let packet = reset(RST | ACK, syn.seq.wrapping_add(1));
        let packet = packet.packet(world.at.ip(), client.local_addr().ip(), b"");
        world.hosts[0].deliver(&packet);
        let refused = Err(LlpError::Refused { addr: world.at });
        assert_eq!(client.connect_progress(), refused);
    }
}

#[test]
fn rfc_5961_3_2_a_half_open_connection_ends_with_the_exact_reset_only() {
    for v6 in [false, true] {
        let world = World::new(v6);
        let mut listener = world.hosts[1].listen(world.at, 8).unwrap();
        let from = world.settings.addresses[0][usize::from(v6)];
        let mut send = |flags, seq, ack| {
            let fields = Fields {
                ports: [4000, world.at.port()],
                seq,
                ack,
                flags,
                window: 1000,
                bytes: 0,
            };
            world.hosts[1].deliver(&fields.packet(from, world.at.ip(), b""));
            assert!(listener.try_accept().unwrap().is_none());
            world.sent_by(1)
        };
        let answers = send(SYN, 77, 0);
        assert_eq!(answers.len(), 1);
        let answer = answers[0];
        for (seq, answers) in [(79, 1), (5000, 1), (77, 0), (1 << 30, 0)] {
            let challenges = send(RST, seq, 0);
            assert_eq!(challenges.len(), answers, "{seq}");
            for challenge in challenges {
                let got = (challenge.flags, challenge.seq, challenge.ack);
                assert_eq!(got, (ACK, answer.seq.wrapping_add(1), 78), "{seq}");
            }
            // The handshake is still there, with the same number.
            assert_eq!(send(SYN, 77, 0), [answer], "{seq}");
        }
        assert_eq!(send(RST, 78, 0).len(), 0);
        let answers = send(ACK, 78, answer.seq.wrapping_add(1));
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].flags, RST);
    }
}

/// A host restarts and uses the same addresses again. The challenge ACK shows the restarted host
/// that the other end has a half-open connection (RFC 9293 section 3.5.1). The restarted host then
/// resets that connection.
#[test]
fn rfc_5961_4_2_a_restarted_peer_ends_its_old_connection() {
    for v6 in [false, true] {
        let mut scene = Scene::new(v6);
        let local = scene.client.local_addr();
        let restarted = World::host(&scene.world.settings, &scene.world.wire, 0);
        let old = std::mem::replace(&mut scene.world.hosts[0], restarted);
        scene.client = scene.world.hosts[0]
            .connect(Some(local), scene.world.at)
            .unwrap();
        // A host that crashes sends no reset, so the old host's resets are removed.
        let mut wire = scene.world.wire.lock();
        wire.in_flight
            .retain(|(_, packet)| Fields::of(packet).flags & RST == 0);
        drop(wire);
        scene.settle();
        scene.ends_with_a_reset();
        let accepted = loop {
            scene.settle();
            if let Some(accepted) = scene.listener.try_accept().unwrap() {
                break accepted;
            }
            scene.world.wait(SECOND);
        };
        scene.server = accepted;
        scene.works();
        drop(old);
    }
}

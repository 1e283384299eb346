//! Tests of the wake-up of a responder that may have missed the first FPDU (`Settings::wake_up`),
//! in virtual time.

use std::time::Duration;

use parking_lot::Mutex;
use uwarp_rdmap::Peer;

use super::line::{Line, over_line};
use super::wire::{self, Segment};
use super::*;
use crate::progress::drive::Driven;
use uwarp_engine::mem::RemoteBuffer;
use uwarp_engine::settings::SIW_FIRST_FPDU_DELAY as WAKE_UP;

const MOMENT: Duration = Duration::from_nanos(1);

/// An initiator after startup, in virtual time, and its responder, to which the test delivers
/// bytes.
struct Scene {
    client: Driven,
    line: Arc<Mutex<Line>>,
    server: End,
    pool: BufferPool,
    now: Instant,
}

impl Scene {
    fn new(settings: &Settings) -> Self {
        let (client, server, pool) = connected(settings, &Memory::new());
        Scene::of(client, server, pool)
    }

    fn of(client: End, server: End, pool: BufferPool) -> Self {
        let now = client.conn.now;
        let (client, line) = over_line(client, usize::MAX);
        Scene {
            client,
            line,
            server,
            pool,
            now,
        }
    }

    /// Runs a turn after `time` and returns the segments that it sent.
    fn after(&mut self, time: Duration) -> Vec<Segment> {
        self.now += time;
        self.client.turn(&self.pool, self.now);
        let calls = std::mem::take(&mut self.line.lock().calls);
        let bytes: Vec<u8> = calls.into_iter().flat_map(|(_, bytes)| bytes).collect();
        self.server.deliver(&bytes, &self.pool);
        let (segments, whole) = wire::segments(&bytes, false);
        assert!(whole);
        segments
    }

    fn post(&mut self, wr: &SendWr<'_>) {
        self.client.conn.post_send(wr).unwrap();
    }

    /// Lets the server send a message, which the client receives in its next turn.
    fn answers(&mut self) {
        let receive = RecvWr::new(9, &[]);
        self.client.conn.post_recv(&receive).unwrap();
        self.server.conn.post_send(&SendWr::send(9, &[])).unwrap();
        let bytes = self.server.bytes();
        self.line.lock().arrived.extend(bytes);
    }

    /// Sends `wr` at once. Then checks that nothing is sent for several wake-up times.
    #[track_caller]
    fn sends_alone(&mut self, wr: &SendWr<'_>) {
        self.post(wr);
        assert_eq!(self.after(Duration::ZERO).len(), 1);
        self.assert_silent();
    }

    #[track_caller]
    fn assert_silent(&mut self) {
        for _ in 0..10 {
            assert_eq!(self.after(WAKE_UP / 2), []);
        }
    }
}

fn is_wake_up(segments: &[Segment]) -> bool {
    matches!(segments, [one] if one.opcode == wire::WRITE && one.last && one.len == 0)
}

fn write() -> SendWr<'static> {
    SendWr::write_inline(1, b"", RemoteBuffer::at(0, 0))
}

#[test]
fn a_peer_that_sends_nothing_is_woken_once() {
    let mut scene = Scene::new(&Settings::default());
    scene.server.post_receives(1);
    // No FPDU was sent yet, so none can have been missed.
    scene.assert_silent();
    scene.post(&SendWr::send_inline(1, b"ping"));
    assert_eq!(scene.after(Duration::ZERO).len(), 1);
    assert_eq!(scene.client.deadline(), Some(scene.now + WAKE_UP));
    assert_eq!(scene.after(WAKE_UP - MOMENT), []);
    assert!(is_wake_up(&scene.after(MOMENT)));
    scene.assert_silent();
    assert_eq!(scene.client.deadline(), None);
    // The wake-up completes nothing at the peer.
    assert_eq!(scene.server.numbers(), [(0, Status::Success)]);
    assert_eq!(scene.server.conn.state, QpState::Rts);
}

/// An answer that arrives at the last moment is handled before the wake-up is decided.
#[test]
fn a_peer_that_has_sent_something_is_not_woken() {
    let mut scene = Scene::new(&Settings::default());
    scene.post(&write());
    assert_eq!(scene.after(Duration::ZERO).len(), 1);
    scene.answers();
    scene.assert_silent();
    // The peer is not woken either if its FPDU arrived before our first one was sent.
    let settings = Settings {
        send_first: true,
        ..Settings::default()
    };
    let mut scene = Scene::new(&settings);
    scene.server.conn.set_now(scene.now + WAKE_UP);
    scene.answers();
    scene.sends_alone(&write());
}

/// A long FPDU over a slow path may take longer than the wake-up waits.
#[test]
fn nor_is_one_whose_first_fpdu_has_begun_to_arrive() {
    let mut scene = Scene::new(&Settings::default());
    scene.post(&write());
    assert_eq!(scene.after(Duration::ZERO).len(), 1);
    scene.answers();
    let rest = scene.line.lock().arrived.split_off(1);
    scene.assert_silent();
    scene.line.lock().arrived.extend(rest);
    scene.assert_silent();
    assert_eq!(scene.client.conn.state, QpState::Rts);
}

/// The peer has missed the Reads that were sent. Another Read waits for them because of ORD, so it
/// cannot wake the peer.
#[test]
fn requests_that_wait_for_the_peer_do_not_keep_it_from_being_woken() {
    let mut scene = Scene::new(&Settings::default());
    for wr_id in 0..5 {
        scene.post(&SendWr::read(wr_id, &[], RemoteBuffer::at(0, 0)));
    }
    // ORD allows this many Reads.
    assert_eq!(scene.after(Duration::ZERO).len(), 4);
    assert!(is_wake_up(&scene.after(WAKE_UP)));
}

#[test]
fn an_fpdu_that_is_on_its_way_is_enough() {
    let mut scene = Scene::new(&Settings::default());
    scene.line.lock().room = 30;
    scene.post(&write());
    scene.post(&SendWr::write_inline(
        2,
        &[7; 64],
        RemoteBuffer::at(0x1000, 7),
    ));
    scene.client.turn(&scene.pool, scene.now);
    scene.client.turn(&scene.pool, scene.now + WAKE_UP);
    scene.line.lock().room = usize::MAX;
    assert_eq!(scene.after(2 * WAKE_UP).len(), 2);
    scene.assert_silent();
}

#[test]
fn a_connection_that_ends_wakes_nobody() {
    let mut scene = Scene::new(&Settings::default());
    scene.post(&write());
    assert_eq!(scene.after(Duration::ZERO).len(), 1);
    scene.client.conn.disconnect();
    scene.assert_silent();

    let mut scene = Scene::new(&Settings::default());
    scene.post(&write());
    assert_eq!(scene.after(Duration::ZERO).len(), 1);
    scene.client.conn.terminate();
    assert_eq!(scene.after(Duration::ZERO)[0].opcode, wire::TERMINATE);
    scene.assert_silent();
}

#[test]
fn who_waits_for_the_peer_or_wants_none_sends_none() {
    let none = Settings {
        wake_up: None,
        ..Settings::default()
    };
    let siw = Settings {
        peer: Peer::Siw,
        ..Settings::default()
    };
    for settings in [none, siw] {
        let mut scene = Scene::new(&settings);
        scene.after(WAKE_UP);
        scene.sends_alone(&write());
    }
}

/// The RTR indication is the initiator's first FPDU.
#[test]
fn an_rtr_indication_that_brings_nothing_back_is_followed_by_a_wake_up() {
    let settings = Settings::default();
    let pool = BufferPool::default();
    let mut client = End::new(&Memory::new(), &settings);
    let config = InitiatorConfig {
        model: Model::PeerToPeer(RtrKinds::ALL),
        ..initiator_config(&settings)
    };
    assert!(client.conn.start_initiator(config, true).unwrap());
    client.conn.tcp_connected();
    let request = client.bytes();
    let mut server = accept(&settings, &Memory::new(), &request);
    let reply = server.bytes();
    client.deliver(&reply, &pool);
    let mut scene = Scene::of(client, server, pool);
    let rtr = scene.after(Duration::ZERO);
    assert_eq!((rtr.len(), rtr[0].len), (1, 0));
    assert!(is_wake_up(&scene.after(WAKE_UP)));
    scene.assert_silent();
}

/// The wake-up has Markers and a CRC like other FPDUs, and the peer accepts the next one.
#[test]
fn a_wake_up_is_an_fpdu_as_any_other() {
    let settings = Settings {
        markers: true,
        ..Settings::default()
    };
    let mut scene = Scene::new(&settings);
    scene.server.post_receives(2);
    for number in 0..2 {
        scene.post(&SendWr::send_inline(number, &[7; 200]));
        scene.client.turn(&scene.pool, scene.now);
        scene.now += WAKE_UP;
        scene.client.turn(&scene.pool, scene.now);
    }
    let calls = std::mem::take(&mut scene.line.lock().calls);
    for (_, bytes) in calls {
        scene.server.deliver(&bytes, &scene.pool);
    }
    let done = [(0, Status::Success), (1, Status::Success)];
    assert_eq!(scene.server.numbers(), done);
    assert_eq!(scene.server.conn.state, QpState::Rts);
}

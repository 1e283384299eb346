//! Writes that complete when the peer has placed them (`Settings::placed_writes`).

use proptest::prelude::*;

use super::*;
use crate::connection::LlpOrder;

fn settings() -> Settings {
    Settings {
        placed_writes: true,
        ..Settings::default()
    }
}

/// A client that writes memory of a server.
struct Writer {
    client: End,
    server: End,
    pool: BufferPool,
}

impl Writer {
    fn new(settings: &Settings, ord: u16) -> Self {
        Self::with(settings, ord, None)
    }

    /// Creates a writer whose program has chosen when Writes to this peer complete.
    fn with(settings: &Settings, ord: u16, choice: Option<bool>) -> Self {
        let pool = BufferPool::default();
        let mut client = End::new(&Memory::new(), settings);
        let config = InitiatorConfig {
            ord,
            ..initiator_config(settings)
        };
        client.conn.choose_placed_writes(choice);
        assert!(client.conn.start_initiator(config, true).unwrap());
        client.conn.emss = 1460;
        client.conn.tcp_connected();
        let request = client.bytes();
        let mut server = accept(settings, &Memory::new(), &request);
        client.deliver(&server.bytes(), &pool);
        Writer {
            client,
            server,
            pool,
        }
    }

    /// Posts a signaled Write of 64 bytes to offset `at` of the server's open page.
    fn write(&mut self, wr_id: u64, at: u64) {
        let memory = &self.server.memory;
        let remote = RemoteBuffer::at(memory.open.to_base() + at, memory.open.stag().0);
        let sges = self.client.source(64);
        let wr = SendWr::write(wr_id, &sges, remote);
        self.client.conn.post_send(&wr).unwrap();
    }

    fn send(&mut self, wr_id: u64) {
        let wr = SendWr::send_inline(wr_id, b"a message");
        self.client.conn.post_send(&wr).unwrap();
    }

    fn read(&mut self, wr_id: u64) {
        let memory = &self.server.memory;
        let remote = RemoteBuffer::at(memory.open.to_base(), memory.open.stag().0);
        let sges = self.client.source(64);
        self.client
            .conn
            .post_send(&SendWr::read(wr_id, &sges, remote))
            .unwrap();
    }

    /// Delivers what the client has to send.
    fn there(&mut self) {
        let bytes = self.client.bytes();
        self.server.deliver(&bytes, &self.pool);
    }

    /// Delivers what the server has to send.
    fn back(&mut self) {
        let bytes = self.server.bytes();
        self.client.deliver(&bytes, &self.pool);
    }

    /// Number of Read Requests that the client has outstanding.
    fn outstanding(&self) -> u16 {
        self.client.conn.places_used().1
    }
}

fn successes(wr_ids: std::ops::RangeInclusive<u64>) -> Vec<(u64, Status)> {
    wr_ids.map(|wr_id| (wr_id, Status::Success)).collect()
}

#[test]
fn the_choice_for_a_peer_is_stronger_than_that_of_the_qp() {
    for (of_qp, choice, due) in [
        (false, None, 0),
        (false, Some(true), 1),
        (true, Some(false), 0),
        (true, None, 1),
    ] {
        let settings = Settings {
            placed_writes: of_qp,
            ..Settings::default()
        };
        let mut writer = Writer::with(&settings, 4, choice);
        writer.write(1, 0);
        writer.there();
        assert_eq!(writer.outstanding(), due, "{of_qp} {choice:?}");
    }
}

#[test]
fn a_write_completes_when_the_peer_has_placed_it_and_no_earlier() {
    for general in [false, true] {
        let mut writer = Writer::new(&settings(), 4);
        writer
            .client
            .memory
            .buffer
            .write_at(OPEN, &[7; 64])
            .unwrap();
        writer.write(1, 128);
        if general {
            writer.client.conn.sq.force_general_path();
        }
        let bytes = writer.client.bytes();
        assert_eq!(writer.client.numbers(), []);
        writer.server.deliver(&bytes, &writer.pool);
        assert_eq!(writer.client.numbers(), []);
        let mut placed = [0; 64];
        let memory = &writer.server.memory;
        memory.buffer.read_at(OPEN + 128, &mut placed).unwrap();
        assert_eq!(placed, [7; 64]);
        writer.back();
        assert_eq!(writer.client.numbers(), successes(1..=1));
        assert!(writer.client.conn.is_idle());
        assert!(writer.server.memory.canaries_are_alive());
    }
}

#[test]
fn one_empty_read_confirms_all_writes_before_it() {
    let mut writer = Writer::new(&settings(), 4);
    for wr_id in 1..=9 {
        writer.write(wr_id, 0);
    }
    writer.there();
    assert_eq!(writer.outstanding(), 1);
    // These are not covered, and wait for the next confirmation.
    for wr_id in 10..=12 {
        writer.write(wr_id, 0);
    }
    writer.there();
    assert_eq!(writer.outstanding(), 1);
    writer.back();
    assert_eq!(writer.client.numbers(), successes(1..=9));
    writer.there();
    writer.back();
    assert_eq!(writer.client.numbers(), successes(10..=12));
    assert_eq!(writer.outstanding(), 0);
}

#[test]
fn later_requests_complete_after_the_writes_before_them() {
    let mut writer = Writer::new(&settings(), 4);
    writer.server.post_receives(2);
    writer.send(1);
    writer.write(2, 0);
    writer.send(3);
    writer.there();
    assert_eq!(writer.client.numbers(), successes(1..=1));
    writer.back();
    assert_eq!(writer.client.numbers(), successes(2..=3));
}

#[test]
fn a_refused_write_is_blamed_and_those_before_it_succeed() {
    for general in [false, true] {
        let mut writer = Writer::new(&settings(), 4);
        writer.write(1, 0);
        writer.write(2, 64);
        // The page has 4,096 bytes.
        writer.write(3, PAGE as u64);
        writer.write(4, 128);
        if general {
            writer.client.conn.sq.force_general_path();
        }
        writer.there();
        assert_eq!(writer.client.numbers(), []);
        writer.back();
        let mut due = successes(1..=2);
        due.extend([(3, Status::RemoteAccess), (4, Status::WrFlush)]);
        assert_eq!(writer.client.numbers(), due);
    }
}

#[test]
fn writes_that_the_peer_can_no_longer_confirm_are_flushed() {
    let mut writer = Writer::new(&settings(), 4);
    writer.write(1, 0);
    let _lost = writer.client.bytes();
    writer.write(2, 0);
    writer.client.conn.peer_fin(false);
    writer.client.bytes();
    let flushed = [1, 2].map(|wr_id| (wr_id, Status::WrFlush));
    assert_eq!(writer.client.numbers(), flushed);
}

#[test]
fn a_close_waits_for_the_confirmation() {
    let mut writer = Writer::new(&settings(), 4);
    writer.write(1, 0);
    writer.client.conn.disconnect();
    writer.there();
    assert_eq!(writer.client.conn.llp_order(), LlpOrder::Keep);
    writer.back();
    assert_eq!(writer.client.numbers(), successes(1..=1));
    assert_eq!(writer.client.conn.llp_order(), LlpOrder::Fin);
}

#[test]
fn writes_complete_as_by_default_without_the_setting_and_without_ord() {
    for (settings, ord) in [(Settings::default(), 4), (settings(), 0)] {
        let mut writer = Writer::new(&settings, ord);
        writer.write(1, 0);
        writer.there();
        assert_eq!(writer.client.numbers(), successes(1..=1));
        assert_eq!(writer.outstanding(), 0);
    }
}

proptest! {
    #[test]
    fn all_requests_complete_in_order_whatever_is_mixed(
        ops in proptest::collection::vec((0..3_u8, any::<bool>()), 1..40),
        ord in 1..4_u16,
        general in any::<bool>(),
    ) {
        let mut writer = Writer::new(&settings(), ord);
        // The page of receives has room for 16.
        for _ in 0..3 {
            writer.server.post_receives(16);
        }
        for (wr_id, (op, turn)) in (0..).zip(&ops) {
            match op {
                0 => writer.write(wr_id, 0),
                1 => writer.send(wr_id),
                _ => writer.read(wr_id),
            }
            if general {
                writer.client.conn.sq.force_general_path();
            }
            if *turn {
                writer.there();
            }
        }
        for _ in 0..2 * ops.len() {
            writer.there();
            writer.back();
        }
        let due: Vec<_> = (0..ops.len() as u64).map(|wr_id| (wr_id, Status::Success)).collect();
        prop_assert_eq!(writer.client.numbers(), due);
        prop_assert!(writer.client.conn.is_idle());
    }
}

//! Confirmations of the peer's Writes that leave with the answer of the program
//! ([`Confirmations`](crate::progress::confirmations::Confirmations)).

use super::line::{Line, over_line};
use super::*;
use crate::progress::confirmations::Giver;
use crate::progress::drive::Driven;
use parking_lot::Mutex;
use uwarp_engine::mem::RemoteBuffer;

/// A client whose Writes are confirmed, and a server over a line.
struct Scene {
    client: End,
    server: Driven,
    line: Arc<Mutex<Line>>,
    pool: BufferPool,
    /// Offset in the client's open page, and key.
    answer_at: RemoteBuffer,
    target: RemoteBuffer,
    at: u64,
}

impl Scene {
    fn new() -> Self {
        let settings = Settings {
            placed_writes: true,
            ..Settings::default()
        };
        let memory = Memory::new();
        let (client, server, pool) = connected(&settings, &memory);
        let open =
            |memory: &Memory| RemoteBuffer::at(memory.open.to_base() + 64, memory.open.stag().0);
        let (answer_at, target) = (open(&client.memory), open(&memory));
        let (server, line) = over_line(server, usize::MAX);
        Scene {
            client,
            server,
            line,
            pool,
            answer_at,
            target,
            at: 0,
        }
    }

    /// Lets a Write of the client arrive with the Read that confirms it, and what the client owes.
    /// Returns the number of calls in which the server has sent in this turn.
    fn write(&mut self, giver: fn(u64) -> Giver) -> usize {
        let write = SendWr::write_inline(1, b"question", self.target);
        self.client.conn.post_send(&write).unwrap();
        let bytes = self.client.bytes();
        self.line.lock().arrived.extend(bytes);
        self.at += 1000;
        let now = self.server.conn.now;
        self.sent(|scene| {
            scene.server.turn_by(&scene.pool, now, giver(scene.at));
        })
    }

    /// Lets the program of the server answer with a Write.
    fn answer(&mut self) -> usize {
        self.at += 1000;
        let write = SendWr::write_inline(2, b"answer", self.answer_at);
        self.sent(|scene| {
            scene.server.conn.post_send(&write).unwrap();
            scene.server.confirmations.posted(scene.at);
            scene.server.push(&scene.pool);
        })
    }

    /// Runs `act`, gives the client what the server has sent, and returns the number of calls.
    fn sent(&mut self, act: impl FnOnce(&mut Self)) -> usize {
        act(self);
        let calls = std::mem::take(&mut self.line.lock().calls);
        for (_, bytes) in &calls {
            self.client.deliver(bytes, &self.pool);
        }
        calls.len()
    }

    /// Number of Writes of the client that are complete.
    fn confirmed(&mut self) -> usize {
        self.client.completions().len()
    }
}

fn background(at: u64) -> Giver {
    Giver::Background { at }
}

fn poll(at: u64) -> Giver {
    Giver::Poll { at }
}

#[test]
fn the_fourth_confirmation_leaves_with_the_answer() {
    let mut scene = Scene::new();
    for round in 0..8 {
        let alone = usize::from(round < 3);
        assert_eq!(scene.write(background), alone, "round {round}");
        assert_eq!(scene.server.confirmations.are_late(), alone == 0);
        assert_eq!(scene.confirmed(), alone, "round {round}");
        assert_eq!(scene.answer(), 1, "round {round}");
        assert_eq!(scene.confirmed(), 1 - alone, "round {round}");
    }
}

#[test]
fn a_confirmation_without_an_answer_leaves_in_the_next_turn_and_the_later_ones_at_once() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        scene.write(background);
        scene.answer();
    }
    scene.confirmed();
    assert_eq!(scene.write(background), 0);
    let now = scene.server.conn.now;
    let sent = scene.sent(|scene| {
        scene.server.turn(&scene.pool, now);
    });
    assert_eq!((sent, scene.confirmed()), (1, 1));
    assert_eq!(scene.write(background), 1);
}

#[test]
fn a_poll_keeps_a_confirmation_only_if_it_has_completed_a_request() {
    let mut scene = Scene::new();
    for _ in 0..3 {
        scene.write(background);
        scene.answer();
    }
    // The client owes the confirmation of the last answer, which completes it.
    assert!(!scene.server.conn.sq.is_empty());
    assert_eq!(scene.write(poll), 0);
    assert!(scene.server.conn.sq.is_empty());
    assert_eq!(scene.answer(), 1);
    assert_eq!(scene.write(background), 0);
    let now = scene.server.conn.now;
    scene.server.turn(&scene.pool, now);
    // Now no request of the server is outstanding.
    for _ in 0..3 {
        scene.write(background);
        scene.at += 1;
        scene.server.confirmations.posted(scene.at);
    }
    assert_eq!(scene.write(poll), 1);
}

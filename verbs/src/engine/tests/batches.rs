//! How long the batches are in which a large message leaves, and what the LLP is told of them.

use super::line::over_line;
use super::*;
use crate::engine::transmit::PAUSE;

const KIB: u64 = 1024;

/// Eight pages: a Write of 32 KiB.
fn post_writes(client: &mut End, to: u64, rkey: u32, count: u64) {
    let page = Sge {
        addr: client.memory.open.to_base(),
        len: PAGE as u32,
        lkey: client.memory.open.stag().0,
    };
    for wr_id in 0..count {
        let sges = [page; 8];
        let write = SendWr::write(wr_id, &sges, to, rkey);
        client.conn.post_send(&write.unsignaled()).unwrap();
    }
}

/// Frames and sends the next batch: its octets.
fn next_batch(client: &mut End, pool: &BufferPool) -> u64 {
    client.conn.tx.borrow_staging(pool);
    client.conn.fill();
    let octets = client.conn.tx.framed_to() - client.conn.tx.taken_to();
    client.conn.taken(octets as usize);
    octets
}

#[test]
fn the_first_batch_after_a_pause_is_short_and_those_behind_it_are_longer() {
    let server = Memory::new();
    let (mut client, _server, pool) = connected(&Settings::default(), &server);
    client.conn.set_emss(65_483);
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    for _ in 0..2 {
        post_writes(&mut client, to, rkey, 32);
        let batches = [0; 3].map(|_| next_batch(&mut client, &pool));
        assert!((128 * KIB..196 * KIB).contains(&batches[0]), "{batches:?}");
        assert!((256 * KIB..324 * KIB).contains(&batches[1]), "{batches:?}");
        assert!(batches[2] > 324 * KIB, "{batches:?}");
        // Now there is nothing to send: the peer has begun with what it has.
        while next_batch(&mut client, &pool) > 0 {}
        (0..PAUSE).for_each(|_| client.conn.fill());
    }
}

#[test]
fn the_llp_is_told_whether_fpdus_may_go_over_segments() {
    for segments in [FpduSegments::ONE, FpduSegments::MOST] {
        let settings = Settings {
            fpdu_segments: segments,
            ..Settings::default()
        };
        let server = Memory::new();
        let (mut client, _server, pool) = connected(&settings, &server);
        let (to, rkey) = (server.open.to_base(), server.open.stag().0);
        post_writes(&mut client, to, rkey, 1);
        // It is read where it lies.
        let _memory = Arc::clone(&client.memory);
        let (mut driven, line) = over_line(client, usize::MAX);
        driven.push(&pool);
        let line = line.lock();
        assert!(!line.calls.is_empty());
        assert_eq!(line.over_segments, segments > FpduSegments::ONE);
    }
}

#[test]
fn the_llp_is_told_that_a_batch_is_followed_but_of_the_last_one() {
    let server = Memory::new();
    let (mut client, _server, pool) = connected(&Settings::default(), &server);
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    post_writes(&mut client, to, rkey, 16);
    let _memory = Arc::clone(&client.memory);
    let (mut driven, line) = over_line(client, usize::MAX);
    driven.push(&pool);
    let line = line.lock();
    let (last, others) = line.followed.split_last().unwrap();
    assert!(!others.is_empty() && others.iter().all(|followed| *followed));
    assert!(!last);
    assert_eq!(line.pushes, 0);
}

#[test]
fn what_was_kept_for_a_request_that_is_held_back_is_sent() {
    let server = Memory::new();
    let (mut client, _server, pool) = connected(&Settings::default(), &server);
    client.conn.set_emss(65_483);
    (0..PAUSE).for_each(|_| client.conn.fill());
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    let page = Sge {
        addr: client.memory.open.to_base(),
        len: PAGE as u32,
        lkey: client.memory.open.stag().0,
    };
    let sges = [page];
    let read = SendWr::read(0, &sges, to, rkey);
    client.conn.post_send(&read.unsignaled()).unwrap();
    // The shortest batch, to the octet of its last FPDU.
    for wr_id in 1..=32 {
        let write = SendWr::write(wr_id, &sges, to, rkey);
        client.conn.post_send(&write.unsignaled()).unwrap();
    }
    // It waits for the answer to the Read.
    let fenced = SendWr::write(33, &sges, to, rkey).fence();
    client.conn.post_send(&fenced.unsignaled()).unwrap();
    let _memory = Arc::clone(&client.memory);
    let (mut driven, line) = over_line(client, usize::MAX);
    driven.push(&pool);
    let line = line.lock();
    assert_eq!(line.followed.last(), Some(&true));
    assert_eq!(line.pushes, 1);
}

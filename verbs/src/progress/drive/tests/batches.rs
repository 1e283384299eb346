//! Lengths of the batches of large messages, and the hints that the LLP gets with them.

use super::line::over_line;
use super::*;
use uwarp_engine::mem::RemoteBuffer;
use uwarp_engine::policy::transfer::BATCH_LIMIT;

const KIB: u64 = 1024;

/// Posts Writes of 32 KiB, each with eight elements of one page.
fn post_writes(client: &mut End, to: u64, rkey: u32, count: u64) {
    let page = Sge {
        addr: client.memory.open.to_base(),
        len: PAGE as u32,
        lkey: client.memory.open.stag().0,
    };
    for wr_id in 0..count {
        let sges = [page; 8];
        let write = SendWr::write(wr_id, &sges, RemoteBuffer::at(to, rkey));
        client.conn.post_send(&write.unsignaled()).unwrap();
    }
}

/// Frames and sends the next batch, and returns its length.
fn next_batch(client: &mut End, pool: &BufferPool) -> u64 {
    client.conn.tx.borrow_staging(pool);
    client.conn.fill();
    let bytes = client.conn.tx.framed_to() - client.conn.tx.taken_to();
    client.conn.taken(bytes as usize);
    bytes
}

#[test]
fn the_batches_of_large_messages_have_the_full_length_from_the_first_on() {
    // The payload is copied in the first round, and sent in place in the second.
    for send_in_place in [false, true] {
        let settings = Settings {
            send_in_place,
            ..Settings::default()
        };
        let server = Memory::new();
        let (mut client, _server, pool) = connected(&settings, &server);
        client.conn.set_emss(65_483);
        let (to, rkey) = (server.open.to_base(), server.open.stag().0);
        post_writes(&mut client, to, rkey, 64);
        for number in 0..2 {
            let batch = next_batch(&mut client, &pool);
            let full = 800 * KIB..BATCH_LIMIT as u64 + 68 * KIB;
            assert!(full.contains(&batch), "batch {number}: {batch}");
        }
    }
}

#[test]
fn a_batch_of_small_messages_stays_short_whatever_is_queued_behind_them() {
    let server = Memory::new();
    let (mut client, _server, pool) = connected(&Settings::default(), &server);
    client.conn.set_emss(65_483);
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    let mut longest = 0;
    for round in 0..8 {
        // Writes of 4 KiB, followed by large ones in every other round.
        let sges = client.source(PAGE as u32);
        for wr_id in 0..48 {
            let write = SendWr::write(wr_id, &sges, RemoteBuffer::at(to, rkey));
            client.conn.post_send(&write).unwrap();
        }
        post_writes(&mut client, to, rkey, 16 * (round % 2));
        longest = longest.max(next_batch(&mut client, &pool));
        while next_batch(&mut client, &pool) > 0 {}
        // Polling frees the places of the queue.
        while client.cq.poll().is_some() {}
    }
    assert!(longest < 300 * KIB, "{longest}");
}

/// Returns the lengths of the first four batches in which a server answers `reads` Reads of `len`
/// bytes.
fn response_batches(reads: u64, len: usize) -> [u64; 4] {
    let (mut client, mut server, pool) = connected(&Settings::default(), &Memory::new());
    server.conn.set_emss(65_483);
    let region = |end: &End| end.memory.region(&Arc::new(Buffer::zeroed(len).unwrap()));
    let (source, sink) = (region(&server), region(&client));
    let sges = [Sge {
        addr: 0,
        len: len as u32,
        lkey: sink.stag().0,
    }];
    for wr_id in 0..reads {
        let read = SendWr::read(wr_id, &sges, RemoteBuffer::at(0, source.stag().0));
        client.conn.post_send(&read).unwrap();
    }
    server.deliver(&client.bytes(), &pool);
    [0; 4].map(|_| next_batch(&mut server, &pool))
}

#[test]
fn a_read_response_is_one_batch() {
    let batches = response_batches(1, 700 * 1024);
    assert!((700 * KIB..701 * KIB).contains(&batches[0]), "{batches:?}");
}

#[test]
fn of_several_read_responses_a_batch_has_a_half() {
    let batches = response_batches(4, 300 * 1024);
    let mut left = 1200 * KIB;
    // A batch has half of the remaining bytes, and at most two more FPDUs. The last one has all.
    for batch in &batches[..2] {
        let half = left / 2;
        assert!((half..half + 128 * KIB).contains(batch), "{batches:?}");
        left -= batch;
    }
    let all: u64 = batches.iter().sum();
    assert!((1200 * KIB..1201 * KIB).contains(&all), "{batches:?}");
}

#[test]
fn the_llp_is_told_when_a_single_answer_is_awaited() {
    let server = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &server);
    let own = |end: &End, len| {
        let (addr, lkey) = (end.memory.open.to_base(), end.memory.open.stag().0);
        Sge { addr, len, lkey }
    };
    let (near, far) = ([own(&client, 8)], [own(&server, 8)]);
    let (to, rkey) = (far[0].addr, far[0].lkey);
    let of_the_peer = SendWr::read(1, &far, RemoteBuffer::at(near[0].addr, near[0].lkey));
    server.conn.post_send(&of_the_peer).unwrap();
    // The client sends first, so that the server may send.
    client
        .conn
        .post_send(&SendWr::write(0, &near, RemoteBuffer::at(to, rkey)))
        .unwrap();
    server.deliver(&client.bytes(), &pool);
    let mut asked_by_the_peer = server.bytes();
    let _memory = Arc::clone(&client.memory);
    let (mut driven, line) = over_line(client, usize::MAX);
    let mut post = |wr: SendWr<'_>| {
        driven.conn.post_send(&wr).unwrap();
        driven.push(&pool);
        // The answers to the peer's Read need no response.
        line.lock()
            .arrived
            .extend(std::mem::take(&mut asked_by_the_peer));
        driven.turn(&pool, Instant::now());
    };
    post(SendWr::read(2, &near, RemoteBuffer::at(to, rkey)));
    post(SendWr::write(3, &near, RemoteBuffer::at(to, rkey)));
    post(SendWr::read(4, &near, RemoteBuffer::at(to, rkey)));
    // A Write awaits no response, even after a Read. Two Reads await two responses.
    assert_eq!(line.lock().asking, [true, false, false, false]);
}

#[test]
fn a_request_that_others_wait_behind_does_not_ask_for_a_single_answer() {
    let server = Memory::new();
    let (mut client, _server, pool) = connected(&Settings::default(), &server);
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    let sges = [Sge {
        addr: client.memory.open.to_base(),
        len: 8,
        lkey: client.memory.open.stag().0,
    }];
    let fenced = SendWr::write(2, &sges, RemoteBuffer::at(to, rkey)).fence();
    for wr in [SendWr::read(1, &sges, RemoteBuffer::at(to, rkey)), fenced] {
        client.conn.post_send(&wr).unwrap();
    }
    let _memory = Arc::clone(&client.memory);
    let (mut driven, line) = over_line(client, usize::MAX);
    driven.push(&pool);
    assert_eq!(line.lock().asking, [false]);
}

#[test]
fn of_a_batch_in_several_calls_only_the_one_that_ends_with_the_request_asks() {
    let settings = Settings {
        send_in_place: true,
        ..Settings::default()
    };
    let server = Memory::new();
    let (mut client, _server, pool) = connected(&settings, &server);
    client.conn.set_emss(65_483);
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    let part = Sge {
        addr: client.memory.open.to_base(),
        len: 1024,
        lkey: client.memory.open.stag().0,
    };
    // Each Write is sent in place, in eight parts.
    let parts = [part; 8];
    for wr_id in 0..8 {
        let write = SendWr::write(wr_id, &parts, RemoteBuffer::at(to, rkey)).unsignaled();
        client.conn.post_send(&write).unwrap();
    }
    client
        .conn
        .post_send(&SendWr::read(8, &[part], RemoteBuffer::at(to, rkey)))
        .unwrap();
    let _memory = Arc::clone(&client.memory);
    let (mut driven, line) = over_line(client, usize::MAX);
    driven.push(&pool);
    assert_eq!(line.lock().asking, [false, true]);
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
        let _memory = Arc::clone(&client.memory);
        let (mut driven, line) = over_line(client, usize::MAX);
        driven.push(&pool);
        let line = line.lock();
        assert!(!line.calls.is_empty());
        assert_eq!(line.over_segments, segments > FpduSegments::ONE);
    }
}

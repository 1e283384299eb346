//! Tests of lent memory: without a CRC, the payload of a Read Response is sent in place, and lent
//! for one call of the LLP.

use crate::mem::Need;

use crate::mem::RemoteBuffer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::*;

pub(super) const LEN: usize = 100_000;

/// Adds a region of `LEN` bytes with its own buffer to `memory`.
pub(super) fn region(memory: &Memory, fill: impl Fn(usize) -> u8) -> (Arc<Buffer>, Arc<Region>) {
    let buffer = Arc::new(Buffer::zeroed(LEN).unwrap());
    let bytes: Vec<u8> = (0..LEN).map(fill).collect();
    buffer.write_at(0, &bytes).unwrap();
    let region = memory.region(&buffer);
    (buffer, region)
}

pub(super) fn content(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    buffer.read_at(0, &mut bytes).unwrap();
    bytes
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

pub(super) fn pattern() -> Vec<u8> {
    (0..LEN).map(byte).collect()
}

/// A client that reads all of a region of the server.
struct Asked {
    client: End,
    server: End,
    pool: BufferPool,
    sink: Arc<Buffer>,
    into: Arc<Region>,
    source: (Arc<Buffer>, Arc<Region>),
}

impl Asked {
    /// Lets the client send a Read of the whole region.
    fn read(&mut self) {
        let sges = [Sge {
            addr: 0,
            len: LEN as u32,
            lkey: self.into.stag().0,
        }];
        let read = SendWr::read(1, &sges, RemoteBuffer::at(0, self.source.1.stag().0));
        self.client.conn.post_send(&read).unwrap();
        let request = self.client.bytes();
        self.server.deliver(&request, &self.pool);
    }
}

fn asked(crc: bool) -> Asked {
    let settings = Settings {
        crc,
        ..Settings::default()
    };
    let (client, mut server, pool) = connected(&settings, &Memory::new());
    server.conn.set_emss(65_483);
    let source = region(&server.memory, byte);
    let (sink, into) = region(&client.memory, |_| 0);
    let mut asked = Asked {
        client,
        server,
        pool,
        sink,
        into,
        source,
    };
    asked.read();
    asked
}

/// Lets the LLP take at most `most` bytes in one call, and ends the loans. Returns the bytes.
pub(super) fn one_call(end: &mut End, most: usize) -> Vec<u8> {
    let mut pieces = [crate::llp::Piece::from(&[][..]); PARTS_PER_CALL];
    let count = end.conn.tx.pieces(&mut pieces);
    let mut out = Vec::new();
    for piece in &pieces[..count] {
        piece.append_to(piece.len(), &mut out);
    }
    out.truncate(most);
    end.conn.taken(out.len());
    end.conn.tx.reclaim();
    out
}

#[test]
fn what_the_llp_has_not_taken_is_what_was_there_in_the_call() {
    for most in [0, 1, 30, 40_000, 65_600, 99_999, usize::MAX] {
        let Asked {
            mut client,
            mut server,
            pool,
            sink,
            source: (memory, _),
            ..
        } = asked(false);
        server.conn.fill();
        let framed = server.conn.tx.framed_to();
        let mut bytes = one_call(&mut server, most);
        memory.write_at(0, &[0xEE; LEN]).unwrap();
        while server.conn.tx.taken_to() < framed {
            bytes.extend(one_call(&mut server, usize::MAX));
        }
        client.deliver(&bytes, &pool);
        // The whole Response was framed in this batch.
        assert_eq!(content(&sink), pattern(), "{most} bytes taken");
    }
}

#[test]
fn nothing_is_in_use_when_the_call_is_over() {
    for most in [0, 40_000, usize::MAX] {
        let mut asked = asked(false);
        asked.server.conn.fill();
        one_call(&mut asked.server, most);
        // The removal would wait for ever if the memory were still in use.
        let stag = asked.source.1.stag();
        asked.server.memory.table.remove(stag).unwrap();
    }
}

#[test]
fn a_local_invalidation_behind_a_response_does_not_wait_for_its_own_batch() {
    let Asked {
        mut client,
        mut server,
        pool,
        sink,
        source: (memory, region),
        ..
    } = asked(false);
    client.post_receives(1);
    // Responses and work requests take turns: first the Response, then the Send, then the
    // invalidation.
    let invalidate = SendWr::local_invalidate(2, region.stag().0);
    for wr in [SendWr::send_inline(1, b"between"), invalidate] {
        server.conn.post_send(&wr).unwrap();
    }
    server.conn.fill();
    let asker = server.conn.ctx.asker(server.conn.attr.access);
    let gone = (server.memory.table).check(region.stag(), 0, 1, Need::RemoteRead, &asker);
    assert!(gone.is_err(), "the invalidation ran in this batch");
    memory.write_at(0, &[0xEE; LEN]).unwrap();
    let bytes = server.bytes();
    client.deliver(&bytes, &pool);
    assert_eq!(content(&sink), pattern());
}

#[test]
fn with_a_crc_it_is_a_copy_from_the_beginning() {
    let Asked {
        mut client,
        mut server,
        pool,
        sink,
        source: (memory, _),
        ..
    } = asked(true);
    server.conn.fill();
    // A program may write to its memory while a peer reads it. The CRC must stay right.
    memory.write_at(0, &[0xEE; LEN]).unwrap();
    let bytes = server.bytes();
    client.deliver(&bytes, &pool);
    assert_eq!(client.conn.state, QpState::Rts);
    assert_eq!(content(&sink), pattern());
}

/// The source is deregistered at another moment in each round.
#[test]
fn a_source_that_goes_while_it_is_framed_leaves_a_stream_that_ends_with_a_terminate() {
    for round in 0..500_u32 {
        let Asked {
            mut client,
            mut server,
            pool,
            source: (_memory, region),
            ..
        } = asked(false);
        server.conn.set_emss(9000);
        let framing = AtomicBool::new(false);
        let (table, stag) = (Arc::clone(&server.memory.table), region.stag());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !framing.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                (0..round % 400).for_each(|_| std::hint::spin_loop());
                table.remove(stag).unwrap();
            });
            // By then the other thread has usually begun.
            std::thread::sleep(Duration::from_micros(60));
            framing.store(true, Ordering::Release);
            server.conn.fill();
            let mut bytes = Vec::new();
            while !server.conn.tx.is_empty() {
                bytes.extend(one_call(&mut server, usize::MAX));
                if server.conn.tx.is_empty() {
                    server.conn.fill();
                }
            }
            client.deliver(&bytes, &pool);
        });
        if server.conn.state == QpState::Terminate {
            let end = client.conn.end;
            assert!(
                matches!(end, Some(EndReason::TerminateReceived { .. })),
                "round {round}: {end:?}"
            );
        }
    }
}

#[test]
fn a_read_is_answered_with_what_was_there_before_the_atomic_behind_it() {
    let Asked {
        mut client,
        mut server,
        pool,
        sink,
        source: (memory, region),
        ..
    } = asked(false);
    let original = client.source(8);
    let (to, rkey) = (region.to_base(), region.stag().0);
    let add = SendWr::fetch_add(2, &original, RemoteBuffer::at(to, rkey), 77);
    client.conn.post_send(&add).unwrap();
    server.deliver(&client.bytes(), &pool);
    client.deliver(&server.bytes(), &pool);
    assert_eq!(
        client.numbers(),
        [(1, Status::Success), (2, Status::Success)]
    );
    assert_eq!(content(&sink), pattern());
    assert_ne!(content(&memory), pattern(), "the atomic changed the word");
}

/// Each FPDU has two parts, and a call of the LLP takes a limited number of parts. Lent parts
/// beyond this number would be copied.
#[test]
fn all_that_is_lent_is_offered_in_one_call() {
    let mut asked = asked(false);
    asked.server.conn.set_emss(8948);
    // Several Reads are outstanding, so that batches are long.
    (0..3).for_each(|_| asked.read());
    let mut most = 0;
    for _ in 0..16 {
        asked.server.conn.fill();
        let framed = asked.server.conn.tx.framed_to();
        let bytes = one_call(&mut asked.server, usize::MAX);
        assert_eq!(asked.server.conn.tx.taken_to(), framed);
        most = most.max(bytes.len());
        asked.client.deliver(&bytes, &asked.pool);
        let answered = asked.client.completions().len();
        (0..answered).for_each(|_| asked.read());
    }
    assert!(most > 250_000, "{most}");
    assert_eq!(content(&asked.sink), pattern());
}

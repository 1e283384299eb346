//! Receives that messages take from the connection's own queue and from an SRQ.

use std::sync::Weak;
use std::time::Duration;

use super::*;
use crate::connection::ReceiveWaiter;
use crate::event::{AsyncEvent, ConnectionEvent};

/// Returns a client, and a server that takes its receives from an SRQ.
fn pair() -> (End, End, BufferPool, Arc<SrqInner>) {
    let memory = Memory::new();
    let settings = Settings {
        crc: false,
        ..Settings::default()
    };
    let (client, mut server, pool) = connected(&settings, &memory);
    let srq = server.share(8);
    (client, server, pool, srq)
}

impl End {
    /// Delivers bytes one by one until the current message has taken its receive. Returns the
    /// remaining bytes.
    fn deliver_until_taken<'a>(&mut self, bytes: &'a [u8], pool: &BufferPool) -> &'a [u8] {
        let begun = bytes.iter().position(|byte| {
            self.deliver(&[*byte], pool);
            self.conn.rq.taken().is_some()
        });
        &bytes[begun.expect("a message of several segments") + 1..]
    }
}

/// Returns the FPDUs of a Send of 256 bytes in several segments.
fn segmented(client: &mut End) -> Vec<u8> {
    client.conn.set_emss(100);
    let sges = client.source(256);
    client.conn.post_send(&SendWr::send(1, &sges)).unwrap();
    client.bytes()
}

#[test]
fn a_message_takes_its_receive_from_the_srq_with_its_first_segment() {
    let (mut client, mut server, pool, srq) = pair();
    for wr_id in 0..2 {
        let sges = server.memory.receive(0);
        srq.post(&[RecvWr::new(wr_id, &sges)]).unwrap();
    }
    let bytes = segmented(&mut client);
    let rest = server.deliver_until_taken(&bytes, &pool);
    assert_eq!(
        server.conn.rq.taken().map(|wqe| wqe.wr_id),
        Some(0),
        "the first of several segments"
    );
    server.deliver(rest, &pool);
    assert_eq!(server.numbers(), [(0, Status::Success)]);
    assert!(!srq.is_empty());
}

#[test]
fn a_flush_returns_the_receive_that_was_taken_and_leaves_the_rest_in_the_srq() {
    let (mut client, mut server, pool, srq) = pair();
    let sges = server.memory.receive(0);
    srq.post(&[RecvWr::new(0, &sges), RecvWr::new(1, &sges)])
        .unwrap();
    let bytes = segmented(&mut client);
    assert!(!server.deliver_until_taken(&bytes, &pool).is_empty());
    server.conn.events.clear();
    server.conn.abort();
    assert_eq!(server.numbers(), [(0, Status::WrFlush)]);
    assert_eq!(srq.next_len(), Some(256));
    assert!(
        matches!(
            server.conn.events[..],
            [
                ConnectionEvent::Async(AsyncEvent::Ended { .. }),
                ConnectionEvent::Async(AsyncEvent::LastWqeReached { qp_num: 2 })
            ]
        ),
        "{:?}",
        server.conn.events
    );
    // The event is raised only once, whatever happens to the QP later.
    server.conn.abort();
    assert_eq!(server.conn.events.len(), 2);
}

#[test]
fn a_segment_that_is_refused_for_its_headers_takes_no_receive() {
    let (mut client, mut server, pool, srq) = pair();
    srq.post(&[RecvWr::new(0, &[])]).unwrap();
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    let mut bytes = client.bytes();
    // Changes the lowest byte of the MSN. Before it are the length (2 bytes), the DDP and RDMAP
    // control fields (2), the STag to invalidate (4), the QN (4) and the rest of the MSN (3).
    bytes[2 + 2 + 4 + 4 + 3] = 7;
    server.deliver(&bytes, &pool);
    assert_eq!(server.conn.state, QpState::Terminate);
    assert_eq!(server.numbers(), []);
    assert!(!srq.is_empty());
}

#[test]
fn a_receive_queue_of_its_own_is_as_deep_as_said_until_a_completion_was_polled() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    server.post_receives(1);
    for wr_id in 1..64 {
        server.conn.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
    let full = |server: &mut End| {
        let error = server.conn.post_recv(&RecvWr::new(99, &[])).unwrap_err();
        matches!(error, PostErrorKind::RecvQueueFull { depth: 64 })
    };
    assert!(full(&mut server));
    let bytes = segmented(&mut client);
    let rest = server.deliver_until_taken(&bytes, &pool);
    assert!(full(&mut server));
    server.deliver(rest, &pool);
    assert!(full(&mut server));
    assert_eq!(server.numbers(), [(0, Status::Success)]);
    server.conn.post_recv(&RecvWr::new(99, &[])).unwrap();
    assert!(full(&mut server));
    assert!(memory.canaries_are_alive());
}

/// A waiter that counts its notifications.
#[derive(Default)]
struct Counter(std::sync::atomic::AtomicU32);

impl ReceiveWaiter for Counter {
    fn receive_posted(&self) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Two connections wait for one receive, and the notified one does not get it.
#[test]
fn who_was_told_of_a_receive_and_found_it_gone_is_told_of_the_next() {
    let memory = Memory::new();
    let settings = Settings {
        crc: false,
        on_no_receive: OnNoReceive::Hold(Duration::from_secs(60)),
        ..Settings::default()
    };
    let (mut client, mut server, pool) = connected(&settings, &memory);
    let srq = server.share(8);
    let counter = Arc::new(Counter::default());
    let waiter: Weak<Counter> = Arc::downgrade(&counter);
    server.conn.rq.set_waiter(waiter);
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    let bytes = client.bytes();
    server.deliver(&bytes, &pool);
    assert!(server.conn.is_starving());
    let notified = || counter.0.load(std::sync::atomic::Ordering::Relaxed);
    for round in 1..=3 {
        srq.post(&[RecvWr::new(round, &[])]).unwrap();
        assert_eq!(u64::from(notified()), round);
        assert!(
            srq.take(None, None).wqe.is_some(),
            "another connection is faster"
        );
        server.conn.rq.mark_notified();
        server.conn.receive(&mut server.rx);
        assert!(server.conn.is_starving());
        // An additional call changes nothing.
        server.conn.receive(&mut server.rx);
    }
    srq.post(&[RecvWr::new(9, &[])]).unwrap();
    assert_eq!(notified(), 4);
    server.conn.rq.mark_notified();
    server.conn.receive(&mut server.rx);
    assert_eq!(server.numbers(), [(9, Status::Success)]);
}

//! Which receive a message takes, when, and what becomes of it: of the connection's own queue, and of an SRQ.

use super::*;
use crate::event::AsyncEvent;

/// A client, and a server that takes its receives from an SRQ.
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
    /// Takes octets until the message under way has its receive; gives those that are left.
    fn deliver_until_taken<'a>(&mut self, octets: &'a [u8], pool: &BufferPool) -> &'a [u8] {
        let begun = octets.iter().position(|octet| {
            self.deliver(&[*octet], pool);
            self.conn.rq.taken().is_some()
        });
        &octets[begun.expect("a message of several segments") + 1..]
    }
}

/// The octets of a Send of 256 octets in several segments.
fn segmented(client: &mut End) -> Vec<u8> {
    client.conn.set_emss(100);
    let sges = client.source(256);
    client.conn.post_send(&SendWr::send(1, &sges)).unwrap();
    client.octets()
}

#[test]
fn a_message_takes_its_receive_from_the_srq_with_its_first_segment() {
    let (mut client, mut server, pool, srq) = pair();
    for wr_id in 0..2 {
        let sges = server.memory.receive(0);
        srq.post(&[RecvWr::new(wr_id, &sges)]).unwrap();
    }
    let octets = segmented(&mut client);
    let rest = server.deliver_until_taken(&octets, &pool);
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
    let octets = segmented(&mut client);
    assert!(!server.deliver_until_taken(&octets, &pool).is_empty());
    server.conn.events.clear();
    server.conn.abort();
    assert_eq!(server.numbers(), [(0, Status::WrFlush)]);
    assert_eq!(srq.next_len(), Some(256));
    assert!(
        matches!(
            server.conn.events[..],
            [
                AsyncEvent::Ended { .. },
                AsyncEvent::LastWqeReached { qp_num: 2 }
            ]
        ),
        "{:?}",
        server.conn.events
    );
    // Once, whatever happens to it then.
    server.conn.abort();
    assert_eq!(server.conn.events.len(), 2);
}

#[test]
fn a_segment_that_is_refused_for_its_headers_takes_no_receive() {
    let (mut client, mut server, pool, srq) = pair();
    srq.post(&[RecvWr::new(0, &[])]).unwrap();
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    let mut octets = client.octets();
    // Length 2, DDP and RDMAP control 2, invalidate STag 4, QN 4, MSN 4.
    octets[2 + 2 + 4 + 4 + 3] = 7;
    server.deliver(&octets, &pool);
    assert_eq!(server.conn.state, QpState::Terminate);
    assert_eq!(server.numbers(), []);
    assert!(!srq.is_empty());
}

#[test]
fn a_receive_queue_of_its_own_is_as_deep_as_said_also_while_a_message_is_under_way() {
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
    let octets = segmented(&mut client);
    let rest = server.deliver_until_taken(&octets, &pool);
    assert!(full(&mut server));
    server.deliver(rest, &pool);
    server.conn.post_recv(&RecvWr::new(99, &[])).unwrap();
    assert!(full(&mut server));
    assert!(memory.canaries_are_alive());
}

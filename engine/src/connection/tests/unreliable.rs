//! Messages of an unreliable QP that find no receive: they are dropped, and use their MSN.

use std::time::Duration;

use super::*;
use crate::completion::WcOpcode;
use crate::connection::Pair;
use crate::mem::RemoteBuffer;
use crate::settings::OnNoReceive;

/// Returns a client and a server that are unreliable.
fn pair(settings: &Settings) -> (End, End, BufferPool) {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(settings, &memory);
    for end in [&mut client, &mut server] {
        make_unreliable(end);
    }
    (client, server, pool)
}

fn make_unreliable(end: &mut End) {
    let ctx = Arc::get_mut(&mut end.conn.ctx).expect("the only reference");
    ctx.unreliable = true;
    // It has no effect: nothing waits.
    ctx.on_no_receive = OnNoReceive::Hold(Duration::from_secs(60));
}

/// Posts a Send of `len` bytes.
fn send(client: &mut End, wr_id: u64, len: u32) {
    let sges = client.source(len);
    client.conn.post_send(&SendWr::send(wr_id, &sges)).unwrap();
}

#[test]
fn a_send_without_a_receive_is_dropped_and_the_next_one_with_a_receive_arrives() {
    for markers in [false, true] {
        let settings = Settings {
            markers,
            ..Settings::default()
        };
        let (mut client, mut server, pool) = pair(&settings);
        // Sends of one segment and of several, before and after a receive.
        for (wr_id, len) in [(1, 8), (2, 4000), (3, 0)] {
            send(&mut client, wr_id, len);
            pump(&mut client, &mut server, &pool);
            assert_eq!(client.numbers(), [(wr_id, Status::Success)]);
            assert_eq!(server.numbers(), []);
            server.post_receives(1);
            send(&mut client, wr_id, 200);
            pump(&mut client, &mut server, &pool);
            assert_eq!(client.numbers(), [(wr_id, Status::Success)]);
            assert_eq!(server.numbers(), [(0, Status::Success)]);
        }
        assert_eq!(server.conn.state, QpState::Rts);
        assert!(!server.conn.is_starving() && server.conn.wants_bytes());
    }
}

#[test]
fn a_receive_that_is_posted_in_the_middle_of_a_dropped_send_is_for_the_next_one() {
    let (mut client, mut server, pool) = pair(&Settings::default());
    send(&mut client, 1, 4000);
    send(&mut client, 2, 7);
    let bytes = client.bytes();
    let (first, rest) = bytes.split_at(2000);
    server.deliver(first, &pool);
    server.post_receives(1);
    server.deliver(rest, &pool);
    let done = server.completions();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].status, done[0].byte_len), (Status::Success, 7));
}

#[test]
fn an_empty_shared_queue_drops_and_nobody_waits_for_it() {
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    let srq = server.share(4);
    make_unreliable(&mut server);
    send(&mut client, 1, 8);
    pump(&mut client, &mut server, &pool);
    let sges = memory.receive(0);
    srq.post(&[RecvWr::new(9, &sges)]).unwrap();
    assert!(!server.conn.is_starving());
    assert_eq!(server.numbers(), []);
    send(&mut client, 2, 8);
    pump(&mut client, &mut server, &pool);
    assert_eq!(server.numbers(), [(9, Status::Success)]);
}

#[test]
fn a_write_whose_immediate_data_finds_no_receive_is_placed() {
    let (mut client, mut server, pool) = pair(&Settings::default());
    let memory = Arc::clone(&server.memory);
    let open = memory.open.to_base();
    let remote = RemoteBuffer::at(open + 64, memory.open.stag().0);
    let write = |wr_id| SendWr::write_with_immediate_inline(wr_id, b"placed", remote, [7; 8]);
    client.conn.post_send(&write(1)).unwrap();
    pump(&mut client, &mut server, &pool);
    let mut placed = [0; 6];
    memory.buffer.read_at(OPEN + 64, &mut placed).unwrap();
    assert_eq!(&placed, b"placed");
    assert_eq!(server.numbers(), []);
    server.post_receives(1);
    client.conn.post_send(&write(2)).unwrap();
    pump(&mut client, &mut server, &pool);
    let done = server.completions();
    assert_eq!(done.len(), 1);
    assert_eq!(
        (done[0].opcode, done[0].immediate),
        (WcOpcode::RecvImmediate, Some([7; 8]))
    );
}

#[test]
fn a_dropped_send_with_invalidate_invalidates_nothing() {
    let (mut client, mut server, pool) = pair(&Settings::default());
    let stag = server.memory.open.stag().0;
    let wr = SendWr::send_inline(1, b"unseen").invalidate(stag);
    client.conn.post_send(&wr).unwrap();
    pump(&mut client, &mut server, &pool);
    let remote = RemoteBuffer::at(server.memory.open.to_base(), stag);
    let write = SendWr::write_inline(2, b"as before", remote);
    client.conn.post_send(&write).unwrap();
    pump(&mut client, &mut server, &pool);
    assert_eq!(server.conn.state, QpState::Rts);
    assert_eq!(
        client.numbers(),
        [(1, Status::Success), (2, Status::Success)]
    );
}

#[test]
fn reads_and_atomic_operations_are_refused_when_they_are_posted() {
    let (mut client, server, _pool) = pair(&Settings::default());
    let remote = RemoteBuffer::at(server.memory.open.to_base(), server.memory.open.stag().0);
    let sges = client.source(8);
    for wr in [
        SendWr::read(1, &sges, remote),
        SendWr::fetch_add(2, &sges, remote, 1),
        SendWr::compare_swap(3, &sges, remote, 1, 2),
    ] {
        assert_eq!(client.conn.post_send(&wr), Err(PostErrorKind::Unreliable));
        assert_eq!(
            client.conn.check_send(&wr, 0),
            Err(PostErrorKind::Unreliable)
        );
    }
    send(&mut client, 4, 8);
    assert_eq!(
        client.conn.sq.posted_to() - client.conn.sq.completed_to(),
        1
    );
}

#[test]
fn what_is_posted_to_a_stream_that_ends_unused_waits_no_longer_than_what_came_before_it() {
    let settings = Settings::default();
    let mut server = End::new(&Memory::new(), &settings);
    make_unreliable(&mut server);
    let (begin, patience) = (server.conn.now, Duration::from_secs(5));
    let pair = Pair::new(false, Some(patience), begin);
    assert!(server.conn.begin_pair(pair));
    send(&mut server, 1, 8);
    server.conn.set_now(begin + patience);
    assert!(!server.conn.give_up_pair());
    assert_eq!(server.numbers(), [(1, Status::Success)]);
    // The peer calls at last, and is killed before its first message.
    let mut client = End::new(&Memory::new(), &settings);
    let config = initiator_config(&settings);
    assert!(client.conn.start_initiator(config, true).unwrap());
    client.conn.tcp_connected();
    accept_by(&mut server, &settings, &client.bytes());
    send(&mut server, 2, 8);
    assert_eq!(server.numbers(), []);
    let addr = "127.0.0.1:9".parse().unwrap();
    server.conn.lost(LlpError::Reset { addr });
    assert_eq!(server.numbers(), [(2, Status::Success)]);
    assert_eq!(server.conn.state, QpState::Connecting);
}

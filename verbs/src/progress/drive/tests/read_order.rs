//! Order of sending and receiving for Reads that are posted while Responses arrive.

use super::line::over_line;
use super::*;
use crate::progress::drive::Driven;
use uwarp_engine::mem::RemoteBuffer;

#[test]
fn requests_that_were_staged_leave_before_responses_are_received() {
    let settings = Settings::default();
    let server = Memory::new();
    let (client, _server, pool) = connected(&settings, &server);
    let (memory, now) = (Arc::clone(&client.memory), client.conn.now);
    let (mut driven, line) = over_line(client, usize::MAX);
    let (open, rkey) = (server.open.to_base(), server.open.stag().0);
    let stage = |driven: &mut Driven, wr_id| {
        let before = driven.conn.sq.posted();
        let sink = memory.receive(wr_id);
        let read = SendWr::read(wr_id, &sink, RemoteBuffer::at(open, rkey));
        driven.conn.post_send(&read).unwrap();
        driven.doorbell.posted(&driven.conn.sq, before, 1, u64::MAX);
    };
    stage(&mut driven, 0);
    driven.turn(&pool, now);
    let before = line.lock().calls.len();
    assert!(before > 0, "the first request was sent");

    // The beginning of the first Read's Response has arrived, and another Read is staged.
    line.lock().arrived.extend([0, 20, 0xC0]);
    stage(&mut driven, 1);
    driven.turn(&pool, now);
    let line = line.lock();
    assert_eq!(line.calls.len(), before + 1);
    assert_eq!(
        line.unread.last(),
        Some(&3),
        "nothing was received before it"
    );
    assert!(line.arrived.is_empty(), "everything was received after it");
}

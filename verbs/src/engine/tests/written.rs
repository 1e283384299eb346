//! Events of Writes (`Settings::event_on_write`): not while something is outstanding that has an event of its own.

use super::*;
use crate::completion::{CompletionChannel, Notify};

#[test]
fn a_write_is_no_event_while_a_request_is_outstanding_that_will_complete() {
    let memory = Memory::new();
    let settings = Settings {
        event_on_write: true,
        ..Settings::default()
    };
    let (mut client, mut server, pool) = connected(&settings, &memory);
    let channel = CompletionChannel::new().unwrap();
    let cq = CqInner::new(1, 0, 16, Some(channel.clone())).unwrap();
    let ctx = Arc::get_mut(&mut server.conn.ctx).unwrap();
    (ctx.send_cq, ctx.recv_cq) = (Arc::clone(&cq), Arc::clone(&cq));
    let (open, rkey) = (memory.open.to_base(), memory.open.stag().0);
    let mut write = |server: &mut End| {
        let wr = SendWr::write_inline(1, b"leave", open, rkey);
        client.conn.post_send(&wr).unwrap();
        server.deliver(&client.octets(), &pool);
    };
    cq.arm(Notify::Any);
    write(&mut server);
    assert_eq!(channel.waiting(), 1);
    drop(channel.get_event(None).unwrap());

    let sges = server.source(8);
    let there = Memory::new();
    let (addr, stag) = (there.open.to_base(), there.open.stag().0);
    server
        .conn
        .post_send(&SendWr::read(2, &sges, addr, stag))
        .unwrap();
    assert!(!server.octets().is_empty());
    cq.arm(Notify::Any);
    write(&mut server);
    assert_eq!(
        channel.waiting(),
        0,
        "the Read has an event when it is done"
    );
}

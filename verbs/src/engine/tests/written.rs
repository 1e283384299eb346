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
    write(&mut server);
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

/// It makes no completion that would be the event.
#[test]
fn a_write_beside_an_unsignaled_send_is_an_event_when_the_send_is_taken() {
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
    assert_eq!(channel.waiting(), 0, "it has posted nothing");

    let send = SendWr::send_inline(2, b"unsignaled").unsignaled();
    server.conn.post_send(&send).unwrap();
    write(&mut server);
    assert_eq!(channel.waiting(), 0);
    assert!(!server.octets().is_empty());
    assert_eq!((channel.waiting(), server.conn.sq.is_empty()), (1, true));
    drop(channel.get_event(None).unwrap());

    cq.arm(Notify::Any);
    write(&mut server);
    assert_eq!(channel.waiting(), 1);
}

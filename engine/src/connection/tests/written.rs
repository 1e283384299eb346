//! Tests of events for Writes (`Settings::event_on_write`). While a request is outstanding, no
//! event is raised for a Write, because the completion of the request may raise one.

use super::*;
use crate::completion::CompletionQueue;
use crate::mem::RemoteBuffer;

/// A client and a server. The server has events for Writes.
struct Watched {
    client: End,
    server: End,
    pool: BufferPool,
    cq: Arc<Ring>,
}

fn watched() -> Watched {
    let settings = Settings {
        event_on_write: true,
        ..Settings::default()
    };
    let (client, mut server, pool) = connected(&settings, &Memory::new());
    let cq = Ring::new(1, 16);
    let ctx = Arc::get_mut(&mut server.conn.ctx).unwrap();
    ctx.send_cq = cq.attach(Arc::clone(ctx.send_cq.freed()));
    ctx.recv_cq = cq.attach(Arc::clone(ctx.recv_cq.freed()));
    Watched {
        client,
        server,
        pool,
        cq,
    }
}

impl Watched {
    /// Lets the client write to the server.
    fn write(&mut self) {
        let open = &self.server.memory.open;
        let wr = SendWr::write_inline(1, b"leave", RemoteBuffer::at(open.to_base(), open.stag().0));
        self.client.conn.post_send(&wr).unwrap();
        self.server.deliver(&self.client.bytes(), &self.pool);
    }

    /// Takes the bytes that the server has to send. Returns true if there were any.
    fn take_due(&mut self) -> bool {
        !self.server.bytes().is_empty()
    }

    fn post(&mut self, wr: &SendWr<'_>) {
        self.server.conn.post_send(wr).unwrap();
    }
}

#[test]
fn a_write_is_no_event_while_a_request_is_outstanding_that_will_complete() {
    let mut watched = watched();
    // The client sends first.
    watched.write();
    let (sges, there) = (watched.server.source(8), Memory::new());
    let (addr, stag) = (there.open.to_base(), there.open.stag().0);
    watched.post(&SendWr::read(2, &sges, RemoteBuffer::at(addr, stag)));
    assert!(watched.take_due());
    watched.cq.arm();
    watched.write();
    let why = "the Read has an event when it is done";
    assert_eq!(watched.cq.take_events(), 0, "{why}");
}

/// The unsignaled Send makes no completion, and so raises no event.
#[test]
fn a_write_beside_an_unsignaled_send_is_an_event_when_the_send_is_taken() {
    let mut watched = watched();
    watched.cq.arm();
    watched.write();
    assert_eq!(watched.cq.take_events(), 0, "the server has posted nothing");

    watched.post(&SendWr::send_inline(2, b"unsignaled").unsignaled());
    watched.write();
    assert_eq!(watched.cq.take_events(), 0);
    assert!(watched.take_due());
    let is_done = watched.server.conn.sq.is_empty();
    assert_eq!((watched.cq.take_events(), is_done), (1, true));

    watched.cq.arm();
    watched.write();
    assert_eq!(watched.cq.take_events(), 1);
}

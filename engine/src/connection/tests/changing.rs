//! Tests with a program that changes the payload of a request after it is framed and before TCP
//! takes it.

use super::in_place::{LEN, content, one_call, pattern, region};
use super::*;
use crate::cause::Who;
use crate::mem::RemoteBuffer;

/// Kind of a message of 100,000 bytes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    WriteWithImmediate,
    Send,
    /// A Write of three elements.
    List,
}

const KINDS: [Kind; 4] = [
    Kind::Write,
    Kind::WriteWithImmediate,
    Kind::Send,
    Kind::List,
];

/// Content of the memory after the program has changed it.
static CHANGED: [u8; LEN] = [0xEE; LEN];

/// Sends a message whose memory has the right content while it is framed, and other content during
/// each call of the LLP.
///
/// The LLP takes `most` bytes per call. Returns `Err` if the connection ended before the whole
/// message was framed.
fn sent(settings: &Settings, kind: Kind, most: usize) -> Result<Sent, Box<(End, End)>> {
    let (mut client, mut server, pool) = connected(settings, &Memory::new());
    client.conn.set_emss(65_483);
    // A responder may send a Terminate only after it has validated an FPDU, so the client sends an
    // FPDU first.
    let first = SendWr::write(0, &[], RemoteBuffer::at(0, 0));
    client.conn.post_send(&first.unsignaled()).unwrap();
    server.deliver(&client.bytes(), &pool);
    let (source, from) = region(&client.memory, |_| 0);
    let target = Arc::new(Buffer::zeroed(LEN).unwrap());
    let spec = RegionSpec {
        memory: Backing::buffer(Arc::clone(&target)),
        to_base: Some(0),
        pd: 1,
        qp: None,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
    };
    let into = server.memory.table.insert(spec).unwrap();
    let sge = |region: &Region, addr, len| Sge {
        addr,
        len,
        lkey: region.stag().0,
    };
    let receive = [sge(&into, 0, LEN as u32)];
    server.conn.post_recv(&RecvWr::new(7, &receive)).unwrap();
    let whole = [sge(&from, 0, LEN as u32)];
    let parts = [(0, 9_000), (9_000, 40_000), (49_000, 51_000)];
    let parts = parts.map(|(addr, len)| sge(&from, addr, len));
    let remote = RemoteBuffer::at(0, into.stag().0);
    client
        .conn
        .post_send(&match kind {
            Kind::Write => SendWr::write(1, &whole, remote),
            Kind::WriteWithImmediate => SendWr::write(1, &whole, remote).with_immediate([3; 8]),
            Kind::Send => SendWr::send(1, &whole),
            Kind::List => SendWr::write(1, &parts, remote),
        })
        .unwrap();
    loop {
        source.write_at(0, &pattern()).unwrap();
        client.conn.fill();
        if client.conn.tx.is_empty() {
            break;
        }
        source.write_at(0, &CHANGED).unwrap();
        while !client.conn.tx.is_empty() {
            let bytes = one_call(&mut client, most);
            server.deliver(&bytes, &pool);
        }
        if server.conn.state != QpState::Rts {
            let terminate = server.bytes();
            client.deliver(&terminate, &pool);
            return Err(Box::new((client, server)));
        }
    }
    Ok(Sent { client, target })
}

struct Sent {
    client: End,
    target: Arc<Buffer>,
}

#[test]
fn with_a_crc_memory_that_changes_while_it_is_sent_leaves_as_it_was_framed() {
    for markers in [false, true] {
        let settings = Settings {
            markers,
            ..Settings::default()
        };
        for kind in KINDS {
            for most in [30_000, usize::MAX] {
                let what = format!("{kind:?}, Markers {markers}, {most} bytes a call");
                let Ok(sent) = sent(&settings, kind, most) else {
                    panic!("the connection ended: {what}");
                };
                assert_eq!(sent.client.numbers(), [(1, Status::Success)], "{what}");
                assert!(content(&sent.target) == pattern(), "{what}");
            }
        }
    }
}

#[test]
fn without_a_crc_memory_that_changes_while_it_is_sent_arrives_torn_and_the_connection_stands() {
    let settings = Settings {
        crc: false,
        ..Settings::default()
    };
    for kind in KINDS {
        let Ok(sent) = sent(&settings, kind, usize::MAX) else {
            panic!("the connection ended: {kind:?}");
        };
        assert!(content(&sent.target) == CHANGED, "{kind:?}: it was copied");
    }
}

#[test]
fn with_send_in_place_a_wrong_crc_is_blamed_on_the_program_that_changed_its_memory() {
    let settings = Settings {
        send_in_place: true,
        ..Settings::default()
    };
    for kind in KINDS {
        let Err(ends) = sent(&settings, kind, usize::MAX) else {
            panic!("it was copied: {kind:?}");
        };
        let (client, server) = *ends;
        let cause = |end: &End| end.conn.end.as_ref().unwrap().cause();
        assert_eq!(
            [cause(&client).who(), cause(&server).who()],
            [Who::Program, Who::Peer]
        );
        let words = cause(&client).to_string();
        let begin = "leave the memory of a Send or Write unchanged until the request is complete";
        let hint = cause(&client).hint().unwrap();
        assert!(hint.starts_with(begin), "{words}; {hint}");
        let hint = cause(&server).hint().unwrap();
        assert!(
            hint.starts_with("check first whether the peer's program writes to memory"),
            "{hint}"
        );
    }
}

#[test]
fn memory_that_was_framed_can_be_deregistered_before_it_has_left_unless_it_is_sent_in_place() {
    for (crc, send_in_place, busy) in [
        (true, false, false),
        (true, true, true),
        (false, false, true),
    ] {
        let settings = Settings {
            crc,
            send_in_place,
            ..Settings::default()
        };
        let server = Memory::new();
        let (mut client, _server, _pool) = connected(&settings, &server);
        client.conn.set_emss(65_483);
        let (_source, from) = region(&client.memory, |_| 0);
        let sges = [Sge {
            addr: 0,
            len: 50_000,
            lkey: from.stag().0,
        }];
        let write = SendWr::write(1, &sges, RemoteBuffer::at(0, server.open.stag().0));
        client.conn.post_send(&write).unwrap();
        client.conn.fill();
        assert!(
            client.conn.tx.left() > 50_000,
            "the whole request is framed"
        );
        let removed = client.memory.table.remove(from.stag());
        assert_eq!(removed.is_err(), busy, "crc {crc}, {removed:?}");
    }
}

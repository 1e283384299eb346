//! Send with Invalidate, with STags that a peer may and may not invalidate (RFC 5040 section 5.3).

use uwarp_verbs::Status;

use crate::memory::Place;
use crate::scene::{FIRST_RECV, NONSENSE, RECV_AT, RECV_LEN, ROLES, Scene};
use crate::wire::{
    Code, READ_REQUEST, ReadHeader, SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE, Tagged, Untagged,
    WRITE,
};

/// Checks in both roles and with both opcodes that the Send is refused, and that its receive
/// completes with the error.
fn refuses_to_invalidate(stag: impl Fn(&Scene) -> u32) {
    for role in ROLES {
        for opcode in [SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE] {
            let s = Scene::new(role);
            let send = Untagged {
                opcode,
                word: stag(&s),
                ..s.next_send(b"")
            }
            .bytes();
            let blamed = Some((FIRST_RECV, Status::RemoteInvalidRequest));
            s.refuses(&send, Code::rdmap(1, 0x09), "cannot be invalidated", blamed);
        }
    }
}

/// 5040-7.2-04, 5040-5.3-12.
#[test]
fn of_an_stag_that_was_never_given_out() {
    refuses_to_invalidate(|_| NONSENSE);
}

/// 5040-7.2-04.
#[test]
fn of_another_key_part_of_the_stag() {
    refuses_to_invalidate(|s| s.own.rkey() ^ 2);
}

/// 5040-8.1.1-04: other streams may use the STag as well.
#[test]
pub(crate) fn of_an_stag_that_streams_share() {
    refuses_to_invalidate(|s| s.memory.writable.rkey());
}

/// 5040-5.3-12.
#[test]
fn of_an_stag_of_another_protection_domain() {
    refuses_to_invalidate(|s| s.memory.foreign.rkey());
}

/// 5040-5.3-10, 5040-5.3-12.
#[test]
fn of_an_stag_of_another_stream() {
    refuses_to_invalidate(|s| s.theirs.rkey());
}

/// The peer sends a Send with Invalidate for a valid STag. The Send completes a receive.
fn invalidates(s: &mut Scene) {
    let stag = s.own.rkey();
    let before = Tagged::new(WRITE, stag, s.own.addr(), &uwarp_testkit::filler(3, 8));
    let send = Untagged {
        opcode: SEND_INVALIDATE,
        word: stag,
        ..s.next_send(b"take it back")
    };
    s.peer.send_ulpdus(&[before.bytes(), send.bytes()]);
    let done = s.victim.receives(12);
    assert_eq!(done.invalidated, Some(stag));
    s.memory
        .expect(Place::Local, RECV_AT + RECV_LEN, b"take it back");
    s.msn += 1;
}

/// 5040-5.3-11: a later Write fails.
#[test]
fn of_an_stag_of_this_stream_ends_writes() {
    for role in ROLES {
        let mut s = Scene::new(role);
        invalidates(&mut s);
        let write = Tagged::new(WRITE, s.own.rkey(), s.own.addr(), b"no more").bytes();
        s.refuses(&write, Code::ddp(1, 0x00), "invalid STag", None);
    }
}

/// 5040-5.3-11: a later Read fails.
#[test]
fn of_an_stag_of_this_stream_ends_reads() {
    for role in ROLES {
        let mut s = Scene::new(role);
        invalidates(&mut s);
        let header = ReadHeader {
            source_stag: s.own.rkey(),
            source_to: s.own.addr(),
            ..s.read()
        };
        let read = Untagged::new(READ_REQUEST, 1, 1, &header.bytes()).bytes();
        s.refuses(&read, Code::rdmap(1, 0x00), "invalid STag", None);
    }
}

/// 5040-7.2-04: an invalid STag cannot be invalidated again.
#[test]
fn of_the_same_stag_twice() {
    for role in ROLES {
        let mut s = Scene::new(role);
        invalidates(&mut s);
        let send = Untagged {
            opcode: SEND_INVALIDATE,
            word: s.own.rkey(),
            ..s.next_send(b"")
        }
        .bytes();
        let blamed = Some((FIRST_RECV + 1, Status::RemoteInvalidRequest));
        s.refuses(&send, Code::rdmap(1, 0x09), "cannot be invalidated", blamed);
    }
}

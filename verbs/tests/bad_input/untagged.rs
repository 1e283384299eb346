//! Sends for which there is no fitting buffer (RFC 5041 section 7, errors of type 2).

use uwarp_verbs::Status;

use crate::memory::Place;
use crate::scene::{
    FIRST_RECV, RECV_AT, RECV_LEN, ROLES, SECOND_RECV, Scene, Setup, refuses, refuses_blaming,
};
use crate::wire::{Code, SEND, SEND_INVALIDATE, Untagged};

const BAD_QN: Code = Code::ddp(2, 0x01);
const NO_BUFFER: Code = Code::ddp(2, 0x02);
const MSN_RANGE: Code = Code::ddp(2, 0x03);
const BAD_MO: Code = Code::ddp(2, 0x04);
const TOO_LONG: Code = Code::ddp(2, 0x05);
const VERSION: Code = Code::ddp(2, 0x06);

/// Offset of the receive that the next Send of a new scene consumes.
const FIRST_AT: usize = RECV_AT + RECV_LEN;

/// 5041-7.1-01; the error is reported (5041-7.1-16).
#[test]
fn send_on_a_queue_that_does_not_exist() {
    for qn in [3, 4, 0x100, u32::MAX] {
        let bad = |s: &mut Scene| {
            Untagged {
                qn,
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, BAD_QN, "Queue Number");
    }
}

/// 5041-7.1-01: queues 1 and 2 exist, but not for Sends.
#[test]
fn send_on_the_queue_of_another_message() {
    for qn in [1, 2] {
        let bad = |s: &mut Scene| {
            Untagged {
                qn,
                msn: 1,
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, BAD_QN, "Queue Number");
    }
}

/// 5041-7.1-02, 5041-7.1-09; 5040-5.3-08: an empty Send needs a receive as well.
#[test]
pub(crate) fn send_without_a_receive() {
    for role in ROLES {
        for payload in [&b"octets"[..], b""] {
            let mut setup = Setup::new(role);
            setup.receives = false;
            let s = Scene::with(&setup);
            let send = s.next_send(payload).bytes();
            s.refuses(&send, NO_BUFFER, "no receive is posted", None);
        }
    }
}

/// 5041-7.1-02: all receives have been consumed.
#[test]
fn one_send_more_than_receives() {
    for role in ROLES {
        let mut s = Scene::new(role);
        s.delivers(b"into the first");
        s.delivers(b"into the second");
        let send = s.next_send(b"too many").bytes();
        s.refuses(&send, NO_BUFFER, "no receive is posted", None);
    }
}

/// 5041-7.1-05: one message is skipped, one is far ahead, one is repeated (5041-5.3-03: it is not
/// delivered again), and one is before the first.
#[test]
fn send_with_an_msn_that_is_not_the_next() {
    for ahead in [1, 2, 1000, u32::MAX, u32::MAX - 1] {
        let bad = |s: &mut Scene| {
            Untagged {
                msn: s.msn.wrapping_add(ahead),
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, MSN_RANGE, "Message Sequence Number");
    }
}

/// 5041-7.1-03: the first segment of the message has an offset.
#[test]
fn send_with_a_message_offset_at_its_start() {
    for mo in [1, 4, RECV_LEN as u32, u32::MAX] {
        let bad = |s: &mut Scene| {
            Untagged {
                mo,
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, BAD_MO, "Message Offset");
    }
}

/// 5041-7.1-03: segments overlap, or have a gap between them.
#[test]
fn second_segment_of_a_send_at_the_wrong_offset() {
    for role in ROLES {
        for mo in [0, 4, 12] {
            let mut s = Scene::new(role);
            s.peer.send_ulpdus(&[Untagged {
                last: false,
                ..s.next_send(b"8 octets")
            }
            .bytes()]);
            s.memory.expect(Place::Local, FIRST_AT, b"8 octets");
            let second = Untagged {
                mo,
                ..s.next_send(b"and more")
            }
            .bytes();
            s.refuses(&second, BAD_MO, "Message Offset", None);
        }
    }
}

/// 5041-7.1-04, 5040-5.3-i01: the Send has one byte too many, or far too many.
#[test]
pub(crate) fn send_longer_than_its_receive() {
    for len in [RECV_LEN + 1, 3 * RECV_LEN, 1400] {
        let bad = |s: &mut Scene| s.next_send(&vec![0xEE; len]).bytes();
        refuses_blaming(
            bad,
            TOO_LONG,
            "the receive posted for it takes 64",
            Some((FIRST_RECV, Status::LocalLength)),
        );
    }
}

/// 5041-7.1-04, 5041-7.1-15: the segment that fits is placed, but the other segment is not.
#[test]
fn second_segment_of_a_send_beyond_the_end_of_its_receive() {
    for role in ROLES {
        let mut s = Scene::new(role);
        s.delivers(b"into the first");
        let first = [0xAA; RECV_LEN - 4];
        s.peer.send_ulpdus(&[Untagged {
            last: false,
            ..s.next_send(&first)
        }
        .bytes()]);
        s.memory.expect(Place::Local, FIRST_AT + RECV_LEN, &first);
        let second = Untagged {
            mo: RECV_LEN as u32 - 4,
            ..s.next_send(b"12345")
        }
        .bytes();
        let blamed = Some((SECOND_RECV, Status::LocalLength));
        s.refuses(
            &second,
            TOO_LONG,
            "the receive posted for it takes 64",
            blamed,
        );
    }
}

/// 5041-4.1-13, 5041-7.2-i02.
#[test]
fn untagged_segment_with_another_ddp_version() {
    for ddp_version in [0, 2, 3] {
        let bad = |s: &mut Scene| {
            Untagged {
                ddp_version,
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, VERSION, "DDP version");
    }
}

/// 5041-4.3-04, 5040-7.2-02: the Send continues as another kind of Send.
#[test]
fn send_whose_opcode_changes_on_the_way() {
    for role in ROLES {
        let mut s = Scene::new(role);
        s.peer.send_ulpdus(&[Untagged {
            last: false,
            ..s.next_send(b"8 octets")
        }
        .bytes()]);
        s.memory.expect(Place::Local, FIRST_AT, b"8 octets");
        let second = Untagged {
            opcode: SEND_INVALIDATE,
            word: s.own.rkey(),
            mo: 8,
            ..s.next_send(b"more")
        };
        s.refuses(&second.bytes(), Code::rdmap(2, 0x06), "continued as", None);
    }
}

/// 5040-5.3-08: an empty Send consumes a receive.
#[test]
fn send_without_payload_takes_a_receive() {
    for role in ROLES {
        let mut s = Scene::new(role);
        s.delivers(b"");
        s.delivers(b"into the second");
        let send = Untagged::new(SEND, 0, s.msn, b"").bytes();
        s.refuses(&send, NO_BUFFER, "no receive is posted", None);
    }
}

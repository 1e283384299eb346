//! Messages of RFC 7306, each invalid in one way.

use uwarp_verbs::{RemoteBuffer, SendWr, Status};

use crate::memory::Place;
use crate::peer::eventually;
use crate::scene::{
    FIRST_RECV, NONSENSE, ROLES, Role, SINK_AT, Scene, Sees, Setup, refuses, refuses_blaming,
};
use crate::wire::{
    ATOMIC_REQUEST, ATOMIC_RESPONSE, AtomicHeader, Code, IMMEDIATE, IMMEDIATE_SOLICITED, SEND,
    Untagged,
};

const BAD_QN: Code = Code::ddp(2, 0x01);
const NO_BUFFER: Code = Code::ddp(2, 0x02);
const MSN_RANGE: Code = Code::ddp(2, 0x03);
const BAD_MO: Code = Code::ddp(2, 0x04);
const TOO_LONG: Code = Code::ddp(2, 0x05);
const OPCODE: Code = Code::rdmap(2, 0x06);
const MISALIGNED: Code = Code::rdmap(2, 0x07);
const UNSPECIFIED: Code = Code::rdmap(2, 0xFF);
const LENGTH: Code = Code::mpa(0x03);

/// Work request id of our atomic in the tests of Responses.
const ATOMIC: u64 = 21;

/// Returns Immediate Data of the peer, which is correct except perhaps for its length.
fn immediate(s: &Scene, bytes: &[u8]) -> Untagged {
    Untagged::new(IMMEDIATE, 0, s.msn, bytes)
}

/// Returns the first address in the peer's region that is a multiple of 8.
fn aligned(s: &Scene) -> u64 {
    s.memory.writable.addr().next_multiple_of(8)
}

/// Returns the header of a correct FetchAdd.
fn add_one(s: &Scene) -> AtomicHeader {
    AtomicHeader {
        code: 0,
        id: 0x7E57,
        stag: s.memory.writable.rkey(),
        to: aligned(s),
        words: [1, 0, 0, u64::MAX],
    }
}

/// Returns the peer's first Atomic Request.
fn atomic(header: AtomicHeader) -> Untagged {
    Untagged::new(ATOMIC_REQUEST, 1, 1, &header.bytes())
}

/// 7306-6.3-07: no RFC defines an error code for such Immediate Data. The receive fails.
#[test]
fn immediate_data_of_another_length() {
    for opcode in [IMMEDIATE, IMMEDIATE_SOLICITED] {
        for len in [0, 1, 7, 9, 16, 300] {
            let bad = |s: &mut Scene| {
                Untagged {
                    opcode,
                    ..immediate(s, &vec![0xEE; len])
                }
                .bytes()
            };
            let blamed = Some((FIRST_RECV, Status::LocalLength));
            refuses_blaming(bad, UNSPECIFIED, "it has exactly 8", blamed);
        }
    }
}

#[test]
fn immediate_data_that_goes_on_in_another_segment() {
    for len in [4, 8] {
        let bad = |s: &mut Scene| {
            Untagged {
                last: false,
                ..immediate(s, &vec![0xEE; len])
            }
            .bytes()
        };
        refuses(bad, UNSPECIFIED, "Last flag");
    }
}

/// 7306-6.3-04, 7306-8.2-01.
#[test]
fn immediate_data_on_another_queue_or_out_of_turn() {
    for qn in [1, 2, 3] {
        let bad = |s: &mut Scene| {
            Untagged {
                qn,
                ..immediate(s, &[1; 8])
            }
            .bytes()
        };
        refuses(bad, BAD_QN, "Queue Number");
    }
    let bad = |s: &mut Scene| {
        Untagged {
            msn: s.msn + 1,
            ..immediate(s, &[1; 8])
        }
        .bytes()
    };
    refuses(bad, MSN_RANGE, "Message Sequence Number");
    let bad = |s: &mut Scene| {
        Untagged {
            mo: 8,
            ..immediate(s, &[1; 8])
        }
        .bytes()
    };
    refuses(bad, BAD_MO, "Message Offset");
}

/// 7306-6.3-02.
#[test]
fn immediate_data_without_a_receive() {
    for role in ROLES {
        let s = Scene::with(&Setup {
            receives: false,
            ..Setup::new(role)
        });
        let ulpdu = immediate(&s, &[1; 8]).bytes();
        s.refuses(&ulpdu, NO_BUFFER, "no receive is posted", None);
    }
}

/// 5041-4.3-04.
#[test]
fn immediate_data_within_a_send() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let first = Untagged {
            last: false,
            ..s.next_send(b"8 octets")
        };
        s.peer.send_ulpdus(&[first.bytes()]);
        s.memory.expect(
            Place::Local,
            crate::scene::RECV_AT + crate::scene::RECV_LEN,
            b"8 octets",
        );
        let second = Untagged {
            mo: 8,
            ..immediate(&s, &[1; 8])
        };
        s.refuses(&second.bytes(), OPCODE, "continued as", None);
    }
}

/// RFC 7306 defines queue 3, but not for these messages.
#[test]
fn another_message_on_the_queue_of_atomic_responses() {
    for opcode in [SEND, IMMEDIATE, ATOMIC_REQUEST] {
        let bad = |s: &mut Scene| {
            let bytes = add_one(s).bytes();
            Untagged::new(opcode, 3, 1, &bytes[..8]).bytes()
        };
        refuses(bad, BAD_QN, "Queue Number 3");
    }
}

/// 7306-8.2-01: headers that are too short or too long, or have wrong flags, queues or numbers.
#[test]
fn atomic_requests_whose_headers_are_wrong() {
    let short = |s: &mut Scene| {
        let whole = atomic(add_one(s)).bytes();
        whole[..whole.len() - 1].to_vec()
    };
    refuses(short, LENGTH, "too short");
    let long = |s: &mut Scene| [&atomic(add_one(s)).bytes()[..], &[0]].concat();
    refuses(long, TOO_LONG, "too long for the buffer");
    let goes_on = |s: &mut Scene| {
        Untagged {
            last: false,
            ..atomic(add_one(s))
        }
        .bytes()
    };
    refuses(goes_on, UNSPECIFIED, "Last flag");
    for qn in [0, 2, 3] {
        let bad = |s: &mut Scene| {
            Untagged {
                qn,
                ..atomic(add_one(s))
            }
            .bytes()
        };
        refuses(bad, BAD_QN, "Queue Number");
    }
    let bad = |s: &mut Scene| {
        Untagged {
            msn: 2,
            ..atomic(add_one(s))
        }
        .bytes()
    };
    refuses(bad, MSN_RANGE, "Message Sequence Number");
    let bad = |s: &mut Scene| {
        Untagged {
            mo: 8,
            ..atomic(add_one(s))
        }
        .bytes()
    };
    refuses(bad, BAD_MO, "Message Offset");
}

/// 7306-5.2.1-06.
#[test]
fn atomic_operations_that_do_not_exist() {
    for code in [1, 3, 8, 15] {
        let bad = |s: &mut Scene| atomic(AtomicHeader { code, ..add_one(s) }).bytes();
        refuses(bad, OPCODE, "operation code");
    }
}

/// 7306-8.2-05, 7306-5.1.1-03, 7306-5.1.2-03: the memory is unchanged, and both sides report the
/// error (7306-5.1.1-02, 7306-5.1.2-04).
#[test]
fn atomic_operations_on_addresses_that_are_no_multiple_of_8() {
    for (code, off) in [(0, 1), (0, 4), (2, 2), (2, 7)] {
        let bad = |s: &mut Scene| {
            let right = add_one(s);
            let to = right.to + off;
            atomic(AtomicHeader {
                code,
                to,
                words: [5, u64::MAX, 0, 0],
                ..right
            })
            .bytes()
        };
        refuses(bad, MISALIGNED, "not a multiple of 8");
    }
}

/// Atomics are checked like Reads, but the Terminate has no RDMA header (7306-8.1-02).
#[test]
fn atomic_operations_on_memory_that_the_peer_may_not_change() {
    type Change = fn(&Scene, AtomicHeader) -> AtomicHeader;
    let changes: [(Change, u8, &str); 6] = [
        (
            |_, right| AtomicHeader {
                stag: NONSENSE,
                ..right
            },
            0x00,
            "invalid STag",
        ),
        (
            |_, right| AtomicHeader {
                to: right.to + 2048,
                ..right
            },
            0x01,
            "base or bounds",
        ),
        (
            |_, right| AtomicHeader {
                to: right.to - 8,
                ..right
            },
            0x01,
            "base or bounds",
        ),
        (
            |s, right| AtomicHeader {
                stag: s.memory.readable.rkey(),
                to: s.memory.readable.addr().next_multiple_of(8),
                ..right
            },
            0x02,
            "access rights",
        ),
        (
            |s, right| AtomicHeader {
                stag: s.memory.foreign.rkey(),
                to: s.memory.foreign.addr().next_multiple_of(8),
                ..right
            },
            0x00,
            "not associated",
        ),
        (
            |_, right| AtomicHeader {
                to: u64::MAX - 7,
                ..right
            },
            0x04,
            "TO wrap",
        ),
    ];
    for (change, code, words) in changes {
        let bad = |s: &mut Scene| atomic(change(s, add_one(s))).bytes();
        refuses(bad, Code::rdmap(1, code), words);
    }
}

/// 5040-6.1-05: Reads and atomics count together.
#[test]
fn more_reads_and_atomics_than_ird() {
    for role in ROLES {
        let mut s = Scene::with(&Setup {
            ird: 2,
            ..Setup::new(role)
        });
        let read = s.read_request(s.read());
        let third = Untagged {
            msn: 3,
            ..atomic(add_one(&s))
        };
        let second = Untagged {
            msn: 2,
            ..atomic(add_one(&s))
        };
        s.peer
            .send_ulpdus(&[read.bytes(), second.bytes(), third.bytes()]);
        let code = NO_BUFFER.about(&third.bytes());
        s.ends(Sees::Terminate(code), "Read or Atomic Request than the 2");
    }
}

/// Creates a connection on which our side waits for the response to an atomic. Returns the request
/// as well.
fn waiting(role: Role) -> (Scene, Vec<u8>) {
    let mut s = Scene::with(&Setup {
        sends: false,
        ..Setup::new(role)
    });
    let sges = [s.memory.local.sge(SINK_AT as u64, 8)];
    let wr = SendWr::compare_swap(ATOMIC, &sges, RemoteBuffer::at(0x1000, 0x77), 5, 6);
    s.qp.post_send(&wr).unwrap();
    s.sends_were_posted_as(&[ATOMIC]);
    let request = s.peer.receive_ulpdu();
    assert_eq!((request[1], request.len()), (0x4A, 70));
    (s, request)
}

/// Returns the response to that request.
fn response(request: &[u8], original: u64) -> Untagged {
    let bytes = [&request[22..26], &original.to_be_bytes()[..]].concat();
    Untagged::new(ATOMIC_RESPONSE, 3, 1, &bytes)
}

#[test]
fn a_good_atomic_response_completes_the_atomic() {
    for role in ROLES {
        let (mut s, request) = waiting(role);
        s.peer.send_ulpdus(&[response(&request, 0x1234).bytes()]);
        let done = eventually("the atomic completes", || s.send_cq.poll_one());
        assert_eq!((done.wr_id, done.status), (ATOMIC, Status::Success));
        s.victim.sends.clear();
        s.memory
            .expect(Place::Local, SINK_AT, &0x1234u64.to_ne_bytes());
        // A second response has no request.
        let again = Untagged {
            msn: 2,
            ..response(&request, 5)
        };
        s.refuses(&again.bytes(), OPCODE, "no Atomic Operation is next", None);
    }
}

/// 7306-5.2.2-i02: no RFC defines error codes for wrong Atomic Responses.
#[test]
fn atomic_responses_that_are_wrong() {
    type Change = fn(Untagged) -> Untagged;
    let changes: [(Change, Code, &str, bool); 8] = [
        (
            |right| Untagged { msn: 2, ..right },
            MSN_RANGE,
            "Message Sequence Number",
            false,
        ),
        (
            |right| Untagged { mo: 1, ..right },
            BAD_MO,
            "Message Offset",
            false,
        ),
        (
            |right| Untagged { qn: 0, ..right },
            BAD_QN,
            "Queue Number",
            false,
        ),
        (
            |right| Untagged { qn: 4, ..right },
            BAD_QN,
            "Queue Number",
            false,
        ),
        (
            |right| Untagged {
                last: false,
                ..right
            },
            UNSPECIFIED,
            "Last flag",
            false,
        ),
        (
            |mut right| {
                right.payload.pop();
                right
            },
            LENGTH,
            "too short",
            false,
        ),
        (
            |mut right| {
                right.payload.push(0);
                right
            },
            TOO_LONG,
            "too long",
            false,
        ),
        (
            |mut right| {
                right.payload[3] ^= 1;
                right
            },
            UNSPECIFIED,
            "Request Identifier",
            true,
        ),
    ];
    for (change, code, words, blames) in changes {
        for role in ROLES {
            let (s, request) = waiting(role);
            let ulpdu = change(response(&request, 9)).bytes();
            let blamed = blames.then_some((ATOMIC, Status::BadResponse));
            s.refuses(&ulpdu, code, words, blamed);
        }
    }
}

/// There is no request for the response: nothing is outstanding, or only a Read.
#[test]
fn atomic_response_that_nobody_asked_for() {
    let bad = |_: &mut Scene| response(&[0; 70], 1).bytes();
    refuses(bad, OPCODE, "no Atomic Operation is next");
    for role in ROLES {
        let s = Scene::with(&Setup {
            sends: false,
            ..Setup::new(role)
        });
        let ulpdu = response(&[0; 70], 1).bytes();
        s.refuses(&ulpdu, OPCODE, "no Atomic Operation is next", None);
    }
}

//! Read Requests that must not be answered, and Read Responses without a Read (RFC 5040 section
//! 5.2).

use uwarp_testkit::filler;
use uwarp_verbs::Status;

use crate::memory::{Place, REGION};
use crate::scene::{
    NONSENSE, READ, ROLES, Role, SINK_AT, SINK_LEN, Scene, Sees, Setup, refuses, refuses_blaming,
};
use crate::wire::{Code, READ_REQUEST, READ_RESPONSE, ReadHeader, Tagged, Untagged};

const INVALID_STAG: Code = Code::rdmap(1, 0x00);
const BOUNDS: Code = Code::rdmap(1, 0x01);
const RIGHTS: Code = Code::rdmap(1, 0x02);
const WRAP: Code = Code::rdmap(1, 0x04);

/// Checks in both roles that a Read Request for this source is refused.
fn refuses_source(source: impl Fn(&Scene) -> (u32, u64), code: Code, words: &str) {
    let bad = |s: &mut Scene| {
        let (source_stag, source_to) = source(s);
        s.read_request(ReadHeader {
            source_stag,
            source_to,
            ..s.read()
        })
        .bytes()
    };
    refuses(bad, code, words);
}

/// 5040-7.2-06, 5040-5.2.1-12: the Terminate contains the headers of the Read Request, as RFC 5040
/// Figure 10 and 5040-7.1-04 require.
#[test]
pub(crate) fn read_from_an_stag_that_was_never_given_out() {
    refuses_source(
        |s| (NONSENSE, s.memory.readable.addr()),
        INVALID_STAG,
        "invalid STag",
    );
}

/// 5040-7.2-06.
#[test]
fn read_from_another_key_part_of_the_stag() {
    refuses_source(
        |s| (s.memory.readable.rkey() ^ 1, s.memory.readable.addr()),
        INVALID_STAG,
        "invalid STag",
    );
}

/// 5040-7.2-07, 5040-8.1.1-01: the code does not tell the peer that the STag exists.
#[test]
fn read_from_an_stag_of_another_protection_domain() {
    refuses_source(
        |s| (s.memory.foreign.rkey(), s.memory.foreign.addr()),
        INVALID_STAG,
        "not associated",
    );
}

/// 5040-8.1.1-02.
#[test]
fn read_from_an_stag_of_another_stream() {
    refuses_source(
        |s| (s.theirs.rkey(), s.theirs.addr()),
        INVALID_STAG,
        "not associated",
    );
}

/// 5040-3.2-i01.
#[test]
fn read_from_memory_that_may_only_be_written() {
    refuses_source(
        |s| (s.memory.writable.rkey(), s.memory.writable.addr()),
        RIGHTS,
        "access rights",
    );
    refuses_source(
        |s| (s.memory.local.rkey(), s.memory.local.addr()),
        RIGHTS,
        "access rights",
    );
}

/// 5040-7.2-08, 5040-7.2-09, 5040-8.1.1-03.
#[test]
fn read_outside_of_the_bounds() {
    for offset in [u64::MAX, REGION as u64, REGION as u64 - 15, 1 << 40] {
        let source = |s: &Scene| {
            (
                s.memory.readable.rkey(),
                s.memory.readable.addr().wrapping_add(offset),
            )
        };
        refuses_source(source, BOUNDS, "base or bounds");
    }
}

/// 5040-7.2-09: the length exceeds the size of any region.
#[test]
fn read_of_four_gigabytes() {
    let bad = |s: &mut Scene| {
        s.read_request(ReadHeader {
            len: u32::MAX,
            ..s.read()
        })
        .bytes()
    };
    refuses(bad, BOUNDS, "base or bounds");
}

/// 5040-7.2-10.
#[test]
fn read_whose_tagged_offset_wraps() {
    refuses_source(
        |s| (s.memory.readable.rkey(), u64::MAX - 3),
        WRAP,
        "TO wrap",
    );
}

/// 5040-7.2-05, 5041-7.1-01: only the Queue Number is wrong.
#[test]
fn read_request_on_another_queue() {
    for qn in [0, 2] {
        let bad = |s: &mut Scene| {
            Untagged {
                qn,
                ..s.read_request(s.read())
            }
            .bytes()
        };
        refuses(bad, Code::ddp(2, 0x01), "Queue Number");
    }
}

/// 5040-7.2-05, 5041-7.1-05.
#[test]
fn read_request_with_an_msn_that_is_not_the_next() {
    for msn in [0, 2, u32::MAX] {
        let bad = |s: &mut Scene| {
            Untagged {
                msn,
                ..s.read_request(s.read())
            }
            .bytes()
        };
        refuses(bad, Code::ddp(2, 0x03), "Message Sequence Number");
    }
}

/// 5040-7.2-05, 5041-7.1-03.
#[test]
fn read_request_with_a_message_offset() {
    let bad = |s: &mut Scene| {
        Untagged {
            mo: 4,
            ..s.read_request(s.read())
        }
        .bytes()
    };
    refuses(bad, Code::ddp(2, 0x04), "Message Offset");
}

/// 5040-7.2-05, 5041-7.1-04: a buffer of queue 1 holds exactly the 28 bytes of a Read Request.
#[test]
fn read_request_that_is_too_long() {
    for more in [1, 100] {
        let bad = |s: &mut Scene| {
            let payload = [s.read().bytes(), vec![0; more]].concat();
            Untagged::new(READ_REQUEST, 1, 1, &payload).bytes()
        };
        refuses(bad, Code::ddp(2, 0x05), "too long for the buffer");
    }
}

/// 5040-7.2-05: the Request is too short. No RFC defines an error code for this.
#[test]
fn read_request_that_is_too_short() {
    for role in ROLES {
        for len in [0, 27] {
            let mut s = Scene::new(role);
            let payload = s.read().bytes();
            s.commits(&Untagged::new(READ_REQUEST, 1, 1, &payload[..len]).bytes());
            s.ends(Sees::Terminate(Code::mpa(0x03).bare()), "too short");
        }
    }
}

/// A Read Request has one segment (RFC 5040 section 5.2.1). No RFC defines an error code for a
/// Request of two segments.
#[test]
fn read_request_that_would_go_on() {
    let bad = |s: &mut Scene| {
        Untagged {
            last: false,
            ..s.read_request(s.read())
        }
        .bytes()
    };
    refuses(bad, Code::rdmap(2, 0xFF), "Last flag");
}

/// 5040-6.1-05, 5042-6.4.3.3-i01: no RFC defines an error code for the excess Request. It is
/// reported as a Request for which queue 1 has no buffer.
#[test]
pub(crate) fn more_reads_than_ird() {
    for role in ROLES {
        for ird in [0, 2] {
            let mut s = Scene::with(&Setup {
                ird,
                ..Setup::new(role)
            });
            let requests: Vec<_> = (1..=u32::from(ird) + 1)
                .map(|msn| {
                    Untagged {
                        msn,
                        ..s.read_request(s.read())
                    }
                    .bytes()
                })
                .collect();
            s.peer.send_ulpdus(&requests);
            let last = &requests[usize::from(ird)];
            s.ends(
                Sees::Terminate(Code::ddp(2, 0x02).about(last)),
                "one more Read or Atomic Request than the",
            );
        }
    }
}

/// 5040-5.2.1-13, 5042-6.3.5-i01: the source of an empty Read is not checked. The program at the
/// source does not notice any Read (5040-5.2.1-04).
#[test]
fn read_without_payload_is_answered_whatever_it_names() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let sources = [
            (NONSENSE, u64::MAX),
            (s.memory.foreign.rkey(), 0),
            (s.memory.writable.rkey(), 77),
        ];
        for (msn, (source_stag, source_to)) in (1..).zip(sources) {
            let header = ReadHeader {
                len: 0,
                source_stag,
                source_to,
                ..s.read()
            };
            s.peer.send_ulpdus(&[Untagged {
                msn,
                ..s.read_request(header)
            }
            .bytes()]);
            let response = Tagged::new(READ_RESPONSE, header.sink_stag, header.sink_to, b"");
            assert_eq!(s.peer.receive_ulpdu(), response.bytes());
        }
        let whole = Untagged {
            msn: 4,
            ..s.read_request(s.read())
        };
        s.peer.send_ulpdus(&[whole.bytes()]);
        let payload = s.memory.expected(Place::Readable, 0, 16).to_vec();
        let response = Tagged::new(
            READ_RESPONSE,
            s.read().sink_stag,
            s.read().sink_to,
            &payload,
        );
        assert_eq!(s.peer.receive_ulpdu(), response.bytes());
        s.closes();
    }
}

/// Returns a segment of the Response to our outstanding Read.
fn response(s: &Scene, payload: &[u8]) -> Tagged {
    let header = s.read_header();
    Tagged::new(READ_RESPONSE, header.sink_stag, header.sink_to, payload)
}

/// 5040-5.2.2-i01: no RFC defines an error code for a Response without an outstanding Read. The
/// Terminate reports an unexpected opcode.
#[test]
pub(crate) fn read_response_that_nobody_asked_for() {
    for role in ROLES {
        for len in [0, 16] {
            let s = Scene::with(&Setup {
                sends: false,
                ..Setup::new(role)
            });
            let ulpdu = response(&s, &filler(1, len)).bytes();
            s.refuses(
                &ulpdu,
                Code::rdmap(2, 0x06),
                "no RDMA Read is next to be answered",
                None,
            );
        }
    }
}

/// 5040-5.2.2-i01: the first Response is correct and completes the Read (5040-5.2.2-03,
/// 5040-5.5-10).
#[test]
fn read_response_that_comes_twice() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let payload = filler(9, SINK_LEN);
        let ulpdu = response(&s, &payload).bytes();
        s.peer.send_ulpdus(&[&ulpdu]);
        s.memory.expect(Place::Local, SINK_AT, &payload);
        s.reads();
        assert_eq!(s.peer.receive_ulpdu()[18..], *b"too late");
        s.refuses(
            &ulpdu,
            Code::rdmap(2, 0x06),
            "no RDMA Read is next to be answered",
            None,
        );
    }
}

/// 5040-5.2.2-05: the Response has a wrong STag: that of another buffer which the peer may write
/// to, or one that was never registered.
#[test]
fn read_response_with_another_stag() {
    let bad = |s: &mut Scene| {
        Tagged {
            opcode: READ_RESPONSE,
            ..s.write(0, &filler(1, SINK_LEN))
        }
        .bytes()
    };
    refuses_blaming(
        bad,
        Code::ddp(1, 0x00),
        "does not match",
        Some((READ, Status::BadResponse)),
    );
    let bad = |s: &mut Scene| {
        Tagged {
            stag: NONSENSE,
            ..response(s, &filler(1, SINK_LEN))
        }
        .bytes()
    };
    refuses_blaming(
        bad,
        Code::ddp(1, 0x00),
        "does not match",
        Some((READ, Status::BadResponse)),
    );
}

/// 5040-5.2.2-05: the Response has the sink's STag, but does not begin at the start of the sink.
#[test]
fn read_response_with_another_tagged_offset() {
    for wrong in [1, 8, u64::MAX] {
        let bad = |s: &mut Scene| {
            let right = response(s, &filler(1, 16));
            Tagged {
                to: right.to.wrapping_add(wrong),
                ..right
            }
            .bytes()
        };
        refuses_blaming(
            bad,
            Code::ddp(1, 0x01),
            "does not match",
            Some((READ, Status::BadResponse)),
        );
    }
}

/// 5040-5.2.2-05: one segment exceeds the sink, or a second segment would end after the sink.
#[test]
pub(crate) fn read_response_longer_than_asked_for() {
    let blamed = Some((READ, Status::BadResponse));
    let bad = |s: &mut Scene| response(s, &filler(1, SINK_LEN + 1)).bytes();
    refuses_blaming(bad, Code::ddp(1, 0x01), "asked for 48", blamed);
    for role in ROLES {
        let mut s = Scene::new(role);
        let first = filler(2, SINK_LEN - 4);
        s.peer.send_ulpdus(&[Tagged {
            last: false,
            ..response(&s, &first)
        }
        .bytes()]);
        s.memory.expect(Place::Local, SINK_AT, &first);
        let to = s.read_header().sink_to + SINK_LEN as u64 - 4;
        let second = Tagged {
            to,
            ..response(&s, b"12345")
        }
        .bytes();
        s.refuses(&second, Code::ddp(1, 0x01), "asked for 48", blamed);
    }
}

/// 5040-5.2.2-05: the last segment ends before the end of the sink.
#[test]
fn read_response_shorter_than_asked_for() {
    for len in [0, SINK_LEN - 1] {
        let bad = |s: &mut Scene| response(s, &filler(1, len)).bytes();
        refuses_blaming(
            bad,
            Code::ddp(1, 0x01),
            "of 48",
            Some((READ, Status::BadResponse)),
        );
    }
}

/// 5044-7.1.2-15: a responder sends nothing before the first FPDU arrives. So the Request of the
/// posted Read has not been sent.
#[test]
fn read_response_before_the_read_request_has_gone() {
    let s = Scene::with(&Setup {
        warm_up: false,
        ..Setup::new(Role::Responder)
    });
    let ulpdu = response(&s, &filler(1, SINK_LEN)).bytes();
    s.refuses(
        &ulpdu,
        Code::rdmap(2, 0x06),
        "no RDMA Read is next to be answered",
        None,
    );
}

//! TCP connections that end unexpectedly: resets and FINs in every state after startup.

use uwarp_verbs::{Access, MemoryRegion, RemoteBuffer, SendWr};

use crate::memory::Place;
use crate::peer::eventually;
use crate::scene::{RECV_AT, RECV_LEN, ROLES, Role, SINK_AT, Scene, Sees, Setup};
use crate::wire::{Code, READ_RESPONSE, Tagged, Untagged, WRITE};

const RESET: &str = "reset the connection";
const MIDWAY: &str = "in the middle of an FPDU";

/// 5044-8-01: a reset directly after startup.
#[test]
pub(crate) fn reset_before_the_first_fpdu() {
    for role in ROLES {
        let s = Scene::with(&Setup {
            warm_up: false,
            ..Setup::new(role)
        });
        s.peer.reset();
        s.ends(Sees::Nothing, RESET);
    }
}

/// 5044-8-01: a reset with requests outstanding. The loss of TCP is reported once (5041-6.2.2-01),
/// and each request is flushed (5041-6.2.2-04).
#[test]
fn reset_between_fpdus() {
    for role in ROLES {
        let s = Scene::new(role);
        s.peer.reset();
        s.ends(Sees::Nothing, RESET);
    }
}

/// 5044-8-01: nothing of an incomplete FPDU is placed (5044-6-01).
#[test]
fn reset_within_an_fpdu() {
    for role in ROLES {
        for cut in [1, 2, 10, 30] {
            let mut s = Scene::new(role);
            let fpdu = s.write(64, b"only a part of this arrives").bytes();
            let fpdu = s.peer.tx.seal(&fpdu);
            s.peer.send(&fpdu[..cut]);
            s.peer.reset();
            s.ends(Sees::Nothing, RESET);
        }
    }
}

/// 5044-8-01: a FIN after each part of an FPDU, including the first FPDU.
#[test]
pub(crate) fn fin_within_an_fpdu() {
    for role in ROLES {
        for (warm_up, cut) in [
            (true, 1),
            (true, 2),
            (true, 16),
            (true, 40),
            (false, 1),
            (false, 40),
        ] {
            let mut s = Scene::with(&Setup {
                warm_up,
                ..Setup::new(role)
            });
            let fpdu = s.write(64, b"only a part of this arrives").bytes();
            let fpdu = s.peer.tx.seal(&fpdu);
            assert!(cut < fpdu.len());
            s.peer.send(&fpdu[..cut]);
            s.peer.fin();
            s.ends(Sees::Fin, MIDWAY);
        }
    }
}

/// The outstanding requests can no longer be carried out and are flushed.
#[test]
fn fin_with_work_outstanding() {
    for role in ROLES {
        Scene::new(role).closes();
    }
}

/// The peer closes without sending anything. Our responder may then not send, so its requests are
/// flushed.
#[test]
fn fin_before_the_first_fpdu() {
    for role in ROLES {
        Scene::with(&Setup {
            warm_up: false,
            ..Setup::new(role)
        })
        .closes();
    }
}

/// The FIN comes at an FPDU boundary, before the last segment of a message. For no kind of message
/// is this a graceful close (5041-6.2.1-01, 5041-6.2.2-01). Neither the Read nor the receive
/// completes (5041-4.1-07, 5041-5.4-01, 5040-5.5-08).
#[test]
fn fin_between_the_segments_of_a_message() {
    type Begin = fn(&mut Scene) -> Vec<u8>;
    let messages: [(&str, Begin); 5] = [
        ("(RDMA Write)", |s| {
            s.memory.expect(Place::Writable, 64, b"the first segment");
            not_last(s.write(64, b"the first segment"))
        }),
        // The Write places nothing, but the message has begun.
        ("(RDMA Write)", |s| not_last(s.write(64, b""))),
        ("(RDMA Read Response)", |s| {
            s.memory.expect(Place::Local, SINK_AT, b"the first segment");
            not_last(response(s, b"the first segment"))
        }),
        ("(RDMA Read Response)", |s| not_last(response(s, b""))),
        ("(Send)", |s| {
            let at = RECV_AT + RECV_LEN;
            s.memory.expect(Place::Local, at, b"the first segment");
            let send = s.next_send(b"the first segment");
            Untagged {
                last: false,
                ..send
            }
            .bytes()
        }),
    ];
    for role in ROLES {
        for (message, begin) in messages {
            let mut s = Scene::new(role);
            let segment = begin(&mut s);
            s.peer.send_ulpdus(&[segment]);
            s.peer.fin();
            s.ends(Sees::Fin, message);
        }
    }
}

/// If the message began in an earlier FPDU, the report names the kind of message.
#[test]
fn fin_within_a_later_fpdu_of_a_message() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let first = not_last(s.write(64, b"the first segment"));
        s.peer.send_ulpdus(&[first]);
        s.memory.expect(Place::Writable, 64, b"the first segment");
        let second = s.peer.tx.seal(&s.write(81, b"the second").bytes());
        s.peer.send(&second[..20]);
        s.peer.fin();
        s.ends(Sees::Fin, "(RDMA Write)");
    }
}

/// Every message is complete, so the close is graceful. The unanswered Read is flushed.
#[test]
fn fin_behind_the_last_segment_of_messages() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let write = [
            not_last(s.write(64, b"the first segment")),
            s.write(81, b", the last").bytes(),
        ];
        s.peer.send_ulpdus(&write);
        let whole = b"the first segment, the last";
        s.memory.expect(Place::Writable, 64, whole);
        s.delivers(b"and a Send");
        s.closes();
    }
}

fn not_last(segment: Tagged) -> Vec<u8> {
    Tagged {
        last: false,
        ..segment
    }
    .bytes()
}

/// Returns a segment of the Response to our Read.
fn response(s: &Scene, payload: &[u8]) -> Tagged {
    let header = s.read_header();
    Tagged::new(READ_RESPONSE, header.sink_stag, header.sink_to, payload)
}

/// After our Terminate, it does not matter how the peer ends the connection.
#[test]
fn reset_after_our_terminate() {
    let mut s = Scene::new(Role::Responder);
    let bad = Untagged {
        qn: 7,
        ..s.next_send(b"")
    }
    .bytes();
    s.commits(&bad);
    let terminate = Code::ddp(2, 0x01).about(&bad);
    assert_eq!(s.peer.receive_ulpdu(), terminate);
    s.peer.reset();
    s.ends(Sees::Nothing, "Queue Number");
}

/// Length in bytes of a Write that TCP does not take at once.
const BIG: u32 = 32 << 20;

/// Creates a scene with a Write of ours that is larger than all buffers of TCP. The peer does not
/// read it.
fn blocked(role: Role) -> (Scene, MemoryRegion) {
    let mut setup = Setup {
        sends: false,
        ..Setup::new(role)
    };
    setup.settings.limits.max_mr += 1;
    let mut s = Scene::with(&setup);
    let region =
        s.pd.register(vec![0x55; BIG as usize], Access::NONE)
            .unwrap();
    let write = [region.sge(0, BIG)];
    s.qp.post_send(&SendWr::write(21, &write, RemoteBuffer::at(0x1000, 0x1234)))
        .unwrap();
    s.sends_were_posted_as(&[21]);
    (s, region)
}

/// 5044-8-12, 5040-5.4-07: an FPDU that TCP has taken in part is sent completely, so that the
/// stream stays parseable. The Terminate follows, and nothing else of the Write.
#[test]
fn terminate_comes_right_after_the_fpdu_under_way() {
    for role in ROLES {
        let (mut s, region) = blocked(role);
        let bad = Untagged {
            qn: 7,
            ..s.next_send(b"")
        }
        .bytes();
        s.commits(&bad);
        eventually("the QP notices", || s.qp.end_reason());
        // No request refers to the region any more.
        drop(region);
        let mut to = 0x1000;
        let terminate = loop {
            let ulpdu = s.peer.receive_ulpdu();
            if ulpdu[1] != 0x40 {
                break ulpdu;
            }
            let segment = Tagged {
                last: false,
                ..Tagged::new(WRITE, 0x1234, to, &ulpdu[14..])
            };
            assert!(
                ulpdu == segment.bytes(),
                "a segment of the Write at {to:#x}"
            );
            assert!(ulpdu[14..].iter().all(|byte| *byte == 0x55));
            to += ulpdu.len() as u64 - 14;
        };
        assert!(to < 0x1000 + u64::from(BIG));
        assert_eq!(terminate, Code::ddp(2, 0x01).about(&bad));
        s.ends(Sees::Fin, "Queue Number");
    }
}

/// 5044-8-01: a reset while TCP takes no more bytes. A Write that is framed in part is not complete
/// (5040-5.5-06).
#[test]
fn reset_while_much_waits_to_be_sent() {
    for role in ROLES {
        let (s, region) = blocked(role);
        s.peer.reset();
        eventually("the QP notices", || s.qp.end_reason());
        drop(region);
        s.ends(Sees::Nothing, RESET);
    }
}

/// After our FIN, correct messages are still accepted. A wrong one ends the connection, although a
/// Terminate can no longer be sent.
#[test]
fn wrong_message_after_our_fin() {
    for role in ROLES {
        let mut s = Scene::with(&Setup {
            sends: false,
            ..Setup::new(role)
        });
        s.qp.disconnect();
        s.peer.expect_fin();
        s.delivers(b"still taken");
        let bad = Untagged {
            qn: 7,
            ..s.next_send(b"")
        }
        .bytes();
        s.commits(&bad);
        s.peer.fin();
        s.ends(Sees::Nothing, "closed by this side");
    }
}

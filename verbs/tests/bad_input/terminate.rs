//! Terminate Messages of the peer, correct and malformed (RFC 5040 sections 4.8 and 5.4).

use uwarp_verbs::Status;

use crate::scene::{READ, ROLES, Role, Scene, Sees, Setup, refuses};
use crate::wire::{Code, READ_REQUEST, TERMINATE, Tagged, Untagged};

const ENDED: &str = "the peer ended the connection";
const CATASTROPHE: Code = Code::rdmap(2, 0x07);

/// 5040-5.4-04: a Terminate Message needs no receive, and is answered with a FIN only. It is
/// reported (5040-5.4-06), and unsent requests are flushed (5040-5.4-i02).
#[test]
pub(crate) fn terminate_is_taken_with_and_without_receives() {
    for role in ROLES {
        for receives in [true, false] {
            let mut s = Scene::with(&Setup {
                receives,
                ..Setup::new(role)
            });
            s.commits(&CATASTROPHE.bare());
            s.ends(Sees::Fin, ENDED);
        }
    }
}

/// The Terminate Message is the first FPDU.
#[test]
fn terminate_before_anything_else() {
    for role in ROLES {
        let mut s = Scene::with(&Setup {
            warm_up: false,
            ..Setup::new(role)
        });
        s.commits(&CATASTROPHE.bare());
        s.ends(Sees::Fin, ENDED);
    }
}

/// 5040-4.8-i02: the Terminate Message contains the header of our Read Request, so the Read
/// completes with the error.
#[test]
fn terminate_about_a_read_request() {
    for role in ROLES {
        for code in 0..5 {
            let mut s = Scene::new(role);
            let request = Untagged::new(READ_REQUEST, 1, 1, &s.read_header().bytes()).bytes();
            s.commits(&Code::rdmap(1, code).about(&request));
            s.ends_blaming(
                Sees::Fin,
                "the peer refused this Read of 48 bytes",
                Some((READ, Status::RemoteAccess)),
            );
        }
    }
}

/// The Terminate Message is about a Write that our side has never sent. No request is blamed.
#[test]
fn terminate_about_a_message_that_was_not_sent() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let write = Tagged::new(0, 0x1234, 0x5678, b"").bytes();
        s.commits(&Code::ddp(1, 0x01).about(&write));
        s.ends(Sees::Fin, "the peer refused a Write of 0 bytes");
    }
}

/// Unknown codes are reported as well.
#[test]
fn terminate_with_numbers_that_no_rfc_has() {
    for role in ROLES {
        for (layer, etype, code) in [(0, 15, 1), (3, 0, 0), (15, 15, 255), (1, 1, 0x77)] {
            let mut s = Scene::new(role);
            s.commits(&Code { layer, etype, code }.bare());
            s.ends(Sees::Fin, ENDED);
        }
    }
}

/// 5040-4.8-08: reserved bits are ignored.
#[test]
fn terminate_with_reserved_bits() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let mut terminate = CATASTROPHE.bare();
        terminate[20] |= 0x1F;
        terminate[21] = 0xFF;
        s.commits(&terminate);
        s.ends(Sees::Fin, ENDED);
    }
}

/// 5040-5.4-07: nothing may follow a Terminate Message. Whatever follows it is ignored.
#[test]
fn terminate_twice() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let second = Untagged {
            msn: 2,
            ..Untagged::new(TERMINATE, 2, 1, &[0x01, 0x00, 0, 0])
        }
        .bytes();
        s.peer.send_ulpdus(&[CATASTROPHE.bare(), second]);
        s.ends(Sees::Fin, "localized to the RDMAP stream");
    }
}

/// The reported reason is the Terminate Message, not the reset.
#[test]
fn terminate_and_then_a_reset() {
    for role in ROLES {
        let mut s = Scene::new(role);
        s.commits(&CATASTROPHE.bare());
        s.peer.expect_fin();
        s.peer.reset();
        s.ends(Sees::Nothing, ENDED);
    }
}

/// 5040-5.4-i01: the message ends before the parts that it announces. No RFC defines an error code
/// for such a message.
#[test]
pub(crate) fn terminate_that_is_too_short() {
    let with_ddp_header = [0x11, 0x01, 0xC0, 0, 0, 46, 0xC1, 0x40, 0, 0];
    let with_rdma_header = [0x01, 0x01, 0x20, 0, 0, 0];
    let headers: [&[u8]; 6] = [
        b"",
        &[0x02],
        &[0x02, 0x07, 0],
        &[0x11, 0x01, 0xC0, 0],
        &with_ddp_header,
        &with_rdma_header,
    ];
    for role in ROLES {
        for header in headers {
            let mut s = Scene::new(role);
            s.commits(&Untagged::new(TERMINATE, 2, 1, header).bytes());
            s.ends(Sees::Terminate(Code::mpa(0x03).bare()), "too short");
        }
    }
}

/// 5040-7.2-01: a Terminate Message is one segment on queue 2 with MSN 1 and MO 0.
#[test]
fn terminate_with_a_wrong_ddp_header() {
    let terminate = || Untagged::new(TERMINATE, 2, 1, &[0x02, 0x07, 0, 0]);
    for qn in [0, 1] {
        refuses(
            |_| Untagged { qn, ..terminate() }.bytes(),
            Code::ddp(2, 0x01),
            "Queue Number",
        );
    }
    refuses(
        |_| {
            Untagged {
                msn: 2,
                ..terminate()
            }
            .bytes()
        },
        Code::ddp(2, 0x03),
        "Message Sequence Number",
    );
    refuses(
        |_| {
            Untagged {
                mo: 4,
                ..terminate()
            }
            .bytes()
        },
        Code::ddp(2, 0x04),
        "Message Offset",
    );
    refuses(
        |_| {
            Untagged {
                last: false,
                ..terminate()
            }
            .bytes()
        },
        Code::rdmap(2, 0xFF),
        "Last flag",
    );
}

/// 5040-5.4-i01: the message is longer than the longest valid one.
#[test]
fn terminate_that_is_too_long() {
    let bad = |_: &mut Scene| Untagged::new(TERMINATE, 2, 1, &[0; 1000]).bytes();
    refuses(bad, Code::ddp(2, 0x05), "too long");
}

/// The Terminate Message arrives while our Read is outstanding. The Read is not blamed for the
/// error.
#[test]
fn terminate_of_the_llp() {
    let mut s = Scene::new(Role::Initiator);
    s.commits(&Code::mpa(0x02).bare());
    s.ends(Sees::Fin, "CRC error");
}

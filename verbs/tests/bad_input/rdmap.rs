//! Wrong RDMAP headers, and ULPDUs too short for their headers (RFC 5040 section 7).

use crate::scene::{NONSENSE, ROLES, Scene, Sees, refuses};
use crate::wire::{Code, READ_REQUEST, READ_RESPONSE, SEND, TERMINATE, Tagged, Untagged, WRITE};

const VERSION: Code = Code::rdmap(2, 0x05);
const OPCODE: Code = Code::rdmap(2, 0x06);
/// Error code for a length that leaves no room for the headers. Linux siw uses the same code.
const LENGTH: Code = Code::mpa(0x03);

/// 5040-7.2-02, 5040-4.1-i01, 7306-1.1-i01: unknown opcodes in an untagged segment.
#[test]
pub(crate) fn unknown_opcode() {
    for opcode in 12..16 {
        let bad = |s: &mut Scene| {
            Untagged {
                opcode,
                ..s.next_send(b"8 octets")
            }
            .bytes()
        };
        refuses(bad, OPCODE, &format!("opcode {opcode:#x}"));
    }
}

/// 5040-7.2-02: unknown opcodes in a tagged segment, with and without payload.
#[test]
fn unknown_opcode_in_a_tagged_segment() {
    for (opcode, payload) in [(12, &b"octets"[..]), (13, b""), (15, b"octets")] {
        let bad = |s: &mut Scene| {
            Tagged {
                opcode,
                ..s.write(16, payload)
            }
            .bytes()
        };
        refuses(bad, OPCODE, &format!("opcode {opcode:#x}"));
    }
}

/// 5040-7.2-02: tagged messages in untagged segments.
#[test]
fn tagged_message_in_an_untagged_segment() {
    for opcode in [WRITE, READ_RESPONSE] {
        let bad = |s: &mut Scene| {
            Untagged {
                opcode,
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, OPCODE, "in an untagged segment");
    }
}

/// 5040-7.2-02: untagged messages in tagged segments, with a valid STag.
#[test]
fn untagged_message_in_a_tagged_segment() {
    for opcode in [READ_REQUEST, SEND, 4, 5, 6, TERMINATE, 8, 9, 10, 11] {
        let bad = |s: &mut Scene| {
            Tagged {
                opcode,
                ..s.write(16, &[0; 28])
            }
            .bytes()
        };
        refuses(bad, OPCODE, "in a tagged segment");
    }
}

/// 5040-7.2-03; version 0 was used by the RDMA Consortium.
#[test]
fn another_rdmap_version() {
    for rdmap_version in [0, 2, 3] {
        let bad = |s: &mut Scene| {
            Tagged {
                rdmap_version,
                ..s.write(16, b"octets")
            }
            .bytes()
        };
        refuses(bad, VERSION, "RDMAP version");
        let bad = |s: &mut Scene| {
            Untagged {
                rdmap_version,
                ..s.next_send(b"octets")
            }
            .bytes()
        };
        refuses(bad, VERSION, "RDMAP version");
    }
}

/// 5040-7.2-03: the wrong version is in a Read Request. For this error Figure 10 requires no RDMA
/// header in the Terminate.
#[test]
fn read_request_of_another_rdmap_version() {
    let bad = |s: &mut Scene| {
        Untagged {
            rdmap_version: 2,
            ..s.read_request(s.read())
        }
        .bytes()
    };
    refuses(bad, VERSION, "RDMAP version");
}

/// 5041-6.2.2-03: the ULPDU has no byte, one byte, or all but the last byte of a header. No RFC
/// defines an error code for such a ULPDU.
#[test]
pub(crate) fn ulpdu_shorter_than_its_ddp_header() {
    for role in ROLES {
        for (tagged, len) in [
            (true, 0),
            (true, 1),
            (true, 2),
            (true, 13),
            (false, 1),
            (false, 14),
            (false, 17),
        ] {
            let mut s = Scene::new(role);
            let whole = if tagged {
                s.write(16, b"").bytes()
            } else {
                s.next_send(b"").bytes()
            };
            s.commits(&whole[..len]);
            s.ends(
                Sees::Terminate(LENGTH.bare()),
                "too short for its DDP header",
            );
        }
    }
}

/// Only the first error is reported (5040-7.1-05), and nothing after it is processed (5041-7.1-18).
/// Therefore the peer gets a single Terminate.
#[test]
fn many_wrong_things_get_one_terminate() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let first = Tagged {
            stag: NONSENSE,
            ..s.write(0, b"first")
        }
        .bytes();
        let second = Untagged {
            opcode: 9,
            ..s.next_send(b"second")
        }
        .bytes();
        let good = s.next_send(b"a good one").bytes();
        let third = Untagged {
            qn: 9,
            ..s.next_send(b"third")
        }
        .bytes();
        s.peer.send_ulpdus(&[&first, &second, &good, &third]);
        s.peer.send(&[0xFF; 1000]);
        s.ends(
            Sees::Terminate(Code::ddp(1, 0x00).about(&first)),
            "invalid STag",
        );
    }
}

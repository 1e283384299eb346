//! FPDUs with a wrong CRC, Marker or length (RFC 5044 sections 4 and 8).

use crate::memory::Place;
use crate::scene::{NONSENSE, ROLES, Role, Scene, Sees, Setup};
use crate::wire::{CRC, Code, MARKERS, Tagged, Untagged};

const BAD_CRC: Code = Code::mpa(0x02);
const BAD_MARKER: Code = Code::mpa(0x03);

impl Scene {
    /// Sends raw bytes, followed by a correct Write. Our side must send a Terminate if `may_tell`
    /// is true. A responder must not send one before it has validated an FPDU (5044-7.1.2-15).
    fn breaks_framing(mut self, wrong: &[u8], code: Code, may_tell: bool, words: &str) {
        let behind = self.write(1000, b"behind what was wrong").bytes();
        let behind = self.peer.tx.seal(&behind);
        self.peer.send(&[wrong, &behind].concat());
        let sees = if may_tell {
            Sees::Terminate(code.bare())
        } else {
            Sees::Fin
        };
        self.ends(sees, words);
    }
}

/// Returns a setup in which the peer must send Markers.
fn marked(role: Role) -> Setup {
    let mut setup = Setup::new(role);
    setup.settings.markers = true;
    setup
}

/// 5044-8-02, 5044-4.4-15, 5044-4.4-16, 5044-6-01: a flipped bit in the header, in the payload, in
/// the PAD, and in the CRC itself. The error is reported (5041-6.2.2-02).
#[test]
pub(crate) fn fpdu_with_a_bad_crc() {
    for role in ROLES {
        for (byte, bit) in [(3, 0x10), (20, 0x01), (31, 0x80), (32, 0x01), (35, 0x80)] {
            let mut s = Scene::new(role);
            let mut fpdu = s
                .write(64, b"thirteen octets".first_chunk::<13>().unwrap())
                .bytes();
            fpdu = s.peer.tx.seal(&fpdu);
            assert_eq!(fpdu.len(), 36);
            fpdu[byte] ^= bit;
            s.breaks_framing(&fpdu, BAD_CRC, true, "damaged: its CRC field");
        }
    }
}

/// 5044-7.1.2-15: before a responder has validated an FPDU it sends no FPDU, and so no Terminate.
#[test]
pub(crate) fn first_fpdu_with_a_bad_crc() {
    for role in ROLES {
        let mut s = Scene::with(&Setup {
            warm_up: false,
            ..Setup::new(role)
        });
        let mut fpdu = s.write(64, b"octets").bytes();
        fpdu = s.peer.tx.seal(&fpdu);
        fpdu[20] ^= 1;
        let words = if role == Role::Responder {
            "no Terminate may be sent"
        } else {
            "Terminate 2/0/02"
        };
        s.breaks_framing(&fpdu, BAD_CRC, role == Role::Initiator, words);
    }
}

/// 5044-7.1.1-09: CRCs are checked if at least one side asks for them.
#[test]
fn crc_is_checked_when_one_side_asks() {
    for role in ROLES {
        for (ours, theirs) in [(false, CRC), (true, 0)] {
            let mut setup = Setup {
                flags: theirs,
                ..Setup::new(role)
            };
            setup.settings.crc = ours;
            let mut s = Scene::with(&setup);
            let mut fpdu = s.write(64, b"octets").bytes();
            fpdu = s.peer.tx.seal(&fpdu);
            fpdu[20] ^= 1;
            s.breaks_framing(&fpdu, BAD_CRC, true, "damaged: its CRC field");
        }
    }
}

/// 5044-4.1-04: if neither side asks for CRCs, the field is ignored.
#[test]
fn crc_is_not_checked_when_nobody_asks() {
    for role in ROLES {
        let mut setup = Setup {
            flags: 0,
            ..Setup::new(role)
        };
        setup.settings.crc = false;
        let mut s = Scene::with(&setup);
        let mut fpdu = s.next_send(b"no CRC, no check").bytes();
        fpdu = s.peer.tx.seal(&fpdu);
        let field = fpdu.len() - 4;
        fpdu[field..].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        s.peer.send(&fpdu);
        s.delivered(b"no CRC, no check");
        s.closes();
    }
}

/// The PAD is covered by the CRC, but its value is not checked (5044-4.1: sent as zero).
#[test]
fn pad_that_is_not_zero_is_taken() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let send = s.next_send(b"odd").bytes();
        let mut padded = send.clone();
        padded.push(0xFF);
        let fpdu = s.peer.tx.seal_claiming(send.len() as u16, &padded);
        s.peer.send(&fpdu);
        s.delivered(b"odd");
        s.closes();
    }
}

/// 5044-8-03, 5044-8-06: the CRC is correct, but a Marker between two FPDUs or within one is wrong.
#[test]
pub(crate) fn marker_that_points_elsewhere() {
    for role in ROLES {
        for lie in [4, 64, 0x8000] {
            let mut s = Scene::with(&marked(role));
            s.peer.tx.marker_lie = lie;
            let fpdu = s.write(64, &[0xEE; 600]).bytes();
            let fpdu = s.peer.tx.seal(&fpdu);
            s.peer.tx.marker_lie = 0;
            s.breaks_framing(&fpdu, BAD_MARKER, true, "the Marker at byte");
        }
    }
}

/// 5044-8-03: the Marker before the very first FPDU must be 0.
#[test]
fn first_marker_that_points_elsewhere() {
    for role in ROLES {
        let mut s = Scene::with(&Setup {
            warm_up: false,
            ..marked(role)
        });
        s.peer.tx.marker_lie = 4;
        let fpdu = s.write(64, b"octets").bytes();
        let fpdu = s.peer.tx.seal(&fpdu);
        assert_eq!(fpdu[..4], [0, 0, 0, 4]);
        s.peer.tx.marker_lie = 0;
        s.breaks_framing(
            &fpdu,
            BAD_MARKER,
            role == Role::Initiator,
            "the Marker at byte 0",
        );
    }
}

/// 5044-8-02: the CRC covers Markers and is checked before them.
#[test]
fn marker_that_was_damaged_is_a_crc_error() {
    for role in ROLES {
        let mut s = Scene::with(&marked(role));
        let begin = s.peer.tx.position;
        let fpdu = s.write(64, &[0xEE; 600]).bytes();
        let mut fpdu = s.peer.tx.seal(&fpdu);
        fpdu[512 - begin + 3] ^= 4;
        s.breaks_framing(&fpdu, BAD_CRC, true, "damaged: its CRC field");
    }
}

/// 5044-4.2-03, 5044-4.2-05: the reserved half of a Marker and the two low bits of FPDUPTR are
/// ignored.
#[test]
fn reserved_bits_of_a_marker_are_not_looked_at() {
    for role in ROLES {
        let mut s = Scene::with(&marked(role));
        let begin = s.peer.tx.position;
        let write = s.write(64, &[0xEE; 600]).bytes();
        let mut fpdu = s.peer.tx.seal(&write);
        let marker = 512 - begin;
        fpdu[marker..marker + 2].copy_from_slice(&[0xFF, 0xFF]);
        fpdu[marker + 3] |= 3;
        let field = fpdu.len() - 4;
        let crc = crate::wire::crc32c(&fpdu[..field]);
        fpdu[field..].copy_from_slice(&crc.to_le_bytes());
        s.peer.send(&fpdu);
        s.memory.expect(Place::Writable, 64, &[0xEE; 600]);
        s.delivers(b"still there");
        s.closes();
    }
}

/// 5044-5.2-02: with Markers in both directions, the Terminate contains Markers as well.
#[test]
fn terminate_between_markers() {
    for role in ROLES {
        let mut s = Scene::with(&Setup {
            flags: CRC | MARKERS,
            ..marked(role)
        });
        let good = s.write(64, &[0xEE; 700]).bytes();
        s.peer.send_ulpdus(&[good]);
        s.memory.expect(Place::Writable, 64, &[0xEE; 700]);
        let bad = Tagged {
            stag: NONSENSE,
            ..s.write(0, b"octets")
        }
        .bytes();
        s.refuses(&bad, Code::ddp(1, 0x00), "invalid STag", None);
    }
}

/// The length exceeds that of any FPDU. Our side does not wait for that many bytes, and there is no
/// CRC to check. No RFC defines an error code for such a length.
#[test]
pub(crate) fn impossible_length() {
    for role in ROLES {
        for len in [64769, 65000, u16::MAX] {
            let mut s = Scene::new(role);
            let fpdu = s.write(64, b"octets").bytes();
            let fpdu = s.peer.tx.seal_claiming(len, &fpdu);
            s.breaks_framing(&fpdu, BAD_MARKER, true, &len.to_string());
        }
    }
}

/// 5044-7.1.2-15: as with a bad CRC, no Terminate is sent.
#[test]
fn impossible_length_of_the_first_fpdu() {
    for role in ROLES {
        let s = Scene::with(&Setup {
            warm_up: false,
            ..Setup::new(role)
        });
        let words = if role == Role::Responder {
            "no Terminate may be sent"
        } else {
            "Terminate 2/0/03"
        };
        s.breaks_framing(
            b"\xFF\xFF and so on",
            BAD_MARKER,
            role == Role::Initiator,
            words,
        );
    }
}

/// The length is possible but wrong. The supposed end of the FPDU is within the real one, and the
/// CRC does not match.
#[test]
fn length_that_is_not_the_fpdus() {
    for role in ROLES {
        for len in [0, 14, 24] {
            let mut s = Scene::new(role);
            let fpdu = s.next_send(b"20 octets of payload").bytes();
            let fpdu = s.peer.tx.seal_claiming(len, &fpdu);
            s.breaks_framing(&fpdu, BAD_CRC, true, "damaged: its CRC field");
        }
    }
}

/// A ULPDU that is valid for MPA permits the responder to send, even if it is invalid for DDP or
/// RDMAP.
#[test]
fn first_fpdu_with_a_wrong_ulpdu_is_answered_with_a_terminate() {
    for role in ROLES {
        let s = Scene::with(&Setup {
            warm_up: false,
            ..Setup::new(role)
        });
        let bad = Untagged {
            qn: 8,
            ..s.next_send(b"octets")
        }
        .bytes();
        s.refuses(&bad, Code::ddp(2, 0x01), "Queue Number", None);
    }
}

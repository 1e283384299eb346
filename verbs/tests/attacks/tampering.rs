//! Section 6.2: Writes to memory, or at a time, for which the peer has no permission.

use uwarp_testkit::filler;
use uwarp_verbs::{Access, Status};

use crate::memory::{Place, REGION};
use crate::scene::{READ, RECV_AT, RECV_LEN, ROLES, SINK_AT, SINK_LEN, Scene, Setup};
use crate::wire::{Code, READ_RESPONSE, SEND_INVALIDATE, Tagged, Untagged, WRITE};
use crate::{INVALID, Use, refuses_use};

const BOUNDS: Code = Code::ddp(1, 0x01);

#[test]
fn s6_2_1_write_beyond_a_buffer() {
    let end = REGION as u64;
    for role in ROLES {
        for (offset, len) in [(u64::MAX, 1), (end, 1), (end - 7, 8), (0, REGION + 1)] {
            let s = Scene::new(role);
            let write = Tagged {
                to: s.memory.writable.addr().wrapping_add(offset),
                ..s.write(0, &vec![0xEE; len])
            };
            s.refuses(&write.bytes(), BOUNDS, "base or bounds", None);
        }
    }
}

/// The sink is 48 bytes of a larger region. No byte after it may be written.
#[test]
fn s6_2_1_read_response_beyond_its_sink() {
    for role in ROLES {
        let s = Scene::new(role);
        let header = s.read_header();
        let bytes = filler(1, SINK_LEN + 1);
        let response = Tagged::new(READ_RESPONSE, header.sink_stag, header.sink_to, &bytes);
        let blamed = Some((READ, Status::BadResponse));
        s.refuses(&response.bytes(), BOUNDS, "asked for 48", blamed);
    }
}

/// The peer sends a second Response to the same Read, and a Write to its sink. The STag of a sink
/// grants no right to write.
#[test]
fn s6_2_2_sink_of_a_read_after_its_completion() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let header = s.read_header();
        let bytes = filler(9, SINK_LEN);
        let response = Tagged::new(READ_RESPONSE, header.sink_stag, header.sink_to, &bytes);
        s.peer.send_ulpdus(&[response.bytes()]);
        s.memory.expect(Place::Local, SINK_AT, &bytes);
        s.reads();
        assert_eq!(s.peer.receive_ulpdu()[18..], *b"too late");
        let at = (header.sink_stag, header.sink_to);
        refuses_use(s, Use::Write, at, &INVALID, "access rights");
    }
}

/// The peer says that it is done. The program invalidates the STag before it reads the bytes
/// (5041-8.3-02).
#[test]
fn s6_2_2_write_after_the_program_has_revoked_the_stag() {
    for role in ROLES {
        let mut setup = Setup::new(role);
        setup.settings.limits.max_mr += 1;
        let mut s = Scene::with(&setup);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = s.pd.register(vec![0; 64], access).unwrap();
        let at = (region.rkey(), region.addr());
        let write = Tagged::new(WRITE, at.0, at.1, b"what was agreed");
        s.peer.send_ulpdus(&[write.bytes()]);
        s.delivers(b"I am done");
        let mut found = [0; 15];
        region.read_at(0, &mut found).unwrap();
        assert_eq!(&found, b"what was agreed");
        region.deregister().unwrap();
        refuses_use(s, Use::Write, at, &INVALID, "invalid STag");
    }
}

/// The peer invalidates the STag with its last Send, and then uses it again.
#[test]
fn s6_2_2_write_after_the_peer_has_invalidated_the_stag() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let at = (s.own.rkey(), s.own.addr());
        let send = Untagged {
            opcode: SEND_INVALIDATE,
            word: at.0,
            ..s.next_send(b"I am done")
        };
        s.peer.send_ulpdus(&[send.bytes()]);
        let done = s.victim.receives(9);
        assert_eq!(done.invalidated, Some(at.0));
        s.memory
            .expect(Place::Local, RECV_AT + RECV_LEN, b"I am done");
        s.msn += 1;
        refuses_use(s, Use::Write, at, &INVALID, "invalid STag");
    }
}

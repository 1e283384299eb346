//! Valid messages with a few bytes changed and a correct CRC. Whatever the result means, our side
//! ends the connection properly. Only bytes that the peer may change have changed.

use uwarp_testkit::{Random, filler};

use crate::memory::{Place, REGION};
use crate::scene::{RECV_AT, RECV_LEN, ROLES, SINK_AT, SINK_LEN, Scene};
use crate::wire::{Code, READ_RESPONSE, SEND_INVALIDATE, Tagged, Untagged};

/// Returns correct messages of each kind.
fn valid(s: &Scene) -> [Vec<u8>; 7] {
    let header = s.read_header();
    let sink = filler(5, SINK_LEN);
    let invalidate = Untagged {
        opcode: SEND_INVALIDATE,
        word: s.own.rkey(),
        ..s.next_send(b"take it back")
    };
    [
        s.write(500, b"a Write of some octets").bytes(),
        s.write(0, b"").bytes(),
        s.next_send(b"a Send of some octets").bytes(),
        invalidate.bytes(),
        s.read_request(s.read()).bytes(),
        Tagged::new(READ_RESPONSE, header.sink_stag, header.sink_to, &sink).bytes(),
        Code::ddp(1, 0).about(&s.write(0, b"").bytes()),
    ]
}

/// 5041-8.3.1-01, 5040-8.1.1-03: no byte changes except those that the peer may change.
#[test]
fn changed_bytes_under_a_good_crc() {
    for seed in 1..=120 {
        let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
        for _ in 0..3 {
            random.next();
        }
        let mut s = Scene::new(ROLES[random.below(2)]);
        let messages = valid(&s);
        let mut ulpdu = messages[random.below(messages.len())].clone();
        let before = ulpdu.clone();
        for _ in 0..=random.below(3) {
            // Changes mostly headers, because their bytes have a meaning.
            let at = random.below(ulpdu.len().min(46));
            ulpdu[at] ^= 1 << random.below(8);
        }
        s.peer.send_ulpdus(&[&ulpdu]);
        s.peer.fin();
        assert!(
            s.qp.wait_closed(crate::peer::PATIENCE),
            "seed {seed}: {before:02x?} became {ulpdu:02x?}"
        );
        s.victim.memory.allow(Place::Writable, 0, REGION);
        s.victim
            .memory
            .allow(Place::Local, RECV_AT + RECV_LEN, 2 * RECV_LEN);
        s.victim.memory.allow(Place::Local, SINK_AT, SINK_LEN);
        s.victim.check_unharmed();
        s.victim.leaves_nothing();
    }
}

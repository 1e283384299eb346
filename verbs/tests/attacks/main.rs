//! The attacks of RFC 5042 sections 5 to 8 that apply to a software RNIC. A hostile raw peer (or a
//! greedy part of the local program) carries out each attack. Each test checks that the attacker
//! gains nothing and that the honest connection keeps working. Tests are named after section and
//! attack. SECURITY.md lists the attacks in a table, which `table.rs` compares with the tests.
//!
//! `Scene` and `Victim` make the same checks at the end of each test. Memory changed only where it
//! may, the healthy connection works, every end is reported once with its reason, and nothing is
//! left over.

mod denial;
mod disclosure;
mod half_open;
mod in_time;
mod limits;
mod local;
mod short_memory;
mod slow;
mod spoofing;
mod table;
mod tampering;

#[path = "../common/raw/consumer.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod consumer;
#[path = "../common/raw/healthy.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod healthy;
#[path = "../common/raw/memory.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod memory;
#[path = "../common/raw/peer.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod peer;
#[path = "../common/raw/scene.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod scene;
#[path = "../common/raw/victim.rs"]
#[allow(
    dead_code,
    reason = "shared with other test binaries; this one uses a part of it"
)]
mod victim;

use scene::Scene;
use uwarp_oracle as wire;
use uwarp_verbs::Status;
use wire::{
    ATOMIC_REQUEST, AtomicHeader, Code, READ_REQUEST, ReadHeader, SEND_INVALIDATE, Tagged,
    Untagged, WRITE,
};

/// Operation that a peer tries with an STag.
#[derive(Clone, Copy, Debug)]
enum Use {
    Write,
    Read,
    /// FetchAdd (RFC 7306), which is refused with the codes of a Read.
    Atomic,
    Invalidate,
}

const USES: [Use; 4] = [Use::Write, Use::Read, Use::Atomic, Use::Invalidate];

/// Code of the expected Terminate for each operation.
struct Answers {
    write: Code,
    read: Code,
}

/// Also the answer for an STag of another domain or stream: the peer must not learn that it exists.
const INVALID: Answers = Answers {
    write: Code::ddp(1, 0x00),
    read: Code::rdmap(1, 0x00),
};

/// Checks an operation of the peer with this STag. The stream must end with a Terminate, and
/// nothing else may happen.
fn refuses_use(scene: Scene, what: Use, (stag, to): (u32, u64), answers: &Answers, words: &str) {
    match what {
        Use::Write => {
            let write = Tagged::new(WRITE, stag, to, b"octets").bytes();
            scene.refuses(&write, answers.write, words, None);
        }
        Use::Read => {
            let header = ReadHeader {
                source_stag: stag,
                source_to: to,
                ..scene.read()
            };
            let read = Untagged::new(READ_REQUEST, 1, 1, &header.bytes()).bytes();
            scene.refuses(&read, answers.read, words, None);
        }
        Use::Atomic => {
            let header = AtomicHeader {
                code: 0,
                id: 1,
                stag,
                to,
                words: [1, 0, 0, u64::MAX],
            };
            let request = Untagged::new(ATOMIC_REQUEST, 1, 1, &header.bytes()).bytes();
            scene.refuses(&request, answers.read, words, None);
        }
        Use::Invalidate => {
            let send = Untagged {
                opcode: SEND_INVALIDATE,
                word: stag,
                ..scene.next_send(b"x")
            };
            let blamed = Some((scene.victim.receives[0], Status::RemoteInvalidRequest));
            let words = "cannot be invalidated";
            scene.refuses(&send.bytes(), Code::rdmap(1, 0x09), words, blamed);
        }
    }
}

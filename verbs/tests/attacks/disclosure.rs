//! Section 6.3: reading without permission.
#![expect(
    unsafe_code,
    reason = "two STags for the same memory can only be had in place"
)]

use std::ptr::NonNull;

use uwarp_testkit::filler;
use uwarp_verbs::{Access, MemoryRegion};

use crate::INVALID;
use crate::memory::{Place, REGION};
use crate::peer::eventually;
use crate::scene::{ROLES, Role, Scene, Sees, Setup};
use crate::wire::{Code, READ_RESPONSE, ReadHeader, Tagged, Untagged, WRITE};

/// Returns a Read Request of the peer for this part of a region.
fn request(s: &Scene, (source_stag, source_to): (u32, u64), len: u32) -> Untagged {
    s.read_request(ReadHeader {
        source_stag,
        source_to,
        len,
        ..s.read()
    })
}

/// Checks that a Read returns exactly these bytes.
fn reads(s: &mut Scene, at: (u32, u64), expected: &[u8], msn: u32) {
    let read = Untagged {
        msn,
        ..request(s, at, expected.len() as u32)
    };
    s.peer.send_ulpdus(&[read.bytes()]);
    let sink = s.read();
    let response = Tagged::new(READ_RESPONSE, sink.sink_stag, sink.sink_to, expected);
    assert_eq!(s.peer.receive_ulpdu(), response.bytes());
}

/// Creates a scene whose limit allows two more regions than usual.
fn roomy(role: Role) -> Scene {
    let mut setup = Setup::new(role);
    setup.settings.limits.max_mr += 2;
    Scene::with(&setup)
}

#[test]
fn s6_3_1_read_beyond_a_buffer() {
    for role in ROLES {
        for (offset, len) in [
            (u64::MAX, 1),
            (REGION as u64, 1),
            (REGION as u64 - 7, 8),
            (1 << 40, 8),
        ] {
            let s = Scene::new(role);
            let readable = s.memory.readable.remote();
            let at = (readable.rkey, readable.addr.wrapping_add(offset));
            let read = request(&s, at, len).bytes();
            s.refuses(&read, Code::rdmap(1, 0x01), "base or bounds", None);
        }
    }
}

/// Memory that the library allocates is zeroed before any peer can read it, whatever it contained
/// before.
#[test]
fn s6_3_2_fresh_buffer_holds_nothing_of_others() {
    for role in ROLES {
        let mut s = roomy(role);
        let secret = vec![0xC5; 1 << 16];
        drop(std::hint::black_box(secret));
        let buffer = uwarp_verbs::Buffer::zeroed(1 << 16).unwrap();
        let fresh = s.pd.register_buffer(buffer, Access::REMOTE_READ).unwrap();
        let at = (fresh.rkey(), fresh.addr() + 60_000);
        reads(&mut s, at, &[0; 1000], 1);
        drop(fresh);
        s.closes();
    }
}

/// After the peer has read, the program invalidates the STag before it stores other bytes in the
/// memory.
#[test]
fn s6_3_3_read_after_the_transfer() {
    for role in ROLES {
        let mut s = roomy(role);
        let region = s.pd.register(filler(5, 64), Access::REMOTE_READ).unwrap();
        let at = (region.rkey(), region.addr());
        reads(&mut s, at, &filler(5, 64), 1);
        region.deregister().unwrap();
        let header = ReadHeader {
            source_stag: at.0,
            source_to: at.1,
            ..s.read()
        };
        let again = Untagged {
            msn: 2,
            ..s.read_request(header)
        };
        s.refuses(&again.bytes(), INVALID.read, "invalid STag", None);
    }
}

/// A part of an array is registered. The bytes before and after this part cannot be read.
#[test]
fn s6_3_4_rest_of_a_buffer_of_which_a_part_is_registered() {
    for role in ROLES {
        for (before, more) in [(0, 1), (1, 0), (16, 16)] {
            let mut s = Scene::new(role);
            let readable = s.memory.readable.remote();
            let whole = s.memory.expected(Place::Readable, 0, 1000).to_vec();
            reads(&mut s, (readable.rkey, readable.addr), &whole, 1);
            let at = (readable.rkey, readable.addr - before);
            let read = Untagged {
                msn: 2,
                ..request(&s, at, REGION as u32 + more)
            };
            s.refuses(&read.bytes(), Code::rdmap(1, 0x01), "base or bounds", None);
        }
    }
}

#[test]
fn s6_3_5_read_of_a_buffer_that_is_for_writes() {
    const RIGHTS: Code = Code::rdmap(1, 0x02);
    for role in ROLES {
        let s = Scene::new(role);
        let at = (s.memory.writable.rkey(), s.memory.writable.addr());
        let read = request(&s, at, 16).bytes();
        s.refuses(&read, RIGHTS, "access rights", None);
    }
}

/// An empty Read is permitted, because it reveals only that earlier Writes were placed.
#[test]
fn s6_3_5_read_of_no_bytes_tells_nothing() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let at = (s.memory.writable.rkey(), s.memory.writable.addr());
        reads(&mut s, at, b"", 1);
        s.closes();
    }
}

/// Registers the same memory with two STags: one that the peer may read, and one that others may
/// write.
fn aliases(s: &Scene) -> (MemoryRegion, MemoryRegion, NonNull<u8>) {
    let memory: &'static mut [u8] = Box::leak(filler(6, 64).into_boxed_slice());
    let base = NonNull::from(memory).cast::<u8>();
    let other = s.device.alloc_pd().unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    // SAFETY: the memory is leaked, and from here on only accessed through raw pointers.
    unsafe {
        (
            s.pd.register_in_place(base, 64, Access::REMOTE_READ)
                .unwrap(),
            other.register_in_place(base, 64, access).unwrap(),
            base,
        )
    }
}

/// This test also covers section 6.2.3. The rights of one STag do not extend to another STag of the
/// same memory.
#[test]
fn s6_3_6_stags_of_the_same_memory_keep_their_own_rights_and_domains() {
    for role in ROLES {
        for (of_another_domain, code, words) in [
            (false, INVALID.write, "access rights"),
            (true, INVALID.write, "not associated"),
        ] {
            let mut s = roomy(role);
            let (readable, writable, base) = aliases(&s);
            reads(
                &mut s,
                (readable.rkey(), readable.addr()),
                &filler(6, 64),
                1,
            );
            let through = if of_another_domain {
                &writable
            } else {
                &readable
            };
            let write = Tagged::new(WRITE, through.rkey(), through.addr(), b"octets").bytes();
            s.commits(&write);
            eventually("the QP notices", || s.qp.end_reason());
            for at in 0..64 {
                // SAFETY: the memory is leaked, as in `aliases`.
                let found = unsafe { base.add(at).read_volatile() };
                assert_eq!(found, filler(6, 64)[at]);
            }
            drop((readable, writable));
            s.ends(Sees::Terminate(code.about(&write)), words);
        }
    }
}

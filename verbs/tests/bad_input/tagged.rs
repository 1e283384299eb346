//! Writes that must not be placed (RFC 5041 section 7, errors of type 1).

use uwarp_verbs::Access;

use crate::memory::{Place, REGION};
use crate::scene::{NONSENSE, ROLES, Scene, Setup, refuses};
use crate::wire::{Code, Tagged, WRITE};

const INVALID_STAG: Code = Code::ddp(1, 0x00);
const BOUNDS: Code = Code::ddp(1, 0x01);
const WRAP: Code = Code::ddp(1, 0x03);
const VERSION: Code = Code::ddp(1, 0x04);

/// 5041-4.2-05, 5041-7.1-10, 5042-6.1.1-i01.
#[test]
pub(crate) fn write_with_an_stag_that_was_never_given_out() {
    let bad = |s: &mut Scene| {
        Tagged {
            stag: NONSENSE,
            ..s.write(16, b"octets")
        }
        .bytes()
    };
    refuses(bad, INVALID_STAG, "invalid STag");
}

/// 5041-7.1-10: the index of the STag is valid, but the key is not.
#[test]
fn write_with_another_key_part_of_the_stag() {
    for wrong in [1, 0x80, 0xFF] {
        let bad = |s: &mut Scene| {
            Tagged {
                stag: s.memory.writable.rkey() ^ wrong,
                ..s.write(16, b"octets")
            }
            .bytes()
        };
        refuses(bad, INVALID_STAG, "invalid STag");
    }
}

/// 5041-8.2-01, 5041-7.1-10: the code does not tell the peer that the STag exists.
#[test]
fn write_with_an_stag_of_another_protection_domain() {
    let bad = |s: &mut Scene| {
        let foreign = s.memory.foreign.remote();
        Tagged::new(WRITE, foreign.rkey, foreign.addr, b"octets").bytes()
    };
    refuses(bad, INVALID_STAG, "not associated");
}

/// 5041-8.2-02: the region is bound to another QP of the same domain. The access is reported
/// (5041-8.3-04).
#[test]
fn write_with_an_stag_of_another_stream() {
    let bad =
        |s: &mut Scene| Tagged::new(WRITE, s.theirs.rkey(), s.theirs.addr(), b"octets").bytes();
    refuses(bad, INVALID_STAG, "not associated");
}

/// 5041-7.1-11: DDP's code for missing rights is that of an invalid STag.
#[test]
fn write_to_memory_that_may_only_be_read() {
    let bad = |s: &mut Scene| {
        let readable = s.memory.readable.remote();
        Tagged::new(WRITE, readable.rkey, readable.addr, b"octets").bytes()
    };
    refuses(bad, INVALID_STAG, "access rights");
}

/// 5041-7.1-11.
#[test]
fn write_to_memory_without_any_remote_right() {
    let bad = |s: &mut Scene| {
        let local = s.memory.local.remote();
        Tagged::new(WRITE, local.rkey, local.addr, b"octets").bytes()
    };
    refuses(bad, INVALID_STAG, "access rights");
}

/// 5041-7.1-12, 5041-7.1-13, 5041-8.3.1-01: the Writes start one byte before the region or one byte
/// after it, cross its end, are far away, or are longer than the region.
#[test]
fn write_outside_of_the_bounds() {
    let end = REGION as u64;
    for (offset, len) in [
        (u64::MAX, 1),
        (end, 1),
        (end - 7, 8),
        (1 << 40, 8),
        (0, REGION + 1),
    ] {
        let bad = |s: &mut Scene| {
            let base = s.memory.writable.addr();
            Tagged {
                to: base.wrapping_add(offset),
                ..s.write(0, &vec![0xEE; len])
            }
            .bytes()
        };
        refuses(bad, BOUNDS, "base or bounds");
    }
}

/// 5041-7.1-15: the bytes of the segment before the wrong segment stay placed. Nothing of the wrong
/// segment is placed.
#[test]
fn second_segment_of_a_write_beyond_the_end() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let offset = REGION as u64 - 8;
        let first = Tagged {
            last: false,
            ..s.write(offset, b"inside")
        };
        s.peer.send_ulpdus(&[first.bytes()]);
        s.memory.expect(Place::Writable, REGION - 8, b"inside");
        let second = s.write(offset + 6, b"12 outside");
        s.refuses(&second.bytes(), BOUNDS, "base or bounds", None);
    }
}

/// 5041-7.1-14.
#[test]
fn write_whose_tagged_offset_wraps() {
    for to in [u64::MAX, u64::MAX - 3] {
        let bad = |s: &mut Scene| {
            Tagged {
                to,
                ..s.write(0, b"8 octets")
            }
            .bytes()
        };
        refuses(bad, WRAP, "TO wrap");
    }
}

/// 5041-8.3.1-03: the STag was valid until the region was deregistered.
#[test]
fn write_to_a_region_that_was_deregistered() {
    for role in ROLES {
        let mut setup = Setup::new(role);
        setup.settings.limits.max_mr += 1;
        let mut s = Scene::with(&setup);
        let region =
            s.pd.register(vec![0; 64], Access::LOCAL_WRITE | Access::REMOTE_WRITE)
                .unwrap();
        let write = Tagged::new(WRITE, region.rkey(), region.addr(), b"before");
        s.peer.send_ulpdus(&[write.bytes()]);
        s.delivers(b"done");
        let mut found = [0; 6];
        region.read_at(0, &mut found).unwrap();
        assert_eq!(&found, b"before");
        region.deregister().unwrap();
        s.refuses(&write.bytes(), INVALID_STAG, "invalid STag", None);
    }
}

/// 5041-4.1-12, 5041-7.2-i01.
#[test]
fn tagged_segment_with_another_ddp_version() {
    for ddp_version in [0, 2, 3] {
        let bad = |s: &mut Scene| {
            Tagged {
                ddp_version,
                ..s.write(16, b"octets")
            }
            .bytes()
        };
        refuses(bad, VERSION, "DDP version");
    }
}

/// 5041-5.2-11, 5040-5.1-06: neither STag nor TO of an empty Write is checked. A Write consumes no
/// receive and causes no completion (5040-5.1-02).
#[test]
fn write_without_payload_is_taken_whatever_it_names() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let names = [
            (NONSENSE, u64::MAX),
            (0, 0),
            (s.memory.foreign.rkey(), 5),
            (s.memory.readable.rkey(), 1 << 60),
        ];
        let writes = names.map(|(stag, to)| Tagged::new(WRITE, stag, to, b"").bytes());
        s.peer.send_ulpdus(&writes);
        s.delivers(b"still there");
        s.closes();
    }
}

/// 5041-4.1: reserved bits are ignored.
#[test]
fn reserved_bits_are_not_looked_at() {
    for role in ROLES {
        let mut s = Scene::new(role);
        let mut write = s.write(300, b"reserved bits").bytes();
        write[0] |= 0x3C;
        write[1] |= 0x30;
        s.peer.send_ulpdus(&[write]);
        s.memory.expect(Place::Writable, 300, b"reserved bits");
        s.delivers(b"still there");
        s.closes();
    }
}

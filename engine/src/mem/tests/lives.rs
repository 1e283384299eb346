//! Registration, revocation and pins: lifetimes of memory and STags.

use std::collections::HashSet;

use uwarp_ddp::{STag, TaggedFault};

use super::*;

#[test]
fn stags_are_not_sequential_and_never_zero() {
    let table = table();
    let memory = buffer(1);
    // Of 256 keys, 1000 draws yield about 251 on average and 50 draws about 45.
    let (count, enough_keys) = if cfg!(miri) { (50, 33) } else { (1000, 200) };
    let stags: Vec<u32> = (0..count)
        .map(|_| table.insert(spec(&memory)).unwrap().stag().0)
        .collect();
    assert!(stags.iter().all(|stag| *stag != 0));
    let distinct: HashSet<_> = stags.iter().map(|stag| stag >> 8).collect();
    assert_eq!(distinct.len(), count);
    let close = stags
        .windows(2)
        .filter(|pair| pair[0].abs_diff(pair[1]) < 1 << 16)
        .count();
    assert!(
        close < 12,
        "{close} of {count} STags are next to the one before"
    );
    let keys: HashSet<_> = stags.iter().map(|stag| stag & 0xff).collect();
    assert!(keys.len() > enough_keys, "only {} keys", keys.len());
}

#[test]
fn a_freed_stag_is_not_given_again_soon() {
    let table = table();
    let memory = buffer(1);
    let mut indices = HashSet::new();
    for _ in 0..if cfg!(miri) { 30 } else { 50_000 } {
        let stag = table.insert(spec(&memory)).unwrap().stag();
        table.remove(stag).unwrap();
        assert!(indices.insert(stag.0 >> 8), "index of {stag:?} again");
    }
    assert_eq!(table.live(), 0);
}

#[test]
fn the_limit_is_an_error_and_a_deregistration_makes_room() {
    let table = RegionTable::new(2, 2, None).unwrap();
    let memory = buffer(1);
    let first = table.insert(spec(&memory)).unwrap();
    table.insert(spec(&memory)).unwrap();
    assert_eq!(
        table.insert(spec(&memory)).unwrap_err(),
        RegisterError::TooMany { limit: 2 }
    );
    table.remove(first.stag()).unwrap();
    assert!(table.insert(spec(&memory)).is_ok());
}

#[test]
fn a_domain_at_its_limit_leaves_the_rest_to_others() {
    let table = RegionTable::new(3, 2, None).unwrap();
    let memory = buffer(1);
    let other = || RegionSpec {
        pd: 77,
        ..spec(&memory)
    };
    let first = table.insert(spec(&memory)).unwrap();
    let second = table.insert(spec(&memory)).unwrap();
    let limit = 2;
    let too_many = RegisterError::TooManyInPd { limit };
    assert_eq!(table.insert(spec(&memory)).unwrap_err(), too_many);
    table.insert(other()).unwrap();
    table.remove(first.stag()).unwrap();
    table.revoke(second.stag());
    table.insert(other()).unwrap();
    assert_eq!(table.insert(other()).unwrap_err(), too_many);
    table.insert(spec(&memory)).unwrap();
}

#[test]
fn registrations_that_make_no_sense_are_refused() {
    let table = table();
    let insert = |spec| table.insert(spec).unwrap_err();
    // In place, a region may be empty (see dropin/src/tests/regions.rs).
    assert_eq!(insert(spec(&buffer(0))), RegisterError::Empty);
    for access in [
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC | Access::REMOTE_READ,
    ] {
        let spec = RegionSpec {
            access,
            ..spec(&buffer(1))
        };
        assert_eq!(insert(spec), RegisterError::NeedsLocalWrite { access });
    }
    let base = u64::MAX - 8;
    let spec = RegionSpec {
        to_base: Some(base),
        ..spec(&buffer(10))
    };
    assert_eq!(insert(spec), RegisterError::Wraps { base, len: 10 });
    assert_eq!(table.live(), 0);
}

#[test]
fn without_a_base_the_to_is_the_address() {
    let table = table();
    let memory = buffer(4096);
    let region = table
        .insert(RegionSpec {
            to_base: None,
            ..spec(&memory)
        })
        .unwrap();
    assert_eq!(region.to_base(), memory.addr());
    write_target(&table, region.stag(), memory.addr() + 5, 1)
        .unwrap()
        .place(0, &[9])
        .unwrap();
    assert_eq!(contents(&memory)[5], 9);
}

#[test]
fn the_rights_of_the_qp_limit_those_of_the_region() {
    let table = table();
    let stag = table.insert(spec(&buffer(8))).unwrap().stag();
    let readers = Asker {
        access: Access::REMOTE_READ,
        ..asker(1, 7)
    };
    let check = |need| table.check(stag, 0, 8, need, &readers).map(|_| ());
    assert_eq!(check(Need::RemoteRead), Ok(()));
    assert_eq!(check(Need::RemoteWrite), Err(TaggedFault::AccessRights));
}

#[test]
fn a_deregistered_stag_is_unknown_to_everyone() {
    let table = table();
    let memory = buffer(8);
    let stag = table.insert(spec(&memory)).unwrap().stag();
    let old = write_target(&table, stag, 0, 8).unwrap();
    table.remove(stag).unwrap();
    assert_eq!(
        table.remove(stag),
        Err(DeregisterError::Unknown { stag: stag.0 })
    );
    assert_eq!(table.invalidate(stag), None);
    assert_eq!(
        write_target(&table, stag, 0, 8).unwrap_err(),
        TaggedFault::InvalidSTag
    );
    // A target checked before the revocation cannot be used either.
    assert_eq!(old.place(0, &[1; 8]), Err(TaggedFault::InvalidSTag));
    assert_eq!(contents(&memory), [0; 8]);
}

#[test]
fn a_wrong_key_does_not_deregister() {
    let table = table();
    let stag = table.insert(spec(&buffer(8))).unwrap().stag();
    let wrong = STag(stag.0 ^ 0x80);
    assert_eq!(
        table.remove(wrong),
        Err(DeregisterError::Unknown { stag: wrong.0 })
    );
    assert!(write_target(&table, stag, 0, 8).is_ok());
}

#[test]
fn after_invalidation_peers_are_out_and_the_program_reads_on() {
    let table = table();
    let memory = buffer(8);
    let region = table.insert(spec(&memory)).unwrap();
    let stag = region.stag();
    let write = write_target(&table, stag, 0, 8).unwrap();
    let read = read_target(&table, stag, 8);
    write.place(0, &[5; 8]).unwrap();
    assert_eq!(table.invalidate(stag), Some(0));
    assert_eq!(
        write_target(&table, stag, 0, 8).unwrap_err(),
        TaggedFault::InvalidSTag
    );
    assert_eq!(write.place(0, &[6; 8]), Err(TaggedFault::InvalidSTag));
    assert_eq!(read.source().err(), Some(TaggedFault::InvalidSTag));
    let mut out = [0; 8];
    region.read_at(0, &mut out).unwrap();
    assert_eq!(out, [5; 8]);
    region.write_at(0, &[1; 8]).unwrap();
    assert_eq!(table.remove(stag), Ok(()));
}

#[test]
fn only_the_one_qp_of_an_stag_may_have_it_invalidated() {
    let table = table();
    let memory = buffer(8);
    let shared = table.insert(spec(&memory)).unwrap().stag();
    let own = table
        .insert(RegionSpec {
            qp: Some(7),
            ..spec(&memory)
        })
        .unwrap()
        .stag();
    assert_eq!(
        table.check_invalidate(shared, 1, 7),
        Err(TaggedFault::NotAssociated)
    );
    assert_eq!(
        table.check_invalidate(own, 1, 8),
        Err(TaggedFault::NotAssociated)
    );
    assert_eq!(
        table.check_invalidate(own, 2, 7),
        Err(TaggedFault::NotAssociated)
    );
    assert_eq!(
        table.check_invalidate(STag(own.0 ^ 1), 1, 7),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(table.check_invalidate(own, 1, 7), Ok(()));
    table.invalidate(own).unwrap();
    assert_eq!(
        table.check_invalidate(own, 1, 7),
        Err(TaggedFault::InvalidSTag)
    );
}

/// Resolves a list of the first `len` bytes of a region, for QP 7 of PD 1.
fn list(table: &RegionTable, stag: STag, len: u32) -> SgList {
    let mut list = SgList::default();
    list.resolve(
        table,
        1,
        7,
        &[Sge {
            addr: 0,
            len,
            lkey: stag.0,
        }],
        false,
    )
    .unwrap();
    list
}

#[test]
fn deregistration_with_a_pin_says_busy_and_changes_nothing() {
    let table = table();
    let memory = buffer(8);
    let stag = table.insert(spec(&memory)).unwrap().stag();
    let list = list(&table, stag, 8);
    let first = pin(&list, 0, 4).unwrap();
    let second = pin(&list, 4, 4).unwrap();
    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 2 }));
    assert!(write_target(&table, stag, 0, 8).is_ok());
    // The list may be dropped; the runs hold the pins.
    drop((list, first));
    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 1 }));
    // A peer's invalidation succeeds; the pinned bytes stay until they are sent.
    assert_eq!(table.invalidate(stag), Some(1));
    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 1 }));
    drop(second);
    assert_eq!(table.remove(stag), Ok(()));
}

#[test]
fn an_stag_whose_use_is_revoked_is_used_no_more_and_its_region_goes_when_the_pins_have_gone() {
    let table = table();
    let stag = table.insert(spec(&buffer(8))).unwrap().stag();
    let list = list(&table, stag, 8);
    let held = pin(&list, 0, 4).unwrap();
    assert_eq!(table.revoke_use(stag), Ok(()));
    assert!(write_target(&table, stag, 0, 8).is_err());
    assert!(pin(&list, 4, 4).is_none());
    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 1 }));
    drop(held);
    assert_eq!(table.remove(stag), Ok(()));
    assert_eq!(table.revoke_use(stag), Ok(()));
}

#[test]
fn every_run_has_a_pin_of_its_own_and_a_failed_pinning_leaves_none() {
    let table = table();
    let [stag, other] = [8, 8].map(|len| table.insert(spec(&buffer(len))).unwrap().stag());
    let sges = [stag, stag, other].map(|stag| Sge {
        addr: 0,
        len: 8,
        lkey: stag.0,
    });
    let mut list = SgList::default();
    list.resolve(&table, 1, 7, &sges, false).unwrap();
    let mut runs = pin(&list, 2, 20).unwrap();
    assert_eq!(
        runs.iter().map(|run| run.len()).collect::<Vec<_>>(),
        [6, 8, 6]
    );
    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 2 }));
    drop(runs.pop());
    assert_eq!(table.remove(other), Ok(()));
    assert!(pin(&list, 2, 20).is_none());
    assert_eq!(table.remove(stag), Err(DeregisterError::Busy { pins: 2 }));
    drop(runs);
    assert_eq!(table.remove(stag), Ok(()));
}

#[test]
fn a_revoked_region_is_gone_but_for_its_pins() {
    let table = table();
    let memory = buffer(8);
    memory.write_at(0, b"on a way").unwrap();
    let weak = Arc::downgrade(&memory);
    let stag = table.insert(spec(&memory)).unwrap().stag();
    drop(memory);
    let target = write_target(&table, stag, 0, 8).unwrap();
    let run = pin(&list(&table, stag, 8), 0, 8).unwrap().remove(0);
    table.revoke(stag);
    table.revoke(stag);
    assert_eq!(table.live(), 0);
    assert_eq!(
        write_target(&table, stag, 0, 8).unwrap_err(),
        TaggedFault::InvalidSTag
    );
    assert_eq!(target.place(0, &[0; 8]), Err(TaggedFault::InvalidSTag));
    drop(target);
    let mut out = Vec::new();
    assert!(run.copy_to(0, 8, &mut out));
    assert_eq!(out, b"on a way");
    drop(run);
    assert!(weak.upgrade().is_none());
}

#[test]
fn an_owners_buffer_outlives_its_pins() {
    let table = table();
    let memory = buffer(8);
    memory.write_at(0, b"still up").unwrap();
    let weak = Arc::downgrade(&memory);
    let region = table.insert(spec(&memory)).unwrap();
    let run = pin(&list(&table, region.stag(), 8), 0, 8)
        .unwrap()
        .remove(0);
    // Drop the program's buffer, the region handle and the table of the device.
    drop((memory, region, table));
    let mut out = [0; 8];
    assert_eq!(run.piece(0).copy_to(0, &mut out), 8);
    assert_eq!(&out, b"still up");
    assert!(weak.upgrade().is_some());
    drop(run);
    assert!(weak.upgrade().is_none());
}

#[test]
fn the_facts_of_an_stag_are_what_it_names_now() {
    let table = table();
    let stag = table
        .insert(RegionSpec {
            to_base: Some(0x1000),
            ..spec(&buffer(64))
        })
        .unwrap()
        .stag();
    let whole = StagFacts {
        named: Named::Region,
        base: 0x1000,
        size: 64,
        access: spec(&buffer(64)).access,
    };
    assert_eq!(table.facts(stag), whole);
    let other = table.facts(STag(stag.0 ^ 1));
    assert_eq!(other, StagFacts::without_region(Named::OtherKey));
    table.invalidate(stag);
    let named = Named::Invalidated;
    assert_eq!(table.facts(stag), StagFacts { named, ..whole });
    table.revoke(stag);
    let nothing = StagFacts::without_region(Named::Nothing);
    assert_eq!(table.facts(stag), nothing);
}

#[test]
fn nothing_reaches_the_programs_memory_once_the_table_is_gone() {
    let mut memory = [0_u8; 16];
    let base = core::ptr::NonNull::new(memory.as_mut_ptr()).unwrap();
    let table = table();
    // SAFETY: the array lives until the table is dropped, and is not accessed before.
    let backing = unsafe { Backing::in_place(base, 16, true) };
    let region = table
        .insert(RegionSpec {
            memory: backing,
            ..spec(&buffer(1))
        })
        .unwrap();
    let target = write_target(&table, region.stag(), 0, 16).unwrap();
    target.place(8, b"in place").unwrap();
    drop(table);
    assert_eq!(target.place(0, &[9]), Err(TaggedFault::InvalidSTag));
    assert!(region.read_at(0, &mut [0]).is_err());
    assert_eq!(&memory[8..], b"in place");
}

#[test]
#[cfg_attr(miri, ignore = "its aliasing rules allow no atomic load of a constant")]
fn read_only_memory_of_the_program_is_never_written() {
    static CONSTANT: [u8; 4] = *b"ROM!";
    let table = table();
    let base = core::ptr::NonNull::new(CONSTANT.as_ptr().cast_mut()).unwrap();
    // SAFETY: a static lives forever, and is registered without local write.
    let memory = unsafe { Backing::in_place(base, 4, false) };
    let access = Access::REMOTE_READ;
    let region = table
        .insert(RegionSpec {
            memory,
            access,
            ..spec(&buffer(1))
        })
        .unwrap();
    assert!(region.write_at(0, b"x").is_err());
    let mut out = [0; 4];
    region.read_at(0, &mut out).unwrap();
    assert_eq!(out, CONSTANT);
}

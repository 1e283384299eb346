//! Tests of memory windows and fast registration: rules, reach, and end.

use uwarp_ddp::{STag, TaggedFault};

use super::super::slot::SlotFault;
use super::super::{FastRegister, Purpose, WindowBind, WindowKind};
use super::*;

const PD: u32 = 1;
const QP: u32 = 7;

/// Rights of a region over which windows of all types may be bound.
fn lending() -> Access {
    Access::LOCAL_WRITE | Access::WINDOW_BIND
}

/// A region of 64 bytes with TOs from 0x1000 on.
fn lender(table: &RegionTable, memory: &Arc<Buffer>, access: Access) -> Arc<Region> {
    let spec = RegionSpec {
        access,
        to_base: Some(0x1000),
        ..spec(memory)
    };
    table.insert(spec).unwrap()
}

/// A bind over bytes 16 to 32 of the lender, with remote read and write.
fn bind(region: &Region) -> WindowBind {
    WindowBind {
        lkey: region.stag().0,
        addr: 0x1010,
        len: 16,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        zero_based: false,
    }
}

/// A window that is not bound.
fn window(table: &RegionTable, kind: WindowKind) -> u32 {
    table.reserve(PD, Purpose::Window(kind)).unwrap().0
}

/// The STag with the next key.
fn next(stag: u32) -> u32 {
    crate::mem::inc_rkey(stag)
}

fn write(table: &RegionTable, stag: u32, to: u64, len: u32, qp: u32) -> Result<(), TaggedFault> {
    let target = table.check(STag(stag), to, len, Need::RemoteWrite, &asker(PD, qp))?;
    target.place(0, &vec![9; len as usize])
}

#[test]
fn a_window_shows_its_part_of_the_region_and_no_more() {
    let table = table();
    let memory = buffer(64);
    let region = lender(&table, &memory, lending());
    for (zero_based, base) in [(false, 0x1010), (true, 0)] {
        memory.write_at(0, &[0; 64]).unwrap();
        let rkey = next(window(&table, WindowKind::Type2B));
        let bind = WindowBind {
            zero_based,
            ..bind(&region)
        };
        assert_eq!(table.bind(rkey, &bind, false, &asker(PD, QP)), Ok(true));
        assert_eq!(write(&table, rkey, base, 16, QP), Ok(()));
        let mut expected = vec![0; 64];
        expected[16..32].fill(9);
        assert_eq!(contents(&memory), expected);
        for (to, len) in [(base, 17), (base + 16, 1), (base.wrapping_sub(1), 1)] {
            let fault = write(&table, rkey, to, len, QP).unwrap_err();
            assert!(
                matches!(fault, TaggedFault::BaseOrBounds | TaggedFault::ToWrap),
                "{to:#x}+{len}: {fault:?}"
            );
        }
    }
}

#[test]
fn a_window_of_type_2_is_for_its_qp_and_one_of_type_1_for_the_domain() {
    let table = table();
    let region = lender(&table, &buffer(64), lending());
    for kind in [WindowKind::Type1, WindowKind::Type2A, WindowKind::Type2B] {
        let type_1 = kind == WindowKind::Type1;
        let rkey = next(window(&table, kind));
        table
            .bind(rkey, &bind(&region), type_1, &asker(PD, QP))
            .unwrap();
        assert_eq!(write(&table, rkey, 0x1010, 1, QP), Ok(()));
        let other = write(&table, rkey, 0x1010, 1, QP + 1);
        let expected = if type_1 {
            Ok(())
        } else {
            Err(TaggedFault::NotAssociated)
        };
        assert_eq!(other, expected, "{kind}");
        let foreign = table.check(STag(rkey), 0x1010, 1, Need::RemoteWrite, &asker(PD + 1, QP));
        assert_eq!(foreign.unwrap_err(), TaggedFault::NotAssociated);
        // 5040-8.1.1-04: a peer may only invalidate an STag of its own stream.
        let may = table.check_invalidate(STag(rkey), PD, QP);
        assert_eq!(may.is_ok(), !type_1, "{kind}");
        assert!(table.check_invalidate(STag(rkey), PD, QP + 1).is_err());
    }
}

#[test]
fn a_window_gives_the_rights_of_its_bind_alone() {
    let table = table();
    let region = lender(&table, &buffer(64), lending());
    let rkey = next(window(&table, WindowKind::Type2A));
    let readable = WindowBind {
        access: Access::REMOTE_READ,
        ..bind(&region)
    };
    table.bind(rkey, &readable, false, &asker(PD, QP)).unwrap();
    assert_eq!(
        write(&table, rkey, 0x1010, 1, QP),
        Err(TaggedFault::AccessRights)
    );
    let read = table.check(STag(rkey), 0x1010, 16, Need::RemoteRead, &asker(PD, QP));
    assert!(read.unwrap().source().is_ok());
}

#[test]
fn binds_that_are_not_allowed_are_refused_and_change_nothing() {
    let table = table();
    let memory = buffer(64);
    let region = lender(&table, &memory, lending());
    let read_only = lender(&table, &memory, Access::WINDOW_BIND);
    let strict = lender(&table, &memory, remote());
    let own = RegionSpec {
        pd: PD + 1,
        access: lending(),
        ..spec(&memory)
    };
    let foreign = table.insert(own).unwrap();
    let rkey = next(window(&table, WindowKind::Type2A));
    let good = bind(&region);
    let try_bind = |bind: WindowBind| table.bind(rkey, &bind, false, &asker(PD, QP)).unwrap_err();
    let lkey = 0x1234_5678;
    assert_eq!(
        try_bind(WindowBind { lkey, ..good }),
        SlotFault::NoRegion { lkey }
    );
    let lkey = strict.stag().0;
    assert_eq!(
        try_bind(WindowBind { lkey, ..good }),
        SlotFault::NoBindRight { lkey }
    );
    let lkey = foreign.stag().0;
    assert_eq!(
        try_bind(WindowBind { lkey, ..good }),
        SlotFault::NotAssociated { stag: lkey }
    );
    let lkey = read_only.stag().0;
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let fault = try_bind(WindowBind {
            lkey,
            access,
            ..good
        });
        let region = Access::WINDOW_BIND;
        assert_eq!(fault, SlotFault::Rights { access, region });
    }
    let fault = try_bind(WindowBind {
        access: Access::LOCAL_WRITE,
        ..good
    });
    assert!(matches!(fault, SlotFault::Rights { .. }), "{fault}");
    for (addr, len) in [
        (0x0fff, 2),
        (0x1000, 65),
        (0x1040, 1),
        (u64::MAX, 1),
        (0x1010, u64::MAX),
    ] {
        let fault = try_bind(WindowBind { addr, len, ..good });
        let (base, size) = (0x1000, 64);
        assert_eq!(
            fault,
            SlotFault::OutOfBounds {
                addr,
                len,
                base,
                size
            }
        );
    }
    assert_eq!(try_bind(WindowBind { len: 0, ..good }), SlotFault::NoBytes);
    let kind = WindowKind::Type2A;
    let by_call = table.bind(rkey, &good, true, &asker(PD, QP));
    assert_eq!(
        by_call.unwrap_err(),
        SlotFault::WrongKind { stag: rkey, kind }
    );
    let other_pd = WindowBind {
        lkey: foreign.stag().0,
        addr: 0,
        ..good
    };
    let fault = table
        .bind(rkey, &other_pd, false, &asker(PD + 1, QP))
        .unwrap_err();
    assert_eq!(fault, SlotFault::NotAssociated { stag: rkey });
    let stag = region.stag().0;
    let not_a_window = table.bind(stag, &good, false, &asker(PD, QP)).unwrap_err();
    assert_eq!(not_a_window, SlotFault::NoWindow { stag });
    assert_eq!(
        write(&table, rkey, 0x1010, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(table.bind(rkey, &good, false, &asker(PD, QP)), Ok(true));
    // A window cannot be bound to a window.
    let second = next(window(&table, WindowKind::Type2A));
    let nested = WindowBind { lkey: rkey, ..good };
    let fault = table
        .bind(second, &nested, false, &asker(PD, QP))
        .unwrap_err();
    assert_eq!(fault, SlotFault::NoRegion { lkey: rkey });
}

#[test]
fn a_window_of_type_2_is_bound_again_only_after_invalidation_and_with_another_key() {
    let table = table();
    let region = lender(&table, &buffer(64), lending());
    let first = next(window(&table, WindowKind::Type2A));
    let me = asker(PD, QP);
    let again = |stag| table.bind(stag, &bind(&region), false, &me);
    again(first).unwrap();
    let second = next(first);
    let still = SlotFault::StillValid {
        stag: second,
        now: first,
    };
    assert_eq!(again(second), Err(still));
    table.invalidate_locally(first, &me).unwrap();
    assert_eq!(
        write(&table, first, 0x1010, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(again(first), Err(SlotFault::SameKey { stag: first }));
    assert_eq!(again(second), Ok(false));
    assert_eq!(
        write(&table, first, 0x1010, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(write(&table, second, 0x1010, 1, QP), Ok(()));
    // The peer invalidates the window.
    table.check_invalidate(STag(second), PD, QP).unwrap();
    assert_eq!(table.invalidate(STag(second)), Some(0));
    assert_eq!(again(next(second)), Ok(false));
}

#[test]
fn a_new_bind_of_type_1_ends_the_old_one_and_one_of_no_bytes_only_that() {
    let table = table();
    let memory = buffer(64);
    let (one, two) = (
        lender(&table, &memory, lending()),
        lender(&table, &memory, lending()),
    );
    let me = asker(PD, QP);
    let first = next(window(&table, WindowKind::Type1));
    table.bind(first, &bind(&one), true, &me).unwrap();
    let old = table
        .check(STag(first), 0x1010, 1, Need::RemoteWrite, &me)
        .unwrap();
    assert_eq!(
        table.invalidate_locally(first, &me),
        Err(SlotFault::Type1 { stag: first })
    );
    let second = next(first);
    table.bind(second, &bind(&two), true, &me).unwrap();
    assert_eq!(old.place(0, &[1]), Err(TaggedFault::InvalidSTag));
    assert_eq!(table.remove(one.stag()), Ok(()));
    assert_eq!(
        table.remove(two.stag()),
        Err(DeregisterError::WindowsBound { count: 1 })
    );
    let third = next(second);
    let none = WindowBind {
        len: 0,
        ..bind(&two)
    };
    table.bind(third, &none, true, &me).unwrap();
    assert_eq!(
        write(&table, second, 0x1010, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(table.remove(two.stag()), Ok(()));
}

#[test]
fn a_region_is_not_deregistered_or_invalidated_under_a_window() {
    let table = table();
    let memory = buffer(64);
    let own = RegionSpec {
        access: lending(),
        qp: Some(QP),
        to_base: Some(0x1000),
        ..spec(&memory)
    };
    let region = table.insert(own).unwrap();
    let stag = region.stag();
    let me = asker(PD, QP);
    let windows = [WindowKind::Type2A, WindowKind::Type2B].map(|kind| next(window(&table, kind)));
    for rkey in windows {
        table.bind(rkey, &bind(&region), false, &me).unwrap();
    }
    let count = 2;
    assert_eq!(
        table.remove(stag),
        Err(DeregisterError::WindowsBound { count })
    );
    let fault = SlotFault::WindowsBound {
        stag: stag.0,
        count,
    };
    assert_eq!(table.invalidate_locally(stag.0, &me), Err(fault));
    assert_eq!(
        table.check_invalidate(stag, PD, QP),
        Err(TaggedFault::AccessRights)
    );
    assert!(
        table
            .describe(stag)
            .ends_with("with 2 memory windows bound to it")
    );
    table.free(windows[0] >> 8);
    table.invalidate_locally(windows[1], &me).unwrap();
    assert_eq!(table.remove(stag), Ok(()));
    assert_eq!(table.live(), 1);
}

#[test]
fn a_region_that_is_revoked_takes_its_windows_along() {
    let table = table();
    let memory = buffer(64);
    let region = lender(&table, &memory, lending());
    let rkey = next(window(&table, WindowKind::Type2A));
    let me = asker(PD, QP);
    table.bind(rkey, &bind(&region), false, &me).unwrap();
    let target = table
        .check(STag(rkey), 0x1010, 1, Need::RemoteWrite, &me)
        .unwrap();
    table.revoke(region.stag());
    assert_eq!(target.place(0, &[1]), Err(TaggedFault::InvalidSTag));
    assert_eq!(
        write(&table, rkey, 0x1010, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert!(
        table
            .describe(STag(rkey))
            .starts_with("an invalidated memory window over STag")
    );
    // The window can be bound to another region immediately.
    let other = lender(&table, &memory, lending());
    assert_eq!(table.bind(next(rkey), &bind(&other), false, &me), Ok(false));
    assert_eq!(write(&table, next(rkey), 0x1010, 1, QP), Ok(()));
}

#[test]
fn what_is_for_a_qp_alone_ends_with_its_stream() {
    let table = table();
    let memory = buffer(64);
    let region = lender(&table, &memory, lending());
    let me = asker(PD, QP);
    let own = next(window(&table, WindowKind::Type2A));
    let shared = next(window(&table, WindowKind::Type1));
    assert_eq!(table.bind(own, &bind(&region), false, &me), Ok(true));
    assert_eq!(table.bind(shared, &bind(&region), true, &me), Ok(false));
    let fast = table.reserve(PD, Purpose::Fast(buffer(32))).unwrap().0;
    let part = part_of(fast);
    assert_eq!(table.register_fast(&part, &me), Ok(true));
    for index in [own, shared, fast].map(|stag| stag >> 8) {
        table.end_for(index, QP);
        assert!(!table.is_for(index, QP));
    }
    assert_eq!(
        write(&table, own, 0x1010, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(write(&table, fast, 0, 1, QP), Err(TaggedFault::InvalidSTag));
    assert_eq!(write(&table, shared, 0x1010, 1, QP), Ok(()));
    // After that, another QP may use the slot.
    assert_eq!(
        table.bind(next(own), &bind(&region), false, &asker(PD, QP + 1)),
        Ok(true)
    );
    table.end_for(own >> 8, QP);
    assert_eq!(write(&table, next(own), 0x1010, 1, QP + 1), Ok(()));
}

/// Registers bytes 8 to 24 of a fast region of 32 bytes, with TOs from 0 on.
fn part_of(stag: u32) -> FastRegister {
    FastRegister {
        stag,
        offset: 8,
        len: 16,
        iova: 0,
        access: remote(),
        for_pd: false,
    }
}

#[test]
fn fast_registration_makes_a_part_valid_until_it_is_invalidated() {
    let table = table();
    let memory = buffer(32);
    let me = asker(PD, QP);
    let first = table
        .reserve(PD, Purpose::Fast(Arc::clone(&memory)))
        .unwrap()
        .0;
    assert_eq!(
        write(&table, first, 0, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(table.register_fast(&part_of(first), &me), Ok(true));
    assert_eq!(write(&table, first, 0, 16, QP), Ok(()));
    let mut expected = vec![0; 32];
    expected[8..24].fill(9);
    assert_eq!(contents(&memory), expected);
    assert_eq!(
        write(&table, first, 0, 17, QP),
        Err(TaggedFault::BaseOrBounds)
    );
    assert_eq!(
        write(&table, first, 0, 1, QP + 1),
        Err(TaggedFault::NotAssociated)
    );
    // The STag is valid as an lkey, too.
    let mut list = SgList::default();
    let sge = Sge {
        addr: 4,
        len: 12,
        lkey: first,
    };
    assert_eq!(list.resolve(&table, PD, QP, &[sge], true), Ok(12));

    let second = next(first);
    let still = SlotFault::StillValid {
        stag: second,
        now: first,
    };
    assert_eq!(table.register_fast(&part_of(second), &me), Err(still));
    table.invalidate_locally(first, &me).unwrap();
    assert_eq!(
        list.place(0, &[1]).unwrap_err().kind,
        LocalFaultKind::InvalidKey { lkey: first }
    );
    let same = SlotFault::SameKey { stag: first };
    assert_eq!(table.register_fast(&part_of(first), &me), Err(same));
    let shared = FastRegister {
        for_pd: true,
        ..part_of(second)
    };
    assert_eq!(table.register_fast(&shared, &me), Ok(false));
    assert_eq!(write(&table, second, 0, 1, QP + 1), Ok(()));
    assert!(table.check_invalidate(STag(second), PD, QP).is_err());
    table.free(second >> 8);
    assert_eq!(
        write(&table, second, 0, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(table.live(), 0);
}

/// The list of a request may be resolved with the help of an earlier list whose registration has
/// ended meanwhile.
#[test]
fn an_stag_that_was_registered_again_reaches_the_new_registration_alone() {
    let table = table();
    let memory = buffer(32);
    let me = asker(PD, QP);
    let first = table
        .reserve(PD, Purpose::Fast(Arc::clone(&memory)))
        .unwrap()
        .0;
    let mut before = SgList::default();
    let sge = |lkey, len| Sge { addr: 0, len, lkey };
    table.register_fast(&part_of(first), &me).unwrap();
    assert_eq!(
        before.resolve(&table, PD, QP, &[sge(first, 16)], true),
        Ok(16)
    );
    let resolve = |lkey, len| {
        SgList::default()
            .resolve_behind(Some(&before), &table, (PD, QP), &[sge(lkey, len)], true)
            .map_err(|fault| fault.kind)
    };
    assert_eq!(resolve(first, 16), Ok(16));
    table.invalidate_locally(first, &me).unwrap();
    table.register_fast(&part_of(next(first)), &me).unwrap();
    let gone = LocalFaultKind::InvalidKey { lkey: first };
    assert_eq!(resolve(first, 16), Err(gone));
    table.invalidate_locally(next(first), &me).unwrap();
    let longer = FastRegister {
        len: 24,
        ..part_of(first)
    };
    table.register_fast(&longer, &me).unwrap();
    assert_eq!(resolve(first, 24), Ok(24));
}

#[test]
fn fast_registrations_that_are_not_allowed_are_refused() {
    let table = table();
    let me = asker(PD, QP);
    let stag = table.reserve(PD, Purpose::Fast(buffer(32))).unwrap().0;
    let good = part_of(stag);
    let fault = |part: FastRegister| table.register_fast(&part, &me).unwrap_err();
    for (offset, len) in [(8, 25), (33, 0), (u64::MAX, 1), (1, u64::MAX)] {
        let part = FastRegister {
            offset,
            len,
            ..good
        };
        assert!(
            matches!(fault(part), SlotFault::OutOfBounds { .. }),
            "{offset}+{len}"
        );
    }
    let part = FastRegister { len: 0, ..good };
    assert_eq!(fault(part), SlotFault::Register(RegisterError::Empty));
    let access = Access::REMOTE_WRITE;
    let part = FastRegister { access, ..good };
    let needs = RegisterError::NeedsLocalWrite { access };
    assert_eq!(fault(part), SlotFault::Register(needs));
    let part = FastRegister {
        iova: u64::MAX,
        ..good
    };
    assert!(matches!(
        fault(part),
        SlotFault::Register(RegisterError::Wraps { .. })
    ));
    let other = table.register_fast(&good, &asker(PD + 1, QP)).unwrap_err();
    assert_eq!(other, SlotFault::NotAssociated { stag });
    let stag = window(&table, WindowKind::Type2A);
    assert_eq!(
        fault(FastRegister { stag, ..good }),
        SlotFault::NoFastRegion { stag }
    );
    let stag = table.insert(spec(&buffer(32))).unwrap().stag().0;
    assert_eq!(
        fault(FastRegister { stag, ..good }),
        SlotFault::NoFastRegion { stag }
    );
    assert_eq!(table.register_fast(&good, &me), Ok(true));
}

#[test]
fn local_invalidation_takes_only_what_is_the_qps() {
    let table = table();
    let me = asker(PD, QP);
    let mine = table.insert(spec(&buffer(8))).unwrap().stag().0;
    let foreign = RegionSpec {
        pd: PD + 1,
        ..spec(&buffer(8))
    };
    let foreign = table.insert(foreign).unwrap().stag().0;
    let theirs = RegionSpec {
        qp: Some(QP + 1),
        ..spec(&buffer(8))
    };
    let theirs = table.insert(theirs).unwrap().stag().0;
    for stag in [foreign, theirs] {
        assert_eq!(
            table.invalidate_locally(stag, &me),
            Err(SlotFault::NotAssociated { stag })
        );
    }
    assert_eq!(table.invalidate_locally(mine, &me), Ok(()));
    let unbound = window(&table, WindowKind::Type2A);
    for stag in [mine, mine ^ 1, unbound] {
        assert_eq!(
            table.invalidate_locally(stag, &me),
            Err(SlotFault::NotValid { stag })
        );
    }
    // The region can still be deregistered.
    assert_eq!(table.remove(STag(mine)), Ok(()));
}

#[test]
fn windows_are_no_lkeys() {
    let table = table();
    let region = lender(&table, &buffer(64), lending());
    let lkey = next(window(&table, WindowKind::Type2A));
    table
        .bind(lkey, &bind(&region), false, &asker(PD, QP))
        .unwrap();
    let sge = Sge {
        addr: 0x1010,
        len: 1,
        lkey,
    };
    let fault = SgList::default()
        .resolve(&table, PD, QP, &[sge], true)
        .unwrap_err();
    assert_eq!(fault.kind, LocalFaultKind::Window { lkey });
}

#[test]
fn windows_and_fast_regions_are_described_in_words_and_count_as_regions() {
    let table = RegionTable::new(3, 3, None).unwrap();
    let memory = buffer(64);
    let region = lender(&table, &memory, lending());
    let rkey = window(&table, WindowKind::Type2B);
    let fast = table.reserve(PD, Purpose::Fast(buffer(32))).unwrap();
    let full = table.reserve(PD, Purpose::Window(WindowKind::Type1));
    assert_eq!(full.unwrap_err(), RegisterError::TooMany { limit: 3 });
    assert_eq!(
        table.describe(STag(rkey)),
        "a memory window (type 2B), not bound"
    );
    assert_eq!(
        table.describe(fast),
        "a fast region over 32 bytes, not registered now"
    );
    let bind = WindowBind {
        access: Access::REMOTE_WRITE,
        ..bind(&region)
    };
    table
        .bind(next(rkey), &bind, false, &asker(PD, QP))
        .unwrap();
    let words = format!(
        "a memory window over STag {:#010x}, of 16 bytes from 0x1010 on, with local read, remote write, for QP 7",
        region.stag().0
    );
    assert_eq!(table.describe(STag(next(rkey))), words);
    table.free(rkey >> 8);
    assert!(
        table
            .reserve(PD, Purpose::Window(WindowKind::Type1))
            .is_ok()
    );
}

#[test]
fn registration_anew_ends_the_old_stag_or_changes_nothing() {
    let table = table();
    let memory = buffer(64);
    let region = lender(&table, &memory, lending() | Access::REMOTE_WRITE);
    let old = region.stag().0;
    let me = asker(PD, QP);
    let rkey = next(window(&table, WindowKind::Type2A));
    let anew = |access| RegionSpec {
        access,
        memory: region.backing(),
        ..spec(&memory)
    };
    // Refused: the new registration is invalid, a window is bound, or bytes are pinned for sending.
    let access = Access::REMOTE_WRITE;
    let error = table.replace(&region, anew(access)).unwrap_err();
    assert_eq!(error, RegisterError::NeedsLocalWrite { access }.into());
    table.bind(rkey, &bind(&region), false, &me).unwrap();
    let error = table.replace(&region, anew(Access::NONE)).unwrap_err();
    assert_eq!(error, DeregisterError::WindowsBound { count: 1 }.into());
    table.invalidate_locally(rkey, &me).unwrap();
    let mut list = SgList::default();
    let sge = Sge {
        addr: 0x1000,
        len: 8,
        lkey: old,
    };
    list.resolve(&table, PD, QP, &[sge], false).unwrap();
    let pins = pin(&list, 0, 8).unwrap();
    let error = table.replace(&region, anew(Access::NONE)).unwrap_err();
    assert_eq!(error, DeregisterError::Busy { pins: 1 }.into());
    drop(pins);
    assert_eq!(write(&table, old, 0x1000, 1, QP), Ok(()));
    assert_eq!(table.live(), 2);

    let new = table.replace(&region, anew(remote())).unwrap();
    assert_ne!(new.stag().0, old);
    assert_eq!(
        write(&table, old, 0x1000, 1, QP),
        Err(TaggedFault::InvalidSTag)
    );
    assert_eq!(write(&table, new.stag().0, 63, 1, QP), Ok(()));
    assert_eq!(contents(&memory)[63], 9);
    assert_eq!(
        table.remove(STag(old)),
        Err(DeregisterError::Unknown { stag: old })
    );
    assert_eq!(table.live(), 2);
}

#[test]
fn registration_anew_works_when_the_table_is_full_and_after_invalidation() {
    let table = RegionTable::new(1, 1, None).unwrap();
    let memory = buffer(8);
    let region = table.insert(spec(&memory)).unwrap();
    assert_eq!(table.invalidate(region.stag()), Some(0));
    let new = table.replace(&region, spec(&memory)).unwrap();
    assert_eq!(write(&table, new.stag().0, 0, 8, QP), Ok(()));
    assert_eq!(table.live(), 1);
}

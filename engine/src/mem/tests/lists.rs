//! Tests of scatter/gather lists.

use proptest::prelude::*;
use uwarp_mpa::{Crc32c, Payload};

use super::*;

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.finish()
}

/// Resolves a list for QP 7 of PD 1.
fn resolve(table: &RegionTable, sges: &[Sge], write: bool) -> Result<SgList, LocalFault> {
    let mut list = SgList::default();
    list.resolve(table, 1, 7, sges, write).map(|_| list)
}

/// Maximum number of elements, and maximum lengths of an element and a segment in bytes. Reduced
/// under Miri, which interprets about a dozen passes over all bytes.
const ELEMENTS: usize = if cfg!(miri) { 4 } else { 8 };
const LONGEST: u32 = if cfg!(miri) { 120 } else { 3000 };
const SEGMENT: usize = if cfg!(miri) { 100 } else { 2500 };

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(128), ..ProptestConfig::default() })]

    #[test]
    fn what_is_placed_through_a_list_comes_out_of_it_and_touches_nothing_else(
        runs in proptest::collection::vec((0..40_usize, 0..LONGEST), 0..ELEMENTS),
        segments in proptest::collection::vec(1..SEGMENT, 1..12),
        ranges in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..8),
        markers in any::<u8>(),
    ) {
        // Every element has its own buffer, with unused bytes before and after it.
        let table = table();
        let buffers: Vec<_> = runs.iter().map(|(gap, len)| buffer(gap + *len as usize + 9)).collect();
        let sges: Vec<Sge> = runs.iter().zip(&buffers).map(|((gap, len), buffer)| {
            let region = table.insert(spec(buffer)).unwrap();
            Sge { addr: *gap as u64, len: *len, lkey: region.stag().0 }
        }).collect();
        let list = resolve(&table, &sges, true).unwrap();
        let total = list.len() as usize;
        prop_assert_eq!(total, runs.iter().map(|(_, len)| *len as usize).sum::<usize>());

        // A message arrives in segments.
        let message: Vec<u8> = (0..total).map(|n| (n as u8).wrapping_mul(31) ^ markers).collect();
        let mut at = 0;
        for segment in segments.iter().cycle() {
            let end = total.min(at + segment);
            prop_assert_eq!(list.place(at, &message[at..end]), Ok(()));
            at = end;
            if at == total {
                break;
            }
        }

        // The elements contain the message in order, and no other byte changed.
        let mut found = Vec::new();
        for ((gap, len), buffer) in runs.iter().zip(&buffers) {
            let all = contents(buffer);
            found.extend_from_slice(&all[*gap..gap + *len as usize]);
            prop_assert!(all[..*gap].iter().chain(&all[gap + *len as usize..]).all(|byte| *byte == 0));
        }
        prop_assert_eq!(&found, &message);

        // Every range reads back as written: as a copy, as a CRC, and as runs of memory.
        for (from, to) in ranges {
            let (from, to) = (from.index(total + 1), to.index(total + 1));
            let (from, to) = (from.min(to), from.max(to));
            let expected = &message[from..to];
            let source = list.source(from, to - from).unwrap();
            let mut out = vec![0; to - from];
            let mut over_copy = Crc32c::new();
            source.copy(from, &mut out, Some(&mut over_copy));
            prop_assert_eq!(&out, expected);
            prop_assert_eq!(over_copy.finish(), crc(expected));
            let mut only = Crc32c::new();
            source.checksum(from, to - from, &mut only);
            prop_assert_eq!(only.finish(), crc(expected));
            let mut gathered = Vec::new();
            for run in pin(&list, from, to - from).unwrap() {
                assert!(run.copy_to(0, run.len(), &mut gathered));
                let mut piece = vec![0; run.len()];
                prop_assert_eq!(run.piece(0).copy_to(0, &mut piece), run.len());
                prop_assert!(gathered.ends_with(&piece));
            }
            prop_assert_eq!(&gathered, expected);
        }
        prop_assert!(list.place(total, &[0]).is_err());
        prop_assert!(list.source(1, total).is_err());
    }
}

#[test]
fn the_fault_names_the_element_and_what_is_wrong_with_it() {
    let table = table();
    let memory = buffer(100);
    let good = table.insert(spec(&memory)).unwrap().stag().0;
    let read_only = RegionSpec {
        access: Access::REMOTE_READ,
        ..spec(&memory)
    };
    let read_only = table.insert(read_only).unwrap().stag().0;
    let other_pd = table
        .insert(RegionSpec {
            pd: 2,
            ..spec(&memory)
        })
        .unwrap()
        .stag()
        .0;
    let other_qp = table
        .insert(RegionSpec {
            qp: Some(8),
            ..spec(&memory)
        })
        .unwrap()
        .stag()
        .0;
    let first = Sge {
        addr: 0,
        len: 100,
        lkey: good,
    };
    let fault = |second: Sge, write| resolve(&table, &[first, second], write).unwrap_err();
    let kind = |kind| LocalFault { index: 1, kind };

    let wrong = good ^ 1;
    let sge = Sge {
        lkey: wrong,
        ..first
    };
    assert_eq!(
        fault(sge, false),
        kind(LocalFaultKind::InvalidKey { lkey: wrong })
    );
    for lkey in [other_pd, other_qp] {
        let sge = Sge { lkey, ..first };
        assert_eq!(
            fault(sge, false),
            kind(LocalFaultKind::NotAssociated { lkey })
        );
    }
    let sge = Sge {
        lkey: read_only,
        ..first
    };
    assert_eq!(
        fault(sge, true),
        kind(LocalFaultKind::NotWritable { lkey: read_only })
    );
    assert!(resolve(&table, &[sge], false).is_ok());
    for (addr, len) in [(0, 101), (1, 100), (100, 1), (u64::MAX, 1), (u64::MAX, 2)] {
        let sge = Sge {
            addr,
            len,
            lkey: good,
        };
        assert_eq!(
            fault(sge, false),
            kind(LocalFaultKind::OutOfBounds {
                lkey: good,
                addr,
                len
            })
        );
    }
}

#[test]
fn more_bytes_than_a_message_has_are_refused() {
    let table = table();
    // The memory is registered but never accessed, so its address may be dangling.
    let base = core::ptr::NonNull::<u8>::dangling();
    // SAFETY: no byte is read or written; resolving only uses addresses.
    let memory = unsafe { Backing::in_place(base, 1 << 32, true) };
    let large = RegionSpec {
        memory,
        to_base: Some(0),
        pd: 1,
        qp: None,
        access: Access::NONE,
    };
    let lkey = table.insert(large).unwrap().stag().0;
    let half = Sge {
        addr: 0,
        len: 1 << 31,
        lkey,
    };
    let almost = Sge {
        len: (1 << 31) - 1,
        ..half
    };
    assert_eq!(
        resolve(&table, &[half, almost], false).unwrap().len(),
        u32::MAX
    );
    let fault = resolve(&table, &[half, half], false).unwrap_err();
    assert_eq!(
        fault,
        LocalFault {
            index: 1,
            kind: LocalFaultKind::TooLong
        }
    );
}

#[test]
fn an_empty_element_is_not_looked_at() {
    let table = table();
    let nowhere = Sge {
        addr: 42,
        len: 0,
        lkey: 42,
    };
    let list = resolve(&table, &[nowhere, nowhere], true).unwrap();
    assert_eq!(list.len(), 0);
    assert_eq!(list.place(0, &[]), Ok(()));
    assert!(list.source(0, 0).is_ok());
}

#[test]
fn a_source_is_not_placed_into() {
    let table = table();
    let memory = buffer(8);
    let lkey = table.insert(spec(&memory)).unwrap().stag().0;
    let list = resolve(
        &table,
        &[Sge {
            addr: 0,
            len: 8,
            lkey,
        }],
        false,
    )
    .unwrap();
    assert_eq!(
        list.place(0, &[1]).unwrap_err().kind,
        LocalFaultKind::NotWritable { lkey }
    );
    assert_eq!(contents(&memory), [0; 8]);
}

#[test]
fn a_region_that_went_away_is_a_fault_of_its_element() {
    let table = table();
    let (one, two) = (buffer(8), buffer(8));
    let stags = [&one, &two].map(|buffer| table.insert(spec(buffer)).unwrap().stag());
    let sges = stags.map(|stag| Sge {
        addr: 0,
        len: 8,
        lkey: stag.0,
    });
    let list = resolve(&table, &sges, true).unwrap();
    table.remove(stags[1]).unwrap();
    let gone = LocalFault {
        index: 1,
        kind: LocalFaultKind::InvalidKey { lkey: stags[1].0 },
    };
    assert_eq!(list.place(0, &[1; 8]), Ok(()));
    assert_eq!(list.place(4, &[2; 8]), Err(gone));
    assert_eq!(list.source(4, 8).err(), Some(gone));
    assert!(pin(&list, 4, 8).is_none());
    assert_eq!(contents(&two), [0; 8]);
    // The failed source and the failed pinning left no use or pin.
    assert_eq!(table.remove(stags[0]), Ok(()));
}

#[test]
fn a_list_is_used_again_without_allocating() {
    let table = table();
    let lkey = table.insert(spec(&buffer(64))).unwrap().stag().0;
    let sges = [
        Sge {
            addr: 0,
            len: 16,
            lkey,
        },
        Sge {
            addr: 32,
            len: 16,
            lkey,
        },
    ];
    let mut list = SgList::default();
    list.resolve(&table, 1, 7, &sges, true).unwrap();
    let before = list.capacity();
    for _ in 0..10 {
        list.clear();
        list.resolve(&table, 1, 7, &sges, true).unwrap();
    }
    assert_eq!(list.capacity(), before);
}

#[test]
fn a_region_that_was_named_before_is_checked_as_if_it_was_looked_up() {
    let table = table();
    let (memory, other_memory) = (buffer(64), buffer(64));
    let named = table.insert(spec(&memory)).unwrap();
    let other = table.insert(spec(&other_memory)).unwrap().stag().0;
    let lkey = named.stag().0;
    let read_only = Access::REMOTE_READ;
    let access = |memory| RegionSpec {
        access: read_only,
        ..spec(memory)
    };
    let unwritable = table.insert(access(&memory)).unwrap().stag().0;
    let sge = |addr, len, lkey| Sge { addr, len, lkey };
    let cases = [
        sge(0, 64, lkey),
        sge(60, 4, lkey),
        sge(60, 5, lkey),
        sge(u64::MAX, 1, lkey),
        sge(0, 0, lkey),
        sge(0, 8, lkey ^ 1),
        sge(0, 8, other),
        sge(0, 8, unwritable),
    ];
    // Miri runs every fifth combination, so that each case appears with some domain and right.
    let ways = in_every_way(&cases).step_by(if cfg!(miri) { 5 } else { 1 });
    for (before, pd, write) in ways {
        for sge in cases {
            let first = resolve(&table, &[before], false).ok();
            let mut second = SgList::default();
            let found = second.resolve_behind(first.as_ref(), &table, (pd, 7), &[sge], write);
            let expected = SgList::default().resolve(&table, pd, 7, &[sge], write);
            assert_eq!(found, expected, "{before:?}, then {sge:?}");
        }
    }
    // Deregistration revokes the list as well.
    let first = resolve(&table, &[cases[0]], false).ok();
    let again = || {
        let mut second = SgList::default();
        second
            .resolve_behind(first.as_ref(), &table, (1, 7), &[cases[0]], false)
            .map_err(|fault| fault.kind)
    };
    assert_eq!(again(), Ok(64));
    table.remove(named.stag()).unwrap();
    assert_eq!(again(), Err(LocalFaultKind::InvalidKey { lkey }));
}

/// Combines every case with every domain and right.
fn in_every_way(cases: &[Sge]) -> impl Iterator<Item = (Sge, u32, bool)> {
    let with = |sge: &Sge| [(*sge, 1, true), (*sge, 1, false), (*sge, 2, true)];
    cases.iter().flat_map(with)
}

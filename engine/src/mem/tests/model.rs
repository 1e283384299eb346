//! Compares `check` with a simple model.

use proptest::prelude::*;
use proptest::sample::Index;
use uwarp_ddp::{STag, TaggedFault};
use uwarp_mpa::Payload;

use super::*;

/// A region in the model.
#[derive(Clone, Debug)]
struct Plan {
    base: u64,
    len: usize,
    pd: u32,
    qp: Option<u32>,
    access: Access,
    invalid: bool,
    removed: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let len = 1..200_usize;
    let access = prop_oneof![Just(1), Just(3), Just(4), Just(5), Just(7), Just(0)];
    // Base TOs at 0, in the middle, and so high that the TO after the last byte may be the largest
    // TO.
    (
        len,
        0..4_u8,
        0..300_u64,
        1..3_u32,
        proptest::option::of(1..3_u32),
        access,
        0..8_u8,
    )
        .prop_map(|(len, place, near, pd, qp, access, fate)| {
            let last_start = u64::MAX - len as u64;
            let base = match place {
                0 => near,
                1 => 0x1000 + near,
                2 => last_start,
                _ => last_start - near,
            };
            let access = Access::from_bits(access).0;
            Plan {
                base,
                len,
                pd,
                qp,
                access,
                invalid: fate == 0,
                removed: fate == 1,
            }
        })
}

/// An access of a peer. Positions are relative to a region, so that the edges are tested often.
#[derive(Clone, Debug)]
struct Query {
    region: Index,
    wrong_key: bool,
    free_to: Option<u64>,
    from_start: i64,
    len: u32,
    write: bool,
    pd: u32,
    qp: u32,
}

fn query() -> impl Strategy<Value = Query> {
    let len = prop_oneof![8 => 1..220_u32, 1 => any::<u32>().prop_map(|len| len.max(1))];
    let free = proptest::option::weighted(0.1, any::<u64>());
    let key = proptest::bool::weighted(0.1);
    (
        any::<Index>(),
        key,
        free,
        -3..210_i64,
        len,
        any::<bool>(),
        1..3_u32,
        1..3_u32,
    )
        .prop_map(
            |(region, wrong_key, free_to, from_start, len, write, pd, qp)| Query {
                region,
                wrong_key,
                free_to,
                from_start,
                len,
                write,
                pd,
                qp,
            },
        )
}

fn expected(plan: &Plan, query: &Query, to: u64) -> Result<usize, TaggedFault> {
    if plan.removed || plan.invalid || query.wrong_key {
        return Err(TaggedFault::InvalidSTag);
    }
    if plan.pd != query.pd || plan.qp.is_some_and(|qp| qp != query.qp) {
        return Err(TaggedFault::NotAssociated);
    }
    let need = if query.write {
        Access::REMOTE_WRITE
    } else {
        Access::REMOTE_READ
    };
    if !plan.access.contains(need) {
        return Err(TaggedFault::AccessRights);
    }
    let (first, behind) = (u128::from(to), u128::from(to) + u128::from(query.len));
    if behind >= 1 << 64 {
        return Err(TaggedFault::ToWrap);
    }
    let base = u128::from(plan.base);
    if first < base || behind > base + plan.len as u128 {
        return Err(TaggedFault::BaseOrBounds);
    }
    Ok((first - base) as usize)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(200), ..ProptestConfig::default() })]

    #[test]
    fn check_agrees_with_the_model_and_the_bytes_land_where_it_says(
        plans in proptest::collection::vec(plan(), 1..6),
        queries in proptest::collection::vec(query(), 1..if cfg!(miri) { 12 } else { 60 }),
    ) {
        let table = table();
        let regions: Vec<_> = plans.iter().map(|plan| {
            let buffer = buffer(plan.len);
            let memory = Backing::buffer(Arc::clone(&buffer));
            let Plan { base, pd, qp, access, .. } = *plan;
            let spec = RegionSpec { memory, to_base: Some(base), pd, qp, access };
            (table.insert(spec).unwrap(), buffer)
        }).collect();
        for (plan, (region, _)) in plans.iter().zip(&regions) {
            if plan.invalid {
                prop_assert_eq!(table.invalidate(region.stag()), Some(0));
            }
            if plan.removed {
                prop_assert_eq!(table.remove(region.stag()), Ok(()));
            }
        }
        let mut cache = WriteTargetCache::default();
        for query in &queries {
            let at = query.region.index(plans.len());
            let (plan, (region, buffer)) = (&plans[at], &regions[at]);
            let to = query.free_to.unwrap_or(plan.base.wrapping_add_signed(query.from_start));
            let stag = STag(region.stag().0 ^ u32::from(query.wrong_key));
            let need = if query.write { Need::RemoteWrite } else { Need::RemoteRead };
            let target = table.check(stag, to, query.len, need, &asker(query.pd, query.qp));
            let model = expected(plan, query, to);
            match (&target, model) {
                (Err(fault), Err(model)) => prop_assert_eq!(*fault, model),
                (Ok(target), Ok(offset)) if query.write => {
                    let mut after = contents(buffer);
                    let new = vec![at as u8 + 1; query.len as usize];
                    after[offset..offset + new.len()].copy_from_slice(&new);
                    prop_assert_eq!(target.place(0, &new), Ok(()));
                    prop_assert_eq!(target.place(1, &new), Err(TaggedFault::BaseOrBounds));
                    prop_assert_eq!(contents(buffer), after);
                }
                (Ok(target), Ok(offset)) => {
                    let mut out = vec![0xee; query.len as usize];
                    target.source().unwrap().copy(0, &mut out, None);
                    prop_assert_eq!(&out, &contents(buffer)[offset..offset + out.len()]);
                    prop_assert_eq!(target.place(0, &out), Err(TaggedFault::AccessRights));
                }
                _ => prop_assert!(false, "{:?} but the model says {:?}", target, model),
            }
            if !query.write {
                continue;
            }
            // The write target cache decides and places in the same way.
            let landing = cache.check_write(&table, stag, to, query.len, &asker(query.pd, query.qp));
            match (landing, model) {
                (Err(fault), Err(model)) => prop_assert_eq!(fault, model),
                (Ok(landing), Ok(offset)) => {
                    let mut after = contents(buffer);
                    let new = vec![at as u8 + 0x81; query.len as usize];
                    after[offset..offset + new.len()].copy_from_slice(&new);
                    prop_assert_eq!(cache.place(landing, 0, &new), Ok(()));
                    prop_assert_eq!(cache.place(landing, 1, &new), Err(TaggedFault::BaseOrBounds.into()));
                    prop_assert_eq!(contents(buffer), after);
                }
                _ => prop_assert!(false, "{:?} but the model says {:?}", landing, model),
            }
        }
    }

    #[test]
    fn an_stag_nobody_got_is_invalid(stag in any::<u32>(), to in any::<u64>(), len in 1..u32::MAX) {
        let table = table();
        let buffer = buffer(64);
        let live: Vec<_> = (0..if cfg!(miri) { 5 } else { 20 }).map(|_| table.insert(spec(&buffer)).unwrap()).collect();
        prop_assume!(live.iter().all(|region| region.stag().0 != stag));
        let fault = write_target(&table, STag(stag), to, len).unwrap_err();
        prop_assert_eq!(fault, TaggedFault::InvalidSTag);
    }
}

#[test]
fn every_offset_alignment_and_length_is_copied_exactly() {
    // Long ranges are copied in blocks, by assembly. Miri only supports words and gets shorter
    // lengths.
    let (offsets, lens, size, long): (_, _, _, &[usize]) = if cfg!(miri) {
        (9, 10, 64, &[15, 16, 17, 31, 33])
    } else {
        let long = &[
            127, 128, 129, 255, 256, 257, 258, 300, 320, 383, 384, 385, 513, 600,
        ];
        (17, 80, 700, long)
    };
    let buffer = Buffer::zeroed(size).unwrap();
    let pattern: Vec<u8> = (0..600_u32).map(|n| (n * 7 + 1) as u8).collect();
    for offset in 0..offsets {
        for len in (0..lens).chain(long.iter().copied()) {
            buffer.write_at(0, &vec![0; size]).unwrap();
            buffer.write_at(offset, &pattern[..len]).unwrap();
            let all = contents(&buffer);
            assert_eq!(all[..offset], vec![0; offset], "before {offset}+{len}");
            assert_eq!(all[offset..offset + len], pattern[..len], "{offset}+{len}");
            assert_eq!(
                all[offset + len..],
                vec![0; size - offset - len],
                "after {offset}+{len}"
            );
            let mut out = vec![0xaa; len];
            buffer.read_at(offset, &mut out).unwrap();
            assert_eq!(out, pattern[..len]);
        }
    }
}

#[test]
fn a_sum_of_to_and_length_that_reaches_2_to_the_64_is_a_wrap() {
    // 5041-7.1-14: in 64-bit arithmetic the sum would be 0.
    let table = table();
    let spec = RegionSpec {
        to_base: Some(u64::MAX - 64),
        ..spec(&buffer(64))
    };
    let stag = table.insert(spec).unwrap().stag();
    assert!(write_target(&table, stag, u64::MAX - 64, 64).is_ok());
    assert!(write_target(&table, stag, u64::MAX - 1, 1).is_ok());
    let refused = |to, len| write_target(&table, stag, to, len).unwrap_err();
    assert_eq!(refused(u64::MAX, 1), TaggedFault::ToWrap);
    assert_eq!(refused(u64::MAX - 1, 2), TaggedFault::ToWrap);
    assert_eq!(refused(u64::MAX - 65, 1), TaggedFault::BaseOrBounds);
}

//! Compares the pinned regions of a queue with lists that each hold their own references.

use std::collections::VecDeque;

use proptest::prelude::*;
use uwarp_mpa::Payload;

use super::*;

fn sge(lkey: u32, addr: u64, len: u32) -> Sge {
    Sge { addr, len, lkey }
}

#[derive(Clone, Debug)]
enum Step {
    /// A request for bytes of one region, by QP 7 or 8 of PD 1 or QP 7 of PD 2.
    Post {
        region: usize,
        addr: u64,
        len: u32,
        who: (u32, u32),
    },
    /// The oldest request completes.
    Retire,
    Invalidate(usize),
    Remove(usize),
    /// Reads the bytes of all requests, one after the other.
    Look,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = prop_oneof![8 => Just((1, 7)), 1 => Just((1, 8)), 1 => Just((2, 7))];
    let post = (0..3_usize, 0..40_u64, 1..40_u32, who);
    let step = prop_oneof![
        10 => post.prop_map(|(region, addr, len, who)| Step::Post { region, addr, len, who }),
        8 => Just(Step::Retire),
        1 => (0..3_usize).prop_map(Step::Invalidate),
        1 => (0..3_usize).prop_map(Step::Remove),
        3 => Just(Step::Look),
    ];
    proptest::collection::vec(step, 1..if cfg!(miri) { 15 } else { 80 })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(256), ..ProptestConfig::default() })]

    #[test]
    fn a_held_element_is_refused_and_read_as_a_list_of_it_is(steps in steps()) {
        let table = table();
        let regions: Vec<_> = (0..3_u8).map(|number| {
            let memory = buffer(64);
            memory.write_at(0, &[number + 1; 64]).unwrap();
            let qp = (number == 2).then_some(7);
            table.insert(RegionSpec { qp, ..spec(&memory) }).unwrap()
        }).collect();
        let mut held = PinnedRegions::default();
        let mut queue: VecDeque<(Spot, SgList)> = VecDeque::new();
        for step in &steps {
            match *step {
                Step::Post { region, addr, len, who } => {
                    let sge = sge(regions[region].stag().0, addr, len);
                    let before = queue.back().map_or(Spot::default(), |(spot, _)| *spot);
                    let spot = held.resolve(before, &table, who, &sge);
                    let mut list = SgList::default();
                    let resolved = list.resolve(&table, who.0, who.1, &[sge], false);
                    match (spot, resolved) {
                        (Ok(spot), Ok(total)) => {
                            prop_assert_eq!(total, len);
                            queue.push_back((spot, list));
                        }
                        (Err(kind), Err(fault)) => prop_assert_eq!(kind, fault.kind),
                        (spot, list) => prop_assert!(false, "{:?} and {:?}", spot, list),
                    }
                }
                Step::Retire => {
                    if let Some((spot, _)) = queue.pop_front() {
                        held.release(spot);
                        held.sweep();
                    }
                }
                Step::Invalidate(region) => {
                    let _ = table.invalidate(regions[region].stag());
                }
                Step::Remove(region) => {
                    let _ = table.remove(regions[region].stag());
                }
                Step::Look => {
                    let mut sources = held.sources();
                    for (spot, list) in &queue {
                        let len = list.len() as usize;
                        let listed = list.source(0, len).ok().map(|source| {
                            let mut out = vec![0; len];
                            source.copy(0, &mut out, None);
                            out
                        });
                        let one_by_one = sources.source(*spot).map(|source| {
                            let mut out = vec![0; len];
                            source.copy(0, &mut out, None);
                            out
                        });
                        prop_assert_eq!(&one_by_one, &listed);
                        let alone = held.source(*spot).map(|source| {
                            let mut out = vec![0; len];
                            source.copy(0, &mut out, None);
                            out
                        });
                        prop_assert_eq!(&alone, &listed);
                        prop_assert_eq!(held.pin(*spot, 0, len).is_some(), listed.is_some());
                        prop_assert!(held.pin(*spot, 1, len).is_none());
                    }
                }
            }
            prop_assert!(held.count() <= queue.len(), "a region without a request is held");
        }
        for (spot, _) in queue.drain(..) {
            held.release(spot);
        }
        held.sweep();
        prop_assert_eq!(held.count(), 0);
        for region in regions {
            table.revoke(region.stag());
            prop_assert_eq!(Arc::strong_count(&region), 1);
        }
    }
}

#[test]
fn many_requests_that_name_one_region_hold_it_once() {
    let table = table();
    let region = table.insert(spec(&buffer(64))).unwrap();
    let before = Arc::strong_count(&region);
    let (mut held, mut spots) = (PinnedRegions::default(), Vec::new());
    for nth in 0..10 {
        let last = spots.last().copied().unwrap_or_default();
        let sge = sge(region.stag().0, nth, 8);
        spots.push(held.resolve(last, &table, (1, 7), &sge).unwrap());
        assert_eq!(Arc::strong_count(&region), before + 1);
    }
    for spot in spots {
        assert_eq!(Arc::strong_count(&region), before + 1);
        held.release(spot);
        held.sweep();
    }
    assert_eq!(Arc::strong_count(&region), before);
}

#[test]
fn deregistration_waits_for_the_sources_of_a_queue_and_no_other_begins() {
    let table = table();
    let (first, second) = (buffer(8), buffer(8));
    let [first, second] = [first, second].map(|memory| table.insert(spec(&memory)).unwrap());
    let mut held = PinnedRegions::default();
    let [one, other] = [&first, &second].map(|region| {
        let sge = sge(region.stag().0, 0, 8);
        held.resolve(Spot::default(), &table, (1, 7), &sge).unwrap()
    });
    let mut sources = held.sources();
    assert!(sources.source(one).is_some());
    // The use of the first region ends when that of the second begins.
    assert!(sources.source(other).is_some());
    table.remove(first.stag()).unwrap();
    assert!(sources.source(one).is_none());
    drop(sources);
    table.remove(second.stag()).unwrap();
}

//! Tests of the cache of write targets.

use std::thread;

use uwarp_ddp::TaggedFault;

use super::*;
use crate::mem::PlaceFault;

fn check(
    cache: &mut WriteTargetCache,
    table: &RegionTable,
    region: &Region,
) -> Result<Landing, TaggedFault> {
    cache.check_write(table, region.stag(), 0, 8, &asker(1, 7))
}

#[test]
fn a_region_that_is_gone_is_found_no_more() {
    for deregistered in [false, true] {
        let table = table();
        let region = table.insert(spec(&buffer(8))).unwrap();
        let mut cache = WriteTargetCache::default();
        let landing = check(&mut cache, &table, &region).unwrap();
        cache.place(landing, 0, &[1; 8]).unwrap();
        cache.leave();
        if deregistered {
            table.remove(region.stag()).unwrap();
        } else {
            assert_eq!(table.invalidate(region.stag()), Some(0));
        }
        let refused = cache.place(landing, 0, &[1; 8]);
        assert_eq!(refused, Err(TaggedFault::InvalidSTag.into()));
        let found = check(&mut cache, &table, &region).unwrap_err();
        assert_eq!(found, TaggedFault::InvalidSTag);
        // Only this test and the table (unless deregistered) reference the region.
        assert_eq!(Arc::strong_count(&region), 2 - usize::from(deregistered));
    }
}

#[test]
fn another_region_takes_its_place_and_it_is_free_to_go() {
    let table = table();
    let [first, second] = [8, 8].map(|len| table.insert(spec(&buffer(len))).unwrap());
    let mut cache = WriteTargetCache::default();
    let landing = check(&mut cache, &table, &first).unwrap();
    cache.place(landing, 0, &[1; 8]).unwrap();
    let landing = check(&mut cache, &table, &second).unwrap();
    // This would wait forever if the first region were still in use.
    table.remove(first.stag()).unwrap();
    cache.place(landing, 0, &[2; 8]).unwrap();
    drop(cache);
    table.remove(second.stag()).unwrap();
}

#[test]
fn deregistration_waits_for_the_last_write_and_none_comes_after_it() {
    let table = table();
    for _ in 0..rounds(200) {
        let memory = buffer(8);
        let region = table.insert(spec(&memory)).unwrap();
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut cache = WriteTargetCache::default();
                let mut byte = 0_u8;
                loop {
                    byte = byte.wrapping_add(1);
                    let placed = check(&mut cache, &table, &region)
                        .map_err(PlaceFault::from)
                        .and_then(|landing| cache.place(landing, 0, &[byte; 8]));
                    if let Err(fault) = placed {
                        assert_eq!(fault, PlaceFault::from(TaggedFault::InvalidSTag));
                        return;
                    }
                }
            });
            while contents(&memory) == [0; 8] {
                thread::yield_now();
            }
            table.remove(region.stag()).unwrap();
            let after = contents(&memory);
            writing.join().unwrap();
            assert_eq!(contents(&memory), after);
        });
    }
}

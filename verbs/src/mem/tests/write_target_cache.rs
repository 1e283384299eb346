//! The region of the Writes that came last.

use std::thread;

use uwarp_ddp::TaggedFault;

use super::*;

fn check(
    recent: &mut WriteTargetCache,
    table: &RegionTable,
    region: &Region,
) -> Result<Landing, TaggedFault> {
    recent.check_write(table, region.stag(), 0, 8, &asker(1, 7))
}

#[test]
fn a_region_that_is_gone_is_found_no_more() {
    for deregistered in [false, true] {
        let table = table();
        let region = table.insert(spec(&buffer(8))).unwrap();
        let mut recent = WriteTargetCache::default();
        let landing = check(&mut recent, &table, &region).unwrap();
        recent.place(landing, 0, &[1; 8]).unwrap();
        recent.leave();
        if deregistered {
            table.remove(region.stag()).unwrap();
        } else {
            assert_eq!(table.invalidate(region.stag()), Some(0));
        }
        let refused = recent.place(landing, 0, &[1; 8]);
        assert_eq!(refused, Err(TaggedFault::InvalidSTag));
        let found = check(&mut recent, &table, &region).unwrap_err();
        assert_eq!(found, TaggedFault::InvalidSTag);
        // It is not held any more but by this test, and the table.
        assert_eq!(Arc::strong_count(&region), 2 - usize::from(deregistered));
    }
}

#[test]
fn another_region_takes_its_place_and_it_is_free_to_go() {
    let table = table();
    let [first, second] = [8, 8].map(|len| table.insert(spec(&buffer(len))).unwrap());
    let mut recent = WriteTargetCache::default();
    let landing = check(&mut recent, &table, &first).unwrap();
    recent.place(landing, 0, &[1; 8]).unwrap();
    let landing = check(&mut recent, &table, &second).unwrap();
    // This would wait for a use of the first.
    table.remove(first.stag()).unwrap();
    recent.place(landing, 0, &[2; 8]).unwrap();
    drop(recent);
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
                let mut recent = WriteTargetCache::default();
                let mut octet = 0_u8;
                loop {
                    octet = octet.wrapping_add(1);
                    let placed = check(&mut recent, &table, &region)
                        .and_then(|landing| recent.place(landing, 0, &[octet; 8]));
                    if let Err(fault) = placed {
                        assert_eq!(fault, TaggedFault::InvalidSTag);
                        return;
                    }
                }
            });
            while octets(&memory) == [0; 8] {
                thread::yield_now();
            }
            table.remove(region.stag()).unwrap();
            let after = octets(&memory);
            writing.join().unwrap();
            assert_eq!(octets(&memory), after);
        });
    }
}

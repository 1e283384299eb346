//! Whether the targets can fail: the stack with one fault on purpose at a time, and the seeds.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use uwarp_fuzz::TARGETS;
use uwarp_mutant::{Mutant, switch};

/// The targets that find this mutant with their seeds alone.
fn found(mutant: Mutant, seeds: &[Vec<Vec<u8>>]) -> Vec<&'static str> {
    switch(Some(mutant));
    let finds = TARGETS.iter().zip(seeds).filter(|(target, seeds)| {
        seeds
            .iter()
            .any(|seed| catch_unwind(|| (target.run)(seed)).is_err())
    });
    let names = finds.map(|(target, _)| target.name).collect();
    switch(None);
    names
}

#[test]
fn every_target_finds_faults() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let seeds: Vec<Vec<Vec<u8>>> = TARGETS
        .iter()
        .map(|target| {
            let entries = fs::read_dir(root.join(target.name)).unwrap();
            entries
                .map(|entry| fs::read(entry.unwrap().path()).unwrap())
                .collect()
        })
        .collect();
    // A find is a panic, and there are many.
    std::panic::set_hook(Box::new(|_| {}));
    let mut table = String::new();
    for mutant in Mutant::ALL {
        let names = found(*mutant, &seeds);
        table.push_str(&format!(
            "{:?} {:32} {}\n",
            mutant.layer(),
            mutant.name(),
            names.join(" ")
        ));
    }
    let _ = std::panic::take_hook();
    println!("{table}");
}

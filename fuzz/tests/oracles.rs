//! Checks that the targets can fail. Each deliberate fault of the stack is switched on in turn, and
//! the seeds are run.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use uwarp_fuzz::TARGETS;
use uwarp_mutant::{Mutant, switch};

/// Faults that no target finds. Only the startup of a live device with a peer that breaks the rules
/// would find them.
const ABOVE: &[Mutant] = &[
    Mutant::ResponderSendsFirst,
    Mutant::TrailingBytesTaken,
    Mutant::RtrNotSent,
    Mutant::RtrSendDelivered,
];

/// Returns the targets whose seeds find this mutant.
fn finders(mutant: Mutant, seeds: &[Vec<Vec<u8>>]) -> Vec<&'static str> {
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

fn seeds() -> Vec<Vec<Vec<u8>>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    let of = |name: &str| {
        let entries = fs::read_dir(root.join(name)).unwrap();
        entries
            .map(|entry| fs::read(entry.unwrap().path()).unwrap())
            .collect()
    };
    TARGETS.iter().map(|target| of(target.name)).collect()
}

#[test]
fn the_seeds_find_every_fault_but_a_few() {
    if !uwarp_mutant::COMPILED_IN {
        eprintln!("SKIPPED: this build has no fault sites; ./ci.sh fuzz-smoke builds them");
        return;
    }
    let seeds = seeds();
    // Suppresses the messages of the many panics; each is a detection.
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<(Mutant, Vec<&str>)> = Mutant::ALL
        .iter()
        .map(|mutant| (*mutant, finders(*mutant, &seeds)))
        .collect();
    let _ = std::panic::take_hook();
    let mut wrong = Vec::new();
    for (mutant, names) in &found {
        eprintln!("{:32} {}", mutant.name(), names.join(" "));
        if names.is_empty() != ABOVE.contains(mutant) {
            wrong.push(mutant.name());
        }
    }
    assert!(
        wrong.is_empty(),
        "found and listed in ABOVE, or neither: {wrong:?}"
    );
    // The stack has no deliberate faults for captures and datagrams, so these cannot find any.
    let without = ["capture_file", "ud_datagram"];
    for target in TARGETS
        .iter()
        .filter(|target| !without.contains(&target.name))
    {
        let count = found
            .iter()
            .filter(|(_, names)| names.contains(&target.name))
            .count();
        assert!(count > 0, "{} finds nothing", target.name);
    }
}

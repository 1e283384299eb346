//! Runs each target on stable with its seeds, with the inputs that once made it panic, and with
//! some random inputs.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use uwarp_fuzz::{TARGETS, Target};

/// Number of random inputs for each target, from a fixed seed.
const RANDOM: usize = 150;

/// Returns the inputs of a target in `seeds/`, `crashers/` or another directory, sorted by name.
fn inputs(directory: &str, target: &Target) -> Vec<PathBuf> {
    // With an absolute directory, `join` drops the base.
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(directory)
        .join(target.name);
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn play(target: &Target, data: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| (target.run)(data))).is_err() {
        panic!("{}: {what} fails", target.name);
    }
}

fn replay(directory: &str) -> usize {
    let mut count = 0;
    for target in TARGETS {
        for path in inputs(directory, target) {
            play(
                target,
                &fs::read(&path).unwrap(),
                &path.display().to_string(),
            );
            count += 1;
        }
    }
    count
}

#[test]
fn every_seed_passes() {
    let count = replay("seeds");
    assert!(count >= TARGETS.len(), "{count} seeds");
}

#[test]
fn every_past_crasher_passes() {
    replay("crashers");
}

/// Runs the corpora of long fuzzing runs, if `UWARP_FUZZ_CORPUS` names them.
#[test]
fn every_input_of_a_corpus_passes() {
    let Ok(root) = std::env::var("UWARP_FUZZ_CORPUS") else {
        return;
    };
    eprintln!("{} inputs of {root}", replay(&root));
}

#[test]
fn random_inputs_pass() {
    for target in TARGETS {
        let mut random = fastrand::Rng::with_seed(0x7541);
        let seeds: Vec<Vec<u8>> = inputs("seeds", target)
            .iter()
            .map(|path| fs::read(path).unwrap())
            .collect();
        for round in 0..RANDOM {
            // Half of the inputs are seeds with a few changed bytes, which get further than random
            // bytes.
            let mut data = match random.choice(&seeds) {
                Some(seed) if round % 2 == 0 => seed.clone(),
                _ => {
                    let len = random.usize(0..400);
                    std::iter::repeat_with(|| random.u8(..)).take(len).collect()
                }
            };
            for _ in 0..random.usize(0..8) {
                if let Some(byte) = random.choice(&mut data) {
                    *byte = byte.wrapping_add(1 << (round % 8));
                }
            }
            play(target, &data, &format!("random input {round}, {data:02x?}"));
        }
    }
}

#[test]
fn every_target_has_a_binary() {
    let manifest =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    for target in TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{}\"", target.name)),
            "{}",
            target.name
        );
        let path = format!("fuzz_targets/{}.rs", target.name);
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        assert!(source.contains(&format!("uwarp_fuzz::binary!({});", target.name)));
    }
}

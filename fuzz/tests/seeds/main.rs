//! Seeds made from real exchanges of the stack. They are committed. This test compares them with
//! the exchanges of the current stack; `UWARP_FUZZ_SEEDS=write` writes them again.

mod exchanges;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use uwarp_fuzz::TARGETS;

/// Prefix of the names of these seeds. Seeds with other names were found by a fuzzer.
const MADE: &str = "stack-";

#[test]
fn the_seeds_of_the_stack_are_what_it_makes_today() {
    let write = std::env::var("UWARP_FUZZ_SEEDS").is_ok_and(|value| value == "write");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
    for target in TARGETS {
        let directory = root.join(target.name);
        let seeds = exchanges::of(target.name);
        assert!(!seeds.is_empty(), "{} has no seed", target.name);
        let names: BTreeSet<String> = (0..seeds.len())
            .map(|number| format!("{MADE}{number:02}"))
            .collect();
        if write {
            fs::create_dir_all(&directory).unwrap();
            for old in made(&directory).difference(&names) {
                fs::remove_file(directory.join(old)).unwrap();
            }
            for (name, seed) in names.iter().zip(&seeds) {
                fs::write(directory.join(name), seed).unwrap();
            }
        }
        assert_eq!(
            made(&directory),
            names,
            "UWARP_FUZZ_SEEDS=write writes the seeds again"
        );
        for (name, seed) in names.iter().zip(&seeds) {
            let committed = fs::read(directory.join(name)).unwrap();
            let wanted = "UWARP_FUZZ_SEEDS=write writes the seeds again";
            assert!(committed == *seed, "{}/{name}: {wanted}", target.name);
        }
    }
}

fn made(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with(MADE)).collect()
}

//! Shows that the conformance suite detects faults. `mutants.toml` names cases for each mutant.
//! These cases must fail when the mutant is on in uwarp's own endpoint. Without a mutant the same
//! cases must pass.
//!
//! Run this test with `RUSTFLAGS="--cfg uwarp_mutants" cargo test -p uwarp-mutant --test mutants
//! [-- NAME]`. The test uses virtual time, and each case has its own world
//! (`conformance/tests/world`), so verdicts do not depend on the machine. With
//! `UWARP_MUTANTS_REPORT=FILE` all cases are run for every mutant, and the results are written to
//! the file.

mod map;
mod report;
mod trial;
#[path = "../../../../conformance/tests/world/mod.rs"]
mod world;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use uwarp_mutant::Mutant;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // A mutant is switched on for the whole process.
    arguments.test_threads = Some(1);
    let map = match map::read() {
        Ok(map) => map,
        Err(error) => {
            eprintln!("dev/mutant/mutants.toml: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(path) = std::env::var_os("UWARP_MUTANTS_REPORT") {
        return report::write(&map, &path, arguments.filter.as_deref());
    }
    let mut trials = vec![Trial::test("no_mutant", {
        let map = map.clone();
        move || trial::without(&map).map_err(Into::into)
    })];
    for mutant in Mutant::ALL {
        let row = map.get(*mutant).clone();
        trials.push(Trial::test(mutant.name(), move || {
            trial::mapped(*mutant, &row).map_err(Into::into)
        }));
    }
    // Without the cfg the mutants are not compiled in, so their trials are ignored.
    let trials = trials
        .into_iter()
        .map(|trial| trial.with_ignored_flag(!uwarp_mutant::COMPILED_IN))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

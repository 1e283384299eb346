//! The suite finds what is wrong: each mutant of our own endpoint (`uwarp-mutant`) makes the cases fail that
//! `conformance/mutants.toml` names for it, and without a mutant the same cases pass.
//!
//! `cargo test -p uwarp-conformance --features mutants --test mutants [-- NAME]`, in virtual time: each case in a world of its
//! own (`../world`), where no verdict depends on the machine. With `UWARP_MUTANTS_REPORT=FILE` every mutant has to face all cases, and what fails is written to the file.

mod map;
mod report;
mod trial;
#[path = "../world/mod.rs"]
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
            eprintln!("conformance/mutants.toml: {error}");
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
    libtest_mimic::run(&arguments, trials).exit_code()
}

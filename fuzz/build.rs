//! Copies the seeds of each target into its corpus if the corpus is empty. `cargo fuzz coverage`
//! refuses an empty corpus before it starts the target. Every other command gets the seeds from the
//! target itself (`src/start.rs`).

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=seeds");
    if env::var_os("CARGO_CFG_FUZZING").is_none() {
        return Ok(());
    }
    for seeds in fs::read_dir("seeds")? {
        let seeds = seeds?;
        let corpus = Path::new("corpus").join(seeds.file_name());
        fs::create_dir_all(&corpus)?;
        if fs::read_dir(&corpus)?.next().is_some() {
            continue;
        }
        for seed in fs::read_dir(seeds.path())? {
            let seed = seed?;
            fs::copy(seed.path(), corpus.join(seed.file_name()))?;
        }
    }
    Ok(())
}

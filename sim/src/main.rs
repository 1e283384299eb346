//! Plays runs of the simulator: one with its log, or many.

use std::panic::catch_unwind;
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::Parser;
use uwarp_sim::{Log, Options, run};

/// Plays runs of the simulator; see docs/simulation.md.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Plays this one.
    #[arg(long)]
    seed: Option<u64>,
    /// Tells what happens, step by step; twice: every packet, too.
    #[arg(long, action = clap::ArgAction::Count)]
    log: u8,
    /// How many runs.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Processes side by side.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Without the CRC of MPA, to see what is lost then.
    #[arg(long)]
    no_crc: bool,
    /// With this fault in the stack.
    #[cfg(feature = "mutants")]
    #[arg(long)]
    mutant: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "mutants")]
    if let Some(name) = &args.mutant {
        let Some(mutant) = uwarp_mutant::Mutant::named(name) else {
            println!("there is no mutant {name}");
            return ExitCode::FAILURE;
        };
        uwarp_mutant::switch(Some(mutant));
    }
    let log = match args.log {
        0 => Log::Off,
        1 => Log::Events,
        _ => Log::Packets,
    };
    let options = Options {
        log,
        crc: !args.no_crc,
    };
    if let Some(seed) = args.seed {
        return match play(seed, options) {
            Ok(()) => {
                println!("seed {seed}: all holds");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let begin = Instant::now();
    let failed = if args.jobs > 1 {
        by_processes(&args)
    } else {
        play_many(&args, options)
    };
    println!(
        "{} runs from seed {} in {:.1?}: {failed} failed",
        args.seeds,
        args.from,
        begin.elapsed()
    );
    // So that a process that has started this one can add up.
    ExitCode::from(u8::try_from(failed).unwrap_or(u8::MAX))
}

fn play(seed: u64, options: Options) -> Result<(), String> {
    let before = descriptors();
    match catch_unwind(|| run(seed, options)) {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => return Err(error),
        Err(_) => return Err("a panic; see above".to_owned()),
    }
    // Each run is alone in its process.
    let after = descriptors();
    if after == before {
        Ok(())
    } else {
        Err(format!("{before} descriptors before, {after} after"))
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Plays one after the other; gives how many failed.
fn play_many(args: &Args, options: Options) -> u64 {
    let mut failed = 0;
    for seed in args.from..args.from + args.seeds {
        if let Err(error) = play(seed, options) {
            failed += 1;
            println!("seed {seed}: {error}");
            let crc = if args.no_crc { " --no-crc" } else { "" };
            println!("  again, step by step: ./ci.sh sim --seed {seed} --log{crc}");
        }
    }
    failed
}

/// Plays in several processes, so that each can count its descriptors; gives how many failed.
fn by_processes(args: &Args) -> u64 {
    let Ok(this) = std::env::current_exe() else {
        return 1;
    };
    let share = args.seeds.div_ceil(args.jobs);
    let mut children = Vec::new();
    for job in 0..args.jobs {
        let from = args.from + job * share;
        let seeds = share.min((args.from + args.seeds).saturating_sub(from));
        let mut command = Command::new(&this);
        command.args(["--from", &from.to_string(), "--seeds", &seeds.to_string()]);
        if args.no_crc {
            command.arg("--no-crc");
        }
        children.push(command.spawn());
    }
    let failed = children.into_iter().map(|child| {
        let status = child.and_then(|mut child| child.wait());
        // One that was killed has failed as well.
        let code = status.ok().and_then(|status| status.code()).unwrap_or(1);
        u64::from(code.unsigned_abs())
    });
    failed.sum()
}

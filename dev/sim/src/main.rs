//! Command that runs the simulator for one seed, with a log, or for many.

use std::io::{BufRead, BufReader};
use std::panic::catch_unwind;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use clap::Parser;
use uwarp_sim::{Log, Options, Tally, run};

/// Plays runs of the simulator; see docs/testing.md.
#[derive(Parser, Clone, Debug)]
struct Args {
    /// Play only this seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Log each step; given twice, log every packet as well.
    #[arg(long, action = clap::ArgAction::Count)]
    log: u8,
    /// Number of runs.
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Number of processes that run at the same time.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Switch the CRC of MPA off, to see what is lost without it.
    #[arg(long)]
    no_crc: bool,
    /// Switch a fault of the stack on; only in builds with `--cfg uwarp_mutants`.
    #[cfg(uwarp_mutants)]
    #[arg(long)]
    mutant: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(uwarp_mutants)]
    if let Some(name) = &args.mutant {
        let Some(mutant) = uwarp_mutant::Mutant::named(name) else {
            println!("no mutant is named {name}");
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
            Ok(tally) => {
                print!("{tally}");
                println!("seed {seed}: passed");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let begin = Instant::now();
    let (failed, tally) = if args.jobs > 1 {
        by_processes(&args)
    } else {
        play_many(&args, options)
    };
    print!("{tally}");
    println!(
        "{} runs from seed {} in {:.1?}: {failed} failed",
        args.seeds,
        args.from,
        begin.elapsed()
    );
    // The exit code is the number of failures, at most 255. A parent process adds up the exit codes
    // of its children.
    ExitCode::from(u8::try_from(failed).unwrap_or(u8::MAX))
}

fn play(seed: u64, options: Options) -> Result<Tally, String> {
    let before = descriptors();
    let outcome = match catch_unwind(|| run(seed, options)) {
        Ok(outcome) => outcome?,
        Err(_) => return Err("panicked; the message is above".to_owned()),
    };
    // Only one run is active in a process, so the counts can be compared.
    let after = descriptors();
    if after == before {
        Ok(outcome.tally)
    } else {
        Err(format!(
            "{before} descriptors were open before the run, {after} after it"
        ))
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Runs the seeds one after the other. Returns the number of failures and the tally of the runs
/// that passed.
fn play_many(args: &Args, options: Options) -> (u64, Tally) {
    let (mut failed, mut all) = (0, Tally::default());
    for seed in args.from..args.from + args.seeds {
        match play(seed, options) {
            Ok(tally) => all.merge(&tally),
            Err(error) => {
                failed += 1;
                println!("seed {seed}: {error}");
                let crc = if args.no_crc { " --no-crc" } else { "" };
                println!("  replay with a log: ./ci.sh sim --seed {seed} --log{crc}");
            }
        }
    }
    (failed, all)
}

/// Divides the seeds among several processes, because each process counts its own descriptors.
/// Returns the number of failures and the tally of the runs that passed.
fn by_processes(args: &Args) -> (u64, Tally) {
    let Ok(this) = std::env::current_exe() else {
        return (1, Tally::default());
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
        #[cfg(uwarp_mutants)]
        if let Some(name) = &args.mutant {
            command.args(["--mutant", name]);
        }
        // A child prints its failures at once, and its tally when it ends.
        let listen = move || listen(&mut command).unwrap_or((1, Tally::default()));
        children.push(thread::spawn(listen));
    }
    let (mut failed, mut all) = (0, Tally::default());
    for child in children {
        let (more, tally) = child.join().unwrap_or((1, Tally::default()));
        failed += more;
        all.merge(&tally);
    }
    (failed, all)
}

/// Runs a command and prints its output except for its tally. Returns its exit code, which counts
/// failures, and the tally.
fn listen(command: &mut Command) -> std::io::Result<(u64, Tally)> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut tally = Tally::default();
    if let Some(lines) = child.stdout.take() {
        for line in BufReader::new(lines).lines() {
            let line = line?;
            if !tally.take_line(&line) {
                println!("{line}");
            }
        }
    }
    // A child that was killed counts as a failure.
    let failed = child.wait()?.code().unwrap_or(1);
    Ok((u64::from(failed.unsigned_abs()), tally))
}

//! uwarp beside raw TCP of the same machine, in the same minutes: rounds alternate, and what is told are medians and the
//! ratios of neighbours.
//!
//! ```sh
//! cargo build --release -p uwarp -p uwarp-bench
//! target/release/uwarp-bench --uwarp target/release/uwarp
//! ```

mod compare;
mod raw;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Options.
#[derive(Parser, Debug)]
#[command(about = "uwarp beside raw TCP, in alternation")]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds: each measures everything once, raw and ours by turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds for each figure of a round
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Congestion control of all connections, where the machine allows it: the default may pace
    #[arg(long, value_name = "NAME")]
    congestion: Option<String>,
    /// More options for every `uwarp perf`, at both sides
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    with: Vec<String>,
    /// Only measurements with this in their names
    #[arg(value_name = "FILTER")]
    only: Vec<String>,
    /// The other side of raw TCP (what the bench itself starts)
    #[arg(long, hide = true)]
    raw_server: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let done = if options.raw_server {
        raw::serve(options.congestion.as_deref())
    } else {
        compare::run(&options)
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uwarp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

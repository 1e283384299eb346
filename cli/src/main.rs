//! The `uwarp` command: RDMA over plain TCP in user space.
//!
//! | command | purpose |
//! |---|---|
//! | `uwarp demo` | moves data by every operation between two endpoints in one process |
//! | `uwarp agent` | serves RDMA commands that controllers send as lines of JSON |
//! | `uwarp conformance` | tests an endpoint against the RFCs, requirement by requirement |
//! | `uwarp devinfo` | shows the device as `ibv_devinfo -v` does, and the usable networks |
//! | `uwarp dump` | decodes a capture and reports what breaks the RFCs |
//! | `uwarp perf` | measures bandwidth, message rate and latency, as perftest does |
//! | `uwarp run` | runs an unmodified program of libibverbs and librdmacm on uwarp |
//! | `uwarp rping` | plays RDMA ping-pong, compatible with rdmacm-utils' rping |
//! | `uwarp completions`, `uwarp man` | shell completions and manual pages |
//!
//! Exit codes: 0 success, 1 the operation failed, 2 wrong usage, 141 the reader closed stdout or
//! stderr. `run` exits with the code of its program.
//!
//! Errors go to stderr. They say what happened, what was expected, whose fault it is and what to
//! try. `UWARP_LOG` turns on a log on stderr, with the syntax of `RUST_LOG` (`UWARP_LOG=debug`).

mod address;
mod advert;
mod agent;
mod common;
mod conformance;
mod demo;
mod descriptors;
mod device;
mod devinfo;
mod dump;
mod explain;
mod failure;
mod generated;
mod logging;
mod options;
mod output;
mod perf;
mod rdma;
mod rping;
mod run;
mod signals;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// RDMA over plain TCP in user space (iWARP, RFC 5040 to 5042, 5044, 6581 and 7306)
#[derive(Parser)]
#[command(name = "uwarp", version)]
#[command(
    after_help = "Exit codes: 0 success, 1 the operation failed, 2 wrong usage, 141 the reader closed the output.\n\
    UWARP_LOG=debug (or info, warn, uwarp_verbs=trace ...) writes a log to stderr."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show that RDMA works on this machine, without root and without set-up
    Demo(demo::Options),
    /// Serve RDMA commands that controllers send as lines of JSON, for tests
    Agent(agent::Options),
    /// Play RDMA ping-pong between two processes, compatible with rdmacm-utils' rping
    Rping(rping::Options),
    /// Run an unmodified RDMA program on uwarp instead of libibverbs and librdmacm
    Run(Box<run::Options>),
    /// Measure bandwidth, message rate and latency between two processes, as perftest does
    Perf(Box<perf::Options>),
    /// Test an iWARP endpoint against the RFCs, requirement by requirement
    Conformance(Box<conformance::Options>),
    /// Decode a capture and report what breaks the RFCs
    Dump(dump::Options),
    /// Show the device as `ibv_devinfo -v` does, and the networks that this machine allows
    Devinfo(devinfo::Options),
    /// Print completions for a shell
    Completions(generated::CompletionOptions),
    /// Write manual pages
    Man(generated::ManOptions),
}

fn main() -> ExitCode {
    if rdma::is_called() {
        return ended(rdma::NAME, rdma::run());
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            if std::env::args_os()
                .nth(1)
                .is_some_and(|name| name == "perf")
                && let Some(line) = perf::refusal(&error)
            {
                output::notice(line);
                return ExitCode::from(2);
            }
            // A write error here (disk full) does not change the exit code.
            let _ = output::exit_if_closed(error.print());
            return if error.use_stderr() {
                ExitCode::from(2)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // `run` leaves the limits and the allocator of its program unchanged.
    if !matches!(cli.command, Command::Run(_)) {
        descriptors::raise_limit();
        uwarp_verbs::headroom::share_arena();
        // Under `run` the library reports unknown variables.
        for unknown in uwarp_verbs::environment::unknown_variables() {
            output::notice(format_args!("uwarp: {unknown}"));
        }
    }
    let (name, result) = match &cli.command {
        Command::Demo(options) => ("demo", logging::start().and_then(|()| demo::run(options))),
        Command::Agent(options) => ("agent", logging::start().and_then(|()| agent::run(options))),
        Command::Rping(options) => ("rping", logging::start().and_then(|()| rping::run(options))),
        Command::Run(options) => ("run", run::run(options)),
        Command::Perf(options) => ("perf", logging::start().and_then(|()| perf::run(options))),
        Command::Conformance(options) => {
            let result = logging::start().and_then(|()| conformance::run_command(options));
            ("conformance", result)
        }
        Command::Devinfo(options) => (
            "devinfo",
            logging::start().and_then(|()| devinfo::run(options)),
        ),
        Command::Completions(options) => (
            "completions",
            generated::completions(options, Cli::command()),
        ),
        Command::Man(options) => ("man", generated::manual(options, Cli::command())),
        Command::Dump(options) => ("dump", logging::start().and_then(|()| dump::run(options))),
    };
    // A device that another thread is closing may still have its socket file.
    uwarp_verbs::llp::remove_socket_files();
    ended(name, result)
}

/// Prints the failure, if there is one, and returns the exit status.
fn ended(name: &str, result: Result<(), failure::Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(name);
            failure.exit_code()
        }
    }
}

/// Runs clap's own check of the option declarations.
#[test]
fn the_options_are_declared_consistently() {
    Cli::command().debug_assert();
}

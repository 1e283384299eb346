//! The `uwarp` command: RDMA over plain TCP in user space.
//!
//! | command | does |
//! |---|---|
//! | `uwarp demo` | two endpoints in one process over TCP/IP in user space: moves data by every operation, verifies it, shows one error in words |
//! | `uwarp agent` | the application under test: does RDMA as controllers tell it, by lines of JSON |
//! | `uwarp conformance` | what an endpoint gets wrong, requirement by requirement of the RFCs |
//! | `uwarp devinfo` | the device as `ibv_devinfo -v` shows it, and which networks this machine allows |
//! | `uwarp dump` | decodes a capture, and tells what in it breaks the RFCs |
//! | `uwarp perf` | bandwidth, message rate and latency between two processes, as perftest |
//! | `uwarp run` | runs a program of libibverbs and librdmacm, unmodified, on uwarp |
//! | `uwarp completions`, `uwarp man` | completions for shells, and manual pages |
//! | `uwarp rping` | the ping-pong of rdmacm-utils' rping, both roles, speaking to the real one |
//!
//! Exit codes: 0 done, 1 the operation failed, 2 wrong usage, 141 the reader of stdout or stderr has gone away; of `run`,
//! those of the program. Errors go to stderr and say what happened, what was expected, whose doing it is and what to try. `UWARP_LOG` (as `RUST_LOG`
//! elsewhere, for example `UWARP_LOG=debug`) turns on a log on stderr.

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
mod output;
mod perf;
mod rping;
mod run;
mod signals;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// RDMA over plain TCP in user space (iWARP, RFC 5040 to 5044 and 6581).
#[derive(Parser)]
#[command(name = "uwarp", version, about)]
#[command(
    after_help = "Exit codes: 0 done, 1 the operation failed, 2 wrong usage, 141 nobody reads the output any more.\n\
    UWARP_LOG=debug (or info, warn, uwarp_verbs=trace ...) writes a log to stderr."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show that it works, here and now: no root, no set-up
    Demo(demo::Options),
    /// The application under test: does RDMA as controllers tell it, by lines of JSON
    Agent(agent::Options),
    /// RDMA ping-pong between two processes, as rdmacm-utils' rping
    Rping(rping::Options),
    /// Run an RDMA program, unmodified, on uwarp in place of libibverbs and librdmacm
    Run(Box<run::Options>),
    /// Measure bandwidth, message rate and latency between two processes, as perftest
    Perf(Box<perf::Options>),
    /// Tell what an endpoint gets wrong, requirement by requirement
    Conformance(Box<conformance::Options>),
    /// Decode a capture, and tell what in it breaks the RFCs
    Dump(dump::Options),
    /// Show the device as `ibv_devinfo -v` does, and which networks this machine allows
    Devinfo(devinfo::Options),
    /// Print completions for a shell
    Completions(generated::CompletionOptions),
    /// Write manual pages
    Man(generated::ManOptions),
}

fn main() -> ExitCode {
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
            // A full disk is no reason to complain about.
            let _ = output::unless_closed(error.print());
            return if error.use_stderr() {
                ExitCode::from(2)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // A program gets the limits that its user has.
    if !matches!(cli.command, Command::Run(_)) {
        descriptors::raise_the_limit();
        // Those of `run` are reported by the library, which reads them.
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
    // A thread of a device that is being closed may still have one.
    uwarp_verbs::llp::remove_socket_files();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(name);
            failure.exit_code()
        }
    }
}

/// clap's own check of how the options are declared.
#[test]
fn the_options_are_declared_consistently() {
    Cli::command().debug_assert();
}

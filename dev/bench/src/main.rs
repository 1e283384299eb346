//! Measures uwarp, raw TCP and other programs by turns on one machine. The report has the medians
//! of all rounds, and ratios of figures that were measured next to each other.
//!
//! ```sh
//! cargo build --release -p uwarp -p uwarp-bench
//! target/release/uwarp-bench --rounds 9 "64 KiB Write"
//! target/release/uwarp-bench scale
//! ```

mod baseline;
mod dropin;
mod instructions;
mod kernel;
mod machine;
mod namespace;
mod options;
mod peers;
mod perf;
mod process;
mod programs;
mod report;
mod rows;
mod scale;
mod siw;
mod stats;

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::baseline::Load;
use crate::options::Common;

/// Arguments of the program. Without a subcommand, it measures kernel TCP and other programs.
#[derive(Parser, Debug)]
#[command(
    about = "uwarp beside raw TCP and beside other programs, by turns",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    common: Common,
    /// Rounds with other programs; 0 for none
    #[arg(long, default_value_t = 3)]
    peer_rounds: usize,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Measure many connections: latency, rate and memory beside few of them
    Scale(scale::Options),
    /// Measure unmodified RDMA programs on the drop-in library
    Dropin(Common),
    /// Measure beside Linux siw in a virtual machine
    Siw(siw::Options),
    /// Count the instructions for a message and for a byte, by callgrind
    Instructions(instructions::Options),
    // Processes that the bench starts from itself.
    #[command(hide = true)]
    RawServer { congestion: String },
    #[command(hide = true)]
    ScaleServer { conns: usize, congestion: String },
    #[command(hide = true)]
    ScaleMemory {
        conns: usize,
        congestion: String,
        /// The line that the server has printed
        server: String,
    },
    #[command(hide = true)]
    RawClient {
        congestion: String,
        addr: SocketAddr,
        #[command(flatten)]
        load: Load,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments.command {
        None => compare(&arguments.common, arguments.peer_rounds),
        Some(Command::Scale(options)) => scale::run(options).map_err(io::Error::other),
        Some(Command::Dropin(common)) => dropin::run(common),
        Some(Command::Siw(options)) => siw::run(options),
        Some(Command::Instructions(options)) => instructions::run(options),
        Some(Command::RawServer { congestion }) => baseline::serve(congestion),
        Some(Command::ScaleServer { conns, congestion }) => {
            scale::serve(*conns, congestion).map_err(io::Error::other)
        }
        Some(Command::ScaleMemory {
            conns,
            congestion,
            server,
        }) => scale::tell_memory(*conns, congestion, server).map_err(io::Error::other),
        Some(Command::RawClient {
            congestion,
            addr,
            load,
        }) => baseline::connect(*addr, congestion, *load),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uwarp-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures kernel TCP, and other programs if all rows are selected.
fn compare(common: &Common, peer_rounds: usize) -> io::Result<()> {
    common.prepare(&peers::PACKAGES)?;
    let mut sections = vec![kernel::run(common)?];
    if common.only.is_empty() && peer_rounds > 0 {
        sections.push(peers::run(common, peer_rounds)?);
    }
    common.output.publish(&sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_subcommand_is_a_filter() {
        let parse = |words: &[&str]| Arguments::try_parse_from([&["uwarp-bench"], words].concat());
        let arguments = parse(&["--rounds", "9", "64 KiB Write", "1 MiB Write"]).unwrap();
        assert!(arguments.command.is_none());
        assert_eq!(arguments.common.only, ["64 KiB Write", "1 MiB Write"]);
        let scale = parse(&["scale", "--rounds", "2"]).unwrap().command;
        assert!(matches!(scale, Some(Command::Scale(_))));
        let part = parse(&["--write", "report.md", "64 KiB Write"]);
        assert!(part.is_err(), "a part of the rows would replace all");
    }

    #[test]
    fn a_raw_client_understands_its_load() {
        let words = "uwarp-bench raw-client reno 127.0.0.1:1 spinning-stream 8 0.25";
        match Arguments::parse_from(words.split(' ')).command {
            Some(Command::RawClient { load, .. }) => {
                assert_eq!(load.words(), ["spinning-stream", "8", "0.25"]);
            }
            other => panic!("{other:?}"),
        }
    }
}

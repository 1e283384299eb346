//! The log: off unless `UWARP_LOG` asks for it, on stderr, in the syntax of `RUST_LOG`.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use crate::failure::{Failure, Report};
use crate::output::unless_closed;

const VARIABLE: &str = "UWARP_LOG";

/// Starts the log if the environment asks for one.
pub(crate) fn start() -> Result<(), Failure> {
    let Ok(directives) = std::env::var(VARIABLE) else {
        return Ok(());
    };
    if directives.is_empty() {
        return Ok(());
    }
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        let report = Report::new(format!(
            "{VARIABLE}={directives} is not understood: {error}"
        ));
        Failure::Usage(report.advice(format!("{VARIABLE}=debug, or {VARIABLE}=uwarp_verbs=trace")))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Unfailing)
        .init();
    Ok(())
}

/// Standard error; a log that cannot be written is no failure of the command.
struct Unfailing;

impl Write for Unfailing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = unless_closed(io::stderr().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

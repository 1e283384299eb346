//! The log on stderr. It is off unless `UWARP_LOG` is set. The variable has the syntax of
//! `RUST_LOG`.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use uwarp_verbs::environment::LOG;
use uwarp_verbs::messages;

use crate::failure::{Failure, Report};
use crate::output::exit_if_closed;

/// Starts the log if `UWARP_LOG` is set.
pub(crate) fn start() -> Result<(), Failure> {
    let Ok(directives) = std::env::var(LOG) else {
        return Ok(());
    };
    if directives.is_empty() {
        return Ok(());
    }
    let filter = EnvFilter::try_new(&directives).map_err(|error| {
        let report = Report::new(format!("{LOG}={directives} cannot be parsed: {error}"));
        let advice = format!("use {LOG}=debug or {LOG}=uwarp_verbs=trace");
        Failure::Usage(report.advice(advice))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Unfailing)
        .init();
    Ok(())
}

/// Standard error without write errors, because a log that cannot be written is not a failure of
/// the command. Ends the process if the reader has closed stderr.
struct Unfailing;

impl Write for Unfailing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = messages::write(&String::from_utf8_lossy(bytes));
        let _ = exit_if_closed(written.map(drop));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

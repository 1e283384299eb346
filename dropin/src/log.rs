//! Log of the library on standard error (`UWARP_LOG`), in the syntax of `RUST_LOG`. Off by default.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;
use uwarp_verbs::environment::{LOG, variable};
use uwarp_verbs::messages;

/// Starts the log if `UWARP_LOG` is set and not empty. If the process already has a `tracing`
/// subscriber, keeps that subscriber instead.
///
/// # Errors
/// Returns a message if the value is not a valid filter.
pub(crate) fn start() -> Result<(), String> {
    let Some(value) = variable(LOG).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let directives = value.to_string_lossy();
    let filter = EnvFilter::try_new(&*directives).map_err(|error| {
        format!(
            "{LOG} is '{directives}'; expected a filter such as debug or uwarp_verbs=trace: {error}"
        )
    })?;
    // This fails if a subscriber is already set.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Stderr)
        .try_init();
    Ok(())
}

/// Writes the log to standard error, without blocking. Errors are ignored, because the program may
/// have closed standard error.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = messages::write(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

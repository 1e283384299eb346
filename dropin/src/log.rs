//! Log of the library on standard error (`UWARP_LOG`), in the syntax of `RUST_LOG`. Off by default.

use std::env;
use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "UWARP_LOG";

/// Starts the log if the environment asks for one. If the process already has a log, it keeps that.
///
/// # Errors
/// The value is not a valid filter.
pub(crate) fn start() -> Result<(), String> {
    let Some(value) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let directives = value.to_string_lossy();
    let filter = EnvFilter::try_new(&*directives).map_err(|error| {
        format!("{VARIABLE} is '{directives}'; expected a filter such as debug or uwarp_verbs=trace: {error}")
    })?;
    // Fails if a subscriber is already set, which then stays.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(|| Stderr)
        .try_init();
    Ok(())
}

/// Standard error for the log. The program may have closed it, and must not be cancelled while it
/// is locked.
struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _deferred = crate::cancel::Deferred::new();
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

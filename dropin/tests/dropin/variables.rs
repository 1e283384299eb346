//! Tests of environment variables (`UWARP_...`) with unmodified programs.

use crate::prefix::Prefix;
use crate::process::Place;

/// Runs a program with one variable set, and returns its output.
fn with(prefix: &Prefix, variable: &str, words: &[&str]) -> Result<String, String> {
    let place = Place { prefix, flags: &[] };
    let mut running = place.start(&[&["env", variable], words].concat())?;
    running.end()
}

/// A misspelled name is reported once, and the device opens as if the variable were not set.
pub(crate) fn an_unknown_variable_is_reported_with_the_nearest_known_name(
    prefix: &Prefix,
) -> Result<(), String> {
    let said = with(prefix, "UWARP_PACP=x", &["ibv_devinfo"])?;
    let line = "uwarp: the environment variable UWARP_PACP is unknown and has no effect; the nearest known one is UWARP_PCAP";
    let reported = said.lines().filter(|said| *said == line).count();
    if reported == 1 && said.contains("PORT_ACTIVE") {
        Ok(())
    } else {
        Err(format!(
            "expected one such line, and a device, got:\n{said}"
        ))
    }
}

/// `UWARP_LOG` selects a log, an empty value selects none, and an invalid filter is reported.
pub(crate) fn a_log_is_written_when_it_is_asked_for(prefix: &Prefix) -> Result<(), String> {
    // Nothing listens on port 1. The client logs its attempt until it fails.
    let client = [
        "sh",
        "-c",
        "UWARP_CONNECT_RETRY=0 rping -c -a 127.0.0.1 -p 1 || true",
    ];
    let logged = with(prefix, "UWARP_LOG=uwarp_verbs=debug", &client)?;
    let silent = with(prefix, "UWARP_LOG=", &client)?;
    match (
        logged.contains("DEBUG uwarp_verbs"),
        silent.contains("DEBUG"),
    ) {
        (true, false) => {}
        _ => {
            return Err(format!(
                "expected a log in the first output only:\n{logged}\n{silent}"
            ));
        }
    }
    let wrong = with(
        prefix,
        "UWARP_LOG=uwarp=loud",
        &["sh", "-c", "ibv_devinfo || true"],
    )?;
    if wrong.contains("uwarp: UWARP_LOG is 'uwarp=loud'; expected a filter") {
        Ok(())
    } else {
        Err(format!("the invalid filter is not reported:\n{wrong}"))
    }
}

//! Tests of environment variables (`UWARP_...`) with unmodified programs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::c;
use crate::prefix::{Prefix, said};
use crate::process::{Place, root};

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

/// A setuid program opens its device without any of the variables. They belong to the user who
/// starts it, and could otherwise replace files of root.
pub(crate) fn a_setuid_program_reads_none(prefix: &Prefix) -> Result<(), String> {
    if !root() {
        eprintln!("SKIPPED: only root can make a setuid program of another user");
        return Ok(());
    }
    let folder = prefix.library();
    let folder = folder.parent().ok_or("the library is in no folder")?;
    let path = format!("-Wl,-rpath,{}", folder.display());
    let libraries = ["-lrdmacm", "-libverbs", &path];
    let program = c::compile(prefix, "cc", "linked.c", &libraries)?;
    for (mode, captures) in [(0o755, true), (0o4755, false)] {
        fs::set_permissions(&program, Permissions::from_mode(mode))
            .map_err(|error| error.to_string())?;
        let capture = prefix.scratch().join(format!("setuid-{mode:o}.pcapng"));
        // Unlike for all other programs, new rights are allowed.
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        command.arg(&program).env("UWARP_PCAP", &capture);
        let said = said(&mut command)?;
        if !said.contains(&folder.display().to_string()) {
            return Err(format!("the program does not use the library:\n{said}"));
        }
        if capture.exists() != captures {
            return Err(format!(
                "with mode {mode:o}, expected a capture: {captures}; is the file system mounted with nosuid?\n{said}"
            ));
        }
    }
    Ok(())
}

//! A network namespace of the tests' own: its interfaces end with it, and it ends with the process.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result};

/// The namespace that the tests were started in.
const OUTER: &str = "UWARP_INTEROP_OUTER_NAMESPACE";

/// Goes on in a new network namespace, with the loopback interface up: starts this program anew, with
/// the same arguments and process id, and then does not return. Without root the namespace of a new
/// user namespace. To be called first of all, by every run: the second one returns.
///
/// # Errors
/// There can be no namespace here, and why. The tests that need none can still run.
pub fn enter() -> std::result::Result<(), String> {
    let current = current().map_err(|failure| failure.to_string())?;
    if env::var_os(OUTER).is_some_and(|outer| outer != OsStr::new(&current)) {
        // So that segments have a multiple of 4 bytes of data (the MTU less 52 or 72 for the headers),
        // as FPDUs have. QEMU's user network cuts the stream anew by what has come: with other lengths it
        // would now and then cut within a CRC, which siw misreads (Q23). It still cuts between padding and CRC, so
        // that tests with many FPDUs at once have messages without padding.
        let up = run(&["ip", "link", "set", "lo", "mtu", "65532", "up"]);
        return up.map(drop).map_err(|failure| failure.to_string());
    }
    let mut unshare = vec!["unshare", "--net"];
    // Its owner is the user of the process.
    if fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        unshare.extend(["--user", "--map-root-user"]);
    }
    run(&[&unshare[..], &["true"]].concat()).map_err(|failure| {
        format!(
            "there can be no network namespace here: {failure} (as root, or where \
             `unshare -Urn true` works, there can)"
        )
    })?;
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let error = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("--")
        .arg(program)
        .args(env::args_os().skip(1))
        .env(OUTER, current)
        .exec();
    Err(format!("unshare cannot be run: {error}"))
}

/// The name of the network namespace of this process.
fn current() -> Result<String> {
    let link = fs::read_link("/proc/self/ns/net")?;
    Ok(link.to_string_lossy().into_owned())
}

/// Runs a command to its end; what it said is the failure.
pub(crate) fn run(command: &[&str]) -> Result<String> {
    let what = command.join(" ");
    let output = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::new(format!("'{what}' cannot be run: {error}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!("'{what}': {}", said.trim())))
}

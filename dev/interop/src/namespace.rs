//! A network namespace for the tests. The namespace and its interfaces exist until the process
//! ends.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result};

/// Environment variable with the name of the namespace in which the tests were started.
const OUTER: &str = "UWARP_INTEROP_OUTER_NAMESPACE";

/// Restarts this program in a new network namespace with the loopback interface up. Arguments and
/// process id stay the same. Without root, the namespace belongs to a new user namespace. A program
/// must call this function before anything else. It returns only in the restarted program, or with
/// an error.
///
/// # Errors
/// The reason why no namespace can be created. Tests that need no namespace can still run.
pub fn enter() -> std::result::Result<(), String> {
    let current = current().map_err(|failure| failure.to_string())?;
    if env::var_os(OUTER).is_some_and(|outer| outer != OsStr::new(&current)) {
        // With this MTU, the payload of a full segment (the MTU minus 52 or 72 bytes of headers) is
        // a multiple of 4 bytes, and so is every FPDU. QEMU's user network forwards the stream in
        // the pieces that it receives. With another MTU, a cut sometimes lies within a CRC, which
        // siw then misreads (Q23). A cut between padding and CRC is still possible. So tests that
        // send many FPDUs at once use messages without padding.
        let up = run(&["ip", "link", "set", "lo", "mtu", "65532", "up"]);
        return up.map(drop).map_err(|failure| failure.to_string());
    }
    let mut unshare = vec!["unshare", "--net"];
    // `/proc/self` belongs to the user of this process.
    if fs::metadata("/proc/self").map_or(0, |process| process.uid()) != 0 {
        unshare.extend(["--user", "--map-root-user"]);
    }
    run(&[&unshare[..], &["true"]].concat()).map_err(|failure| {
        format!(
            "no network namespace can be created here: {failure} (it needs root, or a system where \
             `unshare -Urn true` works)"
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

/// Returns the name of this process's network namespace.
fn current() -> Result<String> {
    let link = fs::read_link("/proc/self/ns/net")?;
    Ok(link.to_string_lossy().into_owned())
}

/// Runs a command and returns its stdout. If it fails, the error has its stderr.
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

//! Runs tests in a separate network namespace, which disappears with its process.
//!
//! Such a test starts its own binary again under `unshare` (util-linux), to run only this test. If
//! the system permits it, `unshare` also creates a user namespace, and no privilege is needed.
//! Otherwise the test needs root's privileges. If both ways fail, the test prints `SKIPPED` with
//! the reason and passes, unless `UWARP_REQUIRE_NETNS=1` is set.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Environment variable that is set to the name of the test in the process inside the namespace.
const INSIDE: &str = "UWARP_TEST_INSIDE_NETNS";

/// Arguments of `unshare` that create a network namespace. The first way needs no privilege.
const WAYS: [&[&str]; 2] = [&["-Urn"], &["-n"]];

/// Declares tests whose bodies run in a separate network namespace. `not_emulated` names a feature
/// that the tests need and QEMU's user emulation lacks.
#[macro_export]
macro_rules! in_namespace {
    (not_emulated: $lacks:literal; $(fn $name:ident() $body:block)*) => {
        $crate::in_namespace! {
            $(fn $name() {
                if !$crate::netns::is_emulated(stringify!($name), $lacks) $body
            })*
        }
    };
    ($(fn $name:ident() $body:block)*) => {
        $(
            #[test]
            fn $name() {
                let path = concat!(module_path!(), "::", stringify!($name));
                // The harness omits the name of the crate.
                let (_, test) = path.split_once("::").unwrap();
                $crate::netns::run(test, || $body);
            }
        )*
    };
}

pub use crate::in_namespace;

/// Returns true if this process is inside the namespace of the test.
pub fn is_inside(test: &str) -> bool {
    std::env::var_os(INSIDE).is_some_and(|inside| inside == *test)
}

/// Runs `body` if this process is inside the namespace of the test. Otherwise runs the test in a
/// new process inside a new namespace.
pub fn run(test: &str, body: impl FnOnce()) {
    if is_inside(test) {
        return body();
    }
    run_inside(test);
}

/// Runs the test in a new process inside a new namespace, and returns what it printed on stdout.
/// Returns `None` if there can be no namespace.
pub fn run_inside(test: &str) -> Option<String> {
    let way = match way_in() {
        Ok(way) => way,
        Err(why) => {
            skip(test, &why);
            return None;
        }
    };
    let output = Command::new("unshare")
        .args(way)
        .args(emulator())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, test)
        .env("PATH", path())
        .output()
        .unwrap();
    let (out, err) = texts(&output);
    assert!(
        output.status.success(),
        "{test} in its namespace:\n{out}\n{err}"
    );
    // With a wrong name no test would run, and the process would succeed.
    assert!(out.contains("1 passed"), "{test} did not run:\n{out}");
    for line in err.lines().filter(|line| line.starts_with("SKIPPED")) {
        say(line);
    }
    Some(out)
}

/// Returns true if QEMU's user emulation runs this program. In this case also prints that the test
/// is skipped, and why.
pub fn is_emulated(test: &str, lacks: &str) -> bool {
    let is = emulator().is_some();
    if is {
        say(&format!(
            "SKIPPED: {test}: QEMU's user emulation has no {lacks}"
        ));
    }
    is
}

/// Returns the program that has to run this test binary: QEMU's user emulation under `./ci.sh
/// aarch64`, because the kernel cannot start the binary directly. `None` otherwise.
fn emulator() -> Option<String> {
    std::env::var_os("QEMU_LD_PREFIX").map(|_| format!("qemu-{}-static", std::env::consts::ARCH))
}

/// Finds a way to create a namespace and set it up with `ip`.
fn way_in() -> Result<&'static [&'static str], String> {
    let mut reasons = Vec::new();
    for way in WAYS {
        let tried = Command::new("unshare")
            .args(way)
            .args(["ip", "link", "set", "lo", "up"])
            .env("PATH", path())
            .output();
        match tried {
            Ok(output) if output.status.success() => return Ok(way),
            Ok(output) => reasons.push(texts(&output).1.trim().to_owned()),
            Err(error) => reasons.push(format!("unshare: {error}")),
        }
    }
    Err(reasons.join("; "))
}

/// Prints that a test is skipped, and why. Panics if the test is required to run.
pub fn skip(test: &str, why: &str) {
    let required = std::env::var("UWARP_REQUIRE_NETNS").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "UWARP_REQUIRE_NETNS=1 is set, and {test} cannot run: {why}"
    );
    say(&format!("SKIPPED: {test}: {why}"));
}

/// Prints a line to stderr directly, because the test harness shows the output of `eprintln!` only
/// for failing tests.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns true if a TAP device is available in the namespace. Otherwise prints the reason.
pub fn has_tun(test: &str) -> bool {
    match std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
    {
        Ok(_) => true,
        Err(error) => {
            skip(test, &format!("/dev/net/tun: {error}"));
            false
        }
    }
}

/// Runs `ip` with these arguments and returns its output. Panics if it fails.
#[track_caller]
pub fn ip(arguments: &str) -> String {
    let output = ip_output(arguments);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "ip {arguments}: {err}");
    out
}

/// Waits until the kernel reports the state `UP` for the interface. Before that, the kernel accepts
/// frames and drops them.
#[track_caller]
pub fn wait_up(name: &str) {
    let limit = Instant::now() + Duration::from_secs(300);
    while !ip(&format!("link show {name}")).contains("state UP") {
        assert!(Instant::now() < limit, "{name} does not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns true if `ip` with these arguments succeeds.
pub fn ip_succeeds(arguments: &str) -> bool {
    ip_output(arguments).status.success()
}

fn ip_output(arguments: &str) -> Output {
    Command::new("ip")
        .args(arguments.split_whitespace())
        .env("PATH", path())
        .output()
        .unwrap()
}

/// Returns the search path, extended by the directories that may contain `ip` and are not in every
/// user's path.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

//! Tests in a network namespace of their own, which goes away with the process that they run in.
//!
//! Such a test runs its own binary again, for itself alone, under `unshare` (util-linux): in a new
//! user namespace where those are open, which needs no right at all, else as root. Where neither
//! goes, it says `SKIPPED` with the reason and passes, unless `UWARP_REQUIRE_NETNS=1` is set.

#![allow(dead_code, reason = "every test file takes what it needs")]

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Set in the process that is in the namespace, to the test that it is there for.
const INSIDE: &str = "UWARP_TEST_INSIDE_NETNS";

/// Ways into a new network namespace, the one without rights first.
const WAYS: [&[&str]; 2] = [&["-Urn"], &["-n"]];

/// Declares tests whose bodies run in a network namespace of their own. `not_emulated`: what QEMU's
/// user emulation lacks for them.
macro_rules! in_namespace {
    (not_emulated: $lacks:literal; $(fn $name:ident() $body:block)*) => {
        netns::in_namespace! {
            $(fn $name() {
                if !netns::is_emulated(stringify!($name), $lacks) $body
            })*
        }
    };
    ($(fn $name:ident() $body:block)*) => {
        $(
            #[test]
            fn $name() {
                let path = concat!(module_path!(), "::", stringify!($name));
                // The harness leaves the name of the crate out.
                let (_, test) = path.split_once("::").unwrap();
                netns::run(test, || $body);
            }
        )*
    };
}
pub(crate) use in_namespace;

/// Runs `body` in a namespace: here, when this process is in one for it, else in another process.
pub(crate) fn run(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == *test) {
        return body();
    }
    let way = match way_in() {
        Ok(way) => way,
        Err(why) => return skip(test, &why),
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
    // A wrong name would run no test, and succeed.
    assert!(out.contains("1 passed"), "{test} did not run:\n{out}");
    for line in err.lines().filter(|line| line.starts_with("SKIPPED")) {
        say(line);
    }
}

/// Whether QEMU's user emulation runs this program; says so, and what it lacks for the test.
pub(crate) fn is_emulated(test: &str, lacks: &str) -> bool {
    let is = emulator().is_some();
    if is {
        say(&format!(
            "SKIPPED: {test}: QEMU's user emulation has no {lacks}"
        ));
    }
    is
}

/// The program that runs this one: QEMU's user emulation under `./ci.sh aarch64`, where the kernel cannot start it.
fn emulator() -> Option<String> {
    std::env::var_os("QEMU_LD_PREFIX").map(|_| format!("qemu-{}-static", std::env::consts::ARCH))
}

/// How a namespace can be made here, with `ip` to set it up.
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

/// Says aloud that a test does not run, and why; fails when it has to run.
pub(crate) fn skip(test: &str, why: &str) {
    let required = std::env::var("UWARP_REQUIRE_NETNS").is_ok_and(|value| value == "1");
    assert!(
        !required,
        "UWARP_REQUIRE_NETNS=1 is set, and {test} cannot run: {why}"
    );
    say(&format!("SKIPPED: {test}: {why}"));
}

/// Not `eprintln!`: what that says, cargo shows of failing tests only.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether a TAP device can be had in the namespace; says so when not.
pub(crate) fn has_tun(test: &str) -> bool {
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

/// Runs `ip` with these arguments, which must succeed, and returns what it says.
#[track_caller]
pub(crate) fn ip(arguments: &str) -> String {
    let output = ip_output(arguments);
    let (out, err) = texts(&output);
    assert!(output.status.success(), "ip {arguments}: {err}");
    out
}

/// Waits until the kernel has noticed that the interface is up at both ends: before, it takes frames
/// and drops them.
#[track_caller]
pub(crate) fn wait_up(name: &str) {
    let limit = Instant::now() + Duration::from_secs(300);
    while !ip(&format!("link show {name}")).contains("state UP") {
        assert!(Instant::now() < limit, "{name} does not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether `ip` with these arguments succeeds.
pub(crate) fn ip_succeeds(arguments: &str) -> bool {
    ip_output(arguments).status.success()
}

fn ip_output(arguments: &str) -> Output {
    Command::new("ip")
        .args(arguments.split_whitespace())
        .env("PATH", path())
        .output()
        .unwrap()
}

/// The search path, and where `ip` is that users do not always have in theirs.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

fn texts(output: &Output) -> (String, String) {
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

//! Published Python wheels that use RDMA (`tests/py/wheels.txt` has their versions): each moves
//! memory between two processes, which compare all of it.
//!
//! `UWARP_DROPIN_WHEELS` names the directory in which pip has installed the wheels.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::prefix::{Prefix, said};
use crate::process::Place;
use crate::programs::{Row, Way, check};

const VERSIONS: &str = include_str!("../py/wheels.txt");
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/py");
const PYTHON: &str = "/usr/bin/python3";
/// libnuma and libcurl are not in the wheel of Mooncake.
const PACKAGES: &[&str] = &["python3", "libnuma1", "libcurl4"];

const fn row(name: &'static str, flags: &'static [&'static str], way: Way) -> Row {
    Row {
        name,
        packages: PACKAGES,
        files: &[PYTHON],
        flags,
        needs_roce: true,
        way,
    }
}

/// The name of each row begins with that of its wheel.
pub(crate) const ROWS: &[Row] = &[
    row("mooncake", &["--preload"], Way::Own(mooncake)),
    row(
        "mooncake-other-name",
        &["--preload", "--name", "mlx5_0"],
        Way::Own(mooncake_other_name),
    ),
    row("nixl", &["--preload"], Way::Own(nixl)),
];

/// Returns the name and the version of the wheel of a row.
pub(crate) fn version(row: &str) -> (&'static str, &'static str) {
    let start = row.split('-').next().unwrap_or(row);
    let mut lines = VERSIONS.lines().filter(|line| line.starts_with(start));
    let pin = lines.next().and_then(|line| line.split(' ').next());
    pin.and_then(|pin| pin.split_once("==")).unwrap_or_default()
}

/// Returns the directory with the wheels, if there is one.
pub(crate) fn installed() -> Option<PathBuf> {
    std::env::var_os("UWARP_DROPIN_WHEELS").map(PathBuf::from)
}

/// Runs a row.
pub(crate) fn run(row: &Row, prefix: &Prefix) -> Result<(), String> {
    static COPIED: OnceLock<Result<(), String>> = OnceLock::new();
    COPIED.get_or_init(|| copy(prefix)).clone()?;
    row.run(prefix)
}

/// Copies the wheels and the scripts to a directory that every user may read.
fn copy(prefix: &Prefix) -> Result<(), String> {
    let wheels = installed().ok_or("UWARP_DROPIN_WHEELS is not set")?;
    for (from, to) in [(wheels.as_path(), "wheels"), (Path::new(SCRIPTS), "py")] {
        let to = prefix.scratch().join(to);
        said(Command::new("cp").args(["-r", "-T"]).arg(from).arg(&to))?;
        said(Command::new("chmod").args(["-R", "a+rX"]).arg(&to))?;
    }
    Ok(())
}

/// Runs a script in two processes, and returns the output of both.
fn pair(
    place: Place<'_>,
    script: &str,
    device: &str,
    settings: &[&str],
) -> Result<[String; 2], String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let scratch = place.prefix.scratch();
    let meeting = scratch.join(format!("pair-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
    fs::create_dir(&meeting).map_err(|error| error.to_string())?;
    said(Command::new("chmod").arg("777").arg(&meeting))?;
    let path = format!("PYTHONPATH={}", scratch.join("wheels").display());
    let script = scratch.join("py").join(script).display().to_string();
    let meeting = meeting.display().to_string();
    let start = |role: &str| {
        let words = [
            &["env", &path, "PYTHONDONTWRITEBYTECODE=1"],
            settings,
            &[PYTHON, "-s", &script, role, &meeting, device],
        ];
        place.start(&words.concat())
    };
    let (mut target, mut initiator) = (start("target")?, start("initiator")?);
    let initiated = initiator
        .end()
        .map_err(|error| format!("{error}\n{}", target.words("was the target")))?;
    let targeted = target.end()?;
    check(&initiated, &["read from the target: 4194304 bytes"])?;
    check(&targeted, &["written by the initiator: 4194304 bytes"])?;
    for said in [&initiated, &targeted] {
        check(said, &["queue pairs: some"])?;
    }
    Ok([initiated, targeted])
}

/// Mooncake uses TCP if it finds no device in `/sys/class/infiniband`.
fn engine(place: Place<'_>, device: &str) -> Result<String, String> {
    let both = pair(place, "wheel_mooncake.py", device, &[])?;
    let says = format!("RDMA device: {device},");
    for said in &both {
        check(said, &[&says, "installTransport, type=rdma"])?;
    }
    Ok(both.concat())
}

fn mooncake(place: Place<'_>) -> Result<String, String> {
    engine(place, "uwarp0")
}

fn mooncake_other_name(place: Place<'_>) -> Result<String, String> {
    engine(place, "mlx5_0")
}

/// The wheel of NIXL has a libibverbs of its own under another name. `--preload` comes before it.
fn nixl(place: Place<'_>) -> Result<String, String> {
    let settings = [
        "UCX_TLS=rc_v,tcp,self",
        "UCX_NET_DEVICES=uwarp0:1,lo",
        "UCX_LOG_LEVEL=info",
    ];
    let both = pair(place, "wheel_nixl.py", "uwarp0", &settings)?;
    // The endpoint to the other process, not the one to itself.
    let due = "intra-node cfg#1 rma(rc_verbs/uwarp0:1)";
    check(&both[0], &[due])?;
    Ok(both.concat())
}

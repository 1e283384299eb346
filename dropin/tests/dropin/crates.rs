//! Published crates that use RDMA: their own tests and examples as they were published, and a
//! program of our own on rdma-io. `tests/crates` has their versions and checksums.
//!
//! The build takes minutes, so these tests run only with `UWARP_DROPIN_CRATES=1`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::prefix::{self, Prefix, said};
use crate::process::{self, Place, Running, unprivileged};
use crate::programs::{Row, Way, check};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crates");
const MANIFEST: &str = include_str!("../crates/Cargo.toml");
const LOCK: &str = include_str!("../crates/Cargo.lock");
/// Outcomes of the crates' tests: `ok`, `failed`, or `hangs` for a test that is left out because it
/// does not end. The tests that do not pass:
///
/// * `imm` of async-rdma compares `wc_flags` with 3, `IBV_WC_WITH_IMM | IBV_WC_GRH`, which
///   Soft-RoCE sets. Here the flags of a connected queue pair are 2. A program may say so
///   (`RdmaBuilder::set_imm_flag_in_wc`), and these do not.
/// * `context::tests::test1` of async-rdma takes the device that the command `rdma link` shows,
///   which asks the kernel by netlink.
const KNOWN: &str = include_str!("../../names/crates.txt");

/// Crates whose sources are built. The package `rings` is in [`FOLDER`].
const SOURCES: [&str; 3] = ["async-rdma", "ibverbs", "sideway"];
/// Tests that do not use the library: they compile programs that must not compile.
const WITHOUT_DEVICE: &str = "compiletest";
const PACKAGES: &[&str] = &[
    "cmake",
    "libclang-dev",
    "pkg-config",
    "libibverbs-dev",
    "librdmacm-dev",
    "iproute2",
    "util-linux",
];

const fn row(name: &'static str, flags: &'static [&'static str], way: Way) -> Row {
    Row {
        name,
        packages: PACKAGES,
        files: &[],
        flags,
        needs_roce: true,
        way,
    }
}

/// Creates a row for an example of sideway that is both server and client.
macro_rules! pingpong {
    ($name:literal, $program:literal, $flags:literal) => {
        row(
            $name,
            &[],
            Way::Pair {
                server: concat!("{crates}/", $program, " -p {port} ", $flags),
                client: concat!("{crates}/", $program, " -p {port} ", $flags, " 127.0.0.1"),
                says: &["1000 iters in"],
            },
        )
    };
}

/// Creates a row for a transport of rdma-io.
macro_rules! ring {
    ($name:literal, $transport:literal) => {
        row(
            $name,
            &[],
            Way::Pair {
                server: concat!("{crates}/rings ", $transport, " serve 127.0.0.1:{port}"),
                client: concat!("{crates}/rings ", $transport, " call 127.0.0.1:{port}"),
                says: &["5000 messages came back as they were sent"],
            },
        )
    };
}

/// The name of each row begins with that of its crate.
pub(crate) const ROWS: &[Row] = &[
    row("ibverbs-loopback", &[], Way::Apart(loopback)),
    row("ibverbs-tests", &[], Way::Apart(ibverbs_tests)),
    pingpong!("sideway-rc_pingpong", "rc_pingpong", "-g 0"),
    pingpong!("sideway-rc_pingpong_split", "rc_pingpong_split", "-g 0"),
    row(
        "sideway-cmtime",
        &[],
        Way::Pair {
            server: "{crates}/cmtime -p {port} -b 127.0.0.1",
            client: "{crates}/cmtime -p {port} -b 127.0.0.1 -s 127.0.0.1",
            says: &["CreateQueuePair", "Disconnect"],
        },
    ),
    row("sideway-show_gids", &[], Way::Apart(show_gids)),
    // A test of the table of GIDs reads the files of `/sys/class/infiniband`.
    row("sideway-tests", &["--preload"], Way::Apart(sideway_tests)),
    row("async-rdma-rpc", &[], Way::Apart(rpc)),
    row("async-rdma-tests", &[], Way::Apart(async_rdma_tests)),
    ring!("rdma-io-sends", "sends"),
    ring!("rdma-io-reads", "reads"),
    row("rdma-io-credits", &[], Way::Own(credits)),
];

/// Returns true if these tests are to run.
pub(crate) fn asked_for() -> bool {
    std::env::var_os("UWARP_DROPIN_CRATES").is_some_and(|value| value == "1")
}

/// Returns the reason why the sources are not here, if there is one. Downloads them.
pub(crate) fn missing() -> Option<String> {
    let fetched = said(cargo().args(["fetch", "--locked"]).current_dir(FOLDER));
    fetched.err()
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
}

/// Returns the name and the version of the crate of a row.
pub(crate) fn version(row: &str) -> (&'static str, &'static str) {
    let versions = MANIFEST.lines().filter_map(|line| {
        let (name, rest) = line.split_once(" = ")?;
        let (_, rest) = rest.split_once("\"=")?;
        Some((name, rest.split_once('"')?.0))
    });
    let of_it = |&(name, _): &(&str, &str)| row.starts_with(name);
    versions.into_iter().find(of_it).unwrap_or_default()
}

/// Returns the number of the crates' tests with this outcome.
pub(crate) fn count(outcome: &str) -> usize {
    KNOWN
        .lines()
        .filter(|line| line.starts_with(outcome))
        .count()
}

/// Runs a row.
pub(crate) fn run(row: &Row, prefix: &Prefix) -> Result<(), String> {
    static BUILT: OnceLock<Result<(), String>> = OnceLock::new();
    BUILT.get_or_init(|| build(prefix)).clone()?;
    row.run(prefix)
}

/// Returns the directory with the programs and, in a directory for each crate, its tests.
pub(crate) fn programs(prefix: &Prefix) -> PathBuf {
    prefix.scratch().join("crates")
}

/// Builds everything, and copies the programs to a directory that every user may read.
fn build(prefix: &Prefix) -> Result<(), String> {
    let target = prefix::target()?.join("published-crates");
    let workspace = target.join("workspace");
    let failed = |error: std::io::Error| format!("{}: {error}", target.display());
    fs::create_dir_all(&workspace).map_err(failed)?;
    let manifest = format!("{FOLDER}/Cargo.toml");
    let build = |words: &[&str], dir: &Path| {
        let mut cargo = cargo();
        cargo.args(words).current_dir(dir);
        cargo.env("CARGO_TARGET_DIR", &target);
        cargo.env("CARGO_TERM_COLOR", "never");
        cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
        // Some of them deny lints that newer compilers have added to.
        cargo.env("CARGO_ENCODED_RUSTFLAGS", "--cap-lints=warn");
        cargo.env_remove("RUSTFLAGS");
        cargo
    };
    let folder = Path::new(FOLDER);
    let words = ["metadata", "--locked", "--offline", "--all-features"];
    let words = [&words[..], &["--format-version", "1"]].concat();
    let metadata = said(&mut build(&words, folder))?;
    for name in SOURCES {
        let source = source(&metadata, name)?;
        let to = workspace.join(name);
        if to.exists() {
            // It may be of another version, with other files.
            fs::remove_dir_all(&to).map_err(failed)?;
        }
        // Keeps the times, so that cargo does not build again what has not changed.
        let mut copy = Command::new("cp");
        said(copy.args(["-a", "-T"]).arg(source).arg(&to))?;
        // Other users run the tests.
        said(Command::new("chmod").args(["-R", "a+rX"]).arg(&to))?;
    }
    let members = format!("[workspace]\nresolver = \"2\"\nmembers = {SOURCES:?}\n");
    fs::write(workspace.join("Cargo.toml"), members).map_err(failed)?;
    fs::write(workspace.join("Cargo.lock"), LOCK).map_err(failed)?;
    let words = "test --no-run --offline --workspace --features async-rdma/cm,async-rdma/raw";
    let words: Vec<_> = words.split(' ').collect();
    let (_, tests) = prefix::said_both(&mut build(&words, &workspace))?;
    has_the_same_versions(&workspace)?;
    let words = [
        "build",
        "--locked",
        "--offline",
        "--manifest-path",
        &manifest,
    ];
    said(&mut build(&words, folder))?;
    let to = programs(prefix);
    for name in SOURCES {
        fs::create_dir_all(to.join("tests").join(name)).map_err(failed)?;
    }
    let examples = [
        "loopback",
        "rc_pingpong",
        "rc_pingpong_split",
        "cmtime",
        "show_gids",
        "rpc",
    ];
    let copy = |from: &Path, to: &Path| {
        let copied = fs::copy(from, to).map(drop);
        copied.map_err(|error| format!("{}: {error}", from.display()))
    };
    for name in examples {
        copy(&target.join("debug/examples").join(name), &to.join(name))?;
    }
    copy(&target.join("debug/rings"), &to.join("rings"))?;
    for (path, name) in executables(&tests) {
        if let Some(of) = owner(&workspace, name) {
            copy(&workspace.join(path), &to.join("tests").join(of).join(name))?;
        }
    }
    Ok(())
}

/// Returns the directory of a crate's source in cargo's cache, which cargo has compared with the
/// checksum.
fn source(metadata: &str, name: &str) -> Result<PathBuf, String> {
    let (_, version) = version(name);
    let end = format!("/{name}-{version}/Cargo.toml");
    let mut paths = metadata
        .split("\"manifest_path\":\"")
        .filter_map(|rest| rest.split('"').next());
    let path = paths.find(|path| path.ends_with(&end));
    let path = path.and_then(|path| Path::new(path).parent());
    path.map(Path::to_owned)
        .ok_or_else(|| format!("cargo metadata has no {name} {version}"))
}

/// Checks that cargo has taken no other crates than those of the committed lock file. It removes
/// those that are not needed.
fn has_the_same_versions(workspace: &Path) -> Result<(), String> {
    let path = workspace.join("Cargo.lock");
    let used = fs::read_to_string(&path).map_err(|error| error.to_string())?;
    let pins = |text: &str| -> BTreeSet<String> {
        let blocks = text.split("[[package]]\n").skip(1);
        let pin = |block: &str| {
            let fields = block.lines().filter(|line| {
                let field = line.split(' ').next();
                field.is_some_and(|field| ["name", "version", "checksum"].contains(&field))
            });
            fields.collect::<Vec<_>>().join(" ")
        };
        let from_registry = blocks.filter(|block| block.contains("checksum = "));
        from_registry.map(pin).collect()
    };
    let others: Vec<_> = pins(&used).difference(&pins(LOCK)).cloned().collect();
    match others.is_empty() {
        true => Ok(()),
        false => Err(format!("tests/crates/Cargo.lock lacks: {others:?}")),
    }
}

/// Returns the path and the name of each test that cargo has built, from its messages: `Executable
/// tests/imm.rs (/target/debug/deps/imm-0123456789abcdef)`.
fn executables(messages: &str) -> Vec<(&str, &str)> {
    let lines = messages.lines().map(str::trim);
    let lines = lines.filter(|line| line.starts_with("Executable "));
    lines
        .filter_map(|line| {
            let path = line.rsplit_once('(')?.1.strip_suffix(')')?;
            let file = Path::new(path).file_name()?.to_str()?;
            Some((path, file.rsplit_once('-')?.0))
        })
        .collect()
}

/// Returns the crate to which a test belongs; `None` for examples, which have no tests.
fn owner(workspace: &Path, test: &str) -> Option<&'static str> {
    let of = |name: &&str| {
        let integration = format!("{name}/tests/{test}.rs");
        name.replace('-', "_") == test || workspace.join(integration).exists()
    };
    SOURCES.into_iter().find(of)
}

/// Script that runs in a new network namespace with two addresses, because some programs use the
/// second entry of the GID table.
const SCRIPT: &str = r#"set -e
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
ip addr add 192.0.2.2/32 dev lo
exec "$@"
"#;

/// Starts a program in a new network namespace with these variables.
fn apart(
    place: Place<'_>,
    settings: &[&str],
    program: &Path,
    words: &[&str],
) -> Result<Running, String> {
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", SCRIPT, "sh", "env"]);
    // The messages would come between the names and the outcomes of tests.
    command.arg("UWARP_QUIET=1").args(settings);
    command.arg(place.prefix.uwarp()).arg("run");
    command.args(place.flags).arg("--").arg(program).args(words);
    let name = program.display().to_string();
    place.spawn(&mut command, name)
}

fn example(place: Place<'_>, name: &str, says: &[&str]) -> Result<String, String> {
    let said = apart(place, &[], &programs(place.prefix).join(name), &[])?.end()?;
    check(&said, says)?;
    Ok(said)
}

fn loopback(place: Place<'_>) -> Result<String, String> {
    example(place, "loopback", &["sent", "received"])
}

fn show_gids(place: Place<'_>) -> Result<String, String> {
    let says = ["192.0.2.1 | RoCEv2 |   lo", "192.0.2.2 | RoCEv2 |   lo"];
    example(place, "show_gids", &says)
}

fn rpc(place: Place<'_>) -> Result<String, String> {
    example(place, "rpc", &["response: hello", "response: world"])
}

fn ibverbs_tests(place: Place<'_>) -> Result<String, String> {
    tests(place, "ibverbs", &[])
}

fn sideway_tests(place: Place<'_>) -> Result<String, String> {
    tests(place, "sideway", &[])
}

/// async-rdma has an arena of jemalloc for each protection domain, and allocates from it with
/// `MALLOCX_ARENA`, but without `MALLOCX_TCACHE_NONE`. So the cache of the thread may give memory
/// of another arena, and an assertion of `lookup_raw_mr` fails. Without that cache the tests with
/// two domains pass however jemalloc was compiled.
fn async_rdma_tests(place: Place<'_>) -> Result<String, String> {
    tests(place, "async-rdma", &["_RJEM_MALLOC_CONF=tcache:false"])
}

/// Runs all tests of a crate with these variables, and checks that the outcomes are known.
fn tests(place: Place<'_>, name: &str, settings: &[&str]) -> Result<String, String> {
    let dir = programs(place.prefix).join("tests").join(name);
    let files = fs::read_dir(&dir).map_err(|error| error.to_string())?;
    let mut known = BTreeMap::new();
    let mut skipped = vec!["--test-threads=4"];
    for line in KNOWN.lines() {
        let of_it = |(outcome, test): &(&'static str, &'static str)| {
            (test.split('/').next() == Some(name)).then_some((*test, *outcome))
        };
        match line.split_once(' ').as_ref().and_then(of_it) {
            Some((test, "hangs")) => {
                let path = test.rsplit(' ').next().unwrap_or(test);
                skipped.extend(["--skip", path]);
            }
            Some((test, outcome)) => drop(known.insert(test.to_owned(), outcome.to_owned())),
            None => {}
        }
    }
    let (mut outcomes, mut output) = (BTreeMap::new(), String::new());
    for file in files {
        let file = file.map_err(|error| error.to_string())?.path();
        let stem = file.file_name().unwrap_or_default().to_string_lossy();
        if stem == WITHOUT_DEVICE {
            continue;
        }
        let mut running = apart(place, settings, &file, &skipped)?;
        // The status is that of the tests, some of which are known to fail.
        let said = running.end_with_any_status()?;
        if !said.contains("test result: ") {
            return Err(running.words("has no result"));
        }
        for line in said.lines() {
            let Some((test, outcome)) = line
                .strip_prefix("test ")
                .and_then(|line| line.rsplit_once(" ... "))
            else {
                continue;
            };
            let outcome = match outcome {
                "ok" => "ok",
                "FAILED" => "failed",
                _ => continue,
            };
            outcomes.insert(format!("{name}/{stem} {test}"), outcome.to_owned());
        }
        output += &said;
    }
    match outcomes == known {
        true => Ok(output),
        false => Err(format!(
            "names/crates.txt has:\n{known:#?}\nthe outcomes are:\n{outcomes:#?}\n{output}"
        )),
    }
}

/// The ring whose receiver sends how far it is, by a Send with Immediate Data. Queue pairs that
/// librdmacm has connected do not have that, so this fails, and says why.
fn credits(place: Place<'_>) -> Result<String, String> {
    let rings = programs(place.prefix).join("rings");
    let rings = rings.to_str().ok_or("the path is not UTF-8")?;
    let port = process::free_port()?;
    let addr = format!("127.0.0.1:{port}");
    let mut server = place.start(&[rings, "credits", "serve", &addr])?;
    server.until_listening(port)?;
    let mut client = place.start(&[rings, "credits", "call", &addr])?;
    let said = client.end_with_any_status()?;
    let said = said + &server.end_with_any_status()?;
    check(&said, &["the peer takes no Send with Immediate Data"])?;
    match said.contains("came back as they were sent") {
        true => Err("it passes: README.md and MATRIX.md say that it does not".to_owned()),
        false => Ok(said),
    }
}

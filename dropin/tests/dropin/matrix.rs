//! Renders `MATRIX.md`: the tested programs, and each exported name with the programs that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::crates;
use crate::elf;
use crate::exports::{self, Implementation};
use crate::names;
use crate::packages;
use crate::programs::{self, Row};
use crate::roots::{ROOTS, Root};
use crate::tables::TABLES;
use crate::wheels;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/MATRIX.md");
const COMMITTED: &str = include_str!("../../MATRIX.md");
const VERSIONS: &str = "Packages: ";
/// Markers around the part about programs that talk to siw. The tests with a virtual machine write
/// and compare that part.
const SIW: [&str; 2] = [
    "<!-- siw: ./ci.sh interop writes this part -->\n",
    "<!-- siw: here it ends -->\n",
];

/// Markers around the part about a root. A run that has the root with these versions writes and
/// compares that part.
const ROOT: [&str; 2] = [
    "<!-- {label}: the tests with this root write this part -->\n",
    "<!-- {label}: here it ends -->\n",
];

/// Returns the reason why the matrix cannot be compared here: a package is missing, or has another
/// version than in the matrix.
pub(crate) fn missing() -> Option<String> {
    let missing: BTreeSet<String> = programs::rows().iter().filter_map(Row::missing).collect();
    if !missing.is_empty() {
        return Some(missing.into_iter().collect::<Vec<_>>().join("; "));
    }
    let here = versions();
    let there = COMMITTED
        .lines()
        .find_map(|line| line.strip_prefix(VERSIONS))?;
    let names = |line: &str| -> Vec<String> {
        let words = line
            .split(", ")
            .map(|one| one.split(' ').next().unwrap_or_default().to_owned());
        words.collect()
    };
    let other = names(&here) == names(there) && here != there && !writes();
    other.then(|| format!("it has other versions ({there}; installed: {here})"))
}

/// Section of the matrix about faults of the programs themselves.
/// Counted by hand, because the suite is in no package and is built by Bazel.
const UNIT: &str = "
## google/rdma-unit-test

Not a test of this project: commit 1f368ab, built by hand, each of its 530 unit tests by itself for at most a minute, as an ordinary
user, in a network namespace with an MTU of 9000, with `--name mlx5_0` (the suite takes what it expects from the name) and
`UWARP_OOB_TIMEOUT=200-1000` (the suite waits 2 s for `RETRY_EXC`; without it 13 more fail). The suite's `MAP_LOCKED` was removed, for which
the limit on locked memory was too small. On an unoptimized build of this library 451 pass, 41 fail, 38 skip. Those that fail do so because

* a Send completes when TCP has taken it, so that it does not fail for what the peer finds out later (12), and a message without a receive
  waits (4);
* an lkey is checked before the request is sent, and so before the rkey and the alignment, which the peer checks (8);
* Sends in RESET and INIT and receives in RESET are refused, and a Send that is posted in RTR is carried out (4);
* a minute is too short on that build for millions of Sends and Writes, for as many queue pairs as there can be, and for threads
  that create queue pairs (5);
* two tests need 20,000 descriptors or 256 processors;
* of each 1 or 2: a window of another queue pair is `LOC_PROT_ERR` or flushed, `max_ah` has no limit, a refused message ends the queue pairs
  of both sides, and an atomic is carried out although its result finds no memory.
";

const FAULTS: &str = "
## Faults of programs

Faults of the programs themselves, in these versions and with any device.

* `rping -s -P` (rdmacm-utils 44.0) loses connection requests that arrive together: of 30 clients started together, 9 to 22 were served,
  and one server of four crashed. Its event thread writes the id of each request to one variable (`child_cm_id`) and posts a
  semaphore, and the main thread copies the variable afterwards. A request in between replaces the id: one connection gets two
  threads, which free it twice, and the other gets none. Later versions of rping wait for the main thread (`accept_ready`). Clients
  started one after the other are served.
* `rping` (rdmacm-utils 44.0) sometimes ends with 255 and `rdma_get_cm_event: Bad file descriptor` after all its pings. Its main
  thread closes the event channel while its event thread is about to wait for the next event. Seen once, on a busy machine with
  this library. Later versions of rping end that thread first.
* `ib_send_bw -R --use-srq` with two queue pairs or more (`-q`; perftest 4.5+0.17) hangs in most runs. The server counts arrivals by
  the `wr_id` of the receive. In a shared queue it names the queue pair that posted the receive, not the one that used it. So a queue
  pair can get more credit (`credit_buf`, in `run_iter_bw_server`) than it has sent messages. The client's window,
  `scnt + post_list - credit_buf` as an unsigned number, then wraps and stays full. Four of four runs of `-q 2 -n 300`
  ended so: a queue pair that had sent 256 messages got the credits 100, 200 and 300. The same command hangs on Linux siw.
* `ib_send_bw -R` with two queue pairs or more (perftest 4.5+0.17) hangs in the same way, by its source, if the server gets the
  connection requests in another order than the client made them. It takes the n-th to arrive for the n-th queue pair, which then gets the
  credits of another one. librdmacm promises no order among connections. One of some 200 runs of `-q 8` on a very busy machine was
  not done after 10 seconds.
* MPICH 4.0.2 writes to wrong places if the ranks of a host allocate windows (`MPI_Win_allocate`) whose size is not a multiple of 16
  bytes. It gives the ranks consecutive memory, and puts to each rank as if every size were rounded up to 16 bytes: with three ranks of
  12 bytes, rank 1 has its window at 12 and its peers write at 16. Without this library, over UCX's TCP, it does the same. 4.2.1
  (Debian 13) does not.
";

/// Checks that the committed matrix agrees with the tables and the installed programs. With
/// `UWARP_DROPIN_MATRIX=write`, writes it instead.
pub(crate) fn is_up_to_date() -> Result<(), String> {
    let text = render()?;
    if writes() {
        return std::fs::write(FILE, text).map_err(|error| error.to_string());
    }
    if text == COMMITTED {
        return Ok(());
    }
    let mut new = text.lines();
    let differs = new.find(|line| !COMMITTED.lines().any(|old| old == *line));
    let differs = differs.unwrap_or("none; it has too many lines");
    Err(format!(
        "MATRIX.md is out of date; UWARP_DROPIN_MATRIX=write updates it. First missing line: {differs}"
    ))
}

fn writes() -> bool {
    std::env::var_os("UWARP_DROPIN_MATRIX").is_some_and(|value| value == "write")
}

/// Returns the packages of all rows, with their installed versions.
fn versions() -> String {
    versions_of(&programs::rows(), packages::version)
}

/// Returns the packages of these rows, with the versions that `version` returns.
fn versions_of(rows: &[Row], version: impl Fn(&str) -> Option<String>) -> String {
    let all: BTreeSet<&str> = rows.iter().flat_map(|row| row.packages).copied().collect();
    let all = all
        .into_iter()
        .filter_map(|package| Some(format!("{package} {}", version(package)?)));
    all.collect::<Vec<_>>().join(", ")
}

/// Renders a line of a table for each row.
fn render_rows(rows: &[Row], out: &mut String, version: impl Fn(&str) -> Option<String>) {
    for row in rows {
        let package = row.packages[0];
        let version = version(package).unwrap_or_default();
        let _ = writeln!(out, "| `{}` | {package} {version} | passes |", row.name);
    }
}

/// Returns the name and the path of each ELF file of a row. A row lists programs by file name, and
/// libraries by soname.
fn elf_files(row: &Row) -> Vec<(String, PathBuf)> {
    let find = |file: &&str| {
        let path = match Path::new(file) {
            // An absolute path names a script, or a directory of scripts.
            path if path.is_absolute() => return None,
            _ if file.contains(".so") => packages::library(file).ok()?,
            _ => packages::program(file)?,
        };
        Some(((*file).to_owned(), path))
    };
    row.files.iter().filter_map(find).collect()
}

/// Directories with modules that programs load (`dlopen`), each with the prefix of the modules'
/// names in the matrix.
const MODULES: [(&str, &str); 2] = [
    ("/usr/lib/python3/dist-packages/pyverbs", "pyverbs/"),
    ("/usr/lib/x86_64-linux-gnu/openmpi/lib", "openmpi/"),
];

/// Adds the shared objects in a directory and its subdirectories to `found`. Skips symbolic links,
/// so that each file is added once.
fn modules(dir: &Path, prefix: &str, found: &mut Vec<(String, PathBuf)>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (kind, path) = (entry.file_type().map_err(failed)?, entry.path());
        let name = entry.file_name().to_string_lossy().into_owned();
        if kind.is_dir() {
            modules(&path, prefix, found)?;
        } else if kind.is_file()
            && let Some((stem, _)) = name.split_once('.')
            && name.split('.').any(|part| part == "so")
        {
            found.push((format!("{prefix}{stem}"), path));
        }
    }
    Ok(())
}

/// Returns all imported names with their versions, and the programs that import them.
fn users(rows: &[Row]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut files: Vec<(String, PathBuf)> = rows.iter().flat_map(elf_files).collect();
    for (dir, prefix) in MODULES {
        modules(Path::new(dir), prefix, &mut files)?;
    }
    let files: BTreeSet<(String, PathBuf)> = files.into_iter().collect();
    let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, path) in files {
        for symbol in elf::symbols(&path)? {
            if !symbol.defined && symbol.of_rdma_core() {
                users
                    .entry(symbol.name.replace("@", "@@"))
                    .or_default()
                    .insert(file.clone());
            }
        }
    }
    Ok(users)
}

/// Returns the committed part between two markers, with both.
fn committed([begin, end]: [&str; 2]) -> Option<&'static str> {
    let from = COMMITTED.find(begin)?;
    let to = COMMITTED.find(end)? + end.len();
    COMMITTED.get(from..to)
}

/// Returns the committed part about siw, which these tests do not change.
fn against_siw() -> Result<&'static str, String> {
    committed(SIW).ok_or_else(|| "MATRIX.md has no part about siw".to_owned())
}

/// Returns the part about a root. It is the committed part if the root is missing or has other
/// versions.
fn within(root: &Root) -> Result<String, String> {
    let marks = ROOT.map(|mark| mark.replace("{label}", root.label));
    let [begin, end] = &marks;
    let old = committed([begin, end]);
    let rows = (root.rows)();
    let missing = rows.iter().find_map(|row| row.missing_in(root));
    let versions = format!(
        "{VERSIONS}{}\n",
        versions_of(&rows, |name| root.version(name))
    );
    match (old, missing) {
        (Some(old), Some(_)) => return Ok(old.to_owned()),
        (Some(old), None) if !old.contains(&versions) && !writes() => return Ok(old.to_owned()),
        (None, Some(missing)) => return Err(missing),
        _ => {}
    }
    let mut out = format!(
        "{begin}## {}\n\nThe tests `{}/...`: programs as above, in a root made by `./ci.sh roots {}`. C programs are compiled there.\n\n{versions}\n| test | version | result |\n|---|---|---|\n",
        root.title, root.label, root.name
    );
    render_rows(&rows, &mut out, |name| root.version(name));
    let imported = names::imported(&root.path()?)?;
    let _ = write!(
        out,
        "\nFiles of this root import {} names of rdma-core, which all exist.\n\n{}{end}",
        imported.len(),
        root.remarks
    );
    Ok(out)
}

fn render() -> Result<String, String> {
    let rows = programs::rows();
    let mut out = "# Programs that run, and functions that exist\n\nDo not edit: `UWARP_DROPIN_MATRIX=write cargo test -p uwarp-dropin --test dropin matrix` writes this page, and the tests compare it.\n\n".to_owned();
    let _ = writeln!(out, "{VERSIONS}{}\n", versions());
    out += "## Programs\n\nEach row is a test. It runs programs of Debian, not recompiled, with CRC, as an ordinary user, over 127.0.0.1, over ::1 (`rping-ipv6`), or over 192.0.2.0/24 in network namespaces (`openmpi-4-ranks`, `bound-addresses`, `numbers-two-hosts`, `numbers-one-way`, `pyverbs-suite*`). All run in the persona `roce`, which is the default. `./ci.sh dropin` runs them in the persona `iwarp` as well, except for those without librdmacm (those of ping-pongs, `*ucx-*`, `numbers*`, `datagrams`, `crowd`, `descriptors`, `killed`, `collective`, `file-service`), `ibv_devinfo` and `fi_info-verbs`. `openmpi-4-ranks`, `bound-addresses`, `textbook`, `numbers`, `crowd` (3,000 queue pairs), `descriptors` (what is left of connections, and a fork), `killed` (a peer killed in each state), `collective` (the verbs of NCCL), `file-service` (those of 3FS), `memory-changes-*` and `storage-target` run C programs from `tests/c`.\n\n| test | version | result |\n|---|---|---|\n";
    render_rows(&rows, &mut out, packages::version);
    let suite = |outcome: &str| {
        let lines = programs::PYVERBS.lines();
        lines.filter(|line| line.starts_with(outcome)).count()
    };
    let _ = writeln!(
        out,
        "\nThe suite of pyverbs in the persona `roce`: {} tests pass, {} passes or fails by chance, {} fail, and the others skip (they are for mlx5 and efa, or need what this\ndevice does not offer; names/pyverbs-44.txt). `test_imported_rc_ex_rdma_write` needs a descriptor from another process, `test_rdmacm_async_traffic`\nan acknowledgement timeout, `test_rdmacm_async_traffic_external_qp` the event CONNECT_RESPONSE, and `test_rdmacm_async_udp_traffic` UD ids of\nlibrdmacm. The tests of `rereg` expect that a request fails because of memory at the peer; it is complete when TCP has taken it.\nIn the persona `iwarp` fewer tests pass (names/pyverbs-44-iwarp.txt), because most connect queue pairs by their numbers.",
        suite("ok "),
        suite("either "),
        suite("failed ")
    );
    for root in ROOTS {
        out += "\n";
        out += &within(root)?;
    }
    render_published(&mut out);
    out += UNIT;
    out += FAULTS;
    let _ = write!(out, "\n{}", against_siw()?);
    render_names(&rows, &mut out)?;
    render_tables(&mut out)?;
    Ok(out)
}

/// Renders the published crates and wheels, which are no packages of Debian.
fn render_published(out: &mut String) {
    *out += "\n## Published crates and wheels\n\n`./ci.sh dropin` also builds these crates (`tests/crates`) and installs these wheels (`tests/py/wheels.txt`), and runs them in the persona `roce`.\n\n| test | version | result |\n|---|---|---|\n";
    let crates = crates::ROWS.iter().map(|row| {
        let result = match row.name {
            "rdma-io-credits" => "fails: Send with Immediate Data",
            "async-rdma-tests" => "passes except for tests named below",
            _ => "passes",
        };
        ("crates", row.name, crates::version(row.name), result)
    });
    let wheels = wheels::ROWS
        .iter()
        .map(|row| ("wheels", row.name, wheels::version(row.name), "passes"));
    for (kind, row, (name, version), result) in crates.chain(wheels) {
        let _ = writeln!(out, "| `{kind}::{row}` | {name} {version} | {result} |");
    }
    let _ = writeln!(
        out,
        "\nOf the crates' own tests {} pass, {} fail and {} does not end (names/crates.txt); these are async-rdma's. Its two tests of immediate data\nexpect that `wc_flags` is 3, with the flag of a GRH, as Soft-RoCE has it; a program says with `set_imm_flag_in_wc(2)` that it is not. `test1`\ntakes its device from the command `rdma link`, which asks the kernel. Programs of async-rdma with two protection domains need\n`_RJEM_MALLOC_CONF=tcache:false`: it allocates from an arena of jemalloc for each, but the cache of the thread may give memory of the other.\n`compiletest` of sideway, which needs no device, is not run. `rdma-io-credits` returns the credits of its ring by Sends with Immediate Data,\nwhich queue pairs connected by librdmacm do not have (README.md). rdma-io is published without tests, so the program is ours. It polls: in\n`AsyncRdmaStream` over `reads` a task can wait forever, because `poll_send_completion` (read_ring_transport.rs) does not return when only a Read\nhas completed, and `poll_write` waits without a waker after a second Read.",
        crates::count("ok "),
        crates::count("failed "),
        crates::count("hangs "),
    );
}

fn render_names(rows: &[Row], out: &mut String) -> Result<(), String> {
    let users = users(rows)?;
    let implementations = exports::names()?;
    *out += "\n## Names\n\nAll names of rdma-core 44, and those that 56 has in addition. `yes`: behaves as in rdma-core on a RoCE v2 device, except as README.md says. `no`: exists and returns\n`EOPNOTSUPP` (a function without a result does nothing). `name@VERSION` with one `@` is for programs linked before 2007.\n`pyverbs/...` and `openmpi/...` are modules that Python and Open MPI can load, whether or not a test does; libfabric contains its\nproviders.\n\n| name | here | used by |\n|---|---|---|\n";
    for line in names::all() {
        let (name, object) = line
            .strip_suffix(" object")
            .map_or((line, false), |name| (name, true));
        let here = match implementations.get(name) {
            Some(Implementation::Function) => "yes",
            Some(Implementation::Absent) => "no",
            None if object => "data, never changed",
            None => return Err(format!("{name} is not in the source")),
        };
        let used = users
            .get(name)
            .map(|users| users.iter().cloned().collect::<Vec<_>>().join(", "));
        let _ = writeln!(out, "| `{name}` | {here} | {} |", used.unwrap_or_default());
    }
    Ok(())
}

/// Renders the functions that programs call through function pointers. No ELF file shows which
/// programs use them.
fn render_tables(out: &mut String) -> Result<(), String> {
    *out += "\n## Functions reached through memory\n\nInline functions of `verbs.h` call these through tables of the context, the queue pair or the completion queue, so ELF files do not show\nwhich programs use them. `no`: returns `EOPNOTSUPP` or NULL, or an object that needs it is refused. `0`: returns 0, because iWARP has\nno such thing.\n\n| function | table | here |\n|---|---|---|\n";
    for table in &TABLES {
        for entry in table.entries()? {
            let (function, structure) = (entry.function, table.structure);
            let _ = writeln!(out, "| `{function}` | `{structure}` | {} |", entry.here);
        }
    }
    Ok(())
}

//! Renders `MATRIX.md`: the tested programs, and each exported name with the programs that use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::elf;
use crate::exports::{self, Implementation};
use crate::packages;
use crate::programs::{self, Row};
use crate::tables::TABLES;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/MATRIX.md");
const COMMITTED: &str = include_str!("../../MATRIX.md");
const NAMES: &str = include_str!("../../names/rdma-core-44.txt");
const VERSIONS: &str = "Packages: ";
/// Markers around the part about programs that talk to siw. The tests with a virtual machine write
/// and compare that part.
const SIW: [&str; 2] = [
    "<!-- siw: ./ci.sh interop writes this part -->\n",
    "<!-- siw: here it ends -->\n",
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
    let rows = programs::rows();
    let all: BTreeSet<&str> = rows.iter().flat_map(|row| row.packages).copied().collect();
    let all = all
        .into_iter()
        .filter_map(|package| Some(format!("{package} {}", packages::version(package)?)));
    all.collect::<Vec<_>>().join(", ")
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
            if !symbol.defined
                && (symbol.name.contains("@IBVERBS_") || symbol.name.contains("@RDMACM_"))
            {
                users
                    .entry(symbol.name.replace("@", "@@"))
                    .or_default()
                    .insert(file.clone());
            }
        }
    }
    Ok(users)
}

/// Returns the committed part about siw, which these tests do not change.
fn against_siw() -> Result<&'static str, String> {
    let [begin, end] = SIW.map(|mark| COMMITTED.find(mark).map(|at| (at, at + mark.len())));
    let part = begin
        .zip(end)
        .and_then(|((from, _), (_, to))| COMMITTED.get(from..to));
    part.ok_or_else(|| "MATRIX.md has no part about siw".to_owned())
}

fn render() -> Result<String, String> {
    let rows = programs::rows();
    let mut out = "# Programs that run, and functions that exist\n\nDo not edit: `UWARP_DROPIN_MATRIX=write cargo test -p uwarp-dropin --test dropin matrix` writes this page, and the tests compare it.\n\n".to_owned();
    let _ = writeln!(out, "{VERSIONS}{}\n", versions());
    out += "## Programs\n\nEach row is a test. It runs programs of Debian, not recompiled, with CRC, as an ordinary user, over 127.0.0.1, over ::1 (`rping-ipv6`), or over 192.0.2.0/24 in network namespaces (`openmpi-4-ranks`, `bound-addresses`, `numbers-two-hosts`, `pyverbs-suite*`). The rows of ping-pongs, `numbers*`, `crowd`, `killed`, `collective` and `file-service` have `--persona roce`. The others run in both personas. `openmpi-4-ranks`, `bound-addresses`, `textbook`, `numbers`, `crowd` (3,000 queue pairs), `killed` (a peer killed in each state), `collective` (the verbs of NCCL), `file-service` (those of 3FS), `memory-changes-*` and `storage-target` run C programs from `tests/c`.\n\n| test | version | result |\n|---|---|---|\n";
    for row in &rows {
        let version = packages::version(row.packages[0]).unwrap_or_default();
        let _ = writeln!(
            out,
            "| `{}` | {} {version} | passes |",
            row.name, row.packages[0]
        );
    }
    let suite = |outcome: &str| {
        let lines = programs::PYVERBS.lines();
        lines.filter(|line| line.starts_with(outcome)).count()
    };
    let _ = writeln!(
        out,
        "\nThe suite of pyverbs in the persona `roce`: {} tests pass, {} passes or fails by chance, {} fail, and the others skip (they are for mlx5 and efa, or need what this\ndevice does not offer; names/pyverbs-44.txt). `test_imported_rc_ex_rdma_write` needs a descriptor from another process, `test_rdmacm_async_traffic`\nan acknowledgement timeout, `test_rdmacm_async_traffic_external_qp` the event CONNECT_RESPONSE, and `test_rdmacm_async_udp_traffic` UD ids of\nlibrdmacm. The tests of `rereg` expect that a request fails because of memory at the peer; it is complete when TCP has taken it.\n`test_post_receive_qp_state_bad_flow` posts a receive in RESET, which iWARP allows. In the persona `iwarp` fewer tests pass\n(names/pyverbs-44-iwarp.txt), because most connect queue pairs by their numbers.",
        suite("ok "),
        suite("either "),
        suite("failed ")
    );
    out += FAULTS;
    let _ = write!(out, "\n{}", against_siw()?);
    render_names(&rows, &mut out)?;
    render_tables(&mut out)?;
    Ok(out)
}

fn render_names(rows: &[Row], out: &mut String) -> Result<(), String> {
    let users = users(rows)?;
    let implementations = exports::names()?;
    *out += "\n## Names\n\nAll names of rdma-core 44. `yes`: behaves as in rdma-core on an iWARP device, except as README.md says. `no`: exists and returns\n`EOPNOTSUPP` (a function without a result does nothing). `name@VERSION` with one `@` is for programs linked before 2007.\n`pyverbs/...` and `openmpi/...` are modules that Python and Open MPI can load, whether or not a test does; libfabric contains its\nproviders.\n\n| name | here | used by |\n|---|---|---|\n";
    for line in NAMES.lines() {
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

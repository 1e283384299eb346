//! Compares the exported names and their versions with the committed names of rdma-core (`names/`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::elf;
use crate::exports;
use crate::prefix::Prefix;

/// Names of rdma-core 44.
const FIRST: &str = include_str!("../../names/rdma-core-44.txt");
/// Names that rdma-core 56 has and 44 has not.
const ADDED: &str = include_str!("../../names/rdma-core-56.txt");
/// Name that rdma-core does not have: that of the function which the library of `redirect` calls.
const OWN: &str = "uwarp_sysfs_map@@UWARP_PRIVATE";

/// Returns all names of rdma-core with their versions, sorted. Names of data end with ` object`.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    let all: BTreeSet<&str> = FIRST.lines().chain(added()).collect();
    all.into_iter()
}

/// Returns the names that rdma-core 56 has and 44 has not.
pub(crate) fn added() -> impl Iterator<Item = &'static str> {
    ADDED.lines()
}

/// Checks that the library exports every name of rdma-core with its version, as a function or as
/// data, and that it exports no other name but `OWN`.
pub(crate) fn the_library_has_every_name_with_its_version(prefix: &Prefix) -> Result<(), String> {
    let expected: BTreeSet<String> = all().chain([OWN]).map(str::to_owned).collect();
    let symbols = elf::symbols(&prefix.library())?;
    let found = symbols.into_iter().filter(|symbol| symbol.defined);
    let found: BTreeSet<String> = found
        .map(|symbol| symbol.name + if symbol.object { " object" } else { "" })
        .collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    let unexpected: Vec<_> = found.difference(&expected).collect();
    if expected.len() < 200 || !missing.is_empty() || !unexpected.is_empty() {
        return Err(format!("missing: {missing:?}\nunexpected: {unexpected:?}"));
    }
    Ok(())
}

/// Checks that the library imports none of the cancellation points listed here. A thread may be
/// cancelled while it posts and polls, and the cancellation must not unwind Rust frames
/// (`src/uncancelled.rs`). Other cancellation points are called only where a cancellation is
/// deferred, or wanted (`poll`).
pub(crate) fn the_data_path_calls_nothing_at_which_a_thread_is_cancelled(
    prefix: &Prefix,
) -> Result<(), String> {
    const POINTS: [&str; 22] = [
        "close",
        "read",
        "readv",
        "pread",
        "pread64",
        "recv",
        "recvfrom",
        "recvmsg",
        "write",
        "writev",
        "pwrite",
        "pwrite64",
        "send",
        "sendto",
        "sendmsg",
        "accept",
        "accept4",
        "epoll_wait",
        "fsync",
        "fdatasync",
        "select",
        "ppoll",
    ];
    let symbols = elf::symbols(&prefix.library())?;
    let wanted = symbols.iter().filter(|symbol| !symbol.defined);
    let names = wanted.filter_map(|symbol| symbol.name.split('@').next());
    let points: Vec<_> = names.filter(|name| POINTS.contains(name)).collect();
    if points.is_empty() {
        return Ok(());
    }
    Err(format!("it calls {points:?} of the C library"))
}

/// Checks that the blocks in `src/exports` contain every function of rdma-core.
pub(crate) fn the_source_has_every_name(_: &Prefix) -> Result<(), String> {
    let names: BTreeSet<String> = exports::names()?.into_keys().collect();
    let expected = all().filter(|line| !line.ends_with(" object"));
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
    if names != expected {
        let all: Vec<_> = names.symmetric_difference(&expected).collect();
        return Err(format!("only in one of the two lists: {all:?}"));
    }
    Ok(())
}

/// Checks that the committed list agrees with the installed rdma-core, which has the same version.
pub(crate) fn the_committed_names_are_those_of_rdma_core(_: &Prefix) -> Result<(), String> {
    are_those_of(Path::new("/"), FIRST.lines().collect())
}

/// Checks the same for the rdma-core 56 of a root.
pub(crate) fn the_committed_names_are_those_of_the_root(prefix: &Prefix) -> Result<(), String> {
    let root = prefix.root().ok_or("there is no root")?;
    are_those_of(&root.path()?, all().collect())
}

/// Checks that the libraries of rdma-core in this root directory define these names.
fn are_those_of(root: &Path, expected: BTreeSet<&str>) -> Result<(), String> {
    let mut found = BTreeSet::new();
    for file in ["libibverbs.so.1", "librdmacm.so.1"] {
        let path = crate::packages::library_in(root, file)?;
        let symbols = elf::symbols(&path)?;
        let defined = symbols.into_iter().filter(|symbol| symbol.defined);
        found
            .extend(defined.map(|symbol| symbol.name + if symbol.object { " object" } else { "" }));
    }
    let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
    if found != expected {
        let all: Vec<_> = found.symmetric_difference(&expected).collect();
        return Err(format!("only in one of the two lists: {all:?}"));
    }
    Ok(())
}

/// Checks that the library has every name that a program, a library or a module of the root
/// imports. One missing name is enough: libraries that are linked with `-z now`, as the providers
/// of rdma-core are, then end their program when it starts.
pub(crate) fn every_file_of_the_root_finds_its_names(prefix: &Prefix) -> Result<(), String> {
    let root = prefix.root().ok_or("there is no root")?;
    let symbols = elf::symbols(&prefix.library())?;
    let defined = symbols.into_iter().filter(|symbol| symbol.defined);
    let defined: BTreeSet<String> = defined
        .map(|symbol| symbol.name.replace("@@", "@"))
        .collect();
    let imported = imported(&root.path()?)?;
    if !imported.contains_key("ibv_open_device@IBVERBS_1.1") {
        return Err(format!("nothing imports ibv_open_device: {imported:?}"));
    }
    let missing: Vec<_> = imported
        .iter()
        .filter(|(name, _)| !defined.contains(*name))
        .collect();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(format!("missing: {missing:?}")),
    }
}

/// Returns the names of rdma-core that the ELF files of a root directory import (`name@VERSION`),
/// and the names of these files.
pub(crate) fn imported(root: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut dirs = vec![
        root.join("usr/bin"),
        root.join("usr/sbin"),
        root.join("usr/lib"),
    ];
    while let Some(dir) = dirs.pop() {
        let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (kind, path) = (entry.file_type().map_err(failed)?, entry.path());
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() && elf::is_elf(&path)? {
                let file = entry.file_name().to_string_lossy().into_owned();
                let symbols = elf::symbols(&path)?.into_iter();
                let names = symbols.filter(|symbol| !symbol.defined && symbol.of_rdma_core());
                for symbol in names {
                    found.entry(symbol.name).or_default().insert(file.clone());
                }
            }
        }
    }
    Ok(found)
}

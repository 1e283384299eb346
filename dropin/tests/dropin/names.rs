//! Compares the exported names and their versions with the committed names of rdma-core (`names/`).

use std::collections::BTreeSet;

use crate::elf;
use crate::exports;
use crate::prefix::Prefix;

const EXPECTED: &str = include_str!("../../names/rdma-core-44.txt");
/// Name that rdma-core does not have: that of the function which the library of `redirect` calls.
const OWN: &str = "uwarp_sysfs_map@@UWARP_PRIVATE";

/// Checks that the library exports every name of rdma-core with its version, as a function or as
/// data, and that it exports no other name but `OWN`.
pub(crate) fn the_library_has_every_name_with_its_version(prefix: &Prefix) -> Result<(), String> {
    let expected = EXPECTED.lines().chain([OWN]);
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
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
    let expected = EXPECTED.lines().filter(|line| !line.ends_with(" object"));
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
    if names != expected {
        let all: Vec<_> = names.symmetric_difference(&expected).collect();
        return Err(format!("only in one of the two lists: {all:?}"));
    }
    Ok(())
}

/// Checks that the committed list agrees with the installed rdma-core, which has the same version.
pub(crate) fn the_committed_names_are_those_of_rdma_core(_: &Prefix) -> Result<(), String> {
    let mut found = BTreeSet::new();
    for file in ["libibverbs.so.1", "librdmacm.so.1"] {
        let path = crate::packages::library(file)?;
        let symbols = elf::symbols(&path)?;
        let defined = symbols.into_iter().filter(|symbol| symbol.defined);
        found
            .extend(defined.map(|symbol| symbol.name + if symbol.object { " object" } else { "" }));
    }
    let expected: BTreeSet<String> = EXPECTED.lines().map(str::to_owned).collect();
    if found != expected {
        let all: Vec<_> = found.symmetric_difference(&expected).collect();
        return Err(format!("only in one of the two lists: {all:?}"));
    }
    Ok(())
}

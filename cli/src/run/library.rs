//! Where the library is: beside this executable, as cargo builds both, or in `../lib/uwarp`, as `uwarp run --install` puts them.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::{Failure, Report};

/// The names by which programs ask for it.
pub(super) const VERBS: &str = "libibverbs.so.1";
pub(super) const RDMACM: &str = "librdmacm.so.1";
/// As cargo builds it.
const BUILT: &str = "libuwarp_dropin.so";
/// Beside it: the directory with its two names.
const LINKS: &str = "uwarp-run";

/// The directory that has the library by both of its names.
///
/// # Errors
/// It is in neither place, with the command that builds it; or the names cannot be made beside it.
pub(super) fn find() -> Result<PathBuf, Failure> {
    let exe = super::install::this_executable()?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    if beside.join(BUILT).exists() {
        let links = beside.join(LINKS);
        return link(&links).map(|()| links.clone()).map_err(|error| {
            Report::new(format!(
                "{} cannot be given the names of {VERBS} and {RDMACM} in {}: {error}",
                beside.join(BUILT).display(),
                links.display()
            ))
            .advice("once as a user who may write there, or uwarp run --install PREFIX")
            .into()
        });
    }
    let installed = beside.parent().unwrap_or(beside).join("lib/uwarp");
    if installed.join(VERBS).exists() && installed.join(RDMACM).exists() {
        return Ok(installed);
    }
    Err(Report::new("the library that stands in for libibverbs and librdmacm is not here")
        .expected(format!(
            "{} or {}",
            beside.join(BUILT).display(),
            installed.join(VERBS).display()
        ))
        .advice("cargo build --release -p uwarp -p uwarp-dropin, and then target/release/uwarp run --install PREFIX to put both elsewhere")
        .into())
}

fn link(links: &Path) -> io::Result<()> {
    let target = Path::new("..").join(BUILT);
    fs::create_dir_all(links)?;
    name(&target, &links.join(VERBS))?;
    name(&target, &links.join(RDMACM))
}

/// A symbolic link, made in one step for those who look at the same time.
pub(super) fn name(target: &Path, at: &Path) -> io::Result<()> {
    if fs::read_link(at).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let new = passing(at);
    symlink(target, &new)?;
    fs::rename(&new, at)
}

/// A name beside `at` that no other process uses.
pub(super) fn passing(at: &Path) -> PathBuf {
    at.with_added_extension(process::id().to_string())
}

//! Location of the drop-in library. It is in the directory of this executable, where cargo builds
//! them, or in `../lib/uwarp`, where `uwarp run --install` puts it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;

use crate::failure::{Failure, Report};
use crate::rdma;

/// Name by which programs load libibverbs.
pub(super) const VERBS: &str = "libibverbs.so.1";
/// Name by which programs load librdmacm.
pub(super) const RDMACM: &str = "librdmacm.so.1";
/// Name of the library as cargo builds it.
const BUILT: &str = "libuwarp_dropin.so";
/// Name of the library that shows the device in `/sys`, in all places.
pub(super) const REDIRECT: &str = "libuwarp_redirect.so";
/// Directory below that of the libraries with what comes first in the PATH, if programs can see the
/// device in `/sys`.
pub(super) const TOOLS: &str = "bin";
/// Directory, beside the built libraries, with a link for each of the names.
const LINKS: &str = "uwarp-run";

/// Returns the directory that has the library under both names.
///
/// # Errors
/// The library is in neither place, or the links cannot be created.
pub(super) fn find() -> Result<PathBuf, Failure> {
    let exe = super::install::this_executable()?;
    let beside = exe.parent().unwrap_or(Path::new("/"));
    if beside.join(BUILT).exists() {
        let links = beside.join(LINKS);
        let name = exe.file_name().unwrap_or_default();
        return link(&links, name).map(|()| links.clone()).map_err(|error| {
            Report::new(format!(
                "cannot create links to {}, named {VERBS} and {RDMACM}, in {}: {error}",
                beside.join(BUILT).display(),
                links.display()
            ))
            .advice("run it once as a user who may write there, or use uwarp run --install PREFIX")
            .into()
        });
    }
    let installed = beside.parent().unwrap_or(beside).join("lib/uwarp");
    if installed.join(VERBS).exists() && installed.join(RDMACM).exists() {
        return Ok(installed);
    }
    Err(Report::new("the library that replaces libibverbs and librdmacm is missing")
        .expected(format!(
            "{} or {}",
            beside.join(BUILT).display(),
            installed.join(VERBS).display()
        ))
        .advice("run cargo build --release -p uwarp -p uwarp-dropin -p uwarp-redirect; target/release/uwarp run --install PREFIX copies them elsewhere")
        .into())
}

/// Returns the path of the library that `--preload` loads besides the other. `library`: directory
/// from [`find`].
///
/// # Errors
/// The library is missing.
pub(super) fn redirect(library: &Path) -> Result<PathBuf, Failure> {
    let file = library.join(REDIRECT);
    if file.exists() {
        return Ok(file);
    }
    Err(
        Report::new("the library that shows the device in /sys/class/infiniband is missing")
            .expected(file.display().to_string())
            .advice("run cargo build --release -p uwarp -p uwarp-dropin -p uwarp-redirect")
            .into(),
    )
}

/// Creates the links. `exe`: name of this executable.
fn link(links: &Path, exe: &OsStr) -> io::Result<()> {
    let target = Path::new("..").join(BUILT);
    fs::create_dir_all(links)?;
    symlink_atomically(&target, &links.join(VERBS))?;
    symlink_atomically(&target, &links.join(RDMACM))?;
    // Only `--preload` needs this one, and `redirect` fails if it leads nowhere.
    let _ = symlink_atomically(&Path::new("..").join(REDIRECT), &links.join(REDIRECT));
    // Only programs that look for the device in `/sys` need this one.
    let _ = link_tools(links, &Path::new("../..").join(exe));
    Ok(())
}

/// Creates the links in [`TOOLS`] of the directory of the libraries. `exe`: path of this executable
/// from there.
pub(super) fn link_tools(library: &Path, exe: &Path) -> io::Result<()> {
    let tools = library.join(TOOLS);
    fs::create_dir_all(&tools)?;
    symlink_atomically(exe, &tools.join(rdma::NAME))
}

/// Creates a symbolic link atomically, because other processes may look for it at the same time.
pub(super) fn symlink_atomically(target: &Path, at: &Path) -> io::Result<()> {
    if fs::read_link(at).is_ok_and(|old| old == target) {
        return Ok(());
    }
    let new = temporary_name(at);
    symlink(target, &new)?;
    fs::rename(&new, at)
}

/// Returns a path beside `at` that no other process uses.
pub(super) fn temporary_name(at: &Path) -> PathBuf {
    at.with_added_extension(process::id().to_string())
}

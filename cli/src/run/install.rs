//! `uwarp run --install`: copies the command and the libraries into a prefix. The copied command
//! finds the copied library by its relative path.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Report};

use super::library::{
    RDMACM, REDIRECT, TOOLS, VERBS, link_tools, redirect, symlink_atomically, temporary_name,
};
use crate::rdma;

/// Path of this command, with all links resolved.
pub(super) fn this_executable() -> Result<PathBuf, Failure> {
    env::current_exe()
        .and_then(fs::canonicalize)
        .map_err(|error| Failure::because(format!("this executable cannot be found: {error}")))
}

/// Copies the command and the libraries into `prefix`. Returns the paths of the new files, one per
/// line.
///
/// # Errors
/// A library is missing, or a file cannot be written. The report names its path.
pub(super) fn into(prefix: &Path, library: &Path) -> Result<String, Failure> {
    let exe = this_executable()?;
    let from = redirect(library)?;
    let command = prefix.join("bin/uwarp");
    let libraries = prefix.join("lib/uwarp");
    let cannot = |at: &Path, error: &io::Error| -> Failure {
        Report::new(format!("{} cannot be written: {error}", at.display()))
            .advice("use a prefix that you may write to")
            .into()
    };
    copy(&exe, &command).map_err(|error| cannot(&command, &error))?;
    let file = libraries.join(VERBS);
    copy(&library.join(VERBS), &file).map_err(|error| cannot(&file, &error))?;
    let other = libraries.join(RDMACM);
    symlink_atomically(Path::new(VERBS), &other).map_err(|error| cannot(&other, &error))?;
    let redirect = libraries.join(REDIRECT);
    copy(&from, &redirect).map_err(|error| cannot(&redirect, &error))?;
    let tools = libraries.join(TOOLS);
    link_tools(&libraries, Path::new("../../../bin/uwarp"))
        .map_err(|error| cannot(&tools, &error))?;
    Ok([command, file, other, redirect, tools.join(rdma::NAME)]
        .map(|path| path.display().to_string())
        .join("\n"))
}

/// Copies a file with its permissions and puts it in place by a rename. Programs that run from the
/// old file are not affected.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    let new = temporary_name(to);
    let copied = fs::copy(from, &new).and_then(|_| fs::rename(&new, to));
    if copied.is_err() {
        let _ = fs::remove_file(&new);
    }
    copied
}

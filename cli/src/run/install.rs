//! `uwarp run --install`: the command and the library in a prefix, where the one finds the other.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Report};

use super::library::{RDMACM, VERBS, name, passing};

/// Where this command is, behind all links.
pub(super) fn this_executable() -> Result<PathBuf, Failure> {
    env::current_exe()
        .and_then(fs::canonicalize)
        .map_err(|error| Failure::because(format!("this executable cannot be found: {error}")))
}

/// Puts both into `prefix`; gives the words that tell where.
///
/// # Errors
/// What cannot be written there.
pub(super) fn into(prefix: &Path, library: &Path) -> Result<String, Failure> {
    let exe = this_executable()?;
    let command = prefix.join("bin/uwarp");
    let libraries = prefix.join("lib/uwarp");
    let cannot = |at: &Path, error: &io::Error| -> Failure {
        Report::new(format!("{} cannot be written: {error}", at.display()))
            .advice("a prefix that you may write to")
            .into()
    };
    copy(&exe, &command).map_err(|error| cannot(&command, &error))?;
    let file = libraries.join(VERBS);
    copy(&library.join(VERBS), &file).map_err(|error| cannot(&file, &error))?;
    let other = libraries.join(RDMACM);
    name(Path::new(VERBS), &other).map_err(|error| cannot(&other, &error))?;
    Ok([command, file, other]
        .map(|path| path.display().to_string())
        .join("\n"))
}

/// Copies a file with its rights, whole or not at all: what runs from the old one goes on.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    if let Some(dir) = to.parent() {
        fs::create_dir_all(dir)?;
    }
    let new = passing(to);
    let copied = fs::copy(from, &new).and_then(|_| fs::rename(&new, to));
    if copied.is_err() {
        let _ = fs::remove_file(&new);
    }
    copied
}

//! Finds installed packages, programs and libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a program in `PATH`, `/usr/sbin` or `/sbin`.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Returns the path of a shared library of the distribution.
///
/// # Errors
/// Returns a message if the library is in none of the usual directories.
pub(crate) fn library(soname: &str) -> Result<PathBuf, String> {
    library_in(Path::new("/"), soname)
}

/// As [`library`], in another root directory.
pub(crate) fn library_in(root: &Path, soname: &str) -> Result<PathBuf, String> {
    let places = [
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/ucx",
        "usr/lib/aarch64-linux-gnu/ucx",
        "usr/lib64",
        "usr/lib",
    ];
    let found = places.iter().map(|dir| root.join(dir).join(soname));
    let mut found = found.filter(|path| path.exists());
    found
        .next()
        .ok_or_else(|| format!("{soname} was not found"))
}

/// Returns the version of an installed Debian package, without epoch and Debian revision.
pub(crate) fn version(package: &str) -> Option<String> {
    version_in(None, package)
}

/// As [`version`], for a package in this database of `dpkg`.
pub(crate) fn version_in(database: Option<&Path>, package: &str) -> Option<String> {
    let mut command = Command::new("dpkg-query");
    if let Some(database) = database {
        command.arg("--admindir").arg(database);
    }
    let asked = command
        .args(["-W", "-f", "${db:Status-Status} ${Version}", package])
        .output()
        .ok()?;
    let said = String::from_utf8(asked.stdout).ok()?;
    let version = said.strip_prefix("installed ")?;
    let version = version.split_once(':').map_or(version, |(_, rest)| rest);
    Some(
        version
            .rsplit_once('-')
            .map_or(version, |(upstream, _)| upstream)
            .to_owned(),
    )
}

/// Returns a message that names the packages that are not installed, if there are any.
pub(crate) fn missing(packages: &[&str]) -> Option<String> {
    missing_by(packages, version)
}

/// As [`missing`], with a function that returns the version of a package.
pub(crate) fn missing_by(
    packages: &[&str],
    version: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let missing: Vec<_> = packages
        .iter()
        .copied()
        .filter(|package| version(package).is_none())
        .collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(" ")))
}

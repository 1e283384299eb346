//! Tables of the programs that run. Each row has the commands and the expected output.

mod bound;
mod changing;
mod debian_13;
mod fabric;
mod fio;
mod mpi;
mod numbers;
mod perftest;
mod pyverbs;
mod qemu;
mod qperf;
mod rdmacm;
mod textbook;
mod tgt;
mod ucx;
mod verbs;

use std::path::Path;

use crate::crates;
use crate::packages;
use crate::prefix::Prefix;
use crate::process::{self, Place, free_port, unprivileged};
use crate::roots::Root;

pub(crate) use debian_13::{REMARKS as DEBIAN_13, rows as debian_13};
pub(crate) use pyverbs::KNOWN as PYVERBS;

/// Test of one program.
#[derive(Clone)]
pub(crate) struct Row {
    /// Name of the test, with hyphens. It begins with the name of the program.
    pub(crate) name: &'static str,
    /// Debian packages that the test needs. The matrix shows the version of the first package.
    pub(crate) packages: &'static [&'static str],
    /// Programs, sonames of libraries, or absolute paths of scripts. The matrix lists the functions
    /// that the programs and libraries import. Absolute paths must exist.
    pub(crate) files: &'static [&'static str],
    /// Flags of `uwarp run`.
    pub(crate) flags: &'static [&'static str],
    /// The test fails in the persona `iwarp`.
    pub(crate) needs_roce: bool,
    pub(crate) way: Way,
}

/// Commands of a test. In all of them `{port}` is a free port, `{other}` another free port, and
/// `{crates}` the directory with the programs of published crates.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// One process that succeeds and prints all of `says`.
    Alone {
        words: &'static str,
        says: &'static [&'static str],
    },
    /// One process that does not end by itself. It is killed after it has printed `says`.
    Stays {
        words: &'static str,
        says: &'static str,
    },
    /// A server that listens on `{port}`, and a client that prints all of `says`. Both succeed.
    Pair {
        server: &'static str,
        client: &'static str,
        says: &'static [&'static str],
    },
    /// As `Pair`, but the server does not end by itself. It is killed after the client has
    /// succeeded.
    Service {
        server: &'static str,
        client: &'static str,
        says: &'static [&'static str],
    },
    /// A function of the test, which returns the output.
    Own(fn(Place<'_>) -> Result<String, String>),
    /// As `Own`, for a test that needs new network namespaces.
    Apart(fn(Place<'_>) -> Result<String, String>),
}

/// Creates a row without flags of `uwarp run`.
const fn row(
    name: &'static str,
    packages: &'static [&'static str],
    files: &'static [&'static str],
    way: Way,
) -> Row {
    Row {
        name,
        packages,
        files,
        flags: &[],
        needs_roce: false,
        way,
    }
}

/// Returns the rows of all tables.
pub(crate) fn rows() -> Vec<Row> {
    let suites = [
        verbs::ROWS,
        rdmacm::ROWS,
        textbook::ROWS,
        bound::ROWS,
        changing::ROWS,
        perftest::ROWS,
        numbers::ROWS,
        qperf::ROWS,
        fio::ROWS,
        tgt::ROWS,
        qemu::ROWS,
        fabric::ROWS,
        mpi::ROWS,
        ucx::PERFTESTS,
        ucx::MPI,
        pyverbs::ROWS,
    ];
    suites.concat()
}

impl Row {
    /// Returns false if the row needs another persona than the one that was asked for.
    pub(crate) fn runs_here(&self) -> bool {
        !self.needs_roce || process::persona().is_none_or(|persona| persona == "roce")
    }

    /// Returns the reason why the program cannot run here, if there is one.
    pub(crate) fn missing(&self) -> Option<String> {
        let missing = packages::missing(self.packages).or_else(|| {
            // A package may be installed without its documentation, which contains the scripts.
            let mut paths = self.files.iter().filter(|file| file.starts_with('/'));
            let missing = paths.find(|file| !Path::new(file).exists());
            missing.map(|file| format!("there is no {file}"))
        });
        match self.way {
            Way::Apart(_) => missing.or_else(no_namespaces),
            _ => missing,
        }
    }

    /// Returns the reason why the program cannot run in this root, if there is one.
    pub(crate) fn missing_in(&self, root: &Root) -> Option<String> {
        root.missing()
            .or_else(|| packages::missing_by(self.packages, |package| root.version(package)))
    }

    /// Runs the program.
    ///
    /// # Errors
    /// Returns the reason of the failure, with the whole output.
    pub(crate) fn run(&self, prefix: &Prefix) -> Result<(), String> {
        let place = Place {
            prefix,
            flags: self.flags,
        };
        let (port, other) = (free_port()?, free_port()?);
        let crates = crates::programs(prefix).display().to_string();
        let fill = |words: &str| {
            let filled = words.replace("{port}", &port.to_string());
            let filled = filled.replace("{other}", &other.to_string());
            filled.replace("{crates}", &crates)
        };
        let start = |words: &str| {
            let words = fill(words);
            place.start(&words.split_whitespace().collect::<Vec<_>>())
        };
        match self.way {
            Way::Alone { words, says } => check(&start(words)?.end()?, says),
            Way::Stays { words, says } => start(words)?.until_said(says),
            Way::Pair {
                server,
                client,
                says,
            }
            | Way::Service {
                server,
                client,
                says,
            } => {
                let mut server = start(server)?;
                server.until_listening(port)?;
                let said = start(client)?.end();
                let said =
                    said.map_err(|error| format!("{error}\n{}", server.words("was the server")))?;
                check(&said, says)?;
                match self.way {
                    Way::Pair { .. } => server.end().map(drop),
                    _ => Ok(()),
                }
            }
            Way::Own(run) | Way::Apart(run) => run(place).map(drop),
        }
    }
}

/// Returns the reason why an unprivileged user of this machine cannot create network namespaces, if
/// there is one.
pub(crate) fn no_namespaces() -> Option<String> {
    let words = [
        "-Urn",
        "sh",
        "-c",
        "unshare -n -u true && ip link add uw0 type veth peer name uw1",
    ];
    let asked = unprivileged("unshare".as_ref()).args(words).output();
    let refused = match asked {
        Ok(asked) if asked.status.success() => return None,
        Ok(asked) => String::from_utf8_lossy(&asked.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!(
        "new network namespaces with an Ethernet link are not available: {refused}"
    ))
}

/// Checks that the output contains all texts.
pub(crate) fn check(said: &str, texts: &[&str]) -> Result<(), String> {
    let missing = texts.iter().find(|text| !said.contains(**text));
    missing.map_or(Ok(()), |text| {
        Err(format!("'{text}' is missing in:\n{said}"))
    })
}

//! `uwarp run`: runs an unmodified program of libibverbs and librdmacm on uwarp.
//!
//! The command sets the environment and then replaces itself with the program (`exec`). The process
//! therefore has the exit status, the signals and the descriptors of the program.

mod install;
mod library;
mod namespace;
mod program;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Arg, ArgAction, Args, ValueEnum};
use uwarp_verbs::options::{Chosen, Kind, OPTIONS, UserOption};

use crate::failure::{Failure, Report};
use crate::options::{flag, given, options_of_table};
use crate::output::Output;
use crate::signals;

/// Exit status that shells use if the program does not exist.
const NOT_FOUND: u8 = 127;
/// Exit status that shells use if the program exists and cannot be run.
const CANNOT_RUN: u8 = 126;

#[derive(Args, Debug)]
#[command(after_help = after_help())]
pub(crate) struct Options {
    #[command(flatten)]
    flags: Flags,
    /// Also preload the library, for programs that load libibverbs by a path of their own, and show
    /// the device in /sys/class/infiniband and /dev/infiniband, for programs that look there (UCX,
    /// NCCL)
    #[arg(long)]
    preload: bool,
    /// Show the device in /sys/class/infiniband and /dev/infiniband by mounts that only the program
    /// sees. For programs that find it neither without it nor with --preload; needs a user
    /// namespace, except as root
    #[arg(long, value_name = "HOW")]
    sysfs: Option<Sysfs>,
    /// Install the library and this command into PREFIX/lib/uwarp and PREFIX/bin, and run nothing
    #[arg(long, value_name = "PREFIX", conflicts_with = "program")]
    install: Option<PathBuf>,
    /// Program to run
    #[arg(required_unless_present = "install")]
    program: Option<OsString>,
    /// Arguments of the program
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Options of the table that were given, with the values of their variables.
#[derive(Debug)]
struct Flags(Vec<(&'static UserOption, OsString)>);

options_of_table!(Flags, flags(), given);

/// Declares the options of the table. They have no default and read no variable: the library does.
fn flags() -> impl Iterator<Item = Arg> {
    OPTIONS.iter().filter_map(|option| {
        let help = option.run_help.or(option.help)?;
        let help = match (option.kind, option.default) {
            (Kind::Switch(_), _) | (_, None) => help.to_owned(),
            (_, Some(default)) => format!("{help} [default: {default}]"),
        };
        let arg = flag(option)?.help(help);
        Some(match option.flag {
            Some("name") => arg.action(ArgAction::Append).value_delimiter(','),
            Some("strict") => arg.conflicts_with("UWARP_HOLD"),
            _ => arg,
        })
    })
}

fn after_help() -> String {
    let options = OPTIONS.iter().filter(|option| option.flag.is_some());
    let variables: Vec<_> = options.map(|option| option.variable).collect();
    format!(
        "A flag that is not given leaves its environment variable unchanged: {}.\n\
        The exit status is the program's; 127 if the program is not found, 126 if it cannot be \
        run, or not on uwarp.",
        variables.join(", ")
    )
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sysfs {
    /// Mounts in namespaces of the program
    Namespace,
}

impl Options {
    /// Returns the environment variables that pass the given flags to the library.
    fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let variable = |(option, value): &(&'static UserOption, OsString)| {
            // Only the value of each flag was checked, which may be given several times.
            option.set(&mut Chosen::default(), value).map_err(|error| {
                let name = option.flag.unwrap_or_default();
                Failure::Usage(Report::new(format!(
                    "the flags --{name} are wrong: {error}"
                )))
            })?;
            let value = match option.kind {
                // The path must be absolute, because the program may change its working directory.
                Kind::Path(_) => std::path::absolute(value)
                    .map_err(|error| {
                        Failure::because(format!("the path of the capture is unusable: {error}"))
                    })?
                    .into(),
                _ => value.clone(),
            };
            Ok((option.variable, value))
        };
        self.flags.0.iter().map(variable).collect()
    }
}

/// Returns the directory of the library for unmodified programs.
///
/// # Errors
/// The library is missing, or its links cannot be created.
pub(crate) fn library() -> Result<PathBuf, Failure> {
    library::find()
}

/// Runs the program. Returns only if the program could not be started.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let library = library::find()?;
    if let Some(prefix) = &options.install {
        let installed = install::into(prefix, &library)?;
        return Output::Stdout.line(installed);
    }
    let Some(program) = &options.program else {
        return Err(Failure::because("no program was given"));
    };
    if let Some(file) = program::find(program) {
        program::check(&file).map_err(|(file, why)| {
            let report = Report::new(format!("{} {}", file.display(), why.reason()));
            Failure::NotRun(report.advice(why.advice()), CANNOT_RUN)
        })?;
    }
    // The program keeps the name that was given, because some programs evaluate their name.
    let mut command = Command::new(program);
    command.args(&options.args);
    let variables = options.variables()?;
    command.envs(variables.iter().cloned());
    if variables.iter().any(|(name, _)| *name == "UWARP_HOLD") {
        // The flag overrides the environment.
        command.env_remove("UWARP_STRICT");
    }
    let path = prepended("LD_LIBRARY_PATH", std::slice::from_ref(&library))?;
    command.env("LD_LIBRARY_PATH", &path);
    let preloaded = || {
        // The first of them is found first.
        let files = [library.join(library::VERBS), library::redirect(&library)?];
        prepended("LD_PRELOAD", &files)
    };
    if let Some(Sysfs::Namespace) = options.sysfs {
        let mut copy = Command::new("cp");
        copy.envs(variables);
        copy.env("LD_LIBRARY_PATH", &path);
        copy.env("LD_PRELOAD", preloaded()?);
        // The capture belongs to the program.
        copy.env_remove("UWARP_PCAP");
        namespace::enter(&mut copy)?;
    }
    if options.preload {
        command.env("LD_PRELOAD", preloaded()?);
    }
    if options.preload || options.sysfs.is_some() {
        let tools = library.join(library::TOOLS);
        command.env("PATH", prepended("PATH", &[tools])?);
    }
    let error = command.exec();
    // The failed `exec` has restored the default action of SIGPIPE. Printing to a closed pipe would
    // end this process.
    signals::ignore_broken_pipes();
    Err(not_run(program, &error))
}

/// Returns the value of a variable that is a list of paths, with `paths` as the first elements.
fn prepended(name: &str, paths: &[PathBuf]) -> Result<OsString, Failure> {
    let old = env::var_os(name).filter(|old| !old.is_empty());
    // Without PATH programs are searched in a default path.
    let old = old.or_else(|| (name == "PATH").then(|| program::DEFAULT_PATH.into()));
    let old = old.iter().flat_map(env::split_paths);
    // The loader takes a space in LD_PRELOAD for the end of a path.
    let has_space = |path: &PathBuf| path.as_os_str().as_bytes().contains(&b' ');
    let is_split = name == "LD_PRELOAD" && paths.iter().any(has_space);
    let joined = env::join_paths(paths.iter().cloned().chain(old)).ok();
    joined.filter(|_| !is_split).ok_or_else(|| {
        let paths: Vec<_> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let separator = if is_split { "space" } else { "colon" };
        Report::new(format!(
            "{} cannot be a part of {name}, where a {separator} separates paths",
            paths.join(" and ")
        ))
        .advice(format!(
            "use uwarp run --install PREFIX, with a prefix without a {separator}"
        ))
        .into()
    })
}

fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    let name = program.display();
    if error.kind() != io::ErrorKind::NotFound {
        let report = Report::new(format!("{name} cannot be run: {error}"));
        return Failure::NotRun(report, CANNOT_RUN);
    }
    if program.as_bytes().contains(&b'/') && Path::new(program).exists() {
        let report = Report::new(format!("{name} cannot be run: its interpreter is missing"));
        return Failure::NotRun(report, NOT_FOUND);
    }
    not_found(program)
}

fn not_found(program: &OsStr) -> Failure {
    let name = program.display();
    let place = if program.as_bytes().contains(&b'/') {
        String::new()
    } else if env::var_os("PATH").is_some() {
        " in the PATH".to_owned()
    } else {
        let path = program::DEFAULT_PATH;
        format!(" in {path}, which is searched because PATH is not set")
    };
    let mut report = Report::new(format!("the program {name} was not found{place}"));
    let base = Path::new(program).file_name().and_then(OsStr::to_str);
    if let Some(package) = base.and_then(program::package_of) {
        report = report.advice(format!("apt-get install {package}"));
    }
    Failure::NotRun(report, NOT_FOUND)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        options: Options,
    }

    fn options(args: &[&str]) -> Options {
        let args = ["run"].iter().chain(args);
        Alone::try_parse_from(args).unwrap().options
    }

    #[test]
    fn a_path_that_a_list_would_split_is_refused() {
        let refused = |name: &str, path: &str| prepended(name, &[path.into()]).is_err();
        assert!(refused("LD_LIBRARY_PATH", "/a:b") && refused("LD_PRELOAD", "/a:b/x.so"));
        assert!(refused("LD_PRELOAD", "/a b/x.so"));
        assert!(!refused("LD_LIBRARY_PATH", "/a b") && !refused("PATH", "/a b"));
    }

    #[test]
    fn what_follows_the_program_is_its_own() {
        for args in [
            &["--quiet", "ib_write_bw", "-R", "--crc", "x"][..],
            &["--quiet", "--", "ib_write_bw", "-R", "--crc", "x"],
        ] {
            let options = options(args);
            assert_eq!(options.variables().unwrap(), [("UWARP_QUIET", "1".into())]);
            assert_eq!(options.program.unwrap(), "ib_write_bw");
            assert_eq!(options.args, ["-R", "--crc", "x"]);
        }
    }

    #[test]
    fn only_flags_that_were_given_set_variables() {
        assert_eq!(options(&["true"]).variables().unwrap(), []);
        let given = "--device tcp:127.0.0.1 --pcap /x --crc off --markers on --fpdu-segments 45 \
                     --send-in-place --mpa 1 --peer siw --persona iwarp --name mlx5_0 \
                     --name mlx5_1 --strict --connect-retry 0 --port-offset 20000 --quiet true";
        let given: Vec<_> = given.split(' ').collect();
        let variables = options(&given).variables().unwrap();
        let expected = [
            ("UWARP_DEVICE", "tcp:127.0.0.1"),
            ("UWARP_PCAP", "/x"),
            ("UWARP_CRC", "off"),
            ("UWARP_MARKERS", "on"),
            ("UWARP_FPDU_SEGMENTS", "45"),
            ("UWARP_SEND_IN_PLACE", "1"),
            ("UWARP_MPA", "1"),
            ("UWARP_PEER", "siw"),
            ("UWARP_PERSONA", "iwarp"),
            ("UWARP_NAME", "mlx5_0,mlx5_1"),
            ("UWARP_STRICT", "1"),
            ("UWARP_CONNECT_RETRY", "0"),
            ("UWARP_PORT_OFFSET", "20000"),
            ("UWARP_QUIET", "1"),
        ];
        let expected = expected.map(|(name, value)| (name, OsString::from(value)));
        assert_eq!(variables, expected);
        let hold = options(&["--hold", "20", "true"]).variables().unwrap();
        assert_eq!(hold, [("UWARP_HOLD", "20".into())]);
    }
}

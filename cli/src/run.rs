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

use clap::{Args, ValueEnum};
use uwarp_verbs::FpduSegments;
use uwarp_verbs::environment::DeviceNames;
use uwarp_verbs::llp::DeviceSpec;

use crate::failure::{Failure, Report};
use crate::output::Output;
use crate::signals;

/// Exit status that shells use if the program does not exist.
const NOT_FOUND: u8 = 127;
/// Exit status that shells use if the program exists and cannot be run.
const CANNOT_RUN: u8 = 126;

#[derive(Args, Debug)]
#[command(
    after_help = "A flag that is not given leaves its environment variable unchanged: UWARP_DEVICE, UWARP_PCAP, UWARP_CRC, \
    UWARP_MARKERS, UWARP_FPDU_SEGMENTS, UWARP_SEND_IN_PLACE, UWARP_MPA, UWARP_PEER, UWARP_PERSONA, UWARP_NAME, UWARP_STRICT, UWARP_HOLD, UWARP_CONNECT_RETRY, \
    UWARP_PORT_OFFSET, UWARP_WRITE_EVENTS, UWARP_QUIET.\n\
    The exit status is the program's; 127 if the program is not found, 126 if it cannot be run, or not on uwarp."
)]
pub(crate) struct Options {
    /// The network: tcp, tcp:ADDR, tap:NAME,ip=ADDR, raw:INTERFACE,ip=ADDR or
    /// unix:LOCAL,REMOTE,ip=ADDR ('uwarp rping --help' explains them)
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    device: Option<String>,
    /// Capture all traffic to FILE in pcapng format
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// CRC32C on every FPDU; it is used when either side asks for it [default: on]
    #[arg(long)]
    crc: Option<Switch>,
    /// Ask the peer to insert Markers into the data it sends [default: off]
    #[arg(long)]
    markers: Option<Switch>,
    /// Maximum number of TCP segments that an outgoing FPDU may span, 1 to 506. Above 1, FPDUs are
    /// not aligned with segments ('uwarp rping --help' says more) [default: 1]
    #[arg(long, value_name = "COUNT")]
    fpdu_segments: Option<FpduSegments>,
    /// Send payloads of 8 KiB and more directly from the program's memory when the CRC is on,
    /// without a copy. Only for programs that leave this memory unchanged until the request
    /// completes; others lose the connection by a wrong CRC
    #[arg(long)]
    send_in_place: bool,
    /// MPA revision [default: 2]
    #[arg(long)]
    mpa: Option<Mpa>,
    /// Profile of the peer [default: rfc]
    #[arg(long)]
    peer: Option<Peer>,
    /// Kind of device that the program sees. Queue pairs are connected by number with 'roce' only
    /// [default: roce, or iwarp with '--peer siw' or '--mpa 1', which exclude roce]
    #[arg(long)]
    persona: Option<Persona>,
    /// Name of the device, 1 to 63 letters, digits, _ or -. Given several times: names of several
    /// devices, which are all the same RNIC [default: uwarp0]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = device_name)]
    name: Vec<String>,
    /// End a connection whose message finds no receive posted, as the RFC says, instead of holding
    /// the message
    #[arg(long, conflicts_with = "hold")]
    strict: bool,
    /// Milliseconds to hold a message that finds no receive posted. If its sender closes meanwhile,
    /// the message is held for at most two more seconds [default: 10000]
    #[arg(long, value_name = "MS")]
    hold: Option<u64>,
    /// Milliseconds for which a connection attempt is repeated if the peer's TCP refuses it; 0
    /// tries once [default: 3000]
    #[arg(long, value_name = "MS")]
    connect_retry: Option<u64>,
    /// Number to add to every port of librdmacm, on both sides, for programs that use one port
    /// number in TCP and in RDMA [default: 0]
    #[arg(long, value_name = "PORTS")]
    port_offset: Option<u16>,
    /// Do not explain on stderr why a connection ended
    #[arg(long)]
    quiet: bool,
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mpa {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Peer {
    /// A peer that follows the RFCs
    Rfc,
    /// Linux siw (Soft-iWARP)
    Siw,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Persona {
    /// An iWARP RNIC
    Iwarp,
    /// A RoCE v2 adapter; queue pairs are connected by librdmacm or by number
    Roce,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Sysfs {
    /// Mounts in namespaces of the program
    Namespace,
}

/// Checks that the device is valid. The library parses the text again.
fn device(text: &str) -> Result<String, String> {
    let parsed = text.parse::<DeviceSpec>();
    parsed.map_or_else(|error| Err(error.to_string()), |_| Ok(text.to_owned()))
}

/// Checks that the name of a device is valid. The library parses the text again.
fn device_name(text: &str) -> Result<String, String> {
    let parsed = text.parse::<DeviceNames>();
    parsed.map_or_else(|error| Err(error.to_string()), |_| Ok(text.to_owned()))
}

/// Returns the name that a value has on the command line.
fn value_name(value: Option<impl ValueEnum>) -> Option<OsString> {
    let value = value?.to_possible_value()?;
    Some(value.get_name().into())
}

impl Options {
    /// Returns the environment variables that pass the given flags to the library.
    fn variables(&self) -> Result<Vec<(&'static str, OsString)>, Failure> {
        // The path must be absolute, because the program may change its working directory.
        let pcap = self.pcap.as_deref().map(std::path::absolute).transpose();
        let pcap = pcap.map_err(|error| {
            Failure::because(format!("the path of the capture is unusable: {error}"))
        })?;
        let names = self.name.join(",");
        let names = (!names.is_empty()).then(|| names.parse::<DeviceNames>());
        let names = names.transpose().map_err(|error| {
            Failure::Usage(Report::new(format!("the flags --name are wrong: {error}")))
        })?;
        let set = |set: bool| set.then(|| "1".into());
        let number = |number: Option<u64>| number.map(|number| number.to_string().into());
        let all = [
            ("UWARP_DEVICE", self.device.as_ref().map(Into::into)),
            ("UWARP_PCAP", pcap.map(Into::into)),
            ("UWARP_CRC", value_name(self.crc)),
            ("UWARP_MARKERS", value_name(self.markers)),
            (
                "UWARP_FPDU_SEGMENTS",
                number(self.fpdu_segments.map(|count| count.get().into())),
            ),
            ("UWARP_SEND_IN_PLACE", set(self.send_in_place)),
            ("UWARP_MPA", value_name(self.mpa)),
            ("UWARP_PEER", value_name(self.peer)),
            ("UWARP_PERSONA", value_name(self.persona)),
            ("UWARP_NAME", names.map(|names| names.to_string().into())),
            ("UWARP_STRICT", set(self.strict)),
            ("UWARP_HOLD", number(self.hold)),
            ("UWARP_CONNECT_RETRY", number(self.connect_retry)),
            ("UWARP_PORT_OFFSET", number(self.port_offset.map(u64::from))),
            ("UWARP_QUIET", set(self.quiet)),
        ];
        let given = all.into_iter();
        Ok(given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect())
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
    command.envs(options.variables()?);
    if options.hold.is_some() {
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
        copy.envs(options.variables()?);
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
            assert_eq!(options.program.unwrap(), "ib_write_bw");
            assert_eq!(options.args, ["-R", "--crc", "x"]);
            assert!(options.crc.is_none() && options.quiet);
        }
    }

    #[test]
    fn only_flags_that_were_given_set_variables() {
        assert_eq!(options(&["true"]).variables().unwrap(), []);
        let given = [
            "--device",
            "tcp:127.0.0.1",
            "--pcap",
            "/x",
            "--crc",
            "off",
            "--markers",
            "on",
            "--fpdu-segments",
            "45",
            "--send-in-place",
            "--mpa",
            "1",
            "--peer",
            "siw",
            "--persona",
            "iwarp",
            "--name",
            "mlx5_0",
            "--name",
            "mlx5_1",
            "--strict",
            "--connect-retry",
            "0",
            "--port-offset",
            "20000",
            "--quiet",
            "true",
        ];
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
        assert_eq!(
            variables,
            expected.map(|(name, value)| (name, OsString::from(value)))
        );
        let hold = options(&["--hold", "20", "true"]).variables().unwrap();
        assert_eq!(hold, [("UWARP_HOLD", "20".into())]);
    }
}

//! On what it was measured, and how.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::peers::Program;
use crate::{Options, namespace, process};

/// A table: the machine, versions, and the command line.
pub(crate) fn describe(options: &Options) -> String {
    let mut table = String::from("| | |\n|---|---|\n");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(table, "| {name} | {value} |");
    };
    row("date", &date());
    let cpu = cpu(&read("/proc/cpuinfo"));
    row("processor", &cpu);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    row("processors that may be used", &cores.to_string());
    row("kernel", &read("/proc/sys/kernel/osrelease"));
    let default = read("/proc/sys/net/ipv4/tcp_congestion_control");
    let own = if namespace::is_own() {
        "in a network namespace of its own, where it is the default of all programs".to_owned()
    } else {
        format!("the peers have the machine's, {default}")
    };
    row(
        "congestion control",
        &format!("{}; {own}", options.congestion),
    );
    let pinned = match options.pinning().processors {
        Some((client, server)) => {
            format!("clients on processor {client}, servers on {server}, of everybody")
        }
        None => "none".to_owned(),
    };
    row("pinning", &pinned);
    row("uwarp", &options.ours().version());
    row("commit", &commit());
    row("compiler", &first("rustc", &["--version"]));
    for program in Program::ALL {
        let (command, package) = program.names();
        let version = match (program.is_installed(), program.version()) {
            (false, _) => "not installed".to_owned(),
            (true, None) => "version unknown".to_owned(),
            (true, Some(version)) => version,
        };
        row(&format!("{package} (`{command}`)"), &version);
    }
    row("command", &format!("`{}`", command_line()));
    row(
        "rounds",
        &format!(
            "{} of {} s a figure, {} beside the peers",
            options.rounds, options.seconds, options.peer_rounds
        ),
    );
    table
}

/// The first line that a program says.
fn first(program: &str, args: &[&str]) -> String {
    let said = process::output(Command::new(program).args(args), Duration::from_secs(10));
    said.map_or_else(
        |_| "unknown".to_owned(),
        |said| said.lines().next().unwrap_or_default().to_owned(),
    )
}

fn date() -> String {
    first("date", &["-u", "+%F %R UTC"])
}

fn commit() -> String {
    first("git", &["rev-parse", "--short=12", "HEAD"])
}

/// When and of what, for a part of the document that is measured by itself.
pub(crate) fn about(rounds: u64, seconds: f64) -> String {
    format!(
        "{}, commit {}: {rounds} rounds of {seconds} s a figure, by `{}`.",
        date(),
        commit(),
        command_line()
    )
}

/// Without the folders of this machine.
fn command_line() -> String {
    let words: Vec<String> = std::env::args()
        .map(|word| {
            let path = Path::new(&word);
            match path.file_name() {
                Some(name) if path.is_absolute() => name.to_string_lossy().into_owned(),
                _ => word,
            }
        })
        .collect();
    words.join(" ")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The model of `/proc/cpuinfo`, and whether it is that of a virtual machine.
fn cpu(info: &str) -> String {
    let of = |wanted: &str| {
        info.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == wanted).then(|| value.trim().to_owned())
        })
    };
    let mut model = of("model name").unwrap_or_else(|| "unknown".to_owned());
    let flags = of("flags").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    let told = [
        ("vpclmulqdq", "VPCLMULQDQ"),
        ("avx512f", "AVX-512"),
        ("hypervisor", "a virtual machine"),
    ];
    for (flag, name) in told {
        if has(flag) {
            model = format!("{model}, {name}");
        }
    }
    model
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_told_with_what_the_crc_wants() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx512f hypervisor\n";
        assert_eq!(cpu(info), "AMD EPYC, AVX-512, a virtual machine");
        assert_eq!(cpu(""), "unknown");
    }
}

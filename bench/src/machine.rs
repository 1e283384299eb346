//! Describes the machine, and the conditions of a measurement.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::distance::Processors;
use crate::peers::Program;
use crate::{Options, namespace, process};

/// Processor times at the start of the program.
static BEGAN: OnceLock<Option<Ticks>> = OnceLock::new();

/// Records the processor times at the start of the program.
pub(crate) fn begin() {
    BEGAN.get_or_init(|| Ticks::parse(&read("/proc/stat")));
}

/// Times of all processors together, in hundredths of a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    /// Time in which this machine had work, but the hypervisor ran other machines.
    stolen: u64,
}

impl Ticks {
    /// Parses `/proc/stat`.
    fn parse(stat: &str) -> Option<Ticks> {
        // The fields are user, nice, system, idle, iowait, irq, softirq and steal. The later fields
        // are included in user and nice.
        let fields = stat.lines().next()?.split_whitespace().skip(1).take(8);
        let ticks: Result<Vec<u64>, _> = fields.map(str::parse).collect();
        let ticks = ticks.ok()?;
        Some(Ticks {
            all: ticks.iter().sum(),
            stolen: *ticks.get(7)?,
        })
    }

    /// Returns the percentage of time that was stolen since `began`.
    fn stolen_since(self, began: Ticks) -> f64 {
        let all = self.all.saturating_sub(began.all).max(1);
        self.stolen.saturating_sub(began.stolen) as f64 * 100.0 / all as f64
    }
}

/// Formats the share of processor time that the hypervisor took since the start.
fn stolen() -> String {
    let began = BEGAN.get().copied().flatten();
    let now = Ticks::parse(&read("/proc/stat"));
    began.zip(now).map_or_else(
        || "not known".to_owned(),
        |(began, now)| format!("{:.1} %", now.stolen_since(began)),
    )
}

/// Formats a table with the machine, the versions and the command line.
pub(crate) fn describe(options: &Options, processors: &Processors) -> String {
    let mut table = String::from("| | |\n|---|---|\n");
    let mut row = |name: &str, value: &str| {
        let _ = writeln!(table, "| {name} | {value} |");
    };
    row("date", &date());
    let cpu = cpu(&read("/proc/cpuinfo"));
    row("processor", &cpu);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    row("processors that may be used", &cores.to_string());
    row("of their time, the hypervisor gave to others", &stolen());
    row(
        "a cache line goes from one of the two that are used to the other in",
        &processors.told(),
    );
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

/// Returns the first line of a program's output.
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

/// Formats date, commit and command of a section, with the distance of the processors.
pub(crate) fn about(rounds: u64, seconds: f64, processors: &Processors) -> String {
    let how = format!("{rounds} rounds of {seconds} s a figure");
    let line = processors.told();
    measured(&how) + &format!(" A cache line went from one processor to the other in {line}.")
}

/// Formats date, commit and command of a section whose figures have a fixed number of messages.
pub(crate) fn about_counts(rounds: u64) -> String {
    measured(&format!("{rounds} rounds"))
}

fn measured(how: &str) -> String {
    format!(
        "{}, commit {}: {how}, by `{}`. Of the processors' time the hypervisor gave to others: {}.",
        date(),
        commit(),
        command_line(),
        stolen()
    )
}

/// Returns the command line without the directories of this machine.
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

/// Returns the processor model from `/proc/cpuinfo`, with its vector extensions, and with a note if
/// the machine is virtual.
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
    fn what_the_hypervisor_took_is_told_of_the_time_that_went_by() {
        let stat = |idle: u64, steal: u64| {
            format!("cpu  100 20 30 {idle} 5 0 7 {steal} 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
        };
        let began = Ticks::parse(&stat(1_000, 50));
        let now = Ticks::parse(&stat(1_150, 100));
        let (Some(began), Some(now)) = (began, now) else {
            panic!("both can be read");
        };
        assert_eq!(now.stolen, 100);
        assert!((now.stolen_since(began) - 25.0).abs() < 1e-9);
        assert_eq!(
            Ticks::parse("cpu  1 2 3 4"),
            None,
            "a kernel that does not tell"
        );
    }

    #[test]
    fn a_processor_is_told_with_what_the_crc_wants() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx512f hypervisor\n";
        assert_eq!(cpu(info), "AMD EPYC, AVX-512, a virtual machine");
        assert_eq!(cpu(""), "unknown");
    }
}

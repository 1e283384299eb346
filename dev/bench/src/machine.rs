//! Describes the machine, and the conditions of a measurement.

use std::process::Command;
use std::time::Duration;

use crate::{namespace, process};

/// Returns the first line of a program's output.
pub(crate) fn first_line(program: &str, args: &[&str]) -> String {
    let said = process::output(Command::new(program).args(args), Duration::from_secs(10));
    let said = said.unwrap_or_else(|_| "unknown".to_owned());
    said.lines().next().unwrap_or_default().to_owned()
}

/// Describes a section: date, commit, machine, and command. `conditions`: words about the rounds.
pub(crate) fn about(rounds: usize, conditions: &str) -> String {
    let date = first_line("date", &["-u", "+%F %R UTC"]);
    let commit = first_line("git", &["rev-parse", "--short=12", "HEAD"]);
    let cpu = cpu(&read("/proc/cpuinfo"));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let compiler = first_line("rustc", &["--version"]);
    let network = match namespace::is_own() {
        true => "in a network namespace",
        false => "in the network of the machine",
    };
    format!(
        "{date}, commit {commit}, {rounds} rounds{conditions} {network}, by `{}`. {cpu}; {cores} processors; Linux {kernel}; {compiler}.",
        command_line()
    )
}

/// Returns the command line without the directories of this machine.
fn command_line() -> String {
    let word = |word: String| match word.rsplit_once('/') {
        Some((_, name)) if word.starts_with('/') => name.to_owned(),
        _ => word,
    };
    std::env::args().map(word).collect::<Vec<_>>().join(" ")
}

fn read(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

/// Returns the processor model from `/proc/cpuinfo`, with the flags that matter to the CRC and to
/// times.
fn cpu(info: &str) -> String {
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": "));
    let flags = ["vpclmulqdq", "avx512f", "hypervisor"];
    let has = |flag: &&str| info.split_whitespace().any(|word| word == *flag);
    let flags: Vec<_> = flags.into_iter().filter(has).collect();
    let model = model.map_or("unknown processor", |(_, model)| model);
    format!("{model} ({})", flags.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_described_with_what_the_crc_uses() {
        let info = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx512f hypervisor\n";
        assert_eq!(cpu(info), "AMD EPYC (avx512f, hypervisor)");
    }
}

//! Instructions of the data path per message and per byte, counted by callgrind. The counts do not
//! depend on the load of the machine, so a regression shows without noise.
//!
//! Two devices in one thread exchange messages over kernel TCP (`examples/traffic`). For each side,
//! the instructions in user space between the call of the verbs and the system call are counted.
//! Valgrind has no AVX-512, so the CRC is that of a processor with AVX2 and PCLMULQDQ.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{machine, process};

/// Options.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The program that makes traffic: the example `traffic`
    #[arg(long)]
    traffic: PathBuf,
    /// File of recorded counts, which are compared, or written with --record
    #[arg(long, default_value = "dev/bench/instructions.txt")]
    file: PathBuf,
    /// Write the counts into the file, and compare nothing
    #[arg(long)]
    record: bool,
}

/// A case: name, size of a message in bytes, messages in a post, number of messages.
type Case = (&'static str, u32, u32, u32);

const CASES: [Case; 18] = [
    ("write", 8, 1, 2560),
    ("write", 8, 64, 2560),
    ("write", 64, 1, 2560),
    ("write", 64, 64, 2560),
    ("write", 4 << 10, 64, 1280),
    ("write", 64 << 10, 16, 320),
    ("write", 1 << 20, 16, 48),
    ("send", 8, 64, 2560),
    ("send", 64, 64, 2560),
    ("send", 4 << 10, 64, 1280),
    ("send", 64 << 10, 16, 320),
    ("send", 1 << 20, 16, 48),
    ("read", 8, 64, 2560),
    ("read", 4 << 10, 64, 1280),
    ("read", 64 << 10, 16, 320),
    ("read", 1 << 20, 16, 48),
    // A Send, its response, and a poll on each side, which is uwarp's part of a latency.
    ("ping", 8, 1, 2560),
    // An empty poll on each side.
    ("idle", 8, 1, 2560),
];

/// The two sides: name of the column, and the function of `traffic` with all work of this side.
const SIDES: [(&str, &str); 2] = [
    ("requester", "*sender_turn_counted*"),
    ("target", "*receiver_turn_counted*"),
];

/// Result of one case.
#[derive(Clone, PartialEq, Debug)]
struct Row {
    what: String,
    size: u32,
    list: u32,
    /// Instructions per message of the requester and of the target.
    counts: [f64; 2],
}

impl Row {
    fn is_of(&self, other: &Row) -> bool {
        (&self.what, self.size, self.list) == (&other.what, other.size, other.list)
    }
}

/// Message sizes whose difference yields the instructions per byte, without those per message.
const SLOPE: [u32; 2] = [64 << 10, 1 << 20];

/// Instructions per byte of the requester and of the target.
#[derive(Clone, PartialEq, Debug)]
struct Slope {
    what: String,
    counts: [f64; 2],
}

/// Returns the instructions per byte for each kind of message that was counted with both sizes.
fn slopes(rows: &[Row]) -> Vec<Slope> {
    let [small, large] = SLOPE;
    let bytes = f64::from(large - small);
    let smaller = rows.iter().filter(|row| row.size == small);
    let pairs = smaller.filter_map(|row| {
        let is = |other: &&Row| other.what == row.what && other.size == large;
        Some((row, rows.iter().find(is)?))
    });
    pairs
        .map(|(row, larger)| Slope {
            what: row.what.clone(),
            counts: [0, 1].map(|side| (larger.counts[side] - row.counts[side]) / bytes),
        })
        .collect()
}

/// Relative difference at which a count has changed. A higher count is then a regression. A lower
/// count is an improvement that should be recorded.
const TOLERANCE: f64 = 0.05;
/// Absolute difference in instructions per message that a change must also exceed.
const SLACK: f64 = 12.0;
/// Maximum number of runs that count a case. A count is a regression only if it is too high in
/// every run. The target of a 1 MiB Write takes 534,600 or 571,000 instructions, depending on the
/// run. Other counts differ by less than 0.1 %.
const ATTEMPTS: u32 = 6;

/// Counts all cases, and compares or records the counts.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    if let Some(why) = cannot() {
        println!("SKIPPED: {why}");
        return Ok(());
    }
    let compiler = machine::first_line("rustc", &["--version"]);
    let before = match options.record {
        true => Vec::new(),
        false => recorded(&std::fs::read_to_string(&options.file)?).1,
    };
    let mut rows = Vec::new();
    for (what, size, list, count) in CASES {
        let mut row = Row {
            what: what.to_owned(),
            size,
            list,
            counts: [0.0; 2],
        };
        let old = before.iter().find(|old| old.is_of(&row));
        for (at, (_, function)) in SIDES.into_iter().enumerate() {
            let was = old.map_or(f64::INFINITY, |old| old.counts[at]);
            row.counts[at] = least_of(was, || {
                count_one(&options.traffic, function, (what, size, list, count))
            })?;
        }
        println!("{}", format_row(&row));
        rows.push(row);
    }
    for slope in slopes(&rows) {
        println!("{}", format_slope(&slope));
    }
    if options.record {
        return std::fs::write(&options.file, record(&compiler, &rows));
    }
    let before = std::fs::read_to_string(&options.file)?;
    judge(&before, &compiler, &rows)
}

/// Repeats the count while it is too high compared with the recorded count. Returns the lowest
/// count. In each run, reads of the socket split large messages differently, which changes the
/// copies. A regression shows in every run.
fn least_of(was: f64, mut count: impl FnMut() -> io::Result<f64>) -> io::Result<f64> {
    let mut least = count()?;
    for _ in 1..ATTEMPTS {
        if !differs(was, least) || least < was {
            break;
        }
        least = least.min(count()?);
    }
    Ok(least)
}

/// Returns true if the counts differ by more than the tolerated difference.
fn differs(was: f64, is: f64) -> bool {
    let by = (is - was).abs();
    by > SLACK && by > was * TOLERANCE
}

/// Returns the reason if counting is impossible on this machine, or would use another CRC.
fn cannot() -> Option<String> {
    if !process::installed("valgrind") {
        return Some("valgrind is not installed".to_owned());
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let missing = ["avx2", "pclmulqdq"]
        .into_iter()
        .find(|flag| !info.split_whitespace().any(|word| word == *flag));
    missing.map(|flag| format!("the processor lacks {flag}, so that another CRC would be counted"))
}

fn count_one(traffic: &Path, function: &str, case: Case) -> io::Result<f64> {
    let (what, size, list, count) = case;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(format!("--toggle-collect={function}"))
        .arg(traffic)
        .arg(what)
        .args([size, list, count].map(|number| number.to_string()))
        // The C library would otherwise select its copy functions by the size of caches and by
        // features of the processor.
        .env(
            "GLIBC_TUNABLES",
            "glibc.cpu.hwcaps=-ERMS,-FSRM:glibc.cpu.x86_non_temporal_threshold=0x40000000",
        );
    let (_, said) = process::outputs(&mut command, Duration::from_secs(120))?;
    let collected = collected(&said)
        .ok_or_else(|| io::Error::other(format!("callgrind counted nothing: {said}")))?;
    Ok(collected / f64::from(count))
}

/// Parses the count in callgrind's last lines: `==123== Collected : 45678`.
fn collected(said: &str) -> Option<f64> {
    said.lines().find_map(|line| {
        let (name, value) = line.split_once(" : ")?;
        let counts = name.trim_end().ends_with("Collected");
        counts.then(|| value.trim().parse().ok())?
    })
}

fn format_row(row: &Row) -> String {
    let [requester, target] = row.counts;
    format!(
        "{:8} {:>8} {:>5} {requester:>12.1} {target:>12.1}",
        row.what, row.size, row.list
    )
}

/// Formats the instructions per byte. The line has its own name and no size, so that it is not
/// parsed as a row.
fn format_slope(slope: &Slope) -> String {
    let [requester, target] = slope.counts;
    let name = format!("{}{OF_BYTE}", slope.what);
    format!("{name:23} {requester:>12.4} {target:>12.4}")
}

/// Suffix of the names of lines with instructions per byte.
const OF_BYTE: &str = "/byte";

const HEAD: &str = "# Instructions in user space for one message, and for one byte of large ones, by callgrind: ./ci.sh instructions compares, and with --record writes this file.\n\
    # CRC on; kernel TCP; valgrind has no AVX-512, so the CRC is that of AVX2 and PCLMULQDQ.\n";

fn record(compiler: &str, rows: &[Row]) -> String {
    let mut text = format!("{HEAD}# compiler: {compiler}\n");
    let _ = writeln!(text, "# what     bytes  list    requester       target");
    for row in rows {
        let _ = writeln!(text, "{}", format_row(row));
    }
    let [small, large] = SLOPE;
    let _ = writeln!(
        text,
        "# one byte: what a message of {large} takes more than one of {small}, by the difference"
    );
    for slope in slopes(rows) {
        let _ = writeln!(text, "{}", format_slope(&slope));
    }
    text
}

/// Parses the compiler and the rows of a file.
fn recorded(text: &str) -> (Option<&str>, Vec<Row>) {
    let compiler = text
        .lines()
        .find_map(|line| line.strip_prefix("# compiler: "));
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        Some(Row {
            what: words.next().filter(|word| *word != "#")?.to_owned(),
            size: words.next()?.parse().ok()?,
            list: words.next()?.parse().ok()?,
            counts: [words.next()?.parse().ok()?, words.next()?.parse().ok()?],
        })
    };
    (compiler, text.lines().filter_map(row).collect())
}

/// Prints the changes. Returns an error if a count is higher than the recorded count of the same
/// compiler.
fn judge(before: &str, compiler: &str, rows: &[Row]) -> io::Result<()> {
    let (by, before) = recorded(before);
    let mut worse = 0;
    for row in rows {
        let Some(old) = before.iter().find(|old| old.is_of(row)) else {
            println!("{} {} is not recorded yet", row.what, row.size);
            worse += 1;
            continue;
        };
        for (at, (side, _)) in SIDES.into_iter().enumerate() {
            let (was, is) = (old.counts[at], row.counts[at]);
            let by = is - was;
            if !differs(was, is) {
                continue;
            }
            let verdict = if by > 0.0 { "MORE" } else { "less" };
            println!(
                "{verdict}: {} {} in lists of {}, {side}: {is:.0} instructions, {was:.0} recorded ({:+.1} %)",
                row.what,
                row.size,
                row.list,
                100.0 * by / was
            );
            worse += usize::from(by > 0.0);
        }
    }
    if worse == 0 {
        println!("nothing takes more instructions than recorded");
        return Ok(());
    }
    if by != Some(compiler) {
        println!(
            "recorded by {}, and counted by {compiler}: told, and not held against anybody",
            by.unwrap_or("nobody")
        );
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{worse} counts are higher than recorded; if that is meant: ./ci.sh instructions --record"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(size: u32, requester: f64) -> Row {
        Row {
            what: "write".to_owned(),
            size,
            list: 1,
            counts: [requester, 500.0],
        }
    }

    #[test]
    fn what_callgrind_collected_is_read() {
        let said = "1280 messages\n==7== Events    : Ir\n==7== Collected : 123456\n";
        assert_eq!(collected(said), Some(123_456.0));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn what_is_recorded_is_read_again() {
        let rows = [row(8, 1000.0), row(64, 1100.5)];
        let text = record("rustc 1.0", &rows);
        let (compiler, read) = recorded(&text);
        assert_eq!(compiler, Some("rustc 1.0"));
        assert_eq!(read, rows);
    }

    #[test]
    fn an_byte_takes_what_the_larger_message_takes_more() {
        let bytes = f64::from((1 << 20) - (64 << 10));
        let mut large = row(1 << 20, 1000.0 + 0.5 * bytes);
        large.counts[1] += 0.25 * bytes;
        let rows = [row(4096, 900.0), large, row(64 << 10, 1000.0)];
        let [slope] = &slopes(&rows)[..] else {
            panic!("one kind of message has both sizes");
        };
        assert_eq!((slope.what.as_str(), slope.counts), ("write", [0.5, 0.25]));
        let text = record("rustc 1.0", &rows);
        let line = text.lines().find(|line| line.starts_with("write/byte"));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        assert_eq!(words, ["write/byte", "0.5000", "0.2500"]);
        // Only rows of messages are compared.
        assert_eq!(recorded(&text).1, rows);
    }

    #[test]
    fn without_both_sizes_nothing_is_told_of_an_byte() {
        assert_eq!(slopes(&[row(8, 1000.0), row(1 << 20, 500_000.0)]), []);
    }

    #[test]
    fn the_file_of_the_repository_has_the_bytes_of_its_own_counts() {
        let text = include_str!("../instructions.txt");
        let slopes = slopes(&recorded(text).1);
        let kinds: Vec<_> = slopes.iter().map(|slope| slope.what.as_str()).collect();
        assert_eq!(kinds, ["write", "send", "read"]);
        for slope in &slopes {
            let is = |line: &&str| line.starts_with(&format!("{}{OF_BYTE} ", slope.what));
            let line = text.lines().find(is).unwrap();
            let told = line.split_whitespace().skip(1).map(str::parse::<f64>);
            let told: Vec<f64> = told.map(Result::unwrap).collect();
            assert_eq!(told.len(), 2);
            for (told, count) in told.into_iter().zip(slope.counts) {
                assert!((told - count).abs() < 1e-4, "{slope:?}");
            }
        }
    }

    #[test]
    fn more_instructions_fail_and_fewer_do_not() {
        let before = record("rustc 1.0", &[row(8, 1000.0)]);
        let judge = |count, compiler| judge(&before, compiler, &[row(8, count)]).is_ok();
        assert!(judge(1040.0, "rustc 1.0"));
        assert!(judge(500.0, "rustc 1.0"));
        assert!(!judge(1060.0, "rustc 1.0"));
        // Counts of another compiler are not comparable.
        assert!(judge(1060.0, "rustc 2.0"));
    }

    #[test]
    fn a_case_that_is_not_recorded_fails() {
        let before = record("rustc 1.0", &[row(8, 1000.0)]);
        assert!(judge(&before, "rustc 1.0", &[row(64, 1000.0)]).is_err());
    }

    #[test]
    fn what_is_more_is_counted_again_and_the_least_is_believed() {
        let run = |was: f64, said: &[f64]| {
            let mut counts = said.iter().copied();
            let least = least_of(was, || {
                counts.next().ok_or(io::ErrorKind::UnexpectedEof.into())
            });
            (least.ok(), counts.count())
        };
        assert_eq!(
            run(1000.0, &[1100.0, 1090.0, 1001.0, 9.0]),
            (Some(1001.0), 1)
        );
        assert_eq!(run(1000.0, &[1040.0, 9.0]), (Some(1040.0), 1));
        assert_eq!(run(1000.0, &[500.0, 9.0]), (Some(500.0), 1));
        assert_eq!(run(f64::INFINITY, &[500.0, 9.0]), (Some(500.0), 1));
        let always = [1100.0; ATTEMPTS as usize];
        assert_eq!(run(1000.0, &always), (Some(1100.0), 0));
    }

    #[test]
    fn the_file_of_the_repository_has_all_cases() {
        let (compiler, rows) = recorded(include_str!("../instructions.txt"));
        assert!(compiler.is_some());
        for (what, size, list, _) in CASES {
            let case = (what, size, list);
            let is = |row: &Row| (row.what.as_str(), row.size, row.list) == case;
            assert!(rows.iter().any(is), "{case:?}");
        }
    }
}

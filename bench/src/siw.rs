//! Measures uwarp, Linux siw and raw TCP in the same virtual machine and in the same boot.
//!
//! The machine is the guest of the interop tests: QEMU without KVM, with an emulated processor. Its
//! figures can only be compared with each other. Raw TCP is the bound for a program without help
//! from the kernel. siw runs in the kernel, so it may be faster.

use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use uwarp_interop::{Guest, Image, NetDevice, Unready};

use crate::document;
use crate::machine;
use crate::progress;
use crate::raw::{CLIENT, Kind, Load, SERVER};
use crate::sample::Sample;
use crate::stats::{Ratios, Spread, digits};
use crate::verdicts::{MET, NOT_MEASURED, NOT_MET};

/// Address of the guest.
const ADDRESS: &str = "192.0.2.2";
/// Duration of one measurement of raw TCP.
const RAW_TIME: Duration = Duration::from_secs(1);
/// First argument of the program for this benchmark.
const NAME: &str = "siw";

/// Options of `uwarp-bench siw`.
#[derive(Parser, Debug)]
#[command(
    name = "uwarp-bench siw",
    about = "uwarp beside Linux siw, in a virtual machine"
)]
struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds; each measures everything once, siw and uwarp by turns
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Report to write: a section of this run replaces that of an earlier one
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// Runs this benchmark if the program's first argument is its name.
pub(crate) fn is_wanted(args: &[String]) -> Option<io::Result<()>> {
    let (program, rest) = args.split_first()?;
    let (name, rest) = rest.split_first()?;
    (name == NAME).then(|| run(&Options::parse_from([program].into_iter().chain(rest))))
}

/// A test that perftest and `uwarp perf` both have, with the same name and options.
#[derive(Clone, Copy, Debug)]
struct Test {
    name: &'static str,
    size: u32,
    options: &'static str,
}

const TESTS: [Test; 13] = [
    test("write_bw", 64 << 10, "-n 1000 -t 16"),
    test("read_bw", 64 << 10, "-n 1000 -t 16 -o 16"),
    test("send_bw", 64 << 10, "-n 1000 -t 16 -r 64"),
    test("write_bw", 1 << 20, "-n 100 -t 16"),
    test("read_bw", 1 << 20, "-n 100 -t 16 -o 16"),
    test("send_bw", 1 << 20, "-n 100 -t 16 -r 64"),
    test("write_bw", 4 << 10, "-n 5000 -t 64"),
    test("read_bw", 4 << 10, "-n 5000 -t 64 -o 64"),
    test("send_bw", 4 << 10, "-n 5000 -t 64 -r 256"),
    test("write_bw", 8, "-n 20000 -t 64"),
    test("write_lat", 8, "-n 5000"),
    test("send_lat", 8, "-n 5000"),
    test("read_lat", 8, "-n 5000"),
];

const fn test(name: &'static str, size: u32, options: &'static str) -> Test {
    Test {
        name,
        size,
        options,
    }
}

impl Test {
    fn is_latency(self) -> bool {
        self.name.ends_with("lat")
    }

    /// Returns the ratio in favor of `ours`. Above 1, `ours` is faster.
    fn ahead(self, ours: &[f64], theirs: &[f64]) -> Option<Spread> {
        let samples =
            |values: &[f64]| -> Vec<Sample> { values.iter().copied().map(Sample::of).collect() };
        let (ours, theirs) = (samples(ours), samples(theirs));
        let ratios = if self.is_latency() {
            Ratios::of(&theirs, &ours)
        } else {
            Ratios::of(&ours, &theirs)
        };
        ratios.spread()
    }
}

/// Program that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// Raw TCP: a stream with writes of the test's size, or a ping-pong with both sides spinning.
    Raw,
    Siw,
    OursWithout,
    OursWith,
}

impl Who {
    const ALL: [Who; 4] = [Who::Raw, Who::Siw, Who::OursWithout, Who::OursWith];

    /// Returns the script for the guest's shell.
    fn script(self, test: Test, port: u16, this: &str) -> String {
        match self {
            Who::Raw => raw_script(test, this),
            _ => script(&self.command(test, port), ADDRESS, port),
        }
    }

    /// Returns the command of both sides, without the server's address.
    fn command(self, test: Test, port: u16) -> String {
        let Test {
            name,
            size,
            options,
        } = test;
        match self {
            Who::Raw => String::new(),
            Who::Siw => format!("ib_{name} -R -p {port} -s {size} {options} -F"),
            Who::OursWithout => format!(
                "uwarp perf {name} -p {port} -s {size} {options} --device tcp:{ADDRESS} --crc off"
            ),
            Who::OursWith => {
                format!("uwarp perf {name} -p {port} -s {size} {options} --device tcp:{ADDRESS}")
            }
        }
    }
}

/// Returns the script for the guest. It starts a server, waits for its listener, and prints the
/// output of a client. It does not probe the server by a connection, because such a probe can crash
/// siw.
fn script(command: &str, address: &str, port: u16) -> String {
    // perftest takes the address first or last. `uwarp perf` takes it after the name of the test.
    let (program, rest) = match command.split_once("uwarp perf ") {
        Some((_, rest)) => {
            let (test, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            (format!("uwarp perf {test} {address}"), rest.to_owned())
        }
        None => (command.to_owned(), address.to_owned()),
    };
    format!(
        "{command} >/tmp/server.log 2>&1 &\n\
         server=$!\n\
         tries=0\n\
         until grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp; do\n\
         \ttries=$((tries + 1))\n\
         \t[ $tries -lt 500 ] && kill -0 $server 2>/dev/null || {{ kill -9 $server 2>/dev/null; cat /tmp/server.log; exit 9; }}\n\
         \tusleep 20000\n\
         done\n\
         timeout 40 {program} {rest} 2>&1\n\
         code=$?\n\
         [ $code = 0 ] || cat /tmp/server.log\n\
         kill -9 $server 2>/dev/null\n\
         exit $code\n"
    )
}

/// Returns a script with `this` program as server and client of raw TCP.
fn raw_script(test: Test, this: &str) -> String {
    let kind = match test.is_latency() {
        true => Kind::Spin,
        false => Kind::Stream,
    };
    let load = Load {
        kind,
        size: test.size as usize,
        time: RAW_TIME,
    };
    let [kind, size, time] = load.words();
    format!(
        "{this} {SERVER} '' {ADDRESS} >/tmp/server.log 2>&1 &\n\
         server=$!\n\
         tries=0\n\
         until grep -q : /tmp/server.log; do\n\
         \ttries=$((tries + 1))\n\
         \t[ $tries -lt 500 ] && kill -0 $server 2>/dev/null || {{ kill -9 $server 2>/dev/null; cat /tmp/server.log; exit 9; }}\n\
         \tusleep 20000\n\
         done\n\
         timeout 40 {this} {CLIENT} '' $(head -n 1 /tmp/server.log) {kind} {size} {time} 2>&1\n\
         code=$?\n\
         kill -9 $server 2>/dev/null\n\
         exit $code\n"
    )
}

/// Parses the output of a raw TCP client: bytes per second, or seconds one way.
fn parse_raw(said: &str, test: Test) -> Option<f64> {
    let said: serde_json::Value = serde_json::from_str(said.trim()).ok()?;
    let value = said["value"].as_f64()?;
    // A Read takes a whole round trip.
    let ways = if test.name == "read_lat" { 2.0 } else { 1.0 };
    (value.is_finite() && value > 0.0).then_some(ways * value)
}

/// Parses the table that perftest and `uwarp perf` print. Converts MB/s (2^20 bytes) to bytes per
/// second, and microseconds to seconds.
fn parse(said: &str, test: Test) -> Option<f64> {
    let mut lines = said
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    lines.next()?;
    let row: Vec<f64> = lines
        .next()?
        .split_whitespace()
        .map_while(|word| word.parse().ok())
        .collect();
    // The columns are bytes and iterations, then peak, average and rate of a bandwidth, or minimum,
    // maximum and typical value of a latency.
    let value = if test.is_latency() {
        row.get(4)? / 1e6
    } else {
        row.get(3)? * f64::from(1 << 20)
    };
    // After the loss of a message perftest prints a rate of 0.
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Results: for each test, the values of all rounds for each program.
struct Measured {
    values: Vec<[Vec<f64>; 4]>,
    versions: Vec<String>,
    failures: Vec<String>,
}

fn run(options: &Options) -> io::Result<()> {
    let measured = match measure(options) {
        Ok(measured) => measured,
        Err(Unready::Missing(why)) => {
            println!("SKIPPED: {why}");
            return Ok(());
        }
        Err(Unready::Failed(why)) => return Err(io::Error::other(why)),
    };
    let text = report(&measured, options.rounds);
    println!("{text}");
    match &options.write {
        Some(path) => document::write(path, &[("Beside Linux siw", text)]),
        None => Ok(()),
    }
}

fn measure(options: &Options) -> Result<Measured, Unready> {
    let failed = |error: &dyn std::fmt::Display| Unready::Failed(error.to_string());
    let mut programs = vec![options.uwarp.clone()];
    for name in [
        "write_bw",
        "read_bw",
        "send_bw",
        "write_lat",
        "send_lat",
        "read_lat",
    ] {
        let path = PathBuf::from(format!("/usr/bin/ib_{name}"));
        if !path.exists() {
            return Err(Unready::Missing(format!(
                "{} is not installed (Debian: perftest)",
                path.display()
            )));
        }
        programs.push(path);
    }
    let itself = std::env::current_exe().map_err(|error| failed(&error))?;
    let this = (itself.file_name()).map_or_else(String::new, |name| name.to_string_lossy().into());
    programs.push(itself);
    let dir = std::env::temp_dir().join(format!("uwarp-bench-siw-{}", std::process::id()));
    std::fs::create_dir(&dir).map_err(|error| failed(&error))?;
    let _dir = Removed(dir.clone());
    let image = Image::find()?.with_programs(&programs, &dir)?;
    let wire = NetDevice::User {
        forward: Vec::new(),
    };
    let addresses = [format!("{ADDRESS}/24")];
    let (mut guest, _agent) =
        Guest::boot(&image, &wire, &addresses, None).map_err(|failure| failed(&failure))?;
    let mut measured = Measured {
        values: vec![Default::default(); TESTS.len()],
        versions: image.versions.clone(),
        failures: Vec::new(),
    };
    let mut port = 20_000;
    for round in 1..=options.rounds {
        for (test, values) in TESTS.iter().zip(&mut measured.values) {
            for (who, values) in Who::ALL.into_iter().zip(values) {
                progress::now(format_args!(
                    "siw, round {round} of {}: {} of {} B, {who:?}",
                    options.rounds, test.name, test.size
                ));
                // siw sometimes loses the first message of a connection, because of a wake-up that
                // is too early. The client then waits forever.
                let mut value = Err(String::new());
                for _ in 0..3 {
                    port += 1;
                    value = once(&mut guest, *test, who, port, &this);
                    if value.is_ok() {
                        break;
                    }
                }
                values.push(value.unwrap_or_else(|why| {
                    let line = format!("{who:?}, {} of {} B: {why}", test.name, test.size);
                    progress::tell(format_args!("{line}"));
                    measured.failures.push(line);
                    f64::NAN
                }));
                if let Some(trouble) = guest.trouble() {
                    return Err(Unready::Failed(format!(
                        "the guest is in trouble: {trouble}"
                    )));
                }
            }
        }
    }
    progress::over();
    Ok(measured)
}

fn once(guest: &mut Guest, test: Test, who: Who, port: u16, this: &str) -> Result<f64, String> {
    let output = guest
        .run(&who.script(test, port, this), Duration::from_secs(90))
        .map_err(|failure| failure.to_string())?;
    let last = || {
        let mut lines = output.text.lines();
        let line = lines.rfind(|line| !line.trim().is_empty());
        line.unwrap_or("nothing was said").trim().to_owned()
    };
    if output.code != 0 {
        return Err(format!("exit code {}: {}", output.code, last()));
    }
    let value = match who {
        Who::Raw => parse_raw(&output.text, test),
        _ => parse(&output.text, test),
    };
    value.ok_or_else(last)
}

fn report(measured: &Measured, rounds: usize) -> String {
    let mut text = format!(
        "{} Guest: {}.\n\n",
        machine::about_counts(rounds as u64),
        measured.versions.join(", ")
    );
    text.push_str(
        "| test | unit | raw TCP | siw, no CRC | uwarp, no CRC | ahead | target: ahead | uwarp, CRC | ahead |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    let mut behind = 0;
    for (test, [raw, siw, without, with]) in TESTS.iter().zip(&measured.values) {
        let (unit, scale) = match test.is_latency() {
            true => ("us", 1e-6),
            false => ("MB/s", 1e6),
        };
        let median = |values: &[f64]| {
            let spread = Spread::of(values.iter().map(|value| value / scale));
            spread.map_or_else(|| "failed".to_owned(), |spread| digits(spread.median))
        };
        let ahead = test.ahead(without, siw);
        let verdict = match ahead {
            Some(ahead) if ahead.median > 1.0 => MET,
            Some(_) => NOT_MET,
            None => NOT_MEASURED,
        };
        behind += usize::from(verdict != MET);
        let told =
            |ahead: Option<Spread>| ahead.map_or_else(|| "-".to_owned(), |ahead| ahead.to_string());
        let _ = writeln!(
            text,
            "| `{} -s {} {}` | {unit} | {} | {} | {} | {} | {verdict} | {} | {} |",
            test.name,
            test.size,
            test.options,
            median(raw),
            median(siw),
            median(without),
            told(ahead),
            median(with),
            told(test.ahead(with, siw)),
        );
    }
    let verdict = match behind {
        0 => {
            "Target (ahead of siw with its defaults, CRC off on both): met in every row.".to_owned()
        }
        behind => format!(
            "Target (ahead of siw with its defaults, CRC off on both): **not met** in {behind} of {} rows.",
            TESTS.len()
        ),
    };
    let _ = writeln!(text, "\n{verdict}");
    for failure in &measured.failures {
        let _ = writeln!(text, "\nFailed: {failure}.");
    }
    text
}

/// A directory that is removed on drop.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_perftest_are_read() {
        let said = "---\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      1000             208.10             153.00               0.002448\n---\n";
        let value = parse(said, TESTS[0]).unwrap();
        assert!((value - 153.0 * 1_048_576.0).abs() < 1.0);
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                    8       5000          13.10          900.00       15.80            16.20\n";
        let value = parse(said, TESTS[10]).unwrap();
        assert!((value - 15.8e-6).abs() < 1e-12);
        assert_eq!(parse(&said.replace("15.80", "0.00"), TESTS[10]), None);
        assert_eq!(parse("Couldn't connect to 192.0.2.2\n", TESTS[0]), None);
    }

    #[test]
    fn the_client_of_each_has_the_address_where_it_takes_it() {
        let siw = script(&Who::Siw.command(TESTS[0], 20_001), "192.0.2.2", 20_001);
        assert!(
            siw.contains("timeout 40 ib_write_bw -R -p 20001 -s 65536 -n 1000 -t 16 -F 192.0.2.2")
        );
        assert!(siw.contains(":4E21 00000000:0000 0A"));
        let ours = script(
            &Who::OursWithout.command(TESTS[10], 20_001),
            "192.0.2.2",
            20_001,
        );
        assert!(ours.contains("timeout 40 uwarp perf write_lat 192.0.2.2 -p 20001 -s 8 -n 5000"));
        assert!(ours.contains("--crc off"));
    }

    #[test]
    fn raw_tcp_spins_for_latency_and_a_read_goes_there_and_back() {
        let script = Who::Raw.script(TESTS[10], 20_001, "uwarp-bench");
        assert!(script.contains(&format!(
            "uwarp-bench raw-client '' $(head -n 1 /tmp/server.log) {} 8 1",
            Kind::Spin.byte()
        )));
        let said = "{\"cpu\":null,\"value\":2.5e-6}\n";
        assert_eq!(parse_raw(said, TESTS[10]), Some(2.5e-6));
        assert_eq!(parse_raw(said, TESTS[12]), Some(5e-6));
        assert_eq!(parse_raw("Connection refused\n", TESTS[0]), None);
    }

    #[test]
    fn behind_in_one_row_is_not_met() {
        let mut measured = Measured {
            values: vec![[vec![3.0], vec![1.0], vec![2.0], vec![1.5]]; TESTS.len()],
            versions: vec!["Linux 6.1".to_owned()],
            failures: Vec::new(),
        };
        for at in 10..13 {
            measured.values[at] = [vec![0.5], vec![2.0], vec![1.0], vec![1.5]];
        }
        assert!(report(&measured, 3).contains("met in every row"));
        measured.values[0][2] = vec![0.5];
        measured.values[1][2] = vec![f64::NAN];
        let text = report(&measured, 3);
        assert!(text.contains("**not met** in 2 of 13 rows"));
        let verdict = |at: usize| {
            let line = text.lines().filter(|line| line.starts_with("| `")).nth(at);
            line.unwrap().split(" | ").nth(6).unwrap()
        };
        assert_eq!(
            [verdict(0), verdict(1), verdict(2)],
            ["**not met**", "not measured", "met"]
        );
    }
}

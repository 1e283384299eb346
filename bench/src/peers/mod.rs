//! Other programs that move data over TCP. They are measured if they are installed.

mod iperf;
mod libfabric;
mod qperf;
mod ucx;

use std::collections::HashMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::process::{self, Pinning, Running, Side};

/// A program with its own tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    Ucx,
    Libfabric,
    Qperf,
    Iperf,
}

impl Program {
    pub(crate) const ALL: [Program; 4] = [
        Program::Ucx,
        Program::Libfabric,
        Program::Qperf,
        Program::Iperf,
    ];

    /// Returns the name of the command and its Debian package.
    pub(crate) fn names(self) -> (&'static str, &'static str) {
        match self {
            Program::Ucx => ("ucx_perftest", "ucx-utils"),
            Program::Libfabric => ("fi_pingpong", "libfabric-bin"),
            Program::Qperf => ("qperf", "qperf"),
            Program::Iperf => ("iperf3", "iperf3"),
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        process::installed(self.names().0)
    }

    /// Returns the version of its Debian package, or `None` if the package is not installed.
    pub(crate) fn version(self) -> Option<String> {
        version(self.names().1)
    }
}

/// Returns the version of a Debian package, or `None` if it is not installed.
pub(crate) fn version(package: &str) -> Option<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${Version}", package]);
    process::output(&mut query, Duration::from_secs(10))
        .ok()
        .filter(|version| !version.is_empty())
}

/// Installs the missing programs from Debian packages. This needs root.
pub(crate) fn install() -> io::Result<()> {
    install_packages(&Program::ALL.map(Program::names))
}

/// Installs the missing programs. Each element contains a program and its package.
pub(crate) fn install_packages(programs: &[(&str, &str)]) -> io::Result<()> {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| !process::installed(program))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("installing {}", missing.join(" "));
    let within = Duration::from_secs(600);
    let mut update = Command::new("apt-get");
    // A failure is ignored, because old package lists are sufficient.
    let _ = process::output(update.args(["update", "-qq"]), within);
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(missing);
    process::output(&mut install, within).map(drop)
}

/// A test of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Test {
    /// `ucp_put_bw` of UCX. Its value is bytes per second.
    UcxPut,
    /// `ucp_get` of UCX. Its value is bytes per second.
    UcxGet,
    /// `tag_bw` of UCX. Its value is bytes per second.
    UcxTag,
    /// `ucp_put_bw` with larger segments, which is faster than the default.
    UcxPutTuned,
    /// `ucp_get` with larger segments and several Gets outstanding, which is faster than the
    /// defaults.
    UcxGetTuned,
    /// `tag_bw` with larger segments, which is faster than the default.
    UcxTagTuned,
    /// `tag_lat` of UCX. Its value is seconds one way.
    UcxTagLatency,
    /// `fi_pingpong -p tcp` of libfabric. Its value is seconds one way.
    Pingpong,
    /// `tcp_bw` of qperf. Its value is bytes per second.
    QperfBandwidth,
    /// `tcp_lat` of qperf. Its value is seconds one way.
    QperfLatency,
    /// iperf3. Its value is bytes per second.
    Iperf,
}

impl Test {
    pub(crate) fn program(self) -> Program {
        match self {
            Test::UcxPut
            | Test::UcxGet
            | Test::UcxTag
            | Test::UcxPutTuned
            | Test::UcxGetTuned
            | Test::UcxTagTuned
            | Test::UcxTagLatency => Program::Ucx,
            Test::Pingpong => Program::Libfabric,
            Test::QperfBandwidth | Test::QperfLatency => Program::Qperf,
            Test::Iperf => Program::Iperf,
        }
    }

    /// Returns the name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Test::UcxPut => "UCX `ucp_put_bw`",
            Test::UcxGet => "UCX `ucp_get`",
            Test::UcxTag => "UCX `tag_bw`",
            Test::UcxPutTuned => "UCX `ucp_put_bw`, tuned",
            Test::UcxGetTuned => "UCX `ucp_get`, tuned",
            Test::UcxTagTuned => "UCX `tag_bw`, tuned",
            Test::UcxTagLatency => "UCX `tag_lat`",
            Test::Pingpong => "libfabric `fi_pingpong`",
            Test::QperfBandwidth => "qperf `tcp_bw`",
            Test::QperfLatency => "qperf `tcp_lat`",
            Test::Iperf => "iperf3",
        }
    }
}

/// Runs the programs, and keeps the rates of their tests.
pub(crate) struct Peers {
    pinning: Pinning,
    /// Messages per second of each test and size, from which the number of messages is derived.
    /// Most programs need this number.
    rates: HashMap<(Test, usize), f64>,
}

impl Peers {
    pub(crate) fn new(pinning: &Pinning) -> Self {
        Peers {
            pinning: pinning.clone(),
            rates: HashMap::new(),
        }
    }

    /// Takes one measurement of about this duration. The first measurement of a test and size also
    /// determines how many messages this takes.
    pub(crate) fn measure(&mut self, test: Test, size: usize, time: Duration) -> io::Result<f64> {
        if !test.program().is_installed() {
            let (command, package) = test.program().names();
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{command} is not installed (Debian: {package}; --install-peers)"),
            ));
        }
        match test {
            Test::QperfBandwidth | Test::QperfLatency => {
                return qperf::measure(self, test, size);
            }
            Test::Iperf => return iperf::measure(self, size),
            _ => {}
        }
        let rate = match self.rates.get(&(test, size)) {
            Some(rate) => *rate,
            None => {
                let count = 500.0;
                let value = self.count(test, size, 500)?;
                let rate = rate(test, size, value);
                // Repeats the measurement with more messages, because the first few hundred are
                // slow.
                let count = (rate * 0.05).clamp(count, 1e6);
                let value = self.count(test, size, count as u64)?;
                let rate = self::rate(test, size, value);
                self.rates.insert((test, size), rate);
                rate
            }
        };
        let count = (rate * time.as_secs_f64()).clamp(100.0, 1e8);
        self.count(test, size, count as u64)
    }

    fn count(&self, test: Test, size: usize, count: u64) -> io::Result<f64> {
        match test {
            Test::Pingpong => libfabric::measure(self, size, count),
            _ => ucx::measure(self, test, size, count),
        }
    }

    /// Starts a server, and waits until it listens.
    fn serve(&self, port: u16, program: &str, args: &[String]) -> io::Result<Running> {
        self.serve_with(port, program, args, &[])
    }

    /// Starts a server with more environment variables, and waits until it listens.
    fn serve_with(
        &self,
        port: u16,
        program: &str,
        args: &[String],
        more: ucx::Environment,
    ) -> io::Result<Running> {
        let running = self
            .pinning
            .command(Side::Server, program)
            .args(args)
            .envs(ucx::ENVIRONMENT)
            .envs(more.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Running)?;
        process::wait_for_listener(port)?;
        Ok(running)
    }

    /// Runs a client and returns its output.
    fn client(&self, program: &str, args: &[String]) -> io::Result<String> {
        self.client_with(program, args, &[])
    }

    fn client_with(
        &self,
        program: &str,
        args: &[String],
        more: ucx::Environment,
    ) -> io::Result<String> {
        let mut command = self.pinning.command(Side::Client, program);
        command.args(args).envs(ucx::ENVIRONMENT);
        process::output(command.envs(more.iter().copied()), Duration::from_secs(20))
    }
}

/// Returns the messages per second, from the value of a test.
fn rate(test: Test, size: usize, value: f64) -> f64 {
    match test {
        // The value is half a round trip, and each message takes a whole round trip.
        Test::UcxTagLatency | Test::Pingpong | Test::QperfLatency => 0.5 / value.max(1e-9),
        _ => value / size.max(1) as f64,
    }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Creates the error for unexpected output of a program.
pub(crate) fn strange(program: &str, said: &str) -> io::Error {
    let last = said
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or("nothing");
    io::Error::other(format!("{program} said: {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_messages_and_of_round_trips() {
        assert!((rate(Test::UcxPut, 8, 8e6) - 1e6).abs() < 1e-3);
        assert!((rate(Test::Pingpong, 8, 5e-6) - 1e5).abs() < 1e-3);
    }

    #[test]
    fn every_test_has_a_program_that_a_package_has() {
        for test in [
            Test::UcxPut,
            Test::Pingpong,
            Test::QperfLatency,
            Test::Iperf,
        ] {
            assert!(Program::ALL.contains(&test.program()));
            assert!(!test.program().names().1.is_empty());
        }
    }
}

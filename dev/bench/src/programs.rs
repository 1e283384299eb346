//! Programs with a server and a client, such as those of UCX and perftest. They are measured if
//! they are installed.

use std::collections::HashMap;
use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::perf::Uwarp;
use crate::process::{self, Pinning, Running, Side};
use crate::rows::{Sample, Unit};

/// A test of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool {
    /// Name in tables.
    pub(crate) name: &'static str,
    /// Program and its Debian package.
    pub(crate) program: (&'static str, &'static str),
    /// Environment variables, such as `NAME=1 OTHER=2`.
    pub(crate) environment: &'static str,
    /// Arguments of the server. `{options}`, `{port}`, `{size}` and `{count}` are replaced.
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    pub(crate) options: &'static str,
    /// Parser of the client's output: bytes per second, messages per second, or seconds.
    pub(crate) parse: fn(&str) -> Option<f64>,
    /// Unit of the parsed value. The value of `Unit::Rate` is multiplied by the size, and then has
    /// bytes per second.
    pub(crate) unit: Unit,
    /// True if a latency is that of a round trip. Otherwise it is half of one.
    pub(crate) round_trip: bool,
}

impl Tool {
    /// Replaces the placeholders in arguments.
    fn fill(&self, text: &str, port: &str, size: usize, count: &str) -> String {
        text.replace("{options}", self.options)
            .replace("{port}", port)
            .replace("{size}", &size.to_string())
            .replace("{count}", count)
    }

    /// Returns the messages per second, from the value of a measurement.
    fn rate(&self, size: usize, value: f64) -> f64 {
        match self.unit {
            // Each message takes a whole round trip.
            Unit::Latency if self.round_trip => 1.0 / value.max(1e-9),
            Unit::Latency => 0.5 / value.max(1e-9),
            _ => value / size.max(1) as f64,
        }
    }

    /// Describes how to repeat a measurement with messages of this size.
    pub(crate) fn how(&self, size: usize) -> String {
        let client = self.fill(self.client, "PORT", size, "COUNT");
        let how = format!("{} {} {client}", self.environment, self.program.0);
        format!("`{}`", how.trim())
    }
}

/// Runs the tests, and keeps the rates of their messages.
pub(crate) struct Programs {
    pinning: Pinning,
    /// The command under which programs run, if they run on its drop-in library.
    under: Option<Uwarp>,
    /// Messages per second of each test and size, from which the number of messages is derived.
    rates: HashMap<(&'static str, &'static str, usize), f64>,
}

impl Programs {
    pub(crate) fn new(pinning: &Pinning, under: Option<&Uwarp>) -> Self {
        Programs {
            pinning: pinning.clone(),
            under: under.cloned(),
            rates: HashMap::new(),
        }
    }

    /// Takes one measurement of about this duration. The first measurement of a test and size also
    /// determines how many messages this takes. Programs that measure a time measure a second.
    pub(crate) fn measure(
        &mut self,
        tool: &Tool,
        size: usize,
        pinned: bool,
        time: Duration,
    ) -> io::Result<Sample> {
        process::require(tool.program)?;
        let mut count = 0;
        if tool.client.contains("{count}") {
            let messages = self.rate(tool, size)? * time.as_secs_f64();
            count = messages.clamp(200.0, 1e6) as u64;
        }
        let pinning = if pinned { &self.pinning } else { &Pinning::ANY };
        self.once(tool, size, count, pinning).map(Sample::of)
    }

    fn rate(&mut self, tool: &Tool, size: usize) -> io::Result<f64> {
        let key = (tool.name, tool.options, size);
        if let Some(rate) = self.rates.get(&key) {
            return Ok(*rate);
        }
        let (mut count, mut rate) = (500, 0.0);
        // The second measurement has more messages, because the first few hundred are slow.
        for _ in 0..2 {
            rate = tool.rate(size, self.once(tool, size, count, &self.pinning)?);
            count = (rate * 0.05).clamp(500.0, 1e6) as u64;
        }
        self.rates.insert(key, rate);
        Ok(rate)
    }

    fn once(&self, tool: &Tool, size: usize, count: u64, pinning: &Pinning) -> io::Result<f64> {
        let port = process::free_port()?;
        let fill = |text| tool.fill(text, &port.to_string(), size, &count.to_string());
        let (server, client) = (fill(tool.server), fill(tool.client));
        let mut running = Running(
            self.command(tool, pinning, Side::Server, &server)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        process::wait_for_listener(port)?;
        let mut command = self.command(tool, pinning, Side::Client, &client);
        let said = process::output(&mut command, Duration::from_secs(30))?;
        if self.under.is_some() {
            // The server of perftest normally ends with its client. Otherwise it is killed.
            let _ = process::wait(&mut running, Duration::from_secs(2));
        }
        let value = (tool.parse)(&said).ok_or_else(|| process::strange(tool.program.0, &said))?;
        Ok(match tool.unit {
            Unit::Rate => value * size as f64,
            _ => value,
        })
    }

    fn command(&self, tool: &Tool, pinning: &Pinning, side: Side, args: &str) -> Command {
        let mut command = match &self.under {
            None => pinning.command(side, tool.program.0),
            Some(uwarp) => {
                let mut command = pinning.command(side, &uwarp.path);
                command
                    .env("UWARP_DEVICE", uwarp.device())
                    .args(["run", "--", tool.program.0]);
                command
            }
        };
        let environment = tool.environment.split_whitespace();
        command
            .args(args.split_whitespace())
            .envs(environment.filter_map(|setting| setting.split_once('=')));
        command
    }
}

/// Formats the versions of Debian packages.
pub(crate) fn versions(packages: &[&str]) -> String {
    let told = |package: &&str| {
        let mut query = Command::new("dpkg-query");
        query.args(["-W", "-f", "${Version}", package]);
        match process::output(&mut query, Duration::from_secs(10)) {
            Ok(version) if !version.is_empty() => format!("{package} {version}"),
            _ => format!("{package} is not installed"),
        }
    };
    let all = packages.iter().map(told).collect::<Vec<_>>();
    format!("Programs: {}.", all.join(", "))
}

/// Parses a table whose head begins with `first`: the number in the first row, and in the column
/// with this name.
pub(crate) fn column(
    said: &str,
    first: &str,
    separator: fn(char) -> bool,
    name: &str,
) -> Option<f64> {
    let words = |line| str::split(line, separator).filter(|word| !word.is_empty());
    let mut lines = said.lines().map(str::trim);
    let head = lines.find(|line| line.starts_with(first))?;
    let at = words(head).position(|word| word == name)?;
    words(lines.next()?).nth(at)?.parse().ok()
}

/// Parses the table of perftest and `uwarp perf`: bytes per second from MB/s (2^20 bytes), or the
/// median of a latency in seconds.
pub(crate) fn perftest(said: &str) -> Option<f64> {
    // The names of these columns contain spaces, which the names in other tables do not.
    let said = said
        .replace("BW peak", "BW_peak")
        .replace("BW average", "BW_average");
    let column = |name| column(&said, "#bytes", char::is_whitespace, name);
    let bandwidth = column("BW_average[MB/sec]").map(|value| value * f64::from(1 << 20));
    let latency = || column("t_typical[usec]").map(|value| value / 1e6);
    // After the loss of a message perftest prints a rate of 0.
    bandwidth.or_else(latency).filter(|value| *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_perftest_are_read_by_the_names_of_their_columns() {
        let said = "noise\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      500              2570.33            1773.50\t\t   0.028383\n";
        assert_eq!(perftest(said), Some(1773.5 * 1_048_576.0));
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]\n \
                    8       20000          3.61           4525.96      5.12     \t       13.51 \t155.32 \t\t16.69\n";
        assert!((perftest(said).unwrap() - 5.12e-6).abs() < 1e-12);
        assert_eq!(perftest(&said.replace("5.12", "0.00")), None);
        assert_eq!(perftest("Unable to init the socket connection\n"), None);
    }

    const TOOL: Tool = Tool {
        name: "",
        program: ("ib_send_lat", "perftest"),
        environment: "NAME=1",
        server: "",
        client: "{options} -p {port} -s{size} -n {count}",
        options: "-R -F",
        parse: perftest,
        unit: Unit::Bandwidth,
        round_trip: false,
    };

    #[test]
    fn arguments_have_their_options_and_numbers() {
        let words = TOOL.fill(TOOL.client, "7", 8, "9");
        assert_eq!(words, "-R -F -p 7 -s8 -n 9");
        let how = "`NAME=1 ib_send_lat -R -F -p PORT -s8 -n COUNT`";
        assert_eq!(TOOL.how(8), how);
    }

    #[test]
    fn a_rate_is_of_messages_and_of_round_trips() {
        assert!((TOOL.rate(8, 8e6) - 1e6).abs() < 1e-3);
        for (round_trip, latency) in [(false, 5e-6), (true, 10e-6)] {
            let tool = Tool {
                unit: Unit::Latency,
                round_trip,
                ..TOOL
            };
            assert!((tool.rate(8, latency) - 1e5).abs() < 1e-3);
        }
    }
}

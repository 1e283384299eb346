//! Runs perftest under `uwarp run`, with a server and a client for each measurement.

use std::collections::HashMap;
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::ours::Uwarp;
use crate::peers::strange;
use crate::process::{self, Pinning, Running, Side};

pub(super) const PACKAGE: &str = "perftest";
/// Program whose presence shows that perftest is installed.
pub(super) const PROGRAM: &str = "ib_write_bw";
/// Megabyte of perftest: 2^20 bytes.
const MEGA: f64 = 1_048_576.0;
/// Maximum number of messages in a measurement, because perftest stores a time for each.
const MOST: f64 = 1e6;

/// A program of perftest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Tool {
    WriteBw,
    ReadBw,
    SendBw,
    WriteLat,
    ReadLat,
    SendLat,
}

/// How the programs connect.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Way {
    /// With librdmacm (`-R`), in the persona `iwarp`.
    Cm,
    /// By the numbers of their queue pairs, in the persona `roce`. Writes complete as with `Cm`.
    Numbers,
    /// The same, and Writes complete when the peer has placed them, as the persona has it.
    NumbersPlaced,
}

impl Way {
    /// Options of `uwarp run`.
    pub(super) fn persona(self) -> &'static [&'static str] {
        match self {
            Way::Cm => &["--persona", "iwarp"],
            Way::Numbers | Way::NumbersPlaced => &["--persona", "roce"],
        }
    }

    /// Setting of the library.
    pub(super) fn setting(self) -> Option<(&'static str, &'static str)> {
        (self == Way::Numbers).then_some(("UWARP_PLACED_WRITES", "0"))
    }

    /// Options of the programs.
    pub(super) fn options(self) -> &'static [&'static str] {
        match self {
            Way::Cm => &["-R", "-F"],
            Way::Numbers | Way::NumbersPlaced => &["-F"],
        }
    }
}

impl Tool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Tool::WriteBw => "ib_write_bw",
            Tool::ReadBw => "ib_read_bw",
            Tool::SendBw => "ib_send_bw",
            Tool::WriteLat => "ib_write_lat",
            Tool::ReadLat => "ib_read_lat",
            Tool::SendLat => "ib_send_lat",
        }
    }

    pub(super) fn is_bandwidth(self) -> bool {
        matches!(self, Tool::WriteBw | Tool::ReadBw | Tool::SendBw)
    }

    /// Returns the duration of a message in seconds, from a value that perftest printed.
    fn duration(self, size: usize, value: f64) -> f64 {
        match self {
            Tool::WriteBw | Tool::ReadBw | Tool::SendBw => size as f64 / value.max(1.0),
            // A message takes a round trip, and perftest prints half of it.
            Tool::WriteLat | Tool::SendLat => 2.0 * value.max(1e-7),
            Tool::ReadLat => value.max(1e-7),
        }
    }
}

/// Parameters of a server and its client.
struct Pair<'a> {
    tool: Tool,
    way: Way,
    size: usize,
    count: u64,
    pinning: &'a Pinning,
}

/// Runs the programs, and keeps the duration of their messages.
pub(super) struct Perftest {
    uwarp: Uwarp,
    /// Duration of a message in seconds, by program, way and size.
    durations: HashMap<(Tool, Way, usize), f64>,
}

impl Perftest {
    pub(super) fn new(uwarp: &Uwarp) -> Self {
        Perftest {
            uwarp: uwarp.clone(),
            durations: HashMap::new(),
        }
    }

    /// Takes one measurement of about this duration. The first measurement of a tool and size also
    /// determines how many messages this takes.
    pub(super) fn measure(
        &mut self,
        (tool, way): (Tool, Way),
        size: usize,
        pinned: bool,
        time: Duration,
    ) -> io::Result<f64> {
        let count = self.count((tool, way), size, time)?;
        let free = Pinning { processors: None };
        let pinning = if pinned { &self.uwarp.pinning } else { &free };
        self.run(&Pair {
            tool,
            way,
            size,
            count,
            pinning,
        })
    }

    /// Runs two unpinned pairs with 8-byte messages at the same time. Returns the worse value.
    pub(super) fn crowd(&mut self, tool: Tool, time: Duration) -> io::Result<f64> {
        // Uses a quarter of the messages, because the pairs may take four times as long.
        let count = (self.count((tool, Way::Cm), 8, time)? / 4).max(200);
        let pair = Pair {
            tool,
            way: Way::Cm,
            size: 8,
            count,
            pinning: &Pinning { processors: None },
        };
        let this = &*self;
        let both = thread::scope(|scope| {
            let other = scope.spawn(|| this.run(&pair));
            [
                this.run(&pair),
                other
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("panicked"))),
            ]
        });
        let [one, other] = both;
        Ok(one?.max(other?))
    }

    fn count(&mut self, (tool, way): (Tool, Way), size: usize, time: Duration) -> io::Result<u64> {
        let duration = match self.durations.get(&(tool, way, size)) {
            Some(duration) => *duration,
            None => {
                let pair = Pair {
                    tool,
                    way,
                    size,
                    count: if tool.is_bandwidth() { 200 } else { 2000 },
                    pinning: &self.uwarp.pinning,
                };
                let value = self.run(&pair)?;
                let duration = tool.duration(size, value);
                self.durations.insert((tool, way, size), duration);
                duration
            }
        };
        Ok((time.as_secs_f64() / duration).clamp(200.0, MOST) as u64)
    }

    fn run(&self, pair: &Pair<'_>) -> io::Result<f64> {
        let name = pair.tool.name();
        if !process::installed(name) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                format!("{name} is not installed (Debian: {PACKAGE}; --install-peers)"),
            ));
        }
        let port = process::free_port()?;
        let mut server = Running(
            self.command(pair, Side::Server, port)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?,
        );
        process::wait_for_listener(port)?;
        let mut client = self.command(pair, Side::Client, port);
        let said = process::output(client.arg("127.0.0.1"), Duration::from_secs(30))?;
        // The server normally ends with its client. Otherwise it is killed.
        let _ = process::wait(&mut server, Duration::from_secs(2));
        parse(pair.tool, &said).ok_or_else(|| strange(name, &said))
    }

    fn command(&self, pair: &Pair<'_>, side: Side, port: u16) -> Command {
        let mut command = pair.pinning.command(side, &self.uwarp.path);
        command
            .env("UWARP_DEVICE", self.uwarp.kernel("127.0.0.1"))
            .envs(pair.way.setting())
            .arg("run")
            .args(pair.way.persona())
            .args(["--", pair.tool.name()])
            .args(pair.way.options())
            .args(["-p", &port.to_string()])
            .args(["-s", &pair.size.to_string()])
            .args(["-n", &pair.count.to_string()]);
        command
    }
}

/// Parses the single row of results: the average of a bandwidth in bytes per second, or the median
/// of a latency in seconds.
fn parse(tool: Tool, said: &str) -> Option<f64> {
    let mut lines = said
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let head = lines.next()?;
    let number = |at: usize, line: &str| line.split_whitespace().nth(at)?.parse::<f64>().ok();
    if tool.is_bandwidth() {
        // The names of these columns contain spaces, so the column is selected by its position.
        head.contains("BW average[MB/sec]").then_some(())?;
        return Some(number(3, lines.next()?)? * MEGA);
    }
    let at = head
        .split_whitespace()
        .position(|name| name == "t_typical[usec]")?;
    Some(number(at, lines.next()?)? / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_rows_are_read_by_the_names_of_their_columns() {
        let said = "noise\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    65536      500              2570.33            1773.50\t\t   0.028383\n";
        assert_eq!(parse(Tool::ReadBw, said), Some(1773.5 * MEGA));
        let said = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]\n \
                    8       20000          3.61           4525.96      5.12     \t       13.51 \t155.32 \t\t16.69\n";
        let typical = parse(Tool::SendLat, said).unwrap();
        assert!((typical - 5.12e-6).abs() < 1e-12);
        assert_eq!(
            parse(Tool::SendLat, "Unable to init the socket connection\n"),
            None
        );
    }

    #[test]
    fn a_message_takes_a_round_trip_where_halves_are_told() {
        assert!((Tool::SendLat.duration(8, 4e-6) - 8e-6).abs() < 1e-12);
        assert!((Tool::ReadLat.duration(8, 8e-6) - 8e-6).abs() < 1e-12);
        assert!((Tool::WriteBw.duration(1 << 20, MEGA) - 1.0).abs() < 1e-12);
    }
}

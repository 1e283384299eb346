//! Measures with `uwarp perf` as users run it, in two processes of the command.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::process::{self, Pinning, Running, Side};
use crate::rows::{Sample, Unit};

/// Path of the command, and options for all its calls.
#[derive(Clone, Debug)]
pub(crate) struct Uwarp {
    pub(crate) path: PathBuf,
    pub(crate) congestion: String,
    pub(crate) pinning: Pinning,
    pub(crate) with: Vec<String>,
}

impl Uwarp {
    /// Returns the device: kernel TCP over the loopback device.
    pub(crate) fn device(&self) -> String {
        format!("tcp:127.0.0.1,congestion={}", self.congestion)
    }

    fn command(&self, side: Side, crc: bool) -> Command {
        let mut command = self.pinning.command(side, &self.path);
        command.args(["perf", "--device", &self.device()]);
        if !crc {
            command.args(["--crc", "off"]);
        }
        command.args(&self.with);
        command
    }
}

/// A running `uwarp perf` server, which is killed on drop.
pub(crate) struct Server {
    uwarp: Uwarp,
    crc: bool,
    addr: SocketAddr,
    _running: Running,
}

impl Server {
    /// Starts a server on the loopback device.
    pub(crate) fn start(uwarp: &Uwarp, crc: bool) -> io::Result<Self> {
        let child = uwarp
            .command(Side::Server, crc)
            .args(["-P", "-p0"])
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("{}: {error}", uwarp.path.display())))?;
        let mut running = Running(child);
        let stdout = running.0.stdout.take().map(BufReader::new);
        let mut lines = stdout.into_iter().flat_map(BufRead::lines);
        let addr = lines.find_map(|line| {
            let line = line.ok()?;
            line.contains("Waiting for client")
                .then(|| line.split_whitespace().last()?.parse().ok())?
        });
        // The rest of the output is not needed, but the pipe must not fill up.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Server {
            uwarp: uwarp.clone(),
            crc,
            addr: addr.ok_or_else(|| io::Error::other("uwarp perf did not start"))?,
            _running: running,
        })
    }

    /// Runs one test of a client: the name of the test and its options. The unit selects a figure
    /// of the results.
    pub(crate) fn measure(&self, test: &str, unit: Unit, time: Duration) -> io::Result<Sample> {
        let (name, options) = test.split_once(' ').unwrap_or((test, ""));
        let mut command = self.uwarp.command(Side::Client, self.crc);
        command
            .args([name, &self.addr.ip().to_string(), "--json"])
            .args(["-p", &self.addr.port().to_string()])
            .args(["-D", &time.as_secs_f64().to_string()])
            .args(options.split_whitespace());
        let said = process::output(&mut command, time + Duration::from_secs(60))?;
        sample(&serde_json::from_str(&said)?, unit)
            .ok_or_else(|| io::Error::other(format!("uwarp perf says {said}")))
    }
}

/// Parses the JSON results of a run.
fn sample(results: &Value, unit: Unit) -> Option<Sample> {
    let row = &results["rows"][0];
    let figures = &row["figures"];
    let value = match unit {
        Unit::Bandwidth => figures["bandwidth"]["average"].as_f64()?,
        Unit::Rate => figures["bandwidth"]["rate"].as_f64()?,
        Unit::Latency => figures["latency"]["p50"].as_f64()? / 1e6,
        Unit::Memory => return None,
    };
    let plan = &results["plan"];
    let gigabytes =
        |messages: f64| Some(messages * row["size"].as_f64()? / 1e9).filter(|count| *count > 0.0);
    let messages = row["messages"].as_f64()?;
    // The processor time of the server includes the warm-up.
    let warm_up = plan["warm_up"].as_f64()? * plan["qps"].as_f64()?;
    let cpu = || {
        let client = row["cpu"].as_f64()? / gigabytes(messages)?;
        Some(client + row["peer_cpu"].as_f64()? / gigabytes(messages + warm_up)?)
    };
    let cpu = cpu();
    Some(Sample { value, cpu })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_json_of_a_run_gives_a_value_and_processor_time() {
        let results = |figures: Value| {
            json!({
                "plan": { "warm_up": 1000, "qps": 1 },
                "rows": [{
                    "size": 1_000_000, "messages": 1000, "cpu": 0.5, "peer_cpu": 0.4, "figures": figures,
                }],
            })
        };
        let bandwidth = json!({ "average": 4e9, "peak": 5e9, "rate": 4000.0 });
        let run = results(json!({ "bandwidth": bandwidth }));
        let bandwidth = sample(&run, Unit::Bandwidth).unwrap();
        assert!((bandwidth.value - 4e9).abs() < 1.0);
        // The client takes 0.5 s for 1 GB, and the server 0.4 s for 2 GB.
        assert!((bandwidth.cpu.unwrap() - 0.7).abs() < 1e-9);
        assert!((sample(&run, Unit::Rate).unwrap().value - 4e3).abs() < 1e-9);
        assert!(sample(&run, Unit::Latency).is_none());
        // A latency is in microseconds.
        let run = results(json!({ "latency": { "p50": 3.5 } }));
        let latency = sample(&run, Unit::Latency).unwrap();
        assert!((latency.value - 3.5e-6).abs() < 1e-12);
    }
}

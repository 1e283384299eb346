//! Measures with `uwarp perf` as users run it, in two processes of the command.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::process::{self, Pinning, Running, Side};
use crate::sample::Sample;

/// Path of the command, and options for all its calls.
#[derive(Clone, Debug)]
pub(crate) struct Uwarp {
    pub(crate) path: PathBuf,
    pub(crate) congestion: Option<String>,
    pub(crate) pinning: Pinning,
    pub(crate) with: Vec<String>,
}

impl Uwarp {
    /// Returns the value of `--device` for kernel TCP at an address.
    pub(crate) fn kernel(&self, host: &str) -> String {
        match &self.congestion {
            None => format!("tcp:{host}"),
            Some(name) => format!("tcp:{host},congestion={name}"),
        }
    }

    fn command(&self, side: Side, device: &str, crc: bool) -> Command {
        let mut command = self.pinning.command(side, &self.path);
        command.args(["perf", "--device", device]);
        if !crc {
            command.args(["--crc", "off"]);
        }
        command.args(&self.with);
        command
    }

    /// Returns the output of `uwarp --version`.
    pub(crate) fn version(&self) -> String {
        let said = process::output(
            Command::new(&self.path).arg("--version"),
            Duration::from_secs(10),
        );
        said.map_or_else(|error| error.to_string(), |said| said.trim().to_owned())
    }
}

/// Figure that is taken from the results of `uwarp perf`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Metric {
    /// Payload bytes per second.
    Bandwidth,
    /// Messages per second.
    Rate,
    /// Median of the latency in seconds.
    Latency,
}

/// A running `uwarp perf` server, which is killed on drop.
pub(crate) struct Server {
    uwarp: Uwarp,
    crc: bool,
    addr: SocketAddr,
    /// Value of `--device` for the clients.
    device: String,
    _running: Running,
}

impl Server {
    /// Starts a server for clients on the loopback device.
    pub(crate) fn start(uwarp: &Uwarp, crc: bool) -> io::Result<Self> {
        let device = uwarp.kernel("127.0.0.1");
        Self::between(uwarp, crc, &device, &device)
    }

    /// Starts a server on one device, for clients on another device.
    pub(crate) fn between(
        uwarp: &Uwarp,
        crc: bool,
        device: &str,
        client: &str,
    ) -> io::Result<Self> {
        let child = uwarp
            .command(Side::Server, device, crc)
            .args(["-P", "-p0"])
            .stdout(Stdio::piped())
            .spawn()?;
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
            device: client.to_owned(),
            addr: addr.ok_or_else(|| io::Error::other("uwarp perf did not start"))?,
            _running: running,
        })
    }

    /// Runs one test of a client. `test` is its name and its options.
    pub(crate) fn measure(
        &self,
        test: &[&str],
        metric: Metric,
        time: Duration,
    ) -> io::Result<Sample> {
        let [name, options @ ..] = test else {
            return Err(io::Error::other("a test without a name"));
        };
        let mut command = self.uwarp.command(Side::Client, &self.device, self.crc);
        command
            .args([*name, &self.addr.ip().to_string(), "--json"])
            .args(["-p", &self.addr.port().to_string()])
            .args(["-D", &time.as_secs_f64().to_string()])
            .args(options);
        let said = process::output(&mut command, time + Duration::from_secs(60))?;
        sample(&serde_json::from_str(&said)?, metric)
            .ok_or_else(|| io::Error::other(format!("uwarp perf says {said}")))
    }
}

/// Parses the JSON results of a run.
fn sample(results: &Value, metric: Metric) -> Option<Sample> {
    let row = &results["rows"][0];
    let figures = &row["figures"];
    let value = match metric {
        Metric::Bandwidth => figures["bandwidth"]["average"].as_f64()?,
        Metric::Rate => figures["bandwidth"]["rate"].as_f64()?,
        Metric::Latency => figures["latency"]["p50"].as_f64()? / 1e6,
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
    Some(Sample {
        cpu: cpu(),
        ..Sample::of(value)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_json_of_a_run_gives_a_value_and_processor_time() {
        let results = json!({
            "plan": { "warm_up": 1000, "qps": 1 },
            "rows": [{
                "size": 1_000_000, "messages": 1000, "cpu": 0.5, "peer_cpu": 0.4,
                "figures": { "bandwidth": { "average": 4e9, "peak": 5e9, "rate": 4000.0 } },
            }],
        });
        let bandwidth = sample(&results, Metric::Bandwidth).unwrap();
        assert!((bandwidth.value - 4e9).abs() < 1.0);
        // The client takes 0.5 s for 1 GB, and the server 0.4 s for 2 GB.
        assert!((bandwidth.cpu.unwrap() - 0.7).abs() < 1e-9);
        assert!((sample(&results, Metric::Rate).unwrap().value - 4e3).abs() < 1e-9);
        assert!(sample(&results, Metric::Latency).is_none());
    }

    #[test]
    fn a_latency_is_in_seconds() {
        let results = json!({
            "plan": { "warm_up": 100, "qps": 1 },
            "rows": [{
                "size": 8, "messages": 1000, "cpu": 0.5, "peer_cpu": 0.4,
                "figures": { "latency": { "p50": 3.5 } },
            }],
        });
        let latency = sample(&results, Metric::Latency).unwrap();
        assert!((latency.value - 3.5e-6).abs() < 1e-12);
    }
}

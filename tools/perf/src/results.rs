//! Results of a test.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::plan::Plan;

/// Results of a plan.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Results {
    /// Plan that was measured.
    pub plan: Plan,
    /// Congestion control of the client's connections, if it is known.
    pub congestion: Option<String>,
    /// One row for each measurement.
    pub rows: Vec<Row>,
}

impl Results {
    /// Creates results from the rows of a program that uses [`Client`](crate::Client).
    #[must_use]
    pub const fn new(plan: Plan, congestion: Option<String>, rows: Vec<Row>) -> Self {
        Results {
            plan,
            congestion,
            rows,
        }
    }
}

/// Results for one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Row {
    /// Size of a message in bytes.
    pub size: u32,
    /// Number of measured messages, on all QPs.
    pub messages: u64,
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// Bandwidth or latency.
    pub figures: Figures,
    /// Processor time of this process in seconds: user and system, all threads.
    pub cpu: f64,
    /// Busy time of all processors of this machine, in percent (`/proc/stat`); `None` if unknown.
    pub machine_cpu: Option<f64>,
    /// Processor time of the other side in seconds. It is 0 in a server's own rows.
    pub peer_cpu: f64,
    /// Result of the server's own measurement, if both sides send.
    pub opposite: Option<Box<Row>>,
    /// Time of each message in microseconds, in the order of the messages, if the plan asks for
    /// these times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

/// Figures of a bandwidth test or of a latency test.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figures {
    /// Result of a bandwidth test.
    Bandwidth(Bandwidth),
    /// Result of a latency test.
    Latency(Latency),
}

/// Bandwidth and message rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Bandwidth {
    /// Bytes of payload per second, on all QPs.
    pub average: f64,
    /// Bytes of payload per second in the fastest part of the measurement. A part is 1/32 of the
    /// plan's iterations on all QPs, but at least `tx_depth` messages. `None` if the plan does not
    /// ask for the peak.
    pub peak: Option<f64>,
    /// Messages a second.
    pub rate: f64,
}

/// Latency in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Median.
    pub p50: f64,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub deviation: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p999: f64,
}

impl Row {
    /// Number of measured bytes of payload.
    #[must_use]
    pub fn bytes(&self) -> f64 {
        self.messages as f64 * f64::from(self.size)
    }

    /// Seconds of processor time for 10^9 bytes, at this side and at the other side. `None` if no
    /// bytes were measured.
    #[must_use]
    pub fn cpu_per_gb(&self) -> Option<(f64, f64)> {
        let gigabytes = self.bytes() / 1e9;
        (gigabytes > 0.0).then(|| (self.cpu / gigabytes, self.peer_cpu / gigabytes))
    }
}

impl Bandwidth {
    /// Computes the figures of `messages` in `took`. `peak`: messages per second in the fastest
    /// part.
    pub(crate) fn new(messages: u64, size: u32, took: Duration, peak: Option<f64>) -> Self {
        let seconds = took.as_secs_f64().max(1e-9);
        let rate = messages as f64 / seconds;
        let average = rate * f64::from(size);
        Bandwidth {
            average,
            peak: peak.map(|peak| (peak * f64::from(size)).max(average)),
            rate,
        }
    }
}

/// Times of messages. The histogram keeps three significant digits of each time.
pub(crate) struct Times {
    histogram: Histogram<u64>,
    /// All times, if the plan asks for them. The memory is allocated before the first message.
    samples: Vec<u64>,
    keeps: bool,
    /// Factor that converts a recorded time to a reported time: 0.5 for a round trip, otherwise 1.
    unit: f64,
}

impl Times {
    /// Creates an empty record for times of up to a minute. `halved`: recorded times are round
    /// trips, and half of each is reported. `samples`: number of messages whose times are kept one
    /// by one, if any.
    pub(crate) fn new(halved: bool, samples: Option<u64>) -> Self {
        let room = samples.map_or(0, |count| usize::try_from(count).unwrap_or(0));
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        Times {
            // This cannot fail, because the bounds and the number of digits are valid.
            histogram: histogram.unwrap_or_else(|_| unreachable!("bounds of a histogram")),
            samples: Vec::with_capacity(room),
            keeps: samples.is_some(),
            unit: if halved { 0.5 } else { 1.0 },
        }
    }

    pub(crate) fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos.max(1));
        if self.keeps {
            self.samples.push(nanos);
        }
    }

    /// Returns the kept times in microseconds.
    pub(crate) fn samples(&self) -> Vec<f64> {
        let micros = |nanos: &u64| *nanos as f64 * self.unit / 1_000.0;
        self.samples.iter().map(micros).collect()
    }

    pub(crate) fn latency(&self) -> Latency {
        let micros = |nanos: f64| nanos * self.unit / 1_000.0;
        let quantile = |part: f64| micros(self.histogram.value_at_quantile(part) as f64);
        Latency {
            min: micros(self.histogram.min() as f64),
            max: micros(self.histogram.max() as f64),
            p50: quantile(0.5),
            mean: micros(self.histogram.mean()),
            deviation: micros(self.histogram.stdev()),
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_counts_half_and_percentiles_are_of_all() {
        let mut times = Times::new(true, Some(1_000));
        for micros in 1..=1_000 {
            times.record(micros * 2_000);
        }
        let latency = times.latency();
        let near = |is: f64, due: f64| assert!((is - due).abs() <= due / 500.0, "{is} {due}");
        near(latency.min, 1.0);
        near(latency.p50, 500.0);
        near(latency.p99, 990.0);
        near(latency.p999, 999.0);
        near(latency.max, 1000.0);
        near(latency.mean, 500.5);
        let due: Vec<f64> = (1..=1_000).map(f64::from).collect();
        assert_eq!(times.samples(), due);
    }

    #[test]
    fn the_average_is_of_all_and_the_peak_never_below() {
        let bandwidth = Bandwidth::new(1_000, 1_000_000, Duration::from_secs(1), Some(1.0));
        assert!((bandwidth.average - 1e9).abs() < 1.0);
        assert!((bandwidth.rate - 1e3).abs() < 1e-6);
        assert!(bandwidth.peak >= Some(bandwidth.average));
        let without = Bandwidth::new(1_000, 1_000_000, Duration::from_secs(1), None);
        assert_eq!(without.peak, None);
    }
}

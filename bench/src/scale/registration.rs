//! Measures the speed of registration and deregistration.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use uwarp_verbs::{Buffer, Device, MemoryRegion};

use super::server::access;

/// Length of a region in bytes.
const REGION: usize = 64;
/// Minimum number of registrations that are timed.
const LEAST: usize = 100_000;

/// Name of the series of registrations in tables.
pub(super) const REGISTRATION: &str = "registration";

/// Registrations and deregistrations per second, for each number of regions.
pub(super) type Rates = Vec<[f64; 2]>;

/// Measures registration and deregistration of parts of a buffer, for each number of regions.
pub(super) fn measure(counts: &[usize]) -> io::Result<Rates> {
    let device = Device::tcp().map_err(io::Error::other)?;
    let pd = device.alloc_pd().map_err(io::Error::other)?;
    let mut rates = Vec::new();
    for &count in counts {
        let buffer = Arc::new(Buffer::from(vec![0; count * REGION]));
        let (mut done, mut registering, mut deregistering) = (0, 0.0, 0.0);
        let mut regions: Vec<MemoryRegion> = Vec::with_capacity(count);
        while done < LEAST.max(count) {
            let began = Instant::now();
            for at in 0..count {
                let range = at * REGION..(at + 1) * REGION;
                let access = access();
                let region = pd.region().access(access).part(Arc::clone(&buffer), range);
                regions.push(region.map_err(io::Error::other)?);
            }
            registering += began.elapsed().as_secs_f64();
            let began = Instant::now();
            for region in regions.drain(..) {
                region
                    .deregister()
                    .map_err(|(_, error)| io::Error::other(error))?;
            }
            deregistering += began.elapsed().as_secs_f64();
            done += count;
        }
        rates.push([done as f64 / registering, done as f64 / deregistering]);
    }
    Ok(rates)
}

/// Name of an operation, with its rates for each number of regions: millions per second in each
/// round.
type Series = (&'static str, Vec<(usize, Vec<f64>)>);

/// Arranges the rates by operation and number of regions.
pub(super) fn by_count(counts: &[usize], rounds: &[Rates]) -> Vec<Series> {
    if rounds.is_empty() {
        return Vec::new();
    }
    let of = |what: usize| {
        let values = |at: usize| rounds.iter().map(move |rates| rates[at][what] / 1e6);
        let counts = counts.iter().enumerate();
        counts
            .map(|(at, count)| (*count, values(at).collect()))
            .collect()
    };
    vec![(REGISTRATION, of(0)), ("deregistration", of(1))]
}

//! Measures the time of an STag check alone, without a message and without access to the memory.

use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_verbs::{Buffer, Device, MemoryRegion, Pd, RemoteBuffer};

use super::server::{REGION, access};

/// Number of STags that are checked between two clock reads. It must be a power of two.
const BATCH: usize = 1 << 12;

/// Regions of a device, and a sample of their STags.
pub(super) struct Regions {
    pub(super) count: usize,
    pd: Pd,
    /// STags in random order. With many regions, their entries far exceed the caches.
    random: Vec<RemoteBuffer>,
    _held: Vec<MemoryRegion>,
}

/// Selection of the STags to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// The same STag repeatedly.
    One,
    /// Random STags.
    Any,
}

impl Which {
    pub(super) const ALL: [Which; 2] = [Which::One, Which::Any];
}

impl Regions {
    pub(super) fn register(count: usize) -> io::Result<Self> {
        let device = Device::tcp().map_err(io::Error::other)?;
        let pd = device.alloc_pd().map_err(io::Error::other)?;
        let buffer = Arc::new(Buffer::from(vec![0; count * REGION]));
        let one = |at: usize| {
            let range = at * REGION..(at + 1) * REGION;
            let part = pd.region().access(access());
            part.part(Arc::clone(&buffer), range)
                .map_err(io::Error::other)
        };
        let held = (0..count).map(one).collect::<io::Result<Vec<_>>>()?;
        let mut random = fastrand::Rng::with_seed(1);
        let stags = (0..count.max(BATCH)).map(|_| held[random.usize(..count)].remote());
        Ok(Regions {
            count,
            pd,
            random: stags.collect(),
            _held: held,
        })
    }

    /// Returns the nanoseconds of one validation.
    pub(super) fn measure(&self, which: Which, time: Duration) -> io::Result<f64> {
        let one = [self.random[0]; BATCH];
        let mut batches = self.random.as_chunks::<BATCH>().0.iter().cycle();
        let (mut took, mut done) = (Duration::ZERO, 0);
        while took < time {
            let batch = match which {
                Which::One => &one,
                Which::Any => batches.next().unwrap_or(&one),
            };
            let began = Instant::now();
            let valid = batch
                .iter()
                .filter(|stag| self.pd.would_place(black_box(stag)))
                .count();
            took += began.elapsed();
            done += valid;
            if valid < BATCH {
                return Err(io::Error::other("an STag of a region is not valid"));
            }
        }
        Ok(took.as_secs_f64() * 1e9 / done as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stags_of_regions_are_valid() {
        for count in [1, 5000] {
            let regions = Regions::register(count).unwrap();
            for which in Which::ALL {
                let nanos = regions.measure(which, Duration::from_micros(100)).unwrap();
                assert!(nanos > 0.0);
            }
        }
    }
}

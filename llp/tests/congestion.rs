//! FPDUs and segments with a congestion window.

mod common;

use std::net::SocketAddr;

use common::seen::{Segments, Shared, segments};
use common::skipping::Link;
use common::*;
use proptest::prelude::*;
use uwarp_capture::Capture;
use uwarp_llp::smol::{Congestion, FaultSettings, MemorySettings};

fn at() -> SocketAddr {
    "192.0.2.2:7174".parse().unwrap()
}

/// How a transfer is played.
struct Play {
    settings: MemorySettings,
    octets: usize,
    /// FPDUs have so many octets, or some number up to that.
    fpdu: usize,
    random_sizes: bool,
    /// Octets of the other direction.
    back: usize,
    seed: u64,
}

/// What was seen of it.
#[derive(Debug)]
struct Seen {
    segments: Segments,
    ends: Vec<u64>,
}

impl Play {
    fn new(congestion: Congestion, octets: usize) -> Self {
        Self {
            settings: MemorySettings {
                congestion,
                ..MemorySettings::default()
            },
            octets,
            fpdu: 1460,
            random_sizes: false,
            back: 0,
            seed: 1,
        }
    }

    fn with_faults(mut self, faults: FaultSettings) -> Self {
        self.seed = faults.seed;
        self.settings.faults = Some(faults);
        self
    }

    fn run(&self) -> Seen {
        let file = Shared::default();
        let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
        let link = Link::new(&MemorySettings {
            capture: Some(capture.clone()),
            ..self.settings.clone()
        });
        let (client, server) = link.connected(at());
        let mut random = Random(self.seed | 1);
        let (there, back) = (random.octets(self.octets), random.octets(self.back));
        let mut a = End::new(client, there, self.seed).bulk().whole_fpdus();
        if self.random_sizes {
            a = a.with_fpdus(self.fpdu);
        } else {
            let ends = 1..=self.octets.div_ceil(self.fpdu);
            a.ends = ends
                .map(|count| self.octets.min(count * self.fpdu) as u64)
                .collect();
        }
        let mut b = End::new(server, back, self.seed + 1).bulk();
        loop {
            a.step().unwrap();
            b.step().unwrap();
            let (done_a, done_b) = (a.done(), b.done());
            if a.peer_closed && b.peer_closed && (done_a || done_b) {
                break;
            }
            let deadlines = [a.llp.deadline(), b.llp.deadline()];
            link.wait(&[a.llp.fd(), b.llp.fd()], deadlines);
        }
        assert!(a.got == b.to_send && b.got == a.to_send, "other octets");
        let ends = std::mem::take(&mut a.ends);
        drop((a, b, link));
        assert_eq!(capture.error(), None);
        Seen {
            segments: segments(&file, at()),
            ends,
        }
    }
}

impl Seen {
    /// Of each segment that arrived and holds octets that no earlier one held, whether it holds whole
    /// FPDUs.
    fn aligned(&self) -> Vec<bool> {
        let is_end = |at: &u64| *at == 0 || self.ends.binary_search(at).is_ok();
        let mut sent = 0;
        let mut aligned = Vec::new();
        for (from, to) in &self.segments {
            if *to > sent {
                aligned.push(*from >= sent && is_end(from) && is_end(to));
                sent = *to;
            }
        }
        assert_eq!(Some(&sent), self.ends.last());
        aligned
    }

    fn report(&self, what: &str) {
        let aligned = self.aligned();
        let cut = aligned.iter().filter(|aligned| !**aligned).count();
        let tiny = self
            .segments
            .iter()
            .filter(|(from, to)| to - from < 64)
            .count();
        eprintln!(
            "{what}: {cut} of {} cut, {tiny} below 64 octets of {}",
            aligned.len(),
            self.segments.len()
        );
    }
}

#[test]
fn numbers() {
    for congestion in [Congestion::None, Congestion::Reno, Congestion::Cubic] {
        for loss in [0.0, 0.005] {
            for (fpdu, random_sizes) in [(1460, false), (1000, false), (1460, true)] {
                let mut play = Play::new(congestion, 8 << 20);
                (play.fpdu, play.random_sizes) = (fpdu, random_sizes);
                let faults = FaultSettings {
                    loss,
                    seed: 3,
                    ..FaultSettings::default()
                };
                if loss > 0.0 {
                    play = play.with_faults(faults);
                }
                let start = std::time::Instant::now();
                let seen = play.run();
                seen.report(&format!(
                    "{congestion:?} loss {loss} fpdu {fpdu} random {random_sizes} {:?}",
                    start.elapsed()
                ));
            }
        }
    }
}

//! Switch with a cable to each host, and the faults that it injects.

mod inject;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use uwarp_verbs::llp::smol::{Carrier, ManualClock};

use crate::damage::Rewrite;
use crate::log::Log;
use crate::monitor::{Damaged, Monitor};

/// Faults of packets and limits of cables. Each `f64` is a probability from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    /// The packet is delayed, so that later packets arrive first.
    pub(crate) reorder: f64,
    /// The packet is damaged, and its length or TCP checksum is wrong.
    pub(crate) corrupt: f64,
    /// The payload is damaged and the checksum corrected, so that only the CRC of MPA detects it.
    pub(crate) corrupt_unseen: f64,
    /// A middlebox inserts bytes into the stream or removes some, and renumbers later segments.
    pub(crate) rewrite: f64,
    /// The packet arrives a second time, perhaps after the end of its connection.
    pub(crate) replay: f64,
    /// A middlebox cuts the segment in two at any byte.
    pub(crate) split: f64,
    /// A middlebox holds the segment briefly and joins it with the next one.
    pub(crate) join: f64,
    /// Time in transit.
    pub(crate) delay: Duration,
    /// Maximum random addition to `delay`.
    pub(crate) jitter: Duration,
    /// Bytes per second of each cable to a host; 0 means no limit.
    pub(crate) bandwidth: u64,
    /// Maximum number of bytes that wait for a cable, if `bandwidth` is limited.
    pub(crate) queue: u64,
}

impl Faults {
    /// Returns true if bytes are changed in a way that TCP does not detect.
    pub(crate) fn changes_bytes(&self) -> bool {
        self.corrupt_unseen + self.rewrite > 0.0
    }

    /// Returns true if packets may be lost or late.
    pub(crate) fn is_lossy(&self) -> bool {
        self.loss + self.corrupt + self.reorder > 0.0 || self.bandwidth > 0
    }
}

/// Number of packets affected by each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) corrupted_unseen: u64,
    pub(crate) rewritten: u64,
    pub(crate) replayed: u64,
    pub(crate) split: u64,
    pub(crate) joined: u64,
    pub(crate) overflowed: u64,
    pub(crate) too_large: u64,
}

/// A packet in transit: arrival time, number (which makes the order stable), receiving host, bytes.
type Due = Reverse<(Duration, u64, usize, Vec<u8>)>;

struct State {
    faults: Faults,
    random: Rng,
    due: BinaryHeap<Due>,
    /// Segments that a middlebox holds: end of the hold time, receiving host, bytes.
    held: Vec<(Duration, usize, Vec<u8>)>,
    /// Rewrite of each direction that has one.
    rewrites: BTreeMap<[u8; 6], Rewrite>,
    /// For each direction, the sequence number after the last byte that has reached the middlebox.
    newest: BTreeMap<[u8; 6], u32>,
    monitor: Monitor,
    /// Connections with bytes changed since the last call of `Switch::damaged`.
    damaged: Vec<Damaged>,
    number: u64,
    cables: Vec<Cable>,
    counts: Counts,
    mtu: usize,
    /// Senders of packets that exceeded the MTU. ICMP has not informed these senders yet.
    too_large: Vec<usize>,
    /// Hash of all delivered packets.
    digest: u64,
    log: Log,
}

#[derive(Clone, Copy, Default)]
struct Cable {
    down: bool,
    /// Time at which the cable has transmitted all packets that wait for it.
    busy_until: Duration,
    /// Arrival time of the last packet. Packets that are not reordered arrive at this time or
    /// later.
    last: Duration,
}

/// Handle of the switch, which all hosts share.
#[derive(Clone)]
pub(crate) struct Switch {
    clock: Arc<ManualClock>,
    state: Arc<Mutex<State>>,
}

/// The host's end of its cable.
pub(crate) struct Port {
    switch: Switch,
    host: usize,
}

impl Switch {
    pub(crate) fn new(
        clock: &Arc<ManualClock>,
        faults: Faults,
        hosts: usize,
        mtu: usize,
        random: Rng,
        log: Log,
    ) -> Self {
        Switch {
            clock: Arc::clone(clock),
            state: Arc::new(Mutex::new(State {
                faults,
                random,
                due: BinaryHeap::new(),
                held: Vec::new(),
                rewrites: BTreeMap::new(),
                newest: BTreeMap::new(),
                monitor: Monitor::default(),
                damaged: Vec::new(),
                number: 0,
                cables: vec![Cable::default(); hosts],
                counts: Counts::default(),
                mtu,
                too_large: Vec::new(),
                digest: 0xCBF2_9CE4_8422_2325,
                log,
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn port(&self, host: usize) -> Arc<Port> {
        Arc::new(Port {
            switch: self.clone(),
            host,
        })
    }

    /// Returns the time of the next arrival, or of the end of a hold time.
    pub(crate) fn next(&self) -> Option<Duration> {
        let state = self.state();
        let due = state.due.peek().map(|Reverse((at, ..))| *at);
        let held = state.held.iter().map(|(until, ..)| *until);
        held.chain(due).min()
    }

    /// Takes the next packet that is due. Returns its receiving host and its bytes.
    pub(crate) fn arrival(&self) -> Option<(usize, Vec<u8>)> {
        let now = self.clock.elapsed();
        let mut state = self.state();
        state.let_go(now);
        loop {
            if state.due.peek().is_none_or(|Reverse((at, ..))| *at > now) {
                return None;
            }
            let Reverse((_, number, host, bytes)) = state.due.pop()?;
            if state.cables[host].down {
                state.counts.lost += 1;
                continue;
            }
            state.mix(number, &bytes);
            state.log.packet(now, "arrives", &bytes);
            return Some((host, bytes));
        }
    }

    /// Takes a sender whose packet exceeded the MTU.
    pub(crate) fn too_large(&self) -> Option<usize> {
        self.state().too_large.pop()
    }

    /// Takes the first protocol violation that the monitor found.
    pub(crate) fn take_violation(&self) -> Option<String> {
        self.state().monitor.take_finding()
    }

    /// Takes the connections with bytes changed since the last call in a way that TCP does not
    /// detect.
    pub(crate) fn damaged(&self) -> Vec<Damaged> {
        std::mem::take(&mut self.state().damaged)
    }

    pub(crate) fn set_down(&self, host: usize, down: bool) {
        self.state().cables[host].down = down;
    }

    pub(crate) fn set_mtu(&self, mtu: usize) {
        self.state().mtu = mtu;
    }

    pub(crate) fn mtu(&self) -> usize {
        self.state().mtu
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state().counts
    }

    pub(crate) fn digest(&self) -> u64 {
        self.state().digest
    }

    /// Stops all faults except the delay.
    pub(crate) fn calm(&self) {
        let state = &mut *self.state();
        let Faults { delay, .. } = state.faults;
        state.faults = Faults {
            delay,
            ..Faults::default()
        };
    }
}

impl Carrier for Port {
    fn carry(&self, bytes: &[u8]) {
        let now = self.switch.clock.elapsed();
        self.switch.state().send(now, self.host, bytes);
    }

    fn reaches(&self, to: IpAddr) -> bool {
        let hosts = self.switch.state().cables.len();
        let number = match to {
            IpAddr::V4(to) => to.octets()[3],
            IpAddr::V6(to) => to.octets()[15],
        };
        (1..=hosts).contains(&usize::from(number))
    }
}

impl State {
    /// Adds a delivered packet to the hash (FNV-1a).
    fn mix(&mut self, number: u64, bytes: &[u8]) {
        for byte in number.to_be_bytes().iter().chain(bytes) {
            self.digest = (self.digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }
}

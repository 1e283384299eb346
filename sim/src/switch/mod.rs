//! What lies between the hosts: a switch with a cable to each, and all that may befall a packet.

mod inject;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use uwarp_verbs::llp::smol::Carrier;

use crate::clock::VirtualClock;
use crate::damage::Rewrite;
use crate::log::Log;
use crate::monitor::{Damaged, Monitor};

/// What may befall a packet, with probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: f64,
    pub(crate) duplicate: f64,
    /// It is held up while others pass.
    pub(crate) reorder: f64,
    /// It is damaged, and TCP's checksum or a length tells.
    pub(crate) corrupt: f64,
    /// The payload is damaged and the checksum made right: only the CRC of MPA tells.
    pub(crate) corrupt_unseen: f64,
    /// A middlebox puts bytes into the stream, or takes some out, from this segment on.
    pub(crate) rewrite: f64,
    /// It comes once more, when its connection may be over.
    pub(crate) replay: f64,
    /// A middlebox cuts it in two, at any byte.
    pub(crate) split: f64,
    /// A middlebox holds it for a moment, and joins it with the next one.
    pub(crate) join: f64,
    /// The time on the way, and what may come on top of it.
    pub(crate) delay: Duration,
    pub(crate) jitter: Duration,
    /// Bytes a second of each cable towards a host; 0 for no limit.
    pub(crate) bandwidth: u64,
    /// Bytes that wait for a cable at most, with a limit.
    pub(crate) queue: u64,
}

impl Faults {
    /// Whether bytes are changed so that TCP does not see it.
    pub(crate) fn changes_octets(&self) -> bool {
        self.corrupt_unseen + self.rewrite > 0.0
    }

    /// Whether packets do not arrive in time.
    pub(crate) fn is_lossy(&self) -> bool {
        self.loss + self.corrupt + self.reorder > 0.0 || self.bandwidth > 0
    }
}

/// What befell packets so far.
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

/// A packet that is to arrive: when, its number (so that order never depends on anything else), where.
type Due = Reverse<(Duration, u64, usize, Vec<u8>)>;

struct State {
    faults: Faults,
    random: Rng,
    due: BinaryHeap<Due>,
    /// What a middlebox holds: until when, for whom.
    held: Vec<(Duration, usize, Vec<u8>)>,
    /// What a middlebox does to streams, by direction.
    rewrites: BTreeMap<[u8; 6], Rewrite>,
    /// The number behind the last byte of each direction that has come as far as the middlebox.
    newest: BTreeMap<[u8; 6], u32>,
    monitor: Monitor,
    /// Connections of which bytes were changed since somebody asked.
    damaged: Vec<Damaged>,
    number: u64,
    cables: Vec<Cable>,
    counts: Counts,
    mtu: usize,
    /// Senders to be told by ICMP that a packet was too large.
    too_large: Vec<usize>,
    /// All that was delivered, in one number.
    digest: u64,
    log: Log,
}

#[derive(Clone, Copy, Default)]
struct Cable {
    down: bool,
    /// When what waits for it will be through.
    busy_until: Duration,
    /// When the last packet arrives, so that order is kept where nothing is to break it.
    last: Duration,
}

/// The switch. All hosts hold it.
#[derive(Clone)]
pub(crate) struct Switch {
    clock: Arc<VirtualClock>,
    state: Arc<Mutex<State>>,
}

/// The cable of one host, from its side.
pub(crate) struct Port {
    switch: Switch,
    host: usize,
}

impl Switch {
    pub(crate) fn new(
        clock: &Arc<VirtualClock>,
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

    /// When the next packet arrives.
    pub(crate) fn next(&self) -> Option<Duration> {
        let state = self.state();
        let due = state.due.peek().map(|Reverse((at, ..))| *at);
        let held = state.held.iter().map(|(until, ..)| *until);
        held.chain(due).min()
    }

    /// The next packet that is due: for whom, and its bytes.
    pub(crate) fn arrival(&self) -> Option<(usize, Vec<u8>)> {
        let now = self.clock.elapsed();
        let mut state = self.state();
        state.let_go(now);
        loop {
            if state.due.peek().is_none_or(|Reverse((at, ..))| *at > now) {
                return None;
            }
            let Reverse((_, number, host, octets)) = state.due.pop()?;
            if state.cables[host].down {
                state.counts.lost += 1;
                continue;
            }
            state.mix(number, &octets);
            state.log.packet(now, "arrives", &octets);
            return Some((host, octets));
        }
    }

    /// A sender whose packet was too large for the way.
    pub(crate) fn too_large(&self) -> Option<usize> {
        self.state().too_large.pop()
    }

    /// What a host has sent that no RFC allows.
    pub(crate) fn complaint(&self) -> Option<String> {
        self.state().monitor.found()
    }

    /// Connections of which bytes were changed so that TCP does not see it, since this was asked last.
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

    /// Nothing befalls packets any more.
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
    fn carry(&self, octets: &[u8]) {
        let now = self.switch.clock.elapsed();
        self.switch.state().send(now, self.host, octets);
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
    /// Notes what was delivered (FNV-1a).
    fn mix(&mut self, number: u64, octets: &[u8]) {
        for octet in number.to_be_bytes().iter().chain(octets) {
            self.digest = (self.digest ^ u64::from(*octet)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.f64() < probability
    }
}

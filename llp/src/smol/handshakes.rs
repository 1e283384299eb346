//! Handshakes that peers have begun: a SYN cache (RFC 4987 section 3.4).
//!
//! A SYN costs an entry of at most 1.3 kB. The connection with its buffers is created when the
//! third segment of the handshake proves that the peer receives packets at its address:
//! ```text
//!   SYN             ---> entry, with a random seed; SYN|ACK <---
//!   SYN again       ---> the same SYN|ACK <---
//!   ACK of the SYN|ACK --> Backlog ---> SmolListener: a connection with that seed repeats the
//!                                       handshake from the stored SYN, without sending
//!   RST, exact      ---> the entry is removed
//!   RST in the window --> a challenge ACK <---
//! ```
//! smoltcp derives the initial sequence number from the seed of its interface. So the connection
//! has the number that the SYN|ACK announced.
//!
//! The table has a bounded number of entries. When it is full, a new entry replaces the oldest one
//! of the peer with the most entries. So a flood of SYNs from one peer replaces only its own
//! entries, and one peer can begin many handshakes at once while there is room.
//!
//! A SYN|ACK is repeated after 1 s, 3 s, 7 s and so on (RFC 6298 section 5), at most [`REPEATS`]
//! times. The listeners do this, whose deadline is that of [`Handshakes::deadline`].

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smoltcp::wire::TcpSeqNumber;

use super::segment::{Answer, FlowKey, Segment};

/// Maximum number of entries. If each is of another address, they take 5.2 MiB together (growth of
/// the resident memory by 20,000 such SYNs). A flood of 10,000 SYNs a second then replaces an entry
/// after 0.4 s, which is longer than a round trip.
const MAX_ENTRIES: usize = 4096;

/// Maximum capacity that the table keeps without an entry.
const KEEP: usize = 64;

/// Time from the first SYN|ACK to its repetition. It doubles each time (RFC 6298 sections 2.1 and
/// 5.5).
const FIRST_REPEAT: Duration = Duration::from_secs(1);

/// Maximum number of repetitions of a SYN|ACK, as in Linux's default (`tcp_synack_retries`).
const REPEATS: u8 = 5;

/// Shortest time between two searches of the table for SYN|ACKs to repeat, because a search reads
/// up to 4,096 entries.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// Longest SYN that is accepted: 60 bytes of IP header or 40 of IPv6, and 60 of TCP header. A SYN
/// with data is dropped. A peer that tried TCP Fast Open then sends it without data (RFC 7413
/// section 4.2).
const LONGEST_SYN: usize = 120;

/// Handshakes in which this host has answered a SYN.
pub(crate) struct Handshakes {
    table: Mutex<Table>,
    /// Time after which a handshake is forgotten.
    timeout: Duration,
}

#[derive(Default)]
struct Table {
    entries: HashMap<FlowKey, Entry>,
    /// Numbers and keys of the entries of each peer, by its network. No peer is without entries.
    peers: HashMap<u64, BTreeMap<u64, FlowKey>>,
    /// Every peer in the order in which their entries are replaced: its last element is next.
    ranks: BTreeSet<Rank>,
    /// Number of entries ever stored.
    stored: u64,
    /// Time at which the table has to be searched for SYN|ACKs to repeat and for entries to remove.
    search_at: Option<Instant>,
}

/// Number of entries of a peer, number of its oldest entry, and its network.
type Rank = (usize, Reverse<u64>, u64);

struct Entry {
    /// Number of entries that were stored before this one.
    number: u64,
    handshake: Handshake,
    /// Sequence number of the SYN|ACK.
    own: TcpSeqNumber,
    /// Sequence number of the peer's SYN.
    peer: TcpSeqNumber,
    until: Instant,
    /// Number of repetitions of the SYN|ACK so far.
    repeats: u8,
    /// Time of the next repetition.
    repeat_at: Option<Instant>,
}

impl Entry {
    /// Returns the next sequence number that the peer uses.
    fn next(&self) -> TcpSeqNumber {
        self.peer + 1
    }

    /// Returns the time at which the SYN|ACK has to be repeated, or the entry to be removed.
    fn due(&self) -> Instant {
        self.repeat_at.map_or(self.until, |at| at.min(self.until))
    }
}

impl Table {
    /// Changes the entries of one peer.
    fn change(&mut self, peer: u64, change: impl FnOnce(&mut BTreeMap<u64, FlowKey>)) {
        let rank = |of: &BTreeMap<u64, FlowKey>| -> Option<Rank> {
            let (oldest, _) = of.first_key_value()?;
            Some((of.len(), Reverse(*oldest), peer))
        };
        let entries = self.peers.entry(peer).or_default();
        let old = rank(entries);
        change(entries);
        let new = rank(entries);
        if entries.is_empty() {
            self.peers.remove(&peer);
        }
        old.map(|old| self.ranks.remove(&old));
        self.ranks.extend(new);
    }

    fn remove(&mut self, key: &FlowKey) {
        if let Some(Entry { number, .. }) = self.entries.remove(key) {
            self.change(network(key.remote.ip()), |entries| {
                entries.remove(&number);
            });
        }
        if self.entries.is_empty() {
            self.search_at = None;
            if self.entries.capacity() > KEEP {
                // A flood may have made them large.
                self.entries.shrink_to_fit();
                self.peers.shrink_to_fit();
            }
        }
    }

    /// Returns the entry that is replaced next.
    fn next_replaced(&self) -> Option<FlowKey> {
        let (_, _, peer) = self.ranks.last()?;
        let (_, key) = self.peers.get(peer)?.first_key_value()?;
        Some(*key)
    }

    fn insert(&mut self, key: FlowKey, mut entry: Entry) {
        self.remove(&key);
        if self.entries.len() >= MAX_ENTRIES
            && let Some(replaced) = self.next_replaced()
        {
            self.remove(&replaced);
        }
        entry.number = self.stored;
        self.stored += 1;
        self.change(network(key.remote.ip()), |entries| {
            entries.insert(entry.number, key);
        });
        self.entries.insert(key, entry);
    }

    /// Removes the entries that satisfy `goes`.
    fn remove_if(&mut self, goes: impl Fn(&FlowKey, &Entry) -> bool) {
        let gone = self.entries.iter().filter(|(key, entry)| goes(key, entry));
        let gone: Vec<_> = gone.map(|(key, _)| *key).collect();
        for key in gone {
            self.remove(&key);
        }
    }

    /// Lets the table be searched at this time at the latest. Returns true if that is earlier than
    /// before.
    fn search_by(&mut self, at: Instant) -> bool {
        let earlier = self.search_at.is_none_or(|before| at < before);
        if earlier {
            self.search_at = Some(at);
        }
        earlier
    }
}

/// Everything that is needed to repeat a handshake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handshake {
    /// Seed of the interface that makes the SYN|ACK.
    pub(crate) seed: u64,
    /// The peer's SYN, an IP packet.
    pub(crate) syn: Box<[u8]>,
}

/// Returns the part of a peer's address that counts as one peer. An IPv6 host usually has all
/// addresses of a /64 network.
fn network(addr: IpAddr) -> u64 {
    match addr {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => {
            let [bits @ .., _, _, _, _, _, _, _, _] = v6.octets();
            u64::from_be_bytes(bits)
        }
    }
}

impl Handshakes {
    /// Creates an empty table, which forgets handshakes after `timeout`.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            table: Mutex::default(),
            timeout,
        }
    }

    /// Returns the handshake that a SYN repeats, or a new one with `seed`. `None` for a SYN that is
    /// too long.
    pub(crate) fn find_or_begin(
        &self,
        segment: &Segment,
        syn: &[u8],
        now: Instant,
        seed: impl FnOnce() -> u64,
    ) -> Option<Handshake> {
        if segment.payload > 0 || syn.len() > LONGEST_SYN {
            return None;
        }
        let table = self.table.lock();
        let known = table
            .entries
            .get(&segment.key)
            .filter(|entry| entry.peer == segment.seq && entry.until > now);
        Some(known.map_or_else(
            || Handshake {
                seed: seed(),
                syn: syn.into(),
            },
            |entry| entry.handshake.clone(),
        ))
    }

    /// Stores a handshake after its SYN|ACK was made with the sequence number `own`. Replaces an
    /// older handshake of the same addresses. Returns true if [`Self::deadline`] is earlier than
    /// before.
    pub(crate) fn store(
        &self,
        segment: &Segment,
        handshake: Handshake,
        own: TcpSeqNumber,
        now: Instant,
    ) -> bool {
        let mut table = self.table.lock();
        let entry = Entry {
            number: 0,
            handshake,
            own,
            peer: segment.seq,
            until: now + self.timeout,
            repeats: 0,
            repeat_at: Some(now + FIRST_REPEAT),
        };
        let due = entry.due();
        table.insert(segment.key, entry);
        table.search_by(due)
    }

    /// Returns the time at which [`Self::take_due`] has to be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.table.lock().search_at
    }

    /// Returns the handshakes whose SYN|ACKs have to be repeated now, in the order in which they
    /// began. Forgets expired ones.
    pub(crate) fn take_due(&self, now: Instant) -> Vec<(FlowKey, Handshake)> {
        let mut table = self.table.lock();
        if table.search_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        table.search_at = None;
        table.remove_if(|_, entry| entry.until <= now);
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (key, entry) in &mut table.entries {
            if entry.repeat_at.is_some_and(|at| at <= now) {
                due.push((entry.number, (*key, entry.handshake.clone())));
                entry.repeats += 1;
                let more = entry.repeats < REPEATS;
                entry.repeat_at =
                    more.then(|| now + FIRST_REPEAT * (1 << u32::from(entry.repeats)));
            }
            next = Some(next.map_or(entry.due(), |next| next.min(entry.due())));
        }
        if let Some(next) = next {
            table.search_by(next.max(now + SEARCH_INTERVAL));
        }
        due.sort_unstable_by_key(|(number, _)| *number);
        due.into_iter().map(|(_, due)| due).collect()
    }

    /// Returns the handshake that a segment completes. Its acknowledgement number must be exact,
    /// and its sequence number must be in the window of the SYN|ACK, which has `window` bytes.
    pub(crate) fn completed_by(
        &self,
        segment: &Segment,
        window: usize,
        now: Instant,
    ) -> Option<Handshake> {
        let table = self.table.lock();
        let entry = table.entries.get(&segment.key)?;
        let is_next = segment.ack == Some(entry.own + 1)
            && !segment.syn
            && entry.next() <= segment.seq
            && segment.seq <= entry.next() + window
            && entry.until > now;
        is_next.then(|| entry.handshake.clone())
    }

    /// Removes a handshake that the peer has reset. The reset must have exactly the next sequence
    /// number. Returns a challenge ACK for a reset with another number in the window of the
    /// SYN|ACK, which has `window` bytes (RFC 5961 section 3.2).
    pub(crate) fn reset(&self, segment: &Segment, window: usize) -> Option<Answer> {
        let mut table = self.table.lock();
        let entry = table.entries.get(&segment.key)?;
        let (next, own) = (entry.next(), entry.own);
        if segment.seq == next {
            table.remove(&segment.key);
            return None;
        }
        let in_window = next < segment.seq && segment.seq <= next + window;
        in_window.then(|| Answer::challenge(own + 1, next))
    }

    /// Removes the handshakes with this local port.
    pub(crate) fn remove_port(&self, port: u16) {
        self.table
            .lock()
            .remove_if(|key, _| key.local.port() == port);
    }

    /// Removes a handshake whose connection exists.
    pub(crate) fn remove(&self, key: &FlowKey) {
        self.table.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(host: u8, port: u16, seq: i32) -> Segment {
        Segment {
            key: FlowKey {
                local: "192.0.2.1:7".parse().unwrap(),
                remote: format!("192.0.2.{host}:{port}").parse().unwrap(),
            },
            syn: true,
            ack: None,
            rst: false,
            fin: false,
            seq: TcpSeqNumber(seq),
            payload: 0,
            mss: None,
            window_scale: None,
        }
    }

    /// Third segment of a handshake.
    fn third(syn: &Segment, own: i32) -> Segment {
        Segment {
            syn: false,
            ack: Some(TcpSeqNumber(own) + 1),
            seq: syn.seq + 1,
            ..*syn
        }
    }

    struct Scene {
        handshakes: Handshakes,
        now: Instant,
    }

    impl Scene {
        fn new() -> Self {
            Self {
                handshakes: Handshakes::new(Duration::from_secs(60)),
                now: Instant::now(),
            }
        }

        fn begin(&self, syn: &Segment, seed: u64, own: i32) -> u64 {
            let begun = self
                .handshakes
                .find_or_begin(syn, b"syn", self.now, || seed)
                .unwrap();
            let seed = begun.seed;
            self.handshakes
                .store(syn, begun, TcpSeqNumber(own), self.now);
            seed
        }

        fn completes(&self, segment: &Segment) -> Option<u64> {
            self.handshakes
                .completed_by(segment, 1000, self.now)
                .map(|handshake| handshake.seed)
        }

        fn len(&self) -> usize {
            let table = self.handshakes.table.lock();
            let len = table.peers.values().map(BTreeMap::len).sum();
            let (entries, ranks) = (table.entries.len(), table.ranks.len());
            assert_eq!((entries, ranks), (len, table.peers.len()));
            len
        }
    }

    #[test]
    fn a_repeated_syn_has_the_answer_of_the_first_and_another_syn_replaces_it() {
        let s = Scene::new();
        let syn = segment(2, 9, -1);
        assert_eq!(s.begin(&syn, 1, 100), 1);
        assert_eq!(s.begin(&syn, 2, 100), 1);
        let other = segment(2, 9, 500);
        assert_eq!(s.begin(&other, 3, 300), 3);
        assert_eq!(s.len(), 1);
        assert_eq!(s.completes(&third(&syn, 100)), None);
        assert_eq!(s.completes(&third(&other, 300)), Some(3));
    }

    #[test]
    fn a_handshake_is_completed_by_exact_acknowledgements_within_the_window() {
        let s = Scene::new();
        let syn = segment(2, 9, i32::MAX);
        s.begin(&syn, 1, -1);
        let ack = third(&syn, -1);
        assert_eq!(s.completes(&ack), Some(1));
        for (offset, wanted) in [(-1, None), (1000, Some(1)), (1001, None)] {
            let seq = TcpSeqNumber(ack.seq.0.wrapping_add(offset));
            assert_eq!(s.completes(&Segment { seq, ..ack }), wanted, "{offset}");
        }
        for own in [-2, 0] {
            assert_eq!(s.completes(&third(&syn, own)), None, "{own}");
        }
        assert_eq!(s.completes(&Segment { syn: true, ..ack }), None);
        assert_eq!(s.completes(&third(&segment(2, 10, i32::MAX), -1)), None);
    }

    #[test]
    fn a_reset_with_the_exact_number_and_time_end_a_handshake() {
        let mut s = Scene::new();
        let syn = segment(2, 9, 7);
        s.begin(&syn, 1, 100);
        let reset = |seq| Segment {
            rst: true,
            ..segment(2, 9, seq)
        };
        for (seq, challenged) in [(7, false), (9, true), (1008, true), (1009, false)] {
            let answer = s.handshakes.reset(&reset(seq), 1000);
            assert_eq!(answer.is_some(), challenged, "{seq}");
        }
        assert_eq!(s.completes(&third(&syn, 100)), Some(1));
        assert!(s.handshakes.reset(&reset(8), 1000).is_none());
        assert_eq!(s.len(), 0);
        s.begin(&syn, 1, 100);
        s.now += Duration::from_secs(60);
        assert_eq!(s.completes(&third(&syn, 100)), None);
    }

    /// Nothing else happens meanwhile: no SYN arrives, and no SYN|ACK is repeated any more.
    #[test]
    fn the_entries_of_a_flood_are_removed_at_their_time_and_the_table_gives_its_memory_back() {
        let mut s = Scene::new();
        for port in 0..MAX_ENTRIES {
            let syn = segment((port % 200) as u8, port as u16 + 1, 7);
            s.begin(&syn, 1, 100);
        }
        let end = s.now + Duration::from_secs(60);
        while let Some(at) = s.handshakes.deadline() {
            assert!(at <= end);
            s.now = at;
            s.handshakes.take_due(at);
        }
        assert_eq!((s.now, s.len()), (end, 0));
        let table = s.handshakes.table.lock();
        assert_eq!((table.entries.capacity(), table.peers.capacity()), (0, 0));
    }

    #[test]
    fn the_table_gives_the_memory_of_a_flood_back_whatever_removes_the_last_entry() {
        let s = Scene::new();
        let syn = |port: usize| segment((port % 200) as u8, port as u16 + 1, 7);
        for port in 0..MAX_ENTRIES {
            s.begin(&syn(port), 1, 100);
        }
        for port in 0..MAX_ENTRIES {
            s.handshakes.remove(&syn(port).key);
        }
        let table = s.handshakes.table.lock();
        assert_eq!((table.entries.capacity(), table.peers.capacity()), (0, 0));
    }

    #[test]
    fn a_syn_ack_is_repeated_five_times_at_doubling_intervals() {
        let mut s = Scene::new();
        let start = s.now;
        s.begin(&segment(2, 9, 7), 1, 100);
        let mut times = Vec::new();
        while let Some(at) = s.handshakes.deadline() {
            assert!(
                s.handshakes
                    .take_due(at - Duration::from_nanos(1))
                    .is_empty()
            );
            s.now = at;
            for (_, handshake) in s.handshakes.take_due(at) {
                assert_eq!(handshake.seed, 1);
                times.push((at - start).as_secs());
            }
        }
        assert_eq!(times, [1, 3, 7, 15, 31]);
        assert_eq!(s.len(), 0);
        s.begin(&segment(2, 10, 7), 2, 100);
        s.handshakes.remove_port(7);
        assert_eq!(s.len(), 0);
    }

    #[test]
    fn a_full_table_replaces_the_oldest_entry_of_the_peer_with_the_most() {
        let s = Scene::new();
        let honest = segment(200, 9, 7);
        s.begin(&honest, 1, 100);
        for port in 1..=5000 {
            s.begin(&segment(1, port, 7), 2, 100);
        }
        assert_eq!(s.len(), MAX_ENTRIES);
        assert_eq!(s.completes(&third(&honest, 100)), Some(1));
        let completed = |host, port| s.completes(&third(&segment(host, port, 7), 100)).is_some();
        let first_left = (1..=5000).find(|port| completed(1, *port));
        assert_eq!(first_left, Some(5002 - MAX_ENTRIES as u16));
        // Others get their share, at the cost of the first.
        for port in 1..=2000 {
            for host in 2..=101 {
                s.begin(&segment(host, port, 7), 3, 100);
            }
        }
        assert_eq!(s.len(), MAX_ENTRIES);
        assert_eq!(s.completes(&third(&honest, 100)), Some(1));
        for host in 1..=101 {
            let count = (1..=5000).filter(|port| completed(host, *port)).count();
            assert!((40..=41).contains(&count), "{host}: {count}");
        }
    }

    #[test]
    fn among_peers_with_one_entry_each_the_oldest_is_replaced() {
        let s = Scene::new();
        let at = |number: u16| {
            let mut segment = segment(2, 9, 7);
            let [high, low] = number.to_be_bytes();
            segment.key.remote.set_ip([198, 18, high, low].into());
            segment
        };
        for number in 0..5000 {
            s.begin(&at(number), 1, 100);
        }
        let left = (0..5000).filter(|n| s.completes(&third(&at(*n), 100)).is_some());
        assert!(left.eq(5000 - MAX_ENTRIES as u16..5000));
    }

    #[test]
    fn the_addresses_of_a_64_bit_network_are_one_peer() {
        let of = |addr: &str| network(addr.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:1::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }

    #[test]
    fn a_syn_with_data_begins_no_handshake() {
        let s = Scene::new();
        let syn = Segment {
            payload: 1,
            ..segment(2, 9, 7)
        };
        assert_eq!(s.handshakes.find_or_begin(&syn, b"syn", s.now, || 1), None);
        let long = [0; LONGEST_SYN + 1];
        assert_eq!(
            s.handshakes
                .find_or_begin(&segment(2, 9, 7), &long, s.now, || 1),
            None
        );
    }
}

//! With early recovery, lost bytes are sent again within some round trips and not only after a
//! timer of one second. The tests use a cable with a delay, and simulated time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use proptest::prelude::*;
use uwarp_llp::smol::{Carrier, Congestion, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, Network, Piece, Recv, SendHints};
use uwarp_testkit::Random;

/// Delay of a packet in one direction.
const DELAY: Duration = Duration::from_millis(5);
const KINDS: [Congestion; 3] = [Congestion::None, Congestion::Reno, Congestion::Cubic];
/// Number of data bytes in a full segment.
const SEGMENT: usize = 1460;

/// Decides when a packet arrives. Returns one delay for each arrival: none for a lost packet,
/// several for a duplicated one.
type Fate = Box<dyn FnMut(&Seen) -> Vec<Duration> + Send>;

/// Properties of a packet that decide its fate.
struct Seen {
    /// True if the host that sends the stream has sent the packet.
    from_sender: bool,
    /// Number of stream bytes in the packet.
    bytes: usize,
    /// Offset of these bytes in the stream.
    offset: u32,
    /// Number of earlier packets with stream bytes.
    number: usize,
    /// True if the sender has sent the first of these bytes before.
    again: bool,
}

struct Cable {
    clock: Arc<ManualClock>,
    fate: Mutex<Fate>,
    state: Mutex<State>,
}

/// Time of arrival, order of sending, true if the stream's sender sent the packet, and the packet.
type Arrival = (Duration, u64, bool, Vec<u8>);

#[derive(Default)]
struct State {
    in_flight: BinaryHeap<Reverse<Arrival>>,
    order: u64,
    first: Option<u32>,
    number: usize,
    sent_to: u32,
}

struct Plug {
    cable: Arc<Cable>,
    sender: bool,
}

impl Carrier for Plug {
    fn carry(&self, packet: &[u8]) {
        let now = self.cable.clock.elapsed();
        let mut state = self.cable.state.lock();
        let seq = u32::from_be_bytes([24, 25, 26, 27].map(|at| packet[at]));
        let header = 20 + usize::from(packet[32] >> 4) * 4;
        let bytes = packet.len() - header;
        if self.sender && packet[33] & 2 != 0 {
            state.first = Some(seq.wrapping_add(1));
        }
        let offset = seq.wrapping_sub(state.first.unwrap_or(seq));
        let seen = Seen {
            from_sender: self.sender,
            bytes,
            offset,
            number: state.number,
            again: offset < state.sent_to,
        };
        if self.sender && bytes > 0 {
            state.number += 1;
            state.sent_to = state.sent_to.max(offset + bytes as u32);
        }
        for delay in (self.cable.fate.lock())(&seen) {
            state.order += 1;
            let order = state.order;
            let arrival = (now + delay, order, self.sender, packet.to_vec());
            state.in_flight.push(Reverse(arrival));
        }
    }

    fn reaches(&self, _: IpAddr) -> bool {
        true
    }
}

struct World {
    cable: Arc<Cable>,
    hosts: [MemoryNetwork; 2],
}

impl World {
    fn new(settings: &MemorySettings) -> Self {
        let clock = Arc::new(ManualClock::new());
        let cable = Arc::new(Cable {
            clock: Arc::clone(&clock),
            fate: Mutex::new(Box::new(|_| vec![DELAY])),
            state: Mutex::default(),
        });
        let hosts = [0, 1].map(|number| {
            let mut settings = settings
                .clone()
                .clock(Arc::<ManualClock>::clone(&clock))
                .connect_timeout(Duration::from_secs(6_000))
                .checksums(true)
                .seed(Some(7))
                .early_recovery(true);
            settings.addresses.swap(0, number);
            let plug = Plug {
                cable: Arc::clone(&cable),
                sender: number == 0,
            };
            MemoryNetwork::host(&settings, Arc::new(plug)).unwrap()
        });
        Self { cable, hosts }
    }

    /// Delivers a packet that is due. If there is none, advances the clock to the next arrival or
    /// deadline. Returns false if there is nothing to wait for.
    fn go_on(&self, deadlines: [Option<Instant>; 2]) -> bool {
        let now = self.cable.clock.elapsed();
        let arrived = {
            let mut state = self.cable.state.lock();
            let due = (state.in_flight.peek()).is_some_and(|Reverse((at, ..))| *at <= now);
            due.then(|| state.in_flight.pop()).flatten()
        };
        if let Some(Reverse((_, _, to_second, packet))) = arrived {
            self.hosts[usize::from(to_second)].deliver(&packet);
            return true;
        }
        let next = (self.cable.state.lock().in_flight.peek()).map(|Reverse((at, ..))| *at);
        let start = self.cable.clock.start();
        let timers = deadlines.map(|at| at.map(|at| at.saturating_duration_since(start)));
        let Some(next) = timers.into_iter().chain([next]).flatten().min() else {
            return false;
        };
        let clock = &self.cable.clock;
        clock.set(start + next);
        let limit = Duration::from_secs(100_000);
        assert!(clock.elapsed() < limit, "it would continue forever");
        true
    }

    fn connected(&self) -> [Box<dyn Llp>; 2] {
        let at: SocketAddr = "192.0.2.2:7174".parse().unwrap();
        let mut listener = self.hosts[1].listen(at, 1).unwrap();
        let mut client = self.hosts[0].connect(None, at).unwrap();
        let mut server = None;
        loop {
            client.drive();
            if server.is_none() {
                server = listener.try_accept().unwrap();
            }
            match server {
                Some(server) if client.connect_progress().unwrap() => return [client, server],
                _ => assert!(self.go_on([client.deadline(), listener.deadline()])),
            }
        }
    }
}

/// A stream from the first host to the second, with its parameters.
#[derive(Clone)]
struct Stream {
    settings: MemorySettings,
    bytes: usize,
    fpdus: bool,
}

impl Stream {
    fn new(congestion: Congestion, segments: usize) -> Self {
        let settings = MemorySettings::default().congestion(congestion);
        Self {
            settings,
            bytes: segments * SEGMENT,
            fpdus: true,
        }
    }

    /// Sends the stream and checks the received bytes. Returns the time until all bytes are
    /// acknowledged, and the number of retransmitted segments.
    fn time(
        &self,
        mut fate: impl FnMut(&Seen) -> Vec<Duration> + Send + 'static,
    ) -> (Duration, usize) {
        let world = World::new(&self.settings);
        let [mut client, mut server] = world.connected();
        let again = Arc::new(Mutex::new(0));
        let count = Arc::clone(&again);
        *world.cable.fate.lock() = Box::new(move |seen| {
            *count.lock() += usize::from(seen.from_sender && seen.bytes > 0 && seen.again);
            fate(seen)
        });
        let begin = world.cable.clock.elapsed();
        let data: Vec<u8> = (0..self.bytes)
            .map(|at| (at * 7 + at / 251) as u8)
            .collect();
        let ends: Vec<u64> = (1..=self.bytes.div_ceil(SEGMENT))
            .map(|count| (count * SEGMENT).min(self.bytes) as u64)
            .collect();
        let (mut sent, mut got) = (0, Vec::new());
        let mut buffer = vec![0; 100_000];
        loop {
            client.drive();
            if sent < data.len() {
                let hints = if self.fpdus {
                    SendHints::new(
                        sent as u64,
                        &ends[ends.partition_point(|end| *end <= sent as u64)..],
                    )
                } else {
                    SendHints::NONE
                };
                sent += client
                    .try_send(&[Piece::from(&data[sent..])], hints)
                    .unwrap();
            }
            server.drive();
            while let Recv::Data(count) = server.try_recv(&mut buffer).unwrap() {
                got.extend_from_slice(&buffer[..count]);
            }
            if sent == data.len() && client.flushed() {
                break;
            }
            let deadlines = [client.deadline(), server.deadline()];
            assert!(world.go_on(deadlines), "neither end has anything to do");
        }
        assert!(got == data, "other bytes arrived");
        let again = *again.lock();
        (world.cable.clock.elapsed() - begin, again)
    }

    /// Does the same as [`Self::time`]. `lost` decides for each packet with stream bytes whether it
    /// is lost.
    fn with_loss(&self, mut lost: impl FnMut(&Seen) -> bool + Send + 'static) -> (Duration, usize) {
        self.time(move |seen| {
            let lost = seen.from_sender && seen.bytes > 0 && lost(seen);
            if lost { vec![] } else { vec![DELAY] }
        })
    }
}

/// Returns the duration of `count` round trips.
fn trips(count: u32) -> Duration {
    DELAY * 2 * count
}

#[test]
fn one_lost_segment_costs_a_few_round_trips_wherever_it_is() {
    for congestion in KINDS {
        for fpdus in [false, true] {
            let mut stream = Stream::new(congestion, 400);
            stream.fpdus = fpdus;
            let (without, again) = stream.with_loss(|_| false);
            assert_eq!(again, 0);
            for lost in [0, 1, 2, 100, 250, 396, 397, 398, 399] {
                let (time, again) = stream.with_loss(move |seen| seen.number == lost);
                let what = format!("{congestion:?}, segment {lost}: {time:?}, not {without:?}");
                // With congestion control, the window stays small for a long time after an early
                // loss.
                let bound = if congestion == Congestion::None {
                    8
                } else {
                    40
                };
                assert!(time <= without + trips(bound), "{what}");
                assert!(again <= 3, "{what}: {again} were sent again");
            }
        }
    }
}

#[test]
fn a_segment_that_is_lost_twice_more_does_not_wait_for_the_timer() {
    for congestion in KINDS {
        let stream = Stream::new(congestion, 400);
        let (without, _) = stream.with_loss(|_| false);
        for lost in [1, 100, 399] {
            let place = (lost * SEGMENT) as u32;
            let mut times = 0;
            let (time, _) = stream.with_loss(move |seen| {
                let hit = seen.offset <= place && place < seen.offset + seen.bytes as u32;
                times += u32::from(hit);
                hit && times <= 3
            });
            let what = format!("{congestion:?}, segment {lost}: {time:?}, not {without:?}");
            assert!(time < without + Duration::from_millis(600), "{what}");
        }
    }
}

#[test]
fn a_burst_costs_about_a_round_trip_for_each_of_its_segments() {
    for congestion in KINDS {
        let stream = Stream::new(congestion, 400);
        let (without, _) = stream.with_loss(|_| false);
        for first in [60, 200, 394] {
            let lost = first..first + 6;
            let (time, again) = stream.with_loss(move |seen| lost.contains(&seen.number));
            let what = format!("{congestion:?}, from {first}: {time:?}, not {without:?}");
            assert!(time <= without + trips(60), "{what}");
            assert!(again <= 40, "{what}: {again} were sent again");
        }
    }
}

#[test]
fn each_twentieth_segment_may_be_lost() {
    for congestion in KINDS {
        let stream = Stream::new(congestion, 400);
        let (time, _) = stream.with_loss(|seen| seen.number % 20 == 13);
        assert!(time < Duration::from_secs(2), "{congestion:?}: {time:?}");
    }
}

#[test]
fn a_single_message_that_is_lost_waits_for_a_late_acknowledgement_and_no_longer() {
    let mut stream = Stream::new(Congestion::Reno, 1);
    let late = Duration::from_millis(100);
    for delay in [None, Some(late)] {
        for bytes in [8, SEGMENT] {
            stream.bytes = bytes;
            stream.settings.ack_delay = delay;
            let (time, again) = stream.with_loss(|seen| seen.number == 0);
            assert_eq!(again, 1);
            // The delay counts twice: before the retransmission, and for its acknowledgement.
            let bound = trips(5) + delay.unwrap_or_default() * 2;
            assert!(time < bound, "{time:?}, {delay:?}");
        }
    }
}

/// The receiver reads after its window was closed, and the window update is lost.
#[test]
fn a_window_update_that_is_lost_is_asked_for() {
    for congestion in KINDS {
        for fpdus in [false, true] {
            let mut stream = Stream::new(congestion, 40);
            stream.fpdus = fpdus;
            stream.settings.receive_buffer = 20_000;
            let world = World::new(&stream.settings);
            let [mut client, mut server] = world.connected();
            let data = vec![7; stream.bytes];
            let ends: Vec<u64> = (1..=40).map(|count| (count * SEGMENT) as u64).collect();
            let send = |client: &mut dyn Llp, sent: usize| {
                client.drive();
                let hints = SendHints::new(sent as u64, &ends[sent / SEGMENT..]);
                let hints = if fpdus { hints } else { SendHints::NONE };
                client
                    .try_send(&[Piece::from(&data[sent..])], hints)
                    .unwrap()
            };
            let mut sent = send(&mut *client, 0);
            // This loop lasts until the window is closed. It ends before the sender asks the peer
            // for its window.
            let end = world.cable.clock.elapsed() + trips(2);
            while world.cable.clock.elapsed() < end {
                sent += send(&mut *client, sent);
                server.drive();
                let end = world.cable.clock.start() + end;
                assert!(world.go_on([client.deadline(), Some(end)]));
            }
            let before = world.cable.clock.elapsed();
            let mut lost = 0;
            *world.cable.fate.lock() = Box::new(move |seen| {
                let lose = !seen.from_sender && lost < 1;
                lost += usize::from(lose);
                if lose { vec![] } else { vec![DELAY] }
            });
            let (mut got, mut buffer) = (0, vec![0; 100_000]);
            while got < stream.bytes {
                server.drive();
                while let Recv::Data(count) = server.try_recv(&mut buffer).unwrap() {
                    got += count;
                }
                if sent < stream.bytes {
                    sent += send(&mut *client, sent);
                }
                client.drive();
                assert!(world.go_on([client.deadline(), server.deadline()]));
            }
            let time = world.cable.clock.elapsed() - before;
            assert!(
                time < Duration::from_millis(190),
                "{congestion:?}, {fpdus}: {time:?}"
            );
        }
    }
}

#[test]
fn a_peer_that_acknowledges_late_is_sent_nothing_twice() {
    for congestion in KINDS {
        let mut stream = Stream::new(congestion, 1);
        stream.settings.ack_delay = Some(Duration::from_millis(150));
        for segments in [1, 2, 40] {
            stream.bytes = segments * SEGMENT;
            let (_, again) = stream.with_loss(|_| false);
            assert_eq!(again, 0, "{congestion:?}, {segments} segments");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Packets in both directions are lost, duplicated and reordered, and the stream arrives
    /// unchanged.
    #[test]
    fn the_stream_is_right_whatever_befalls_its_packets(
        kind in 0_usize..3,
        segments in 1_usize..150,
        fpdus: bool,
        buffer in 4_usize..200,
        seed in 1_u64..,
        (loss, double, late) in (0_u64..12, 0_u64..12, 0_u64..30),
    ) {
        let mut stream = Stream::new(KINDS[kind], segments);
        stream.fpdus = fpdus;
        stream.settings.receive_buffer = buffer * 1024;
        stream.settings.send_buffer = buffer * 1024;
        let mut random = Random(seed);
        let mut percent = move || random.next() % 100;
        stream.time(move |_| {
            let mut arrivals = Vec::new();
            let copies = 1 + u32::from(percent() < double);
            for _ in 0..copies {
                let delay = if percent() < late { DELAY * 3 } else { DELAY };
                if percent() >= loss {
                    arrivals.push(delay);
                }
            }
            arrivals
        });
    }
}

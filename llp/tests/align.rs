//! Alignment of smoltcp's segments with FPDUs, checked in a capture of the link.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;

use common::seen::{Segments, segments};
use common::*;
use proptest::prelude::*;
use uwarp_capture::Capture;
use uwarp_llp::smol::{Congestion, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_llp::{Llp, Piece, Recv, SendHints};
use uwarp_testkit::MemoryFile;

/// The clock does not advance, so that no timer ever fires.
fn frozen(mtu: usize) -> MemorySettings {
    MemorySettings::default()
        .mtu(mtu)
        .clock(Arc::new(ManualClock::new()))
}

/// A transfer of FPDUs over an in-memory link, with its parameters.
struct Play {
    settings: MemorySettings,
    v6: bool,
    fpdus: Vec<usize>,
    /// Maximum number of bytes that the sender offers in a call, in addition to one FPDU.
    call: usize,
    seed: u64,
}

impl Play {
    fn ends(&self) -> Vec<u64> {
        let mut at = 0;
        self.fpdus
            .iter()
            .map(|len| {
                at += *len as u64;
                at
            })
            .collect()
    }

    /// Minimum number of bytes that a call offers: the longest FPDU.
    fn least(&self) -> usize {
        self.fpdus.iter().copied().max().unwrap_or(0)
    }

    /// Sends all FPDUs to a reader that pauses now and then, and checks the received bytes. Returns
    /// the segments and EMSS.
    fn run(&self) -> (Segments, usize) {
        let file = MemoryFile::default();
        let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
        let settings = self.settings.clone().capture(Some(capture.clone()));
        let (a, b) = MemoryNetwork::pair(&settings).unwrap();
        let at = at(self.v6);
        let (mut client, mut server) = connected(&a, &b, at);
        let emss = client.emss();
        let mut random = Random(self.seed | 1);
        let (ends, stream) = (self.ends(), random.bytes(self.fpdus.iter().sum::<usize>()));
        let (mut sent, mut got) = (0, Vec::new());
        let mut buffer = vec![0; 1 << 20];
        while got.len() < stream.len() {
            let mut stuck = true;
            client.clear_readiness();
            server.clear_readiness();
            client.drive();
            for _ in 0..1 + random.below(8) {
                let to = stream
                    .len()
                    .min(sent + self.least() + random.below(self.call));
                let middle = sent + (to - sent) / 3;
                let pieces = [
                    Piece::from(&stream[sent..middle]),
                    Piece::from(&stream[middle..to]),
                ];
                let hints = SendHints::new(sent as u64, &ends);
                let taken = client.try_send(&pieces, hints).unwrap();
                assert!(taken <= to - sent);
                stuck &= taken == 0;
                sent += taken;
            }
            // The reader pauses, reads a little, or reads everything.
            let reads = random.below(4);
            for _ in 0..reads {
                let room = 1 + random.below(if reads == 3 { 1 << 20 } else { 3000 });
                if let Recv::Data(count) = server.try_recv(&mut buffer[..room]).unwrap() {
                    got.extend_from_slice(&buffer[..count]);
                    stuck = false;
                }
            }
            // While the reader pauses, both ends may be idle, so waiting would hang.
            if stuck && reads > 0 && sent < stream.len() {
                wait(&[
                    Wait::connection(&*client, true),
                    Wait::connection(&*server, false),
                ]);
            }
        }
        assert!(got == stream, "seed {}", self.seed);
        drop((client, server, a, b));
        assert_eq!(capture.error(), None);
        (segments(&file, at), emss)
    }

    /// Runs the transfer, and checks that every segment consists of whole FPDUs. Returns the number
    /// of segments.
    fn run_aligned(&self) -> Result<usize, TestCaseError> {
        let (segments, emss) = self.run();
        let ends = self.ends();
        let mut at = 0;
        for (number, (from, to)) in segments.iter().copied().enumerate() {
            let context = || format!("segment {number}: {from}..{to}, seed {}", self.seed);
            prop_assert_eq!(from, at, "{}", context());
            prop_assert!(to - from <= emss as u64, "{}", context());
            prop_assert!(ends.binary_search(&to).is_ok(), "{}", context());
            at = to;
        }
        prop_assert_eq!(Some(&at), ends.last());
        Ok(segments.len())
    }
}

fn at(v6: bool) -> SocketAddr {
    if v6 {
        "[2001:db8::2]:7174".parse().unwrap()
    } else {
        "192.0.2.2:7174".parse().unwrap()
    }
}

fn mixed(random: &mut Random, largest: usize, bytes: usize) -> Vec<usize> {
    let mut fpdus = Vec::new();
    let mut sum = 0;
    while sum < bytes {
        let len = match random.below(4) {
            0 => largest,
            1 => 4 * (5 + random.below(10)),
            _ => 4 * (5 + random.below(largest / 4 - 4)),
        };
        fpdus.push(len);
        sum += len;
    }
    fpdus
}

#[test]
fn every_segment_begins_with_an_fpdu_and_holds_whole_ones() {
    // With the MTUs 1501 and 1282, EMSS is not a multiple of 4.
    for (mtu, v6) in [
        (576, false),
        (1500, false),
        (1500, true),
        (1501, false),
        (1282, true),
        (1280, true),
        (9000, false),
        (65535, false),
    ] {
        let emss = mtu - if v6 { 60 } else { 40 };
        for seed in 1..4 {
            let mut random = Random(seed);
            let play = Play {
                settings: frozen(mtu),
                v6,
                fpdus: mixed(&mut random, emss - emss % 4, 2_000_000),
                call: 1 << 20,
                seed,
            };
            play.run_aligned().unwrap();
        }
    }
}

#[test]
fn small_fpdus_share_segments() {
    let play = Play {
        settings: frozen(1500),
        v6: false,
        fpdus: vec![44; 10_000],
        call: 1 << 20,
        seed: 5,
    };
    let segments = play.run_aligned().unwrap();
    // A segment holds 33 of these FPDUs. The last segment of a call may not be full.
    assert!((304..400).contains(&segments), "{segments}");
}

#[test]
fn an_fpdu_longer_than_a_segment_begins_one_and_ends_one() {
    let play = Play {
        settings: frozen(1500),
        v6: false,
        fpdus: vec![100, 4000, 64, 20_000, 8, 1460, 1464, 12],
        call: 1 << 20,
        seed: 1,
    };
    let (segments, emss) = play.run();
    let starts: Vec<u64> = segments.iter().map(|(from, _)| *from).collect();
    let mut at = 0;
    for len in &play.fpdus {
        if *len > emss {
            assert!(starts.contains(&at), "{at} in {segments:?}");
            assert!(starts.contains(&(at + *len as u64)), "{segments:?}");
        }
        at += *len as u64;
    }
}

#[test]
fn whatever_the_window_all_bytes_arrive_without_a_timer() {
    for (mtu, buffer) in [
        (576, 2048),
        (1500, 2048),
        (9000, 3001),
        (65535, 2048),
        (65535, 70_000),
    ] {
        for seed in 1..6 {
            let settings = frozen(mtu)
                .receive_buffer(buffer)
                .send_buffer(if seed % 2 == 0 { buffer } else { 10 * buffer });
            let mut random = Random(seed);
            let play = Play {
                settings,
                v6: false,
                fpdus: mixed(&mut random, (mtu - 40) / 4 * 4, 300_000),
                call: 200_000,
                seed,
            };
            play.run();
        }
    }
}

#[test]
fn small_fpdus_stay_aligned_in_windows_smaller_than_a_segment() {
    let settings = frozen(65535).receive_buffer(4096);
    let mut random = Random(3);
    let play = Play {
        settings,
        v6: false,
        fpdus: mixed(&mut random, 1000, 300_000),
        call: 100_000,
        seed: 3,
    };
    play.run_aligned().unwrap();
}

#[test]
fn a_tiny_inbox_does_not_cost_alignment() {
    for inbox in [1, 3] {
        let settings = frozen(1500).inbox(inbox);
        let mut random = Random(9);
        let play = Play {
            settings,
            v6: false,
            fpdus: mixed(&mut random, 1460, 500_000),
            call: 100_000,
            seed: 9,
        };
        play.run_aligned().unwrap();
    }
}

/// With a reader in another thread, acknowledgements arrive while more bytes are in flight. So the
/// send buffer is never empty, and the end of the ring falls into the middle of segments.
#[test]
fn the_end_of_the_send_buffer_cuts_no_segment() {
    const BYTES: usize = 8 << 20;
    for v6 in [false, true] {
        let file = MemoryFile::default();
        let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
        let settings = frozen(1500)
            .send_buffer(50_000)
            .capture(Some(capture.clone()));
        let (a, b) = MemoryNetwork::pair(&settings).unwrap();
        let (client, server) = connected(&a, &b, at(v6));
        let mut random = Random(6);
        let data = random.bytes(BYTES);
        let mut writer = End::new(client, data, 1).with_fpdus(1440).whole_fpdus();
        let mut reader = End::new(server, Vec::new(), 2).bulk();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| {
                reader.run_until(|end| end.got.len() == BYTES);
            });
            writer.finish = false;
            writer.run_until(|end| end.sent == BYTES);
            reading.join().unwrap();
        });
        assert!(reader.got == writer.to_send);
        assert_eq!(capture.error(), None);
        let mut next = 0;
        for (from, to) in segments(&file, at(v6)) {
            assert_eq!(from, next);
            assert!(writer.ends.binary_search(&to).is_ok(), "{from}..{to}");
            next = to;
        }
        assert_eq!(next, BYTES as u64);
    }
}

#[test]
fn with_congestion_control_all_bytes_arrive() {
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        let settings = frozen(1500).congestion(congestion);
        let mut random = Random(4);
        let play = Play {
            settings,
            v6: false,
            fpdus: mixed(&mut random, 1460, 1_000_000),
            call: 200_000,
            seed: 4,
        };
        play.run();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// FPDUs and calls have any size, and windows have two or more segments. The reader pauses, so
    /// that windows fill.
    #[test]
    fn fpdus_stay_aligned_while_windows_fill(
        mtu in 576_usize..4000,
        segments_in_window in 2_usize..60,
        wide_send_buffer: bool,
        sizes in prop::collection::vec(5_usize..1000, 1..800),
        call in 1500_usize..300_000,
        seed: u64,
    ) {
        let emss = mtu - 40;
        let receive_buffer = (segments_in_window * emss).max(2048);
        let settings = frozen(mtu).receive_buffer(receive_buffer).send_buffer(if wide_send_buffer { 256 << 10 } else { receive_buffer });
        let fpdus: Vec<usize> = sizes.iter().map(|words| (4 * words).min(emss / 4 * 4)).collect();
        let play = Play { settings, v6: false, fpdus, call, seed };
        play.run_aligned()?;
    }
}

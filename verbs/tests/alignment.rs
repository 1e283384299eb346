//! Alignment of FPDUs with TCP segments in the whole stack over smoltcp. Every data segment in a
//! capture begins with an FPDU and contains only whole FPDUs (RFC 5044 section 3 and appendix A.1).
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod common;

use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;

use common::{Setup, Side, Wire, bell, both_ways, content, pattern, same};
use uwarp_capture::{Capture, Reader};
use uwarp_testkit::MemoryFile;
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::smol::{ManualClock, MemoryNetwork, MemorySettings};
use uwarp_verbs::{FpduSegments, RecvWr, RemoteBuffer, SendWr, Settings};

/// Length in bytes of a startup frame without private data (RFC 5044 section 7.1), with the words
/// that RFC 6581 adds.
const STARTUP_FRAME: usize = 20 + 4;

/// Two endpoints and a capture of the link between them.
struct Recorded {
    a: Side,
    b: Side,
    at: SocketAddr,
    file: MemoryFile,
    capture: Capture,
}

impl Recorded {
    fn new(mtu: usize, v6: bool) -> Self {
        Self::with(mtu, v6, [Settings::default(), Settings::default()])
    }

    fn with(mtu: usize, v6: bool, of_both: [Settings; 2]) -> Self {
        let file = MemoryFile::default();
        let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
        let settings = MemorySettings::default()
            .mtu(mtu)
            .capture(Some(capture.clone()))
            // TCP's clock stands still, so that nothing is retransmitted on a slow test machine.
            .clock(Arc::new(ManualClock::new()));
        let at: SocketAddr = if v6 {
            "[2001:db8::2]:7174".parse().unwrap()
        } else {
            "192.0.2.2:7174".parse().unwrap()
        };
        let (first, second) = MemoryNetwork::pair(&settings).unwrap();
        let networks: [Arc<dyn Network>; 2] = [Arc::new(first), Arc::new(second)];
        let mut setup = Setup::new(Wire::MEMORY);
        setup.settings = of_both;
        let ends = setup.peer_to_peer().unconnected_over(networks, at);
        ends.join();
        Self {
            a: ends.a,
            b: ends.b,
            at,
            file,
            capture,
        }
    }

    /// Returns the data segments of one direction in the order in which they were sent, each with
    /// its offset in the stream.
    fn segments(&self, to_b: bool) -> Vec<(usize, Vec<u8>)> {
        assert_eq!(self.capture.error(), None);
        let bytes = self.file.bytes();
        let mut reader = Reader::new(Cursor::new(bytes)).unwrap();
        let (mut first, mut segments) = (0, Vec::new());
        while let Some(packet) = reader.next_packet().unwrap() {
            let segment = packet.tcp().unwrap();
            if (segment.destination == self.at) != to_b {
                continue;
            }
            if segment.syn {
                first = segment.seq.wrapping_add(1);
            } else if !segment.payload.is_empty() {
                let at = segment.seq.wrapping_sub(first) as usize;
                segments.push((at, segment.payload.to_vec()));
            }
        }
        segments
    }

    /// Checks the FPDUs of one direction. Returns the number of segments and of FPDUs.
    fn check(&self, to_b: bool, emss: usize) -> (usize, usize) {
        let segments = self.segments(to_b);
        let (mut next, mut fpdus) = (0, 0);
        for (number, (at, bytes)) in segments.iter().enumerate() {
            let what = format!("segment {number} to B: {to_b}, EMSS {emss}");
            assert_eq!(*at, next, "{what}: a retransmission or a gap");
            assert!(bytes.len() <= emss, "{what}: {}", bytes.len());
            next += bytes.len();
            let mut rest = &bytes[..];
            if number == 0 {
                rest = &rest[STARTUP_FRAME..];
            }
            while !rest.is_empty() {
                assert!(rest.len() >= 8, "{what}: it ends within an FPDU");
                let ulpdu = usize::from(u16::from_be_bytes([rest[0], rest[1]]));
                let len = (2 + ulpdu).next_multiple_of(4) + 4;
                // The DDP control byte, version 1, shows that an FPDU begins here.
                assert_eq!(rest[2] & 3, 1, "{what}: no FPDU begins here");
                assert!(len <= rest.len(), "{what}: an FPDU continues in the next");
                rest = &rest[len..];
                fpdus += 1;
            }
        }
        (segments.len(), fpdus)
    }
}

/// Returns the begin and the end of each FPDU in Full Operation, with or without Markers.
fn fpdus(stream: &[u8], markers: bool) -> Vec<(usize, usize)> {
    // These functions convert an offset in a stream without Markers to the offset with Markers:
    // `place` for the end of an FPDU, `at` for its begin. A Marker precedes every 508 bytes. If an
    // FPDU begins there, the Marker comes first.
    let place = |byte: usize| byte + if markers { 4 * byte.div_ceil(508) } else { 0 };
    let at = |byte: usize| byte + if markers { 4 * (byte / 508 + 1) } else { 0 };
    let (mut next, mut all) = (0, Vec::new());
    while at(next + 1) < stream.len() {
        let ulpdu = u16::from_be_bytes([stream[at(next)], stream[at(next + 1)]]);
        assert_eq!(stream[at(next + 2)] & 3, 1, "no FPDU begins here");
        let end = next + (2 + usize::from(ulpdu)).next_multiple_of(4) + 4;
        all.push((place(next), place(end)));
        next = end;
    }
    assert_eq!(place(next), stream.len(), "the last one is whole");
    all
}

/// Sends batches of small Sends, Sends of mixed sizes, and a Write and a Read of 1 MiB from A.
fn traffic(a: &Side, b: &Side) {
    const COUNT: usize = 100;
    let (source, target) = (a.filled(1, 1 << 20), b.blank(1 << 20));
    let sizes = |round: usize| {
        (0..COUNT).map(move |number| match round {
            0 => 8,
            1 => 100 + number,
            _ => number * number * 7 % 6000,
        })
    };
    for round in 0..3 {
        let sinks: Vec<_> = sizes(round).map(|size| b.blank(size)).collect();
        for (number, (sink, size)) in sinks.iter().zip(sizes(round)).enumerate() {
            let sges = [sink.sge(0, size as u32)];
            b.qp.post_recv(&RecvWr::new(number as u64, &sges)).unwrap();
        }
        let sges: Vec<_> = sizes(round)
            .enumerate()
            .map(|(number, size)| [source.sge(number as u64, size as u32)])
            .collect();
        let sends: Vec<_> = sges
            .iter()
            .enumerate()
            .map(|(number, sges)| SendWr::send(number as u64, sges))
            .collect();
        a.qp.post_send_list(&sends).unwrap();
        a.send_cq.successes(0..COUNT as u64);
        b.recv_cq.successes(0..COUNT as u64);
        let data = content(&source);
        for (number, (sink, size)) in sinks.iter().zip(sizes(round)).enumerate() {
            same(&content(sink)[..size], &data[number..][..size], "a Send");
        }
    }
    let whole = [source.sge(0, 1 << 20)];
    let remote = target.remote();
    a.qp.post_send(&SendWr::write(
        1,
        &whole,
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.send_cq.success(1);
    bell(a, b);
    same(&content(&target), &pattern(1, 1 << 20), "written");
    let sink = a.blank(1 << 20);
    let into = [sink.sge(0, 1 << 20)];
    a.qp.post_send(&SendWr::read(
        2,
        &into,
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.send_cq.success(2);
    same(&content(&sink), &pattern(1, 1 << 20), "read");
}

#[test]
fn every_data_segment_begins_with_an_fpdu_and_holds_whole_ones() {
    // At MTU 1501 and 1282, EMSS is not a multiple of 4.
    for (mtu, v6) in [
        (1500, false),
        (1500, true),
        (1280, false),
        (1280, true),
        (9000, false),
        (9000, true),
        (1501, false),
        (1282, true),
    ] {
        let recorded = Recorded::new(mtu, v6);
        let (a, b) = (&recorded.a, &recorded.b);
        both_ways(a, b);
        traffic(a, b);
        traffic(b, a);
        let emss = mtu - if v6 { 60 } else { 40 };
        for to_b in [true, false] {
            let (segments, fpdus) = recorded.check(to_b, emss);
            // The traffic has a Write of 1 MiB, the response to a Read of 1 MiB, and 300 Sends.
            assert!(fpdus > 2 * (1 << 20) / emss + 300, "{fpdus}");
            assert!(segments < fpdus, "small ones share segments: {segments}");
        }
    }
}

#[test]
fn with_fpdus_over_segments_these_are_full_and_a_peer_with_the_default_takes_them() {
    for (mtu, segments, markers) in [
        (1500, 2, false),
        (1500, 45, false),
        (1501, 4, true),
        (9000, 506, true),
        (1280, 506, false),
    ] {
        let ours = Settings::default().fpdu_segments(FpduSegments::new(segments).unwrap());
        // The peer requests the Markers that it receives, and sends aligned FPDUs.
        let theirs = Settings::default().markers(markers);
        let recorded = Recorded::with(mtu, false, [ours, theirs]);
        let (a, b) = (&recorded.a, &recorded.b);
        both_ways(a, b);
        traffic(a, b);
        traffic(b, a);
        let emss = mtu - 40;
        recorded.check(false, emss);

        let cut = recorded.segments(true);
        assert!(cut.iter().all(|(_, bytes)| bytes.len() <= emss));
        let borders: Vec<usize> = cut.iter().map(|(at, _)| *at).collect();
        let whole: Vec<u8> = cut.into_iter().flat_map(|(_, bytes)| bytes).collect();
        let found = fpdus(&whole[STARTUP_FRAME..], markers);
        let full = emss * usize::from(segments).min(64_776 / emss);
        let longest = found.iter().map(|(begin, end)| end - begin).max();
        let longest = longest.unwrap();
        assert!(
            longest <= full && longest + 16 > full,
            "{longest} in {full}"
        );
        // The traffic has a Write of 1 MiB, the response to a Read of 1 MiB, and 300 Sends.
        assert!(
            found.len() < 2 * ((1 << 20) / (full - 600) + 1) + 1000,
            "{}",
            found.len()
        );
        let long = found.iter().filter(|(begin, end)| end - begin > emss);
        for (begin, end) in long {
            for border in [begin, end] {
                let at = STARTUP_FRAME + border;
                let near: Vec<usize> = borders
                    .iter()
                    .copied()
                    .filter(|border| border.abs_diff(at) < 2 * emss)
                    .collect();
                assert!(
                    borders.contains(&at) || at == whole.len(),
                    "{begin} to {end}: no segment begins at {at}, but at {near:?}"
                );
            }
        }
    }
}

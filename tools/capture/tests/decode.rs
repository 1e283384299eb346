//! Decodes whole captures. The decoder finds the known deviations of siw. A correct connection has
//! no finding, even if the capture lost, duplicated or reordered packets.

use std::io;
use std::net::SocketAddr;

use proptest::prelude::*;
use uwarp_capture::decode::{Content, Decoder, Event, Frame};
use uwarp_capture::{Capture, Flow, LinkType, Packet, Reader};
use uwarp_oracle::Fpdus;
use uwarp_testkit::frames::{reply, request, tagged, untagged};
use uwarp_testkit::{MemoryFile, filler};

fn data(name: &str) -> String {
    format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn decode(packets: &[Packet]) -> (Vec<Frame>, Decoder) {
    let mut decoder = Decoder::default();
    let mut frames = Vec::new();
    for packet in packets {
        frames.extend(decoder.packet(packet));
    }
    frames.extend(decoder.finish());
    (frames, decoder)
}

fn packets(name: &str) -> Vec<Packet> {
    Reader::open(data(name))
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn lines(frames: &[Frame]) -> String {
    frames.iter().map(|frame| format!("{frame}\n")).collect()
}

#[test]
fn what_siw_sends_in_answer_to_malformed_fpdus() {
    let (frames, _) = decode(&packets("siw-fpdu-errors.pcap"));
    insta::assert_snapshot!(lines(&frames));
}

#[test]
fn what_siw_answers_to_requests_of_every_kind() {
    let (frames, decoder) = decode(&packets("siw-mpa-startup.pcap"));
    let startup: Vec<Frame> = frames
        .into_iter()
        .filter(|frame| !matches!(frame.content, Content::Event(_)))
        .collect();
    insta::assert_snapshot!(lines(&startup));
    assert_eq!(decoder.totals().others, 1, "one Request has a wrong Key");
}

/// Step of a correct connection. The flag is true if the initiator acts. The numbers are the length
/// of the message and the maximum payload of a segment, in bytes.
#[derive(Debug, Clone)]
enum Step {
    Send(bool, usize, usize),
    Write(bool, usize, usize),
    /// A Read Request, directly followed by its response.
    Read(bool, usize, usize),
    Atomic(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let sizes = (any::<bool>(), 0..3000_usize, 50..1400_usize);
    prop_oneof![
        sizes.clone().prop_map(|(a, b, c)| Step::Send(a, b, c)),
        sizes.clone().prop_map(|(a, b, c)| Step::Write(a, b, c)),
        sizes.prop_map(|(a, b, c)| Step::Read(a, b, c)),
        any::<bool>().prop_map(Step::Atomic),
    ]
}

/// A connection that the test builds: the encoders of both directions, and the flow that records
/// it.
struct Model {
    flow: Flow,
    encoders: [Fpdus; 2],
    /// Last MSN used, by side and queue.
    msn: [[u32; 4]; 2],
    cut: usize,
    fpdus: usize,
}

impl Model {
    fn bytes(&mut self, side: usize, bytes: &[u8]) {
        for piece in bytes.chunks(self.cut) {
            match side {
                0 => self.flow.sent(piece),
                _ => self.flow.received(piece),
            }
        }
    }

    fn fpdu(&mut self, side: usize, ulpdu: &[u8]) {
        let fpdu = self.encoders[side].seal(ulpdu);
        self.bytes(side, &fpdu);
        self.fpdus += 1;
    }

    fn next(&mut self, side: usize, queue: usize) -> u32 {
        self.msn[side][queue] += 1;
        self.msn[side][queue]
    }

    /// Sends a message in segments. `head` builds the ULPDU of a segment from its offset in the
    /// message and its payload.
    fn message(
        &mut self,
        side: usize,
        len: usize,
        most: usize,
        head: &dyn Fn(u64, &[u8]) -> Vec<u8>,
    ) {
        let bytes = filler(0, len);
        let mut at = 0;
        loop {
            let piece = &bytes[at..len.min(at + most)];
            let mut ulpdu = head(at as u64, piece);
            at += piece.len();
            if at < len {
                ulpdu[0] &= !0x40;
            }
            self.fpdu(side, &ulpdu);
            if at >= len {
                return;
            }
        }
    }

    fn step(&mut self, step: &Step) {
        let place = |opcode| {
            move |at: u64, piece: &[u8]| {
                let mut ulpdu = tagged(opcode, piece);
                ulpdu[6..14].copy_from_slice(&(0x1000 + at).to_be_bytes());
                ulpdu
            }
        };
        match *step {
            Step::Send(initiator, len, most) => {
                let side = usize::from(!initiator);
                let msn = self.next(side, 0);
                self.message(side, len, most, &|at, piece| {
                    let mut ulpdu = untagged(3, 0, msn, piece);
                    ulpdu[14..18].copy_from_slice(&(at as u32).to_be_bytes());
                    ulpdu
                });
            }
            Step::Write(initiator, len, most) => {
                self.message(usize::from(!initiator), len, most, &place(0));
            }
            Step::Read(initiator, len, most) => {
                let side = usize::from(!initiator);
                let mut header = 0x0012_3456_u32.to_be_bytes().to_vec();
                header.extend(0x1000_u64.to_be_bytes());
                header.extend((len as u32).to_be_bytes());
                header.resize(28, 0);
                let msn = self.next(side, 1);
                self.fpdu(side, &untagged(1, 1, msn, &header));
                self.message(1 - side, len, most, &place(2));
            }
            Step::Atomic(initiator) => {
                let side = usize::from(!initiator);
                let (asked, answered) = (self.next(side, 1), self.next(1 - side, 3));
                let mut asks = untagged(10, 1, asked, &[0; 52]);
                asks[22..26].copy_from_slice(&asked.to_be_bytes());
                self.fpdu(side, &asks);
                let mut answers = untagged(11, 3, answered, &[0; 12]);
                answers[18..22].copy_from_slice(&asked.to_be_bytes());
                self.fpdu(1 - side, &answers);
            }
        }
    }
}

/// Returns the packets of a correct connection, and its number of FPDUs.
fn connection(crc: bool, markers: [bool; 2], cut: usize, steps: &[Step]) -> (Vec<Packet>, usize) {
    let file = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
    let (local, peer): (SocketAddr, SocketAddr) = (
        ([192, 0, 2, 1], 40_000).into(),
        ([192, 0, 2, 2], 7174).into(),
    );
    let interface = capture.interface("test", LinkType::RawIp);
    let mut model = Model {
        flow: Flow::new(interface, local, peer, 1460),
        encoders: [Fpdus::new(crc, markers[0]), Fpdus::new(crc, markers[1])],
        msn: Default::default(),
        cut,
        fpdus: 0,
    };
    let flags = |markers: bool| if markers { 0x80 } else { 0 } | if crc { 0x50 } else { 0x10 };
    model.flow.opened(true);
    // M asks the receiver of the frame to send Markers.
    model.bytes(0, &request(flags(markers[1]), 2, &[0, 4, 0, 4, 9]));
    model.bytes(1, &reply(flags(markers[0]), 2, &[0, 4, 0, 4]));
    model.step(&Step::Send(true, 5, 50));
    for step in steps {
        model.step(step);
    }
    model.flow.local_fin();
    model.flow.peer_fin();
    let fpdus = model.fpdus;
    drop(model);
    let bytes = file.bytes();
    let reader = Reader::new(io::Cursor::new(bytes)).unwrap();
    (reader.map(Result::unwrap).collect(), fpdus)
}

/// Returns the lines of all frames except events, sorted by direction.
fn contents(frames: &[Frame]) -> Vec<String> {
    let frame = |frame: &Frame| match frame.content {
        Content::Event(_) => None,
        _ => Some(format!("{} {}", frame.from, frame.content)),
    };
    let mut contents: Vec<String> = frames.iter().filter_map(frame).collect();
    // The order between the two directions may vary.
    contents.sort_by_key(|line| line.split(' ').next().map(str::to_owned));
    contents
}

fn no_findings(frames: &[Frame]) -> Result<(), TestCaseError> {
    for frame in frames {
        prop_assert!(frame.findings.is_empty(), "{}", lines(frames));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_right_connection_has_no_finding_and_all_its_fpdus(
        crc: bool, markers: [bool; 2], cut in 1..3000_usize, steps in prop::collection::vec(step(), 0..12),
    ) {
        let (packets, fpdus) = connection(crc, markers, cut, &steps);
        let (frames, decoder) = decode(&packets);
        no_findings(&frames)?;
        prop_assert_eq!(decoder.totals().fpdus, fpdus as u64);
        prop_assert!(frames.iter().all(|frame| frame.whole));
    }

    #[test]
    fn packets_that_come_twice_or_in_another_order_change_nothing(
        crc: bool, markers: [bool; 2], steps in prop::collection::vec(step(), 1..12), odd in prop::collection::vec(0..1000_usize, 8),
    ) {
        let (mut packets, _) = connection(crc, markers, 700, &steps);
        let (before, _) = decode(&packets);
        for place in odd {
            let at = 3 + place % (packets.len() - 4);
            // Swaps two packets of one direction, or repeats a packet.
            let same = packets[at].tcp().unwrap().source == packets[at + 1].tcp().unwrap().source;
            match same {
                true => packets.swap(at, at + 1),
                false => packets.insert(at + 1, packets[at].clone()),
            }
        }
        let (after, _) = decode(&packets);
        no_findings(&after)?;
        prop_assert_eq!(contents(&after), contents(&before));
    }

    /// If the capture contains all bytes of both directions, any order of the packets gives the
    /// same FPDUs and no finding. The expected FPDUs come from the same connection in its original
    /// order.
    #[test]
    fn any_order_that_keeps_all_packets_gives_the_same_fpdus(
        crc: bool, markers: [bool; 2], cut in 100..1400_usize, without_start: bool,
        steps in prop::collection::vec(step(), 1..12), moves in prop::collection::vec((0..1000_usize, 0..200_usize), 0..40),
    ) {
        let (mut packets, fpdus) = connection(crc, markers, cut, &steps);
        if without_start {
            packets.drain(..3);
        }
        let times: Vec<_> = packets.iter().map(|packet| packet.timestamp).collect();
        let (before, decoder) = decode(&packets);
        prop_assert_eq!(decoder.totals().fpdus, fpdus as u64);
        for (from, to) in moves {
            let packet = packets.remove(from % packets.len());
            let to = (from % packets.len() + to).min(packets.len());
            packets.insert(to, packet);
        }
        // Timestamps increase in the order of the file.
        for (packet, time) in packets.iter_mut().zip(times) {
            packet.timestamp = time;
        }
        let (after, _) = decode(&packets);
        no_findings(&after)?;
        prop_assert_eq!(contents(&after), contents(&before));
    }

    /// Retransmissions may overlap earlier bytes, be cut anywhere and contain other bytes. The
    /// decoder uses the first copy of each byte.
    #[test]
    fn retransmissions_of_any_cut_and_content_change_nothing(
        crc: bool, markers: [bool; 2], steps in prop::collection::vec(step(), 1..12),
        again in prop::collection::vec((0..1000_usize, 0..700_usize, any::<u8>()), 1..12),
    ) {
        let (mut packets, fpdus) = connection(crc, markers, 700, &steps);
        let (before, _) = decode(&packets);
        for (place, skip, change) in again {
            let at = 3 + place % (packets.len() - 3);
            let mut packet = packets[at].clone();
            let payload = packet.tcp().unwrap().payload.len();
            if payload == 0 {
                continue;
            }
            let skip = skip % payload;
            let header = packet.data.len() - payload;
            packet.data.drain(header..header + skip);
            for byte in &mut packet.data[header..] {
                *byte ^= change;
            }
            let seq = packets[at].tcp().unwrap().seq.wrapping_add(skip as u32);
            packet.data[24..28].copy_from_slice(&seq.to_be_bytes());
            let total = (packet.data.len() as u16).to_be_bytes();
            packet.data[2..4].copy_from_slice(&total);
            packet.original_len = packet.data.len();
            packets.insert(at + 1, packet);
        }
        let (after, decoder) = decode(&packets);
        no_findings(&after)?;
        prop_assert_eq!(contents(&after), contents(&before));
        prop_assert_eq!(decoder.totals().fpdus, fpdus as u64);
    }

    /// A mirror port may capture only one direction. The decoder then finds the same FPDUs of this
    /// direction as in the capture of both directions.
    #[test]
    fn one_direction_alone_has_all_its_fpdus(
        crc: bool, markers: [bool; 2], responder: bool, cut in 100..3000_usize,
        steps in prop::collection::vec(step(), 1..12),
    ) {
        let (packets, _) = connection(crc, markers, cut, &steps);
        let (before, _) = decode(&packets);
        let port = if responder { 7174 } else { 40_000 };
        let of = |packet: &&Packet| packet.tcp().unwrap().source.port() == port;
        let one: Vec<Packet> = packets.iter().filter(of).cloned().collect();
        let (after, _) = decode(&one);
        no_findings(&after)?;
        let own = contents(&before).into_iter().filter(|line| line.contains(&format!(":{port} ")));
        prop_assert_eq!(contents(&after), own.collect::<Vec<_>>());
    }

    #[test]
    fn what_the_capture_has_lost_is_a_gap_and_never_a_finding(
        crc: bool, markers: [bool; 2], steps in prop::collection::vec(step(), 1..16), lost in prop::collection::vec(0..1000_usize, 1..6),
    ) {
        let (mut packets, fpdus) = connection(crc, markers, 700, &steps);
        for place in lost {
            packets.remove(place % packets.len());
        }
        let (frames, decoder) = decode(&packets);
        no_findings(&frames)?;
        prop_assert!(decoder.totals().fpdus <= fpdus as u64);
    }

    #[test]
    fn a_capture_that_begins_in_the_middle_has_no_finding(
        crc: bool, markers: [bool; 2], steps in prop::collection::vec(step(), 1..12), from in 0..1000_usize,
    ) {
        let (packets, _) = connection(crc, markers, 700, &steps);
        let (frames, _) = decode(&packets[from % packets.len()..]);
        no_findings(&frames)?;
    }

    #[test]
    fn packets_that_were_cut_by_the_capture_keep_headers_and_have_no_finding(
        crc: bool, steps in prop::collection::vec(step(), 1..12), snap in 130..400_usize,
    ) {
        let (mut packets, fpdus) = connection(crc, [false; 2], 5000, &steps);
        for packet in &mut packets {
            packet.data.truncate(snap);
        }
        let (frames, decoder) = decode(&packets);
        no_findings(&frames)?;
        prop_assert!(decoder.totals().fpdus <= fpdus as u64);
    }

    #[test]
    fn bytes_that_are_changed_never_make_it_panic(
        markers: [bool; 2], steps in prop::collection::vec(step(), 1..6),
        changes in prop::collection::vec((0..1000_usize, 0..2000_usize, any::<u8>()), 1..8),
    ) {
        let (mut packets, _) = connection(true, markers, 700, &steps);
        for (packet, at, byte) in changes {
            let number = packet % packets.len();
            let data = &mut packets[number].data;
            let at = at % data.len();
            data[at] = byte;
        }
        let (frames, _) = decode(&packets);
        for frame in &frames {
            let bytes: usize = frame.fields().iter().map(|field| field.bytes.len()).sum();
            prop_assert_eq!(bytes, frame.bytes.len());
        }
    }
}

#[test]
fn an_fpdu_of_which_the_end_is_missing_is_told_by_its_header_and_the_next_one_is_found() {
    let steps = [
        Step::Write(true, 1400, 1400),
        Step::Send(true, 10, 50),
        Step::Send(false, 20, 50),
    ];
    let (mut packets, _) = connection(true, [false; 2], 5000, &steps);
    let write = packets
        .iter()
        .position(|packet| packet.tcp().unwrap().payload.len() > 1400)
        .unwrap();
    packets[write].data.truncate(40 + 200);
    let (frames, decoder) = decode(&packets);
    let text = lines(&frames);
    assert!(
        text.contains(
            "RDMA Write STag 0x00123456 TO 0x1000 1400 bytes L (incomplete in the capture)"
        ),
        "{text}"
    );
    assert!(text.contains("Send MSN 2 10 bytes L"), "{text}");
    assert!(
        frames
            .iter()
            .any(|frame| matches!(frame.content, Content::Event(Event::Gap(_))))
    );
    assert_eq!(decoder.totals().findings, 0);
}

#[test]
fn many_connections_take_bounded_memory_and_are_let_go() {
    let mut decoder = Decoder::default();
    let (packets, _) = connection(true, [false; 2], 5000, &[]);
    for number in 0..10_000_u32 {
        for packet in &packets[..4] {
            let mut packet = packet.clone();
            // The address of the other side is at byte 12 or 16 of the IPv4 header.
            let at = if packet.tcp().unwrap().source.port() == 40_000 {
                16
            } else {
                12
            };
            packet.data[at..at + 4].copy_from_slice(&(0x0A00_0000 + number).to_be_bytes());
            decoder.packet(&packet);
        }
    }
    assert!(decoder.totals().dropped > 5000);
    let _ = decoder.finish();
    assert_eq!(decoder.totals().connections, 10_000);
    assert!(decoder.connections().len() <= 4096);
}

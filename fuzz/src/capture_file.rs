//! Capture files: reading, writing and decoding.
//!
//! * Reads arbitrary bytes as a file, in pieces of several sizes. The sizes must not change the
//!   result. Each packet must appear in the file, with its fields at the offsets of TCP/IP.
//! * Reads back a file that the model wrote.
//! * Records the bytes of a connection with synthesized headers. Both streams must be read back
//!   completely, with valid checksums.
//! * Decodes the packets of all these files as `uwarp dump` does. The number of lines is bounded by
//!   the number of bytes, and every byte of a frame is in one of its fields. The frames of a
//!   connection do not depend on how its packets are split.

use std::io::{self, Cursor, Read};
use std::net::SocketAddr;

use uwarp_capture::decode::{Content, Decoder, Field, Finding, Frame};
use uwarp_capture::{Capture, Direction, Flow, LinkType, Packet, ReadError, Reader, TcpSegment};
use uwarp_testkit::MemoryFile;

use uwarp_mpa::MAX_ULPDU;

use crate::input::{Cuts, Input};
use crate::model::capture::{self, Written};

/// Parts of a decoded frame that do not depend on packets: connection, sender, offset in the
/// stream, content and findings.
type Found = (u64, SocketAddr, u64, Content, Vec<Finding>);

/// Maximum number of pieces of a connection. More packets of one byte would dominate the run time.
const MAX_PIECES: usize = 64;

/// Uses the input three times: as a capture file, as the choices for a file that the model writes,
/// and as the choices for a recorded connection.
pub fn run(data: &[u8]) {
    let whole = read(Cursor::new(data.to_vec()));
    // The first step is 1 for fewer than 256 bytes, so a short file is read byte by byte.
    for step in [1 + data.len() / 256, 61] {
        let bytes = Cursor::new(data.to_vec());
        assert_eq!(read(Pieces { bytes, step }), whole, "in pieces of {step}");
    }
    in_the_file(&whole.0, data);
    decoded(&whole.0);

    let mut input = Input::new(data);
    let (file, wanted) = capture::file(&mut input);
    let (found, end) = read(Cursor::new(file));
    assert_eq!(end, "end");
    assert_eq!(found.iter().map(plain).collect::<Vec<_>>(), wanted);
    decoded(&found);
    connection(&mut Input::new(data));
}

/// Reader that returns a few bytes at a time.
struct Pieces {
    bytes: Cursor<Vec<u8>>,
    step: usize,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(self.step);
        self.bytes.read(&mut out[..len])
    }
}

/// Reads all packets of a file. Also returns how reading ended: `end`, `cut off` or the error.
fn read(source: impl Read + Send + 'static) -> (Vec<Packet>, String) {
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), error.to_string()),
    };
    let mut packets = Vec::new();
    loop {
        match reader.next_packet() {
            Ok(Some(packet)) => {
                let interface = reader.interfaces().get(packet.interface as usize);
                assert_eq!(interface.map(|interface| interface.link), Some(packet.link));
                packets.push(packet);
            }
            Ok(None) => {
                assert!(matches!(reader.next_packet(), Ok(None)), "the end stays");
                let end = if reader.cut_off() { "cut off" } else { "end" };
                return (packets, end.to_owned());
            }
            Err(error) => {
                assert!(!matches!(error, ReadError::Io(_)), "{error}");
                assert!(
                    matches!(reader.next_packet(), Ok(None)),
                    "an error is the end"
                );
                return (packets, error.to_string());
            }
        }
    }
}

/// Decodes arbitrary packets and checks that the output is bounded.
fn decoded(packets: &[Packet]) {
    let mut decoder = Decoder::default();
    let (mut bytes, mut said, mut frames) = (0, 0, 0);
    let mut look = |found: Vec<Frame>| {
        for frame in found {
            in_fields(&frame);
            said += frame.to_string().len();
            frames += 1;
        }
    };
    for packet in packets {
        bytes += packet.data.len();
        look(decoder.packet(packet));
    }
    look(decoder.finish());
    // An FPDU has at least 8 bytes. Each packet can add a gap, and an end for each direction.
    let most = bytes / 8 + 4 * packets.len() + 8;
    assert!(frames <= most, "{frames} lines of {bytes} bytes");
    assert!(said <= 4096 * most, "{said} bytes said of {bytes}");
}

/// Checks that every byte of a frame is in one of its fields, and that the fields follow one
/// another. A Marker may be inside another field.
fn in_fields(frame: &Frame) {
    let fields = frame.fields();
    assert!(fields.is_sorted_by(|a, b| a.at < b.at), "{frame}");
    let is_marker = |field: &&Field| field.name == "Marker";
    let mut markers = fields.iter().filter(is_marker).peekable();
    let mut at = 0;
    for field in fields.iter().filter(|field| !is_marker(field)) {
        let mut bytes = &*field.bytes;
        loop {
            while let Some(marker) = markers.next_if(|marker| marker.at == at) {
                assert_eq!(frame.bytes[at..at + 4], marker.bytes, "{frame}");
                at += 4;
            }
            if bytes.len() == field.bytes.len() {
                assert_eq!(field.at, at, "{} of {frame}", field.name);
            }
            if bytes.is_empty() {
                break;
            }
            let to_marker = markers.peek().map_or(bytes.len(), |next| next.at - at);
            let (these, rest) = bytes.split_at(to_marker.min(bytes.len()));
            assert_eq!(frame.bytes[at..at + these.len()], *these, "{frame}");
            (at, bytes) = (at + these.len(), rest);
        }
    }
    assert_eq!(at, frame.bytes.len(), "{frame}");
    assert!(markers.next().is_none(), "{frame}");
}

/// Splits each packet with payload in two, and checks that the decoder finds the same frames.
fn in_other_pieces(packets: &[Packet], cut: usize) {
    let halves: Vec<Packet> = packets
        .iter()
        .flat_map(|packet| split(packet, cut))
        .collect();
    assert_eq!(found(&halves), found(packets), "cut at {cut}");
}

/// Decodes the packets and returns the parts of each frame that do not depend on the packets. After
/// an FPDU with an impossible length the decoder looks for the next one at the starts of packets,
/// so the comparison ends at such an FPDU.
fn found(packets: &[Packet]) -> Vec<Found> {
    let mut decoder = Decoder::default();
    let mut frames: Vec<Frame> = packets
        .iter()
        .flat_map(|packet| decoder.packet(packet))
        .collect();
    frames.extend(decoder.finish());
    let lost = |frame: &Frame| matches!(frame.content, Content::Fpdu { ulpdu, .. } if usize::from(ulpdu) > MAX_ULPDU);
    let end = frames
        .iter()
        .position(lost)
        .map_or(frames.len(), |at| at + 1);
    frames.truncate(end);
    let of = |frame: Frame| {
        (
            frame.connection,
            frame.from,
            frame.offset,
            frame.content,
            frame.findings,
        )
    };
    frames.into_iter().map(of).collect()
}

/// Splits a packet in two if it has at least two bytes of payload. Recorded packets have no padding
/// after the payload.
fn split(packet: &Packet, cut: usize) -> Vec<Packet> {
    let payload = packet.tcp().map_or(0, |segment| segment.payload.len());
    if payload < 2 {
        return vec![packet.clone()];
    }
    let ip = if packet.link == LinkType::Ethernet.code() {
        14
    } else {
        0
    };
    let (length, tcp) = match packet.data[ip] >> 4 {
        4 => (ip + 2, ip + 20),
        _ => (ip + 4, ip + 40),
    };
    let begin = packet.data.len() - payload;
    let cut = 1 + cut % (payload - 1);
    let piece = |from: usize, to: usize| {
        let mut piece = packet.clone();
        piece.data.drain(begin + to..);
        piece.data.drain(begin..begin + from);
        let less = (payload - (to - from)) as u16;
        let number = |data: &[u8]| u16::from_be_bytes([data[length], data[length + 1]]);
        let len = number(&piece.data) - less;
        piece.data[length..length + 2].copy_from_slice(&len.to_be_bytes());
        let seq: [u8; 4] = piece.data[tcp + 4..tcp + 8].try_into().expect("4 bytes");
        let seq = u32::from_be_bytes(seq).wrapping_add(from as u32);
        piece.data[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
        piece
    };
    vec![piece(0, cut), piece(cut, payload)]
}

/// Checks that the packets appear in the file one after the other, and that their TCP fields equal
/// those parsed by the model.
fn in_the_file(packets: &[Packet], data: &[u8]) {
    let mut rest = data;
    for packet in packets {
        let len = packet.data.len();
        if len > 0 {
            let at = memchr::memmem::find(rest, &packet.data);
            rest = &rest[at.expect("a packet of the file stands in it") + len..];
        }
        let found = packet.tcp();
        if let Some(segment) = &found {
            let _ = segment.checksum_is_right();
            let payload = segment.payload.len();
            assert!(
                payload + 40 <= len,
                "headers come before {payload} bytes of payload"
            );
        }
        if let Some(wanted) = capture::tcp(packet.link, &packet.data) {
            assert_eq!(found.as_ref().map(numbers), Some(wanted));
        }
    }
}

/// Converts a segment to the model's type.
fn numbers(segment: &TcpSegment<'_>) -> capture::Segment {
    capture::Segment {
        source: segment.source,
        destination: segment.destination,
        seq: segment.seq,
        flags: [
            (segment.fin, 0x01),
            (segment.syn, 0x02),
            (segment.rst, 0x04),
            (segment.psh, 0x08),
            (segment.ack, 0x10),
        ]
        .into_iter()
        .filter(|(set, _)| *set)
        .fold(0, |flags, (_, flag)| flags | flag),
        window: segment.window,
        payload: segment.payload.to_vec(),
    }
}

fn plain(packet: &Packet) -> Written {
    Written {
        interface: packet.interface,
        link: packet.link,
        nanoseconds: packet.timestamp.as_nanos(),
        direction: match packet.direction {
            Direction::Unknown => 0,
            Direction::Inbound => 1,
            Direction::Outbound => 2,
        },
        original_len: packet.original_len,
        comments: packet.comments.clone(),
        data: packet.data.clone(),
    }
}

/// Records both streams of a connection in pieces, with or without MPA startup frames, and checks
/// the recording.
fn connection(input: &mut Input<'_>) {
    let flags = input.flags();
    let link = if flags(0) {
        LinkType::Ethernet
    } else {
        LinkType::RawIp
    };
    let addresses = addresses(flags(1));
    let file = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(file.clone())).expect("memory accepts all bytes");
    let mut flow = Flow::new(
        capture.interface("fuzz", link),
        addresses[0],
        addresses[1],
        input.u16().into(),
    );
    flow.opened(flags(2));
    let mut streams = [Vec::new(), Vec::new()];
    if flags(3) {
        let markers = if flags(4) { 0x80 } else { 0 };
        for (side, key) in [(0, b"MPA ID Req Frame"), (1, b"MPA ID Rep Frame")] {
            streams[side].extend_from_slice(key);
            streams[side].extend_from_slice(&[markers | 0x40, 1, 0, 0]);
        }
        flow.sent(&streams[0]);
        flow.received(&streams[1]);
    }
    talk(&mut flow, &mut streams, input);
    if flags(5) {
        flow.local_fin();
    }
    if flags(6) {
        flow.peer_reset();
    }
    // Dropping the flow records its pending bytes.
    drop(flow);
    assert_eq!(capture.error(), None);

    let bytes = file.bytes();
    assert_recorded(bytes, &streams, addresses[0]);
}

fn addresses(v6: bool) -> [SocketAddr; 2] {
    if v6 {
        [
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 40_000).into(),
            ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 2], 7174).into(),
        ]
    } else {
        [
            ([192, 0, 2, 1], 40_000).into(),
            ([192, 0, 2, 2], 7174).into(),
        ]
    }
}

/// Appends the rest of the input to the streams in pieces and records each piece. The sender
/// changes after a piece whose length is a multiple of 3.
fn talk(flow: &mut Flow, streams: &mut [Vec<u8>; 2], input: &mut Input<'_>) {
    let lengths = input.slice(32);
    let mut cuts = Cuts::new(lengths);
    let mut rest = input.take_rest();
    let mut side = 0;
    for number in 1.. {
        if rest.is_empty() {
            break;
        }
        let len = match number {
            MAX_PIECES => rest.len(),
            _ => cuts.piece(rest.len()),
        };
        let (piece, after) = rest.split_at(len);
        streams[side].extend_from_slice(piece);
        if side == 0 {
            flow.sent(piece);
        } else {
            flow.received(piece);
        }
        side ^= usize::from(piece.len().is_multiple_of(3));
        rest = after;
    }
}

/// Checks that the file contains both streams completely, in segments without gaps. `ours` is the
/// sender of the first stream.
fn assert_recorded(bytes: Vec<u8>, streams: &[Vec<u8>; 2], ours: SocketAddr) {
    let (packets, end) = read(Cursor::new(bytes));
    assert_eq!(end, "end");
    decoded(&packets);
    in_other_pieces(&packets, streams[0].len());
    let mut found = [Vec::new(), Vec::new()];
    let mut next = [None, None];
    for packet in &packets {
        let segment = packet.tcp().expect("nothing else is recorded");
        assert!(segment.checksum_is_right());
        let side = usize::from(segment.source != ours);
        assert_eq!(
            packet.direction,
            [Direction::Outbound, Direction::Inbound][side]
        );
        assert!(
            next[side].is_none_or(|next| next == segment.seq),
            "bytes are missing"
        );
        let counts = segment.payload.len() as u32 + u32::from(segment.syn) + u32::from(segment.fin);
        next[side] = Some(segment.seq.wrapping_add(counts));
        found[side].extend_from_slice(segment.payload);
    }
    assert!(
        found == *streams,
        "the bytes of the connection and those of the capture differ"
    );
}

//! Reads the segments of a connection from a capture of the link.

use std::io::Cursor;
use std::net::SocketAddr;

use uwarp_capture::Reader;
use uwarp_testkit::MemoryFile;

/// Stream offsets of the beginning and end of each data segment, in the order in which they were
/// sent.
pub(crate) type Segments = Vec<(u64, u64)>;

/// Returns the data segments that were sent to the address `to`.
pub(crate) fn segments(file: &MemoryFile, to: SocketAddr) -> Segments {
    let mut reader = Reader::new(Cursor::new(file.bytes())).unwrap();
    let (mut first, mut segments) = (None, Vec::new());
    while let Some(packet) = reader.next_packet().unwrap() {
        let segment = packet.tcp().unwrap();
        assert!(segment.checksum_is_right());
        if segment.destination != to {
            continue;
        }
        if segment.syn {
            first = Some(segment.seq.wrapping_add(1));
        } else if !segment.payload.is_empty() {
            let from = u64::from(segment.seq.wrapping_sub(first.unwrap()));
            segments.push((from, from + segment.payload.len() as u64));
        }
    }
    segments
}

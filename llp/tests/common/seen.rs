//! Reads the segments of a connection from a capture of the link.

use std::io::{Cursor, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use uwarp_capture::Reader;

/// An in-memory file for a capture. Clones share the file.
#[derive(Clone, Default)]
pub(crate) struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Shared {
    /// Returns the bytes written to the file so far.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// Stream offsets of the beginning and end of each data segment, in the order in which they were
/// sent.
pub(crate) type Segments = Vec<(u64, u64)>;

/// Returns the data segments that were sent to the address `to`.
pub(crate) fn segments(file: &Shared, to: SocketAddr) -> Segments {
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

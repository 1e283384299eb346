//! Captures that our side records into memory, and the maximum number of outstanding Reads in them.

use std::io::Cursor;

use uwarp_interop::{Failure, Result};
use uwarp_verbs::capture::{Direction, Reader};

/// Maximum number of Reads outstanding at the same time, on each side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) ours: usize,
    pub(crate) theirs: usize,
}

/// Returns the maximum number of outstanding Reads of each side. The capture must contain one
/// connection over kernel TCP without Markers.
pub(crate) fn outstanding(file: Vec<u8>) -> Result<Outstanding> {
    let mut streams = [Stream::default(), Stream::default()];
    let (mut now, mut most) = (Outstanding::default(), Outstanding::default());
    for packet in Reader::new(Cursor::new(file))? {
        let packet = packet?;
        let Some(segment) = packet.tcp() else {
            continue;
        };
        let outbound = packet.direction == Direction::Outbound;
        let stream = &mut streams[usize::from(outbound)];
        stream.bytes.extend(segment.payload);
        while let Some(message) = stream.next() {
            let (count, step) = match (message, outbound) {
                (Message::ReadRequest, true) => (&mut now.ours, 1),
                (Message::ReadRequest, false) => (&mut now.theirs, 1),
                (Message::ReadResponse, true) => (&mut now.theirs, -1),
                (Message::ReadResponse, false) => (&mut now.ours, -1),
                (Message::Other, _) => continue,
            };
            *count = count.checked_add_signed(step).ok_or_else(|| {
                Failure::new("the capture has a Read Response before its Request")
            })?;
            most.ours = most.ours.max(now.ours);
            most.theirs = most.theirs.max(now.theirs);
        }
    }
    if now != Outstanding::default() {
        return Err(Failure::new(format!(
            "Reads are outstanding at the end of the capture: {now:?}"
        )));
    }
    Ok(most)
}

/// Kind of an FPDU (one DDP segment), by its effect on the number of outstanding Reads.
enum Message {
    ReadRequest,
    /// Last segment of a Read Response.
    ReadResponse,
    Other,
}

/// Bytes of one sender that are not analyzed yet.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    started: bool,
}

impl Stream {
    fn next(&mut self) -> Option<Message> {
        if !self.started {
            let head = self.bytes.first_chunk::<20>()?;
            let len = 20 + usize::from(u16::from_be_bytes([head[18], head[19]]));
            self.take(len)?;
            self.started = true;
        }
        let len = usize::from(u16::from_be_bytes(*self.bytes.first_chunk()?));
        let fpdu = self.take((2 + len).next_multiple_of(4) + 4)?;
        let (ddp, rdmap) = (fpdu[2], fpdu[3]);
        let (tagged, last, opcode) = (ddp & 0x80 != 0, ddp & 0x40 != 0, rdmap & 0x0f);
        Some(match (tagged, opcode, last) {
            (false, 1, _) => Message::ReadRequest,
            (true, 2, true) => Message::ReadResponse,
            _ => Message::Other,
        })
    }

    /// Takes `len` bytes if that many are available.
    fn take(&mut self, len: usize) -> Option<Vec<u8>> {
        let there = self.bytes.len() >= len;
        there.then(|| self.bytes.drain(..len).collect())
    }
}

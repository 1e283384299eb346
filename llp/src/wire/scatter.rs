//! Receives a frame of unknown size into a header, a packet buffer of the usual size, and an
//! overflow buffer.

use std::io::IoSliceMut;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::HEADER;
use crate::smol::{LARGEST, Packet};

/// Overflow buffer for the end of a frame that does not fit into the packet's buffer.
///
/// Packet buffers usually have the size of the MTU, and few frames are larger. A larger frame is
/// assembled here and then copied to the packet, whose buffer grows to the maximum size
/// permanently. Buffers are reused, so that in the long run no packet needs an allocation.
pub(super) struct Overflow(Mutex<Box<[u8]>>);

impl Overflow {
    pub(super) fn new() -> Self {
        // One byte more than the maximum, so that a larger frame is detected.
        Self(Mutex::new(vec![0; LARGEST + 1].into_boxed_slice()))
    }

    /// Lets `read` fill the parts of a frame, in this order: `prefix` (which may be empty), the
    /// header, and the packet. The packet's buffer has at least `usual` bytes. Returns false if the
    /// data is too short or too long for a frame.
    pub(super) fn receive(
        &self,
        prefix: &mut [u8],
        header: &mut [u8; HEADER],
        packet: &mut Packet,
        usual: usize,
        read: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize, Errno>,
    ) -> Result<bool, Errno> {
        let mut overflow = self.0.lock();
        let in_front = prefix.len() + HEADER;
        let room = packet.resize(packet.capacity().max(usual).min(LARGEST));
        let inside = room.len();
        let beyond = overflow.get_mut(inside..).unwrap_or_default();
        let bytes = read(&mut [
            IoSliceMut::new(prefix),
            IoSliceMut::new(header),
            IoSliceMut::new(room),
            IoSliceMut::new(beyond),
        ])?;
        let Some(len) = bytes.checked_sub(in_front).filter(|len| *len <= LARGEST) else {
            packet.resize(0);
            return Ok(false);
        };
        if len > inside {
            if let Some(begin) = overflow.get_mut(..inside) {
                begin.copy_from_slice(packet.bytes());
            }
            packet.resize(LARGEST);
            if let Some(whole) = overflow.get(..len) {
                packet.resize(len).copy_from_slice(whole);
            }
        } else {
            packet.resize(len);
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives a frame that consists of `bytes`, scattered as by `readv`. Returns the result and
    /// the header.
    fn receive(bytes: &[u8], packet: &mut Packet, prefix: &mut [u8]) -> (bool, [u8; HEADER]) {
        let mut header = [0; HEADER];
        let taken = Overflow::new()
            .receive(prefix, &mut header, packet, 100, |into| {
                let mut rest = bytes;
                for slice in into {
                    let (now, later) = rest.split_at(rest.len().min(slice.len()));
                    slice[..now.len()].copy_from_slice(now);
                    rest = later;
                }
                Ok(bytes.len() - rest.len())
            })
            .unwrap();
        (taken, header)
    }

    fn frame(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at % 251) as u8).collect()
    }

    #[test]
    fn a_frame_of_any_size_comes_out_as_it_went_in() {
        let mut packet = Packet::new(100);
        for len in [0, 1, 99, 100, 101, 102, 1500, 65_535, 65_536, 1500, 100, 0] {
            let sent = frame(HEADER + len);
            let (taken, header) = receive(&sent, &mut packet, &mut []);
            assert!(taken, "{len}");
            assert_eq!(header, sent[..HEADER], "{len}");
            assert_eq!(packet.bytes(), &sent[HEADER..], "{len}");
        }
        assert_eq!(packet.capacity(), LARGEST, "its buffer grew");
    }

    #[test]
    fn a_prefix_is_not_part_of_the_frame() {
        let (mut packet, mut prefix) = (Packet::new(10), [0; 10]);
        let sent = frame(10 + HEADER + 300);
        assert!(receive(&sent, &mut packet, &mut prefix).0);
        assert_eq!(prefix, sent[..10]);
        assert_eq!(packet.bytes(), &sent[10 + HEADER..]);
    }

    #[test]
    fn what_has_no_whole_header_or_is_too_long_is_no_frame() {
        let mut packet = Packet::new(100);
        for bytes in [0, 1, HEADER - 1, HEADER + LARGEST + 1, HEADER + LARGEST + 9] {
            assert!(!receive(&frame(bytes), &mut packet, &mut []).0, "{bytes}");
            assert!(packet.bytes().is_empty());
        }
        assert!(!receive(&frame(10 + HEADER - 1), &mut packet, &mut [0; 10]).0);
    }
}

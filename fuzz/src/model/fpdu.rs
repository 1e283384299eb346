//! Streams of FPDUs (RFC 5044 sections 4 and 6).

pub use uwarp_oracle::MAX_ULPDU;
use uwarp_oracle::{FpduError, Fpdus, Framing, INTERVAL};

/// Frames the ULPDUs of one direction.
#[derive(Clone, Debug)]
pub struct Sealer {
    fpdus: Fpdus,
    stream: Vec<u8>,
    /// For each FPDU, the offsets in the stream of its first byte and of its length field.
    starts: Vec<(usize, usize)>,
}

impl Sealer {
    /// Creates a sealer at the start of Full Operation.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self {
            fpdus: Fpdus::new(crc, markers),
            stream: Vec::new(),
            starts: Vec::new(),
        }
    }

    /// Puts an FPDU around `ulpdu`, which may have any length up to 65535 bytes.
    ///
    /// # Panics
    /// With Markers, if it is longer than `MAX_ULPDU`, because no Marker could point to its start.
    pub fn seal(&mut self, ulpdu: &[u8]) {
        let start = self.stream.len();
        let marker = self.fpdus.markers && start.is_multiple_of(INTERVAL);
        self.stream.extend(self.fpdus.seal(ulpdu));
        self.starts
            .push((start, start + if marker { 4 } else { 0 }));
    }

    /// Returns the stream written so far.
    #[must_use]
    pub fn stream(&self) -> &[u8] {
        &self.stream
    }

    /// Returns, for each FPDU, the offsets in the stream of its first byte and of its length field.
    #[must_use]
    pub fn starts(&self) -> &[(usize, usize)] {
        &self.starts
    }
}

/// A ULPDU read from a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Bytes of the ULPDU.
    pub ulpdu: Vec<u8>,
    /// Offset of its FPDU in the stream.
    pub position: u64,
    /// Length of its FPDU in bytes.
    pub wire_len: usize,
}

/// State of a stream after its last whole FPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// More bytes are needed.
    More,
    /// The CRC of the FPDU at this offset is wrong.
    Crc(u64),
    /// The Marker at this offset is wrong.
    Marker(u64),
    /// The FPDU at this offset has a length field above the maximum, with this value.
    Length(u64, u16),
}

/// Reads all complete FPDUs of a stream, as a receiver does: PAD is ignored, and the CRC is checked
/// before the Markers. Also returns why reading stopped.
#[must_use]
pub fn open(stream: &[u8], crc: bool, markers: bool) -> (Vec<Opened>, End) {
    let framing = Framing { markers, crc };
    let mut opened = Vec::new();
    let mut at = 0;
    loop {
        let position = at as u64;
        let fpdu = match framing.read(&stream[at..], position) {
            Ok(Some(fpdu)) => fpdu,
            Ok(None) => return (opened, End::More),
            Err(FpduError::Length(len)) => return (opened, End::Length(position, len)),
            Err(error) => unreachable!("{error} is no error of reading"),
        };
        if crc && fpdu.crc != fpdu.right_crc {
            return (opened, End::Crc(position));
        }
        if let Some(wrong) = fpdu.markers.iter().find(|marker| !marker.is_acceptable()) {
            return (opened, End::Marker(position + wrong.at as u64));
        }
        at += fpdu.len;
        opened.push(Opened {
            ulpdu: fpdu.ulpdu,
            position,
            wire_len: fpdu.len,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_can_be_opened() {
        for (crc, markers) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut sealer = Sealer::new(crc, markers);
            let ulpdus: Vec<Vec<u8>> = (0..600).step_by(7).map(|len| vec![0x5A; len]).collect();
            for ulpdu in &ulpdus {
                sealer.seal(ulpdu);
            }
            let (opened, end) = open(sealer.stream(), crc, markers);
            let found: Vec<Vec<u8>> = opened.into_iter().map(|opened| opened.ulpdu).collect();
            assert_eq!((found, end), (ulpdus, End::More));
        }
    }

    #[test]
    fn the_first_bytes_of_a_stream_with_markers() {
        // RFC 5044 section 4.3: the first Marker is before the first FPDU, and its FPDUPTR is 0.
        let mut sealer = Sealer::new(false, true);
        sealer.seal(&[1, 2]);
        assert_eq!(sealer.stream(), [0, 0, 0, 0, 0, 2, 1, 2, 0, 0, 0, 0]);
        assert_eq!(sealer.starts(), [(0, 4)]);
    }
}

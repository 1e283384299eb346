//! FPDUs, written and read byte by byte (RFC 5044 sections 4 and 6).

use super::crc::crc32c;

/// Longest ULPDU (RFC 5044 section 3).
pub const MAX_ULPDU: usize = 64_768;
/// Distance in bytes between Markers in the stream.
const INTERVAL: usize = 512;

/// Frames the ULPDUs of one direction.
#[derive(Clone, Debug)]
pub struct Sealer {
    crc: bool,
    markers: bool,
    stream: Vec<u8>,
    /// For each FPDU, the offsets in the stream of its first byte and of its length field.
    starts: Vec<(usize, usize)>,
}

impl Sealer {
    /// Creates a sealer at the start of Full Operation.
    #[must_use]
    pub const fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            stream: Vec::new(),
            starts: Vec::new(),
        }
    }

    /// Puts an FPDU around `ulpdu`, which may have any length up to 65535 bytes.
    pub fn seal(&mut self, ulpdu: &[u8]) {
        let start = self.stream.len();
        let mut length_at = None;
        let mut content = (ulpdu.len() as u16).to_be_bytes().to_vec();
        content.extend_from_slice(ulpdu);
        while !content.len().is_multiple_of(4) {
            content.push(0);
        }
        let mut rest = content.as_slice();
        while !rest.is_empty() {
            self.marker(length_at);
            length_at.get_or_insert(self.stream.len());
            let (now, later) = rest.split_at(piece(self.markers, self.stream.len(), rest.len()));
            self.stream.extend_from_slice(now);
            rest = later;
        }
        self.marker(length_at);
        let crc = if self.crc {
            crc32c(&self.stream[start..])
        } else {
            0
        };
        self.stream.extend_from_slice(&crc.to_le_bytes());
        self.starts.push((start, length_at.unwrap_or(start)));
    }

    /// Writes a Marker if one is due. The Marker holds the distance back to the length field of its
    /// FPDU, or 0 if it precedes that field.
    fn marker(&mut self, length_at: Option<usize>) {
        if self.markers && self.stream.len().is_multiple_of(INTERVAL) {
            let back = length_at.map_or(0, |at| self.stream.len() - at);
            self.stream
                .extend_from_slice(&[0, 0, (back >> 8) as u8, back as u8]);
        }
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

/// Returns how many of `left` bytes come before the next Marker.
fn piece(markers: bool, at: usize, left: usize) -> usize {
    if markers {
        left.min(INTERVAL - at % INTERVAL)
    } else {
        left
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

/// Reads all complete FPDUs of a stream. Also returns why reading stopped.
#[must_use]
pub fn open(stream: &[u8], crc: bool, markers: bool) -> (Vec<Opened>, End) {
    let mut opened = Vec::new();
    let mut position = 0;
    loop {
        match first(stream, position, crc, markers) {
            Ok(next) => {
                position += next.wire_len;
                opened.push(next);
            }
            Err(end) => return (opened, end),
        }
    }
}

/// Reads the bytes of a stream without its Markers.
struct Walk<'a> {
    stream: &'a [u8],
    at: usize,
    markers: bool,
    /// Offsets of the Markers that were skipped.
    met: Vec<usize>,
}

impl Walk<'_> {
    /// Skips a Marker if one is due at this offset.
    fn marker(&mut self) {
        if self.markers && self.at.is_multiple_of(INTERVAL) {
            self.met.push(self.at);
            self.at += 4;
        }
    }

    fn next(&mut self) -> Result<u8, End> {
        self.marker();
        let byte = self.stream.get(self.at).ok_or(End::More)?;
        self.at += 1;
        Ok(*byte)
    }

    /// Takes the next `len` bytes, without Markers.
    fn take(&mut self, len: usize) -> Result<Vec<u8>, End> {
        let mut taken = Vec::new();
        while taken.len() < len {
            self.marker();
            let end = self.at + piece(self.markers, self.at, len - taken.len());
            taken.extend_from_slice(self.stream.get(self.at..end).ok_or(End::More)?);
            self.at = end;
        }
        Ok(taken)
    }
}

fn first(stream: &[u8], position: usize, crc: bool, markers: bool) -> Result<Opened, End> {
    let mut walk = Walk {
        stream,
        at: position,
        markers,
        met: Vec::new(),
    };
    let high = walk.next()?;
    let length_at = walk.at - 1;
    let len = u16::from_be_bytes([high, walk.next()?]);
    if usize::from(len) > MAX_ULPDU {
        return Err(End::Length(position as u64, len));
    }
    let ulpdu = walk.take(len.into())?;
    let mut content = 2 + usize::from(len);
    while !content.is_multiple_of(4) {
        walk.next()?;
        content += 1;
    }
    let mut field = [0; 4];
    field[0] = walk.next()?;
    let covered = walk.at - 1;
    for byte in &mut field[1..] {
        *byte = walk.next()?;
    }
    if crc && u32::from_le_bytes(field) != crc32c(&stream[position..covered]) {
        return Err(End::Crc(position as u64));
    }
    for at in walk.met {
        let says = u16::from_be_bytes([stream[at + 2], stream[at + 3]]) & 0xFFFC;
        if usize::from(says) != at.saturating_sub(length_at) {
            return Err(End::Marker(at as u64));
        }
    }
    Ok(Opened {
        ulpdu,
        position: position as u64,
        wire_len: walk.at - position,
    })
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

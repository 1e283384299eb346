//! Parser for the MPA FPDUs of a stream (RFC 5044 section 4).

/// Distance in bytes from the start of one Marker to the start of the next.
const INTERVAL: u64 = 512;

/// Framing options of one direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Framing {
    pub(super) markers: bool,
    pub(super) crc: bool,
}

impl Framing {
    /// Reads the FPDU at the start of `bytes`, whose first byte is at `position` in the stream.
    /// Returns its ULPDU and its length on the wire, or `None` if it is incomplete.
    pub(super) fn next(
        self,
        bytes: &[u8],
        position: u64,
    ) -> Result<Option<(Vec<u8>, usize)>, String> {
        let (mut content, mut at, mut length_at) = (Vec::new(), 0, None);
        loop {
            // A Marker never splits the length field.
            let need = content.first_chunk().map_or(2, |len| {
                let ulpdu = usize::from(u16::from_be_bytes(*len));
                2 + ulpdu + (2 + ulpdu).wrapping_neg() % 4 + 4
            });
            if content.len() == need && need > 2 {
                return self.finish_fpdu(&bytes[..at], content).map(Some);
            }
            let into = ((position + at as u64) % INTERVAL) as usize;
            if self.markers && into == 0 {
                let Some(marker) = bytes.get(at..at + 4) else {
                    return Ok(None);
                };
                let back = length_at.map_or(0, |length_at: usize| at - length_at);
                let says = u32::from_be_bytes([marker[0], marker[1], marker[2], marker[3]]);
                if says as usize != back {
                    return Err(format!("a Marker's FPDUPTR is {says:x}, expected {back:x}"));
                }
                at += 4;
                continue;
            }
            length_at.get_or_insert(at);
            let run = if self.markers {
                INTERVAL as usize - into
            } else {
                usize::MAX
            };
            let run = run.min(need - content.len());
            let Some(part) = bytes.get(at..at + run) else {
                return Ok(None);
            };
            content.extend_from_slice(part);
            at += run;
        }
    }

    /// Checks PAD and CRC. Returns the ULPDU and the length on the wire.
    fn finish_fpdu(self, wire: &[u8], mut content: Vec<u8>) -> Result<(Vec<u8>, usize), String> {
        let len = usize::from(u16::from_be_bytes([content[0], content[1]]));
        let crc = content.split_off(content.len() - 4);
        if content[2 + len..].iter().any(|byte| *byte != 0) {
            return Err("a byte of a PAD is not zero".to_owned());
        }
        let right = crc32c(&wire[..wire.len() - 4]).to_le_bytes();
        if self.crc && crc != right {
            return Err(format!("a CRC is {crc:02x?}, expected {right:02x?}"));
        }
        content.truncate(2 + len);
        content.drain(..2);
        Ok((content, wire.len()))
    }
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut bit) = (byte as u32, 0);
        while bit < 8 {
            rest = rest >> 1 ^ (rest & 1).wrapping_neg() & 0x82F6_3B78;
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// Computes CRC32C, which MPA uses.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        crc >> 8 ^ TABLE[((crc ^ u32::from(*byte)) & 0xFF) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the FPDU of RFC 5044 Figure 5, which starts with a Marker.
    fn figure_5() -> Vec<u8> {
        let mut bytes = vec![0, 0, 0, 0, 0, 0x2A, 0x41, 0x43];
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        bytes.extend([0; 24]);
        bytes.extend([0x52, 0x23, 0x99, 0x83]);
        bytes
    }

    const BOTH: Framing = Framing {
        markers: true,
        crc: true,
    };

    #[test]
    fn the_fpdu_of_rfc_5044_is_read_when_it_is_whole() {
        let bytes = figure_5();
        for len in 0..bytes.len() {
            assert_eq!(BOTH.next(&bytes[..len], 512), Ok(None));
        }
        let (ulpdu, len) = BOTH.next(&bytes, 512).unwrap().unwrap();
        assert_eq!((&ulpdu[..], len), (&bytes[6..48], 52));
    }

    #[test]
    fn a_wrong_crc_marker_or_pad_is_found() {
        for (at, what) in [(20, "CRC"), (3, "Marker"), (51, "CRC")] {
            let mut bytes = figure_5();
            bytes[at] ^= 1;
            assert!(BOTH.next(&bytes, 0).unwrap_err().contains(what));
        }
        let without = Framing {
            markers: false,
            crc: false,
        };
        let fpdu = |pad| [0, 1, 7, pad, 0, 0, 0, 0];
        assert_eq!(without.next(&fpdu(0), 0), Ok(Some((vec![7], 8))));
        assert!(without.next(&fpdu(1), 0).unwrap_err().contains("PAD"));
    }

    #[test]
    fn a_marker_inside_points_back_to_the_length_field() {
        let mut bytes = vec![0, 4, 1, 2, 0, 0, 0, 4, 3, 4, 0, 0, 0, 0, 0, 0];
        let framing = Framing {
            markers: true,
            crc: false,
        };
        let (ulpdu, len) = framing.next(&bytes, 508).unwrap().unwrap();
        assert_eq!((ulpdu, len), (vec![1, 2, 3, 4], 16));
        // A Marker at the end belongs to the next FPDU.
        let before = [0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 0, 0];
        assert_eq!(framing.next(&before, 500).unwrap().unwrap().1, 12);
        bytes[7] = 8;
        assert!(framing.next(&bytes, 508).is_err());
    }
}

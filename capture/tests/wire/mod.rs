//! Encoder for MPA, DDP and RDMAP in the tests of this crate, written from the RFCs. It is slow and
//! simple, and shares no code with the sending side of uwarp.

#![allow(dead_code, reason = "each test uses only a part of it")]

/// Computes the CRC32C bit by bit (RFC 3720 section 12.1).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82F6_3B78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

/// Encoder for the FPDUs of one direction (RFC 5044 section 4).
pub(crate) struct Encoder {
    pub(crate) markers: bool,
    pub(crate) crc: bool,
    pub(crate) position: usize,
}

impl Encoder {
    pub(crate) fn new(crc: bool, markers: bool) -> Self {
        Self {
            markers,
            crc,
            position: 0,
        }
    }

    pub(crate) fn fpdu(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        let mut body = (ulpdu.len() as u16).to_be_bytes().to_vec();
        body.extend_from_slice(ulpdu);
        body.resize(body.len().next_multiple_of(4), 0);
        let mut out = Vec::new();
        let mut begin = None;
        for word in body.chunks(4) {
            self.marker(&mut out, begin);
            begin.get_or_insert(out.len());
            out.extend_from_slice(word);
        }
        self.marker(&mut out, begin);
        let crc = if self.crc { crc32c(&out) } else { 0 };
        out.extend_from_slice(&crc.to_le_bytes());
        self.position += out.len();
        out
    }

    /// Appends a Marker if one is due here. `begin` is the index of ULPDU_Length in `out`, if it is
    /// already there.
    fn marker(&self, out: &mut Vec<u8>, begin: Option<usize>) {
        if self.markers && (self.position + out.len()).is_multiple_of(512) {
            let pointer = begin.map_or(0, |begin| out.len() - begin) as u16;
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&pointer.to_be_bytes());
        }
    }

    /// Returns true if Wireshark 4.0 computes a wrong number of Markers for an FPDU with this ULPDU
    /// length. This is so if the FPDU contains a Marker and ends exactly where the next one is due.
    pub(crate) fn upsets_wireshark(&self, ulpdu_len: usize) -> bool {
        if !self.markers {
            return false;
        }
        let mut copy = Self {
            crc: false,
            ..*self
        };
        let len = copy.fpdu(&vec![0; ulpdu_len]).len();
        let bare = (2 + ulpdu_len).next_multiple_of(4) + 4;
        len > bare && copy.position.is_multiple_of(512)
    }
}

pub(crate) fn startup_frame(
    key: &[u8; 16],
    flags: u8,
    revision: u8,
    private_data: &[u8],
) -> Vec<u8> {
    let mut out = key.to_vec();
    out.extend_from_slice(&[flags, revision]);
    out.extend_from_slice(&(private_data.len() as u16).to_be_bytes());
    out.extend_from_slice(private_data);
    out
}

pub(crate) fn request(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    startup_frame(b"MPA ID Req Frame", flags, revision, private_data)
}

pub(crate) fn reply(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    startup_frame(b"MPA ID Rep Frame", flags, revision, private_data)
}

pub(crate) fn untagged(opcode: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x41, 0x40 | opcode, 0, 0, 0, 0];
    for word in [queue, msn, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(payload);
    out
}

pub(crate) fn tagged(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xC1, 0x40 | opcode];
    out.extend_from_slice(&0x0012_3456_u32.to_be_bytes());
    out.extend_from_slice(&0x1000_u64.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// Returns bytes of varied values that resemble no protocol.
pub(crate) fn filler(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

#[test]
fn the_encoder_makes_figures_5_and_6_of_rfc_5044() {
    let mut encoder = Encoder::new(true, true);
    let figure5 = encoder.fpdu(&untagged(3, 0, 1, &[0; 24]));
    assert_eq!(figure5.len(), 52);
    assert_eq!(figure5[..8], [0, 0, 0, 0, 0, 0x2a, 0x41, 0x43]);
    assert_eq!(figure5[48..], [0x52, 0x23, 0x99, 0x83]);
    // In Figure 6, a Marker is between the DDP header and the payload.
    let mut encoder = Encoder {
        position: 512 - 20,
        ..encoder
    };
    let figure6 = encoder.fpdu(&untagged(3, 0, 2, &[0; 24]));
    assert_eq!(figure6[20..24], [0, 0, 0, 0x14]);
    assert_eq!(figure6[48..], [0x84, 0x92, 0x58, 0x98]);
}

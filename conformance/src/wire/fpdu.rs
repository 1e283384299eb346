//! FPDUs and Markers (RFC 5044 section 4), built as requested and parsed without trust.

use super::crc::crc32c;

/// Value of the CRC field of an FPDU to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CrcField {
    /// The correct CRC, even if CRCs are not in use. A target that then wrongly checks CRCs fails
    /// only in the cases about that rule.
    #[default]
    Right,
    /// The correct CRC with these bits inverted.
    Xor(u32),
    /// The correct CRC with the most significant byte first.
    Swapped,
    /// These bytes, in the order of transmission.
    Bytes([u8; 4]),
}

/// Intended errors in an FPDU to send. The default is a correct FPDU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FpduForm {
    pub(crate) crc: CrcField,
    /// Value of ULPDU_Length, if it is not the length of the ULPDU. PAD and CRC still match the
    /// actual bytes.
    pub(crate) length: Option<u16>,
    /// Value of the PAD bytes.
    pub(crate) pad: u8,
    pub(crate) marker: MarkerForm,
}

/// Intended errors in the Markers of an FPDU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MarkerForm {
    /// Value of the 16 reserved bits.
    pub(crate) reserved: u16,
    /// Number added to FPDUPTR.
    pub(crate) off: i16,
}

/// State of one direction of a connection in Full Operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Framing {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    /// Number of bytes since Full Operation began.
    pub(crate) position: u64,
}

impl Framing {
    pub(crate) fn new(crc: bool, markers: bool) -> Self {
        Framing {
            crc,
            markers,
            position: 0,
        }
    }

    fn marker_due(&self, more: usize) -> bool {
        self.markers && (self.position + more as u64).is_multiple_of(512)
    }

    /// Builds the FPDU for a ULPDU, with the errors in `form`.
    pub(crate) fn seal(&mut self, ulpdu: &[u8], form: &FpduForm) -> Vec<u8> {
        let length = form
            .length
            .unwrap_or(u16::try_from(ulpdu.len()).unwrap_or(u16::MAX));
        let mut body = length.to_be_bytes().to_vec();
        body.extend_from_slice(ulpdu);
        body.resize(body.len().next_multiple_of(4), form.pad);
        let mut out = Vec::with_capacity(body.len() + body.len() / 128 + 8);
        let mut begin = None;
        for word in body.chunks(4) {
            self.marker(&mut out, begin, form.marker);
            begin.get_or_insert(out.len());
            out.extend_from_slice(word);
        }
        self.marker(&mut out, begin, form.marker);
        let right = crc32c(&out);
        out.extend_from_slice(&match form.crc {
            CrcField::Right => right.to_le_bytes(),
            CrcField::Xor(bits) => (right ^ bits).to_le_bytes(),
            CrcField::Swapped => right.to_be_bytes(),
            CrcField::Bytes(bytes) => bytes,
        });
        self.position += out.len() as u64;
        out
    }

    /// Appends a Marker if one is due at the end of `out`. `begin`: index of ULPDU_Length in `out`,
    /// if it is already there.
    fn marker(&self, out: &mut Vec<u8>, begin: Option<usize>, form: MarkerForm) {
        if self.marker_due(out.len()) {
            let right = begin.map_or(0, |begin| out.len() - begin);
            let pointer = u16::try_from(right)
                .unwrap_or(u16::MAX)
                .wrapping_add_signed(form.off);
            out.extend_from_slice(&form.reserved.to_be_bytes());
            out.extend_from_slice(&pointer.to_be_bytes());
        }
    }

    /// Parses the FPDU at the start of `bytes`. Returns `None` if it is incomplete. The result is
    /// not checked: it contains the correct values next to the received ones.
    pub(crate) fn open(&mut self, bytes: &[u8]) -> Option<OpenedFpdu> {
        let mut words = Vec::new();
        let mut markers = Vec::new();
        let mut begin = None;
        let mut at = 0;
        let mut due = usize::MAX;
        while words.len() < due {
            let word: [u8; 4] = *bytes.get(at..)?.first_chunk()?;
            if self.marker_due(at) {
                let right = begin.map_or(0, |begin| at - begin);
                markers.push(OpenedMarker { word, right });
            } else {
                begin.get_or_insert(at);
                words.extend_from_slice(&word);
                let len = usize::from(u16::from_be_bytes([words[0], words[1]]));
                due = (2 + len).next_multiple_of(4) + 4;
            }
            at += 4;
        }
        let len = usize::from(u16::from_be_bytes([words[0], words[1]]));
        let (body, crc) = words.split_at(words.len() - 4);
        let opened = OpenedFpdu {
            ulpdu: body[2..2 + len].to_vec(),
            pad: body[2 + len..].to_vec(),
            crc: [crc[0], crc[1], crc[2], crc[3]],
            right_crc: crc32c(&bytes[..at - 4]).to_le_bytes(),
            markers,
            wire: bytes[..at].to_vec(),
        };
        self.position += at as u64;
        Some(opened)
    }
}

/// A received Marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenedMarker {
    pub(crate) word: [u8; 4],
    /// Correct value of FPDUPTR.
    pub(crate) right: usize,
}

/// A received FPDU, not checked yet.
#[derive(Clone, Debug)]
pub(crate) struct OpenedFpdu {
    pub(crate) ulpdu: Vec<u8>,
    pub(crate) pad: Vec<u8>,
    /// The received CRC field.
    pub(crate) crc: [u8; 4],
    /// Correct value of the CRC field if CRCs are in use.
    pub(crate) right_crc: [u8; 4],
    pub(crate) markers: Vec<OpenedMarker>,
    /// All bytes of the FPDU on the wire, with Markers.
    pub(crate) wire: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_to_the_same_whatever_the_length_and_with_markers() {
        for markers in [false, true] {
            let (mut tx, mut rx) = (Framing::new(true, markers), Framing::new(true, markers));
            for len in (0..1100).chain([64768]) {
                let ulpdu: Vec<u8> = (0..len).map(|n| n as u8).collect();
                let wire = tx.seal(&ulpdu, &FpduForm::default());
                assert!(rx.open(&wire[..wire.len() - 1]).is_none());
                let opened = rx.open(&wire).expect("it is whole");
                assert_eq!(opened.ulpdu, ulpdu);
                assert_eq!(opened.crc, opened.right_crc);
                for marker in opened.markers {
                    assert_eq!(u32::from_be_bytes(marker.word), marker.right as u32);
                }
            }
        }
    }

    /// Checks the example of RFC 5044 Figure 5: a Marker before the FPDU.
    #[test]
    fn the_first_marker_stands_before_the_first_fpdu() {
        let mut tx = Framing::new(true, true);
        let mut ulpdu = vec![0x41, 0x43];
        ulpdu.extend_from_slice(&[0; 4]);
        ulpdu.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        ulpdu.extend_from_slice(&[0; 24]);
        let wire = tx.seal(&ulpdu, &FpduForm::default());
        assert_eq!(&wire[..8], &[0, 0, 0, 0, 0, 0x2a, 0x41, 0x43]);
        assert_eq!(&wire[wire.len() - 4..], &[0x52, 0x23, 0x99, 0x83]);
    }
}

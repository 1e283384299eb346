//! Layout of an FPDU on the wire: Markers, ULPDU, CRC (RFC 5044 section 4).

use uwarp_mpa::{MAX_ULPDU, crc32c};

use super::finding::Findings;
use crate::fpdu::{MARKER_INTERVAL, MARKER_LEN, markers_within};

/// Layout of the FPDUs in one direction, as negotiated at startup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Framing {
    pub(super) crc: bool,
    pub(super) markers: bool,
}

impl Framing {
    /// Returns the number of bytes from `position` to the next Marker, or `None` without Markers.
    /// `position` is counted from the first byte of Full Operation.
    fn to_marker(self, position: u64) -> Option<usize> {
        let into = position % MARKER_INTERVAL;
        // The number is below 512.
        self.markers
            .then_some(((MARKER_INTERVAL - into) % MARKER_INTERVAL) as usize)
    }

    /// Returns the offset of ULPDU_Length in the FPDU that begins at `position`: 0, or 4 after a
    /// Marker.
    pub(super) fn length_at(self, position: u64) -> usize {
        match self.to_marker(position) {
            Some(0) => MARKER_LEN,
            _ => 0,
        }
    }

    /// Returns ULPDU_Length of the FPDU that begins with `bytes`, or `None` if there are too few
    /// bytes.
    pub(super) fn ulpdu_len(self, position: u64, bytes: &[u8]) -> Option<u16> {
        let field = bytes.get(self.length_at(position)..)?.first_chunk()?;
        Some(u16::from_be_bytes(*field))
    }

    /// Returns the length on the wire, with Markers, of an FPDU with this ULPDU_Length.
    pub(super) fn wire_len(self, position: u64, ulpdu: u16) -> usize {
        let bytes = (2 + usize::from(ulpdu)).next_multiple_of(4) + 4;
        let markers = self
            .to_marker(position)
            .map_or(0, |first| markers_within(first, bytes));
        bytes + markers * MARKER_LEN
    }

    /// Returns the offsets of the Markers in an FPDU of `len` bytes that begins at `position`.
    pub(super) fn markers_in(self, position: u64, len: usize) -> impl Iterator<Item = usize> {
        let first = self.to_marker(position).unwrap_or(len);
        (first..len).step_by(MARKER_INTERVAL as usize)
    }

    /// Returns the bytes of an FPDU without its Markers.
    pub(super) fn content(self, position: u64, fpdu: &[u8]) -> Vec<u8> {
        let mut content = Vec::with_capacity(fpdu.len());
        let mut at = 0;
        for marker in self.markers_in(position, fpdu.len()) {
            content.extend_from_slice(fpdu.get(at..marker).unwrap_or_default());
            at = marker + MARKER_LEN;
        }
        content.extend_from_slice(fpdu.get(at..).unwrap_or_default());
        content
    }

    /// Checks the rules of MPA for an FPDU. `whole` is true if the capture contains all its bytes.
    pub(super) fn judge(
        self,
        position: u64,
        fpdu: &[u8],
        ulpdu: u16,
        whole: bool,
        findings: &mut Findings,
    ) {
        findings.demand(usize::from(ulpdu) <= MAX_ULPDU, "5044-3-05", || {
            format!("ULPDU_Length {ulpdu}: the maximum is {MAX_ULPDU}")
        });
        if !whole {
            return;
        }
        if self.crc
            && let Some((body, field)) = fpdu.split_last_chunk()
        {
            let (got, right) = (u32::from_le_bytes(*field), crc32c(body));
            findings.demand(got == right, "5044-4.4-11", || {
                format!("CRC {got:#010x}, but the bytes give {right:#010x}")
            });
        }
        let content = self.content(position, fpdu);
        let pad = content
            .get(2 + usize::from(ulpdu)..content.len().saturating_sub(4))
            .unwrap_or_default();
        findings.demand(pad.iter().all(|byte| *byte == 0), "5044-4.1-02", || {
            format!("PAD {pad:02x?}: must be zero")
        });
        self.judge_markers(position, fpdu, findings);
    }

    /// Checks the Markers of an FPDU. Reports only the first violation of each kind, because an
    /// FPDU can contain more than a hundred Markers.
    fn judge_markers(self, position: u64, fpdu: &[u8], findings: &mut Findings) {
        let length_at = self.length_at(position);
        let (mut reserved, mut low, mut pointer) = (true, true, true);
        for at in self.markers_in(position, fpdu.len()) {
            let Some([a, b, c, d]) = fpdu.get(at..).and_then(|rest| rest.first_chunk()) else {
                return;
            };
            let got = u16::from_be_bytes([*c, *d]);
            let due = at.saturating_sub(length_at);
            if (*a, *b) != (0, 0) && std::mem::take(&mut reserved) {
                findings.demand(false, "5044-4.2-02", || {
                    format!("Marker at byte {at}: its first 16 bits are {a:02x}{b:02x}, but must be zero")
                });
            }
            if got & 3 != 0 && std::mem::take(&mut low) {
                findings.demand(false, "5044-4.2-04", || {
                    format!("Marker at byte {at}: the two low bits of FPDUPTR {got} must be zero")
                });
            }
            if usize::from(got & !3) != due && std::mem::take(&mut pointer) {
                let id = if due == 0 {
                    "5044-4.3-06"
                } else {
                    "5044-4.3-03"
                };
                findings.demand(false, id, || {
                    format!(
                        "Marker at byte {at}: FPDUPTR {got}, but the distance from ULPDU_Length is {due}"
                    )
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Finding;
    use uwarp_oracle::Fpdus;
    use uwarp_testkit::filler;
    use uwarp_testkit::frames::tagged;

    fn ids(framing: Framing, position: u64, fpdu: &[u8], ulpdu: u16) -> Vec<&'static str> {
        let mut findings = Findings::default();
        framing.judge(position, fpdu, ulpdu, true, &mut findings);
        findings.0.iter().map(Finding::id).collect()
    }

    #[test]
    fn every_fpdu_of_the_encoder_is_measured_and_right() {
        for markers in [false, true] {
            let framing = Framing { crc: true, markers };
            let mut encoder = Fpdus::new(true, markers);
            for len in (0..600).step_by(13) {
                let position = encoder.position as u64;
                let ulpdu = tagged(0, &filler(0, len));
                let fpdu = encoder.seal(&ulpdu);
                let length = framing.ulpdu_len(position, &fpdu).unwrap();
                assert_eq!(usize::from(length), ulpdu.len());
                assert_eq!(framing.wire_len(position, length), fpdu.len());
                assert_eq!(framing.content(position, &fpdu)[2..2 + ulpdu.len()], ulpdu);
                assert_eq!(ids(framing, position, &fpdu, length), [""; 0]);
            }
        }
    }

    #[test]
    fn each_fault_of_an_fpdu_has_its_rule() {
        let framing = Framing {
            crc: false,
            markers: true,
        };
        let ulpdu = tagged(0, &filler(0, 601));
        let fpdu = Fpdus::new(false, true).seal(&ulpdu);
        for (at, byte, id) in [
            (3, 4, "5044-4.3-06"),
            (512, 1, "5044-4.2-02"),
            (515, 0xFD, "5044-4.2-04"),
            (514, 0x02, "5044-4.3-03"),
            (fpdu.len() - 5, 1, "5044-4.1-02"),
        ] {
            let mut fpdu = fpdu.clone();
            fpdu[at] = byte;
            assert_eq!(ids(framing, 0, &fpdu, 615), [id], "byte {at}");
        }
        let framing = Framing {
            crc: true,
            markers: true,
        };
        assert_eq!(ids(framing, 0, &fpdu, 615), ["5044-4.4-11"]);
    }
}

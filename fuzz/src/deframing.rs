//! Drives a deframer of `uwarp-mpa`; shared by the targets that test FPDUs.

use uwarp_mpa::{DeframeError, Deframer, MpaErrorCode, Step};

use crate::input::Cuts;
use crate::model::fpdu::{End, Opened};

/// Maximum length of an FPDU, including Markers.
const LONGEST: usize = 65_288;

/// Feeds `stream` to a deframer in pieces. Returns the ULPDUs and how the stream ended.
///
/// # Panics
/// If the deframer breaks its contract: it asks for bytes that it already has or for more bytes
/// than an FPDU can have, does not repeat an error, or returns a ULPDU whose accessors disagree.
#[must_use]
pub(crate) fn deframe(
    stream: &[u8],
    crc: bool,
    markers: bool,
    cuts: Cuts<'_>,
) -> (Vec<Opened>, End) {
    let mut deframer = Deframer::new(crc, markers);
    let (mut opened, mut buffer) = (Vec::new(), Vec::new());
    let mut need = 0;
    for piece in cuts.pieces(stream) {
        buffer.extend_from_slice(piece);
        // The deframer has asked for more bytes than the buffer holds.
        if buffer.len() < need {
            if buffer.len() + 1 == need || buffer.len().is_power_of_two() {
                assert!(matches!(deframer.next(&buffer), Ok(Step::Need(_))));
            }
            continue;
        }
        loop {
            let position = deframer.position();
            match deframer.next(&buffer) {
                Ok(Step::Need(bytes)) => {
                    assert!(bytes > buffer.len() && bytes <= LONGEST, "{bytes}");
                    assert_eq!(deframer.position(), position);
                    need = bytes;
                    break;
                }
                Ok(Step::Fpdu(ulpdu)) => {
                    let found = Opened {
                        ulpdu: joined(ulpdu.pieces(0, ulpdu.len())),
                        position: ulpdu.position(),
                        wire_len: ulpdu.wire_len(),
                    };
                    examine(&ulpdu, &found);
                    let mut again = deframer.clone();
                    again.put_back(&ulpdu);
                    assert_eq!(again.position(), position);
                    buffer.drain(..found.wire_len);
                    opened.push(found);
                }
                Err(error) => {
                    assert_eq!(deframer.next(&[]).unwrap_err(), error, "an error stays");
                    // Error codes of RFC 5044 section 8.
                    let crc = matches!(error, DeframeError::BadCrc { .. });
                    assert_eq!(error.code().code(), if crc { 2 } else { 3 });
                    assert!(!error.to_string().is_empty() && !error.code().to_string().is_empty());
                    assert_eq!(
                        MpaErrorCode::from_code(error.code().code()),
                        Some(error.code())
                    );
                    return (opened, end(error));
                }
            }
        }
    }
    (opened, End::More)
}

fn joined<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    pieces.for_each(|piece| bytes.extend_from_slice(piece));
    bytes
}

/// Checks that all accessors to the bytes of a ULPDU agree.
fn examine(ulpdu: &uwarp_mpa::Ulpdu<'_>, found: &Opened) {
    assert_eq!(found.ulpdu.len(), ulpdu.len());
    assert_eq!(ulpdu.is_empty(), found.ulpdu.is_empty());
    assert!(found.wire_len.is_multiple_of(4));
    let mut scratch = [0; 70];
    let head = ulpdu.head(&mut scratch);
    assert_eq!(head, &found.ulpdu[..found.ulpdu.len().min(70)]);
    for (offset, len) in [(14, usize::MAX), (18, 300), (507, 2), (usize::MAX, 1)] {
        let start = offset.min(found.ulpdu.len());
        let wanted = &found.ulpdu[start..found.ulpdu.len().min(start.saturating_add(len))];
        let pieces = ulpdu.pieces(offset, len);
        assert!(pieces.clone().all(|piece| !piece.is_empty()));
        assert!(joined(pieces) == wanted, "{offset} {len}");
    }
}

fn end(error: DeframeError) -> End {
    match error {
        DeframeError::BadCrc { position, .. } => End::Crc(position),
        DeframeError::MarkerMismatch { position, .. } => End::Marker(position),
        DeframeError::LengthTooLong { len, position } => End::Length(position, len),
    }
}

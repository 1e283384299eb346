//! Send side: frames ULPDUs as FPDUs (RFC 5044 section 4).

use alloc::vec::Vec;

use thiserror::Error;

use crate::crc::{Crc32c, crc32c};
use crate::layout::{CRC_FIELD, LENGTH_FIELD, MARKER, Markers, pad_len};
use crate::mulpdu::MAX_ULPDU;
use crate::mutants::mutate;
use crate::payload::Payload;

/// Payload size in bytes above which the CRC is computed while the payload is copied. Below it, one
/// run over the finished FPDU costs less than several short ones.
const FUSED_ABOVE: usize = 2048;

/// Misuse of the [`Framer`] by its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Header and payload together exceed the longest ULPDU (5044-3-05).
    #[error("a ULPDU of {len} bytes does not fit an FPDU: at most {MAX_ULPDU} bytes do")]
    TooLong {
        /// Length of header and payload in bytes.
        len: usize,
    },
    /// Header and payload are both empty; a ULPDU has at least one byte (5044-3-06).
    #[error("a ULPDU needs at least one byte; header and payload are both empty")]
    Empty,
    /// Framing in place was requested on a stream with Markers, which may have to lie inside the
    /// payload.
    #[error("an FPDU with Markers cannot leave its payload in place: it has to be staged")]
    InPlaceWithMarkers,
    /// The slice is too short for the FPDU.
    #[error("the FPDU takes {needed} bytes but there is room for {room} only")]
    NoRoom {
        /// Length of the FPDU in bytes.
        needed: usize,
        /// Length of the slice in bytes.
        room: usize,
    },
}

/// Turns ULPDUs into FPDUs, for one direction of one connection.
///
/// A ULPDU consists of a `header` (the headers of the layers above) and a range of a [`Payload`].
/// The framer sends nothing: it writes the FPDUs to memory of the caller, which sends them in
/// order.
#[derive(Clone, Debug)]
pub struct Framer {
    crc: bool,
    markers: bool,
    /// Stream offset of the next FPDU. It is a multiple of four, as is the length of every FPDU.
    position: u64,
}

impl Framer {
    /// Creates a framer at the first byte of Full Operation.
    ///
    /// `crc`: CRCs are in use. If not, the CRC field is still present and holds zero (5044-4.4-10).
    /// `markers`: the peer asked for Markers.
    #[must_use]
    pub fn new(crc: bool, markers: bool) -> Self {
        Self {
            crc,
            markers,
            position: mutate!(0, MarkersLate => 4),
        }
    }

    /// Returns the number of bytes framed so far in Full Operation. This is the stream offset of
    /// the next FPDU. A Marker directly before the length field counts as part of that FPDU.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Goes back to `position` and discards the FPDUs framed after it, which the caller must not
    /// have sent.
    ///
    /// `position` must be a value that [`position`](Self::position) returned before; a later
    /// position is ignored.
    pub fn rewind(&mut self, position: u64) {
        self.position = self.position.min(position);
    }

    /// Returns the length on the wire of the next FPDU in bytes, including Markers, for a ULPDU of
    /// `ulpdu_len` bytes.
    #[inline]
    #[must_use]
    pub const fn fpdu_len(&self, ulpdu_len: usize) -> usize {
        Markers::of(self.markers, self.position).wire_len(ulpdu_len)
    }

    /// Writes a complete FPDU to the end of `out`, including payload and CRC.
    ///
    /// The payload is the `len` bytes of `payload` from `offset` on. The CRC is computed over the
    /// copy, so the source may change meanwhile.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] or [`FrameError::Empty`]. Nothing is appended on error.
    pub fn frame<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
        offset: usize,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        let ulpdu = ulpdu_len(header, len)?;
        let start = out.len();
        let len_on_wire = self.fpdu_len(usize::from(ulpdu)) + mutate!(0, PadTooLong => 1);
        out.resize(start + len_on_wire, 0);
        if let Some(fpdu) = out.get_mut(start..) {
            self.write(ulpdu, header, payload, offset, len, fpdu);
        }
        Ok(())
    }

    /// Writes a complete FPDU as [`frame`](Self::frame) does, but to the start of a slice. Returns
    /// the length of the FPDU in bytes. The previous content of the slice does not matter.
    ///
    /// For long FPDUs this is cheaper than `frame`, which has to clear the memory that it appends.
    ///
    /// # Errors
    /// [`FrameError::TooLong`], [`FrameError::Empty`] or [`FrameError::NoRoom`]. Nothing is written
    /// on error.
    #[inline]
    pub fn frame_into<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
        offset: usize,
        len: usize,
        out: &mut [u8],
    ) -> Result<usize, FrameError> {
        let ulpdu = ulpdu_len(header, len)?;
        let needed = self.fpdu_len(usize::from(ulpdu)) + mutate!(0, PadTooLong => 1);
        let room = out.len();
        let Some(fpdu) = out.get_mut(..needed) else {
            return Err(FrameError::NoRoom { needed, room });
        };
        self.write(ulpdu, header, payload, offset, len, fpdu);
        Ok(needed)
    }

    /// Returns true if FPDUs carry a CRC.
    #[inline]
    pub fn has_crc(&self) -> bool {
        self.crc
    }

    /// Frames a ULPDU whose payload stays in place. Appends length field and header to `out` and
    /// returns the [`Trailer`]. The caller sends, in this order: the appended bytes, the payload,
    /// the trailer.
    ///
    /// The payload must not change until the LLP has accepted its last byte, otherwise the CRC is
    /// wrong.
    ///
    /// # Errors
    /// [`FrameError::InPlaceWithMarkers`] on a stream with Markers, [`FrameError::TooLong`] or
    /// [`FrameError::Empty`]. Nothing is appended on error.
    pub fn frame_in_place<P: Payload + ?Sized>(
        &mut self,
        header: &[u8],
        payload: &P,
        offset: usize,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<Trailer, FrameError> {
        if self.markers {
            return Err(FrameError::InPlaceWithMarkers);
        }
        let ulpdu = ulpdu_len(header, len)?;
        let mut trailer = Trailer::new(pad_len(usize::from(ulpdu)));
        if self.crc {
            let mut crc = Crc32c::new();
            crc.update(&ulpdu.to_be_bytes());
            crc.update(header);
            if len > 0 {
                payload.checksum(offset, len, &mut crc);
            }
            crc.update(trailer.pad());
            trailer.set_crc(crc.finish());
        }
        out.reserve(LENGTH_FIELD + header.len());
        out.extend_from_slice(&ulpdu.to_be_bytes());
        out.extend_from_slice(header);
        self.position += self.fpdu_len(usize::from(ulpdu)) as u64;
        Ok(trailer)
    }

    /// Writes the FPDU to `fpdu`, whose length is exactly that of the FPDU.
    #[inline]
    fn write<P: Payload + ?Sized>(
        &mut self,
        ulpdu: u16,
        header: &[u8],
        payload: &P,
        offset: usize,
        len: usize,
        fpdu: &mut [u8],
    ) {
        let wire_len = fpdu.len() as u64;
        let Some((body, field)) = fpdu.split_last_chunk_mut::<CRC_FIELD>() else {
            return;
        };
        let crc = if self.markers {
            let markers = Markers::of(true, self.position);
            write_marked(markers, ulpdu, header, payload, offset, len, body);
            // The CRC covers every byte before it, Markers included (5044-4.4-12, -13).
            self.crc
                .then(|| crc32c(mutate!(body, CrcWithoutMarker => &body[markers.leading()..])))
        } else {
            write_plain(self.crc, ulpdu, header, payload, offset, len, body)
        };
        *field = crc.map_or(
            [0; CRC_FIELD],
            mutate!(u32::to_le_bytes, CrcMostSignificantFirst => u32::to_be_bytes),
        );
        self.position += wire_len;
    }
}

/// Checks the length of a ULPDU and returns it as the value of the length field.
#[inline]
fn ulpdu_len(header: &[u8], payload: usize) -> Result<u16, FrameError> {
    let len = header.len().saturating_add(payload);
    match u16::try_from(len) {
        Ok(0) => Err(FrameError::Empty),
        Ok(ulpdu) if len <= MAX_ULPDU => Ok(ulpdu),
        _ => Err(FrameError::TooLong { len }),
    }
}

/// Writes length field, ULPDU and PAD without Markers. Returns the CRC if `crc` is set.
#[inline]
fn write_plain<P: Payload + ?Sized>(
    crc: bool,
    ulpdu: u16,
    header: &[u8],
    payload: &P,
    offset: usize,
    len: usize,
    body: &mut [u8],
) -> Option<u32> {
    let (head, rest) = body.split_at_mut(LENGTH_FIELD + header.len());
    let (length_field, header_place) = head.split_at_mut(LENGTH_FIELD);
    length_field.copy_from_slice(&ulpdu.to_be_bytes());
    copy_header(header_place, header);
    let (data, pad) = rest.split_at_mut(len);
    pad.fill(mutate!(0, PadNotZero => 0xEE)); // 5044-4.1-02
    if !crc || len <= FUSED_ABOVE {
        if len > 0 {
            payload.copy(offset, data, None);
        }
        let covered = mutate!(body.len(), CrcWithoutPad => LENGTH_FIELD + header.len() + len);
        return crc.then(|| crc32c(&body[..covered]));
    }
    let mut crc = Crc32c::new();
    crc.update(head);
    payload.copy(offset, data, Some(&mut crc));
    crc.update(pad);
    Some(crc.finish())
}

/// Copies a header. DDP headers have 14 or 18 bytes. For these lengths the compiler generates a few
/// instructions, for other lengths a call.
#[inline]
fn copy_header(to: &mut [u8], header: &[u8]) {
    fn exactly<const N: usize>(to: &mut [u8], header: &[u8]) -> Option<()> {
        *to.first_chunk_mut::<N>()? = *header.first_chunk::<N>()?;
        Some(())
    }
    let copied = match header.len() {
        14 => exactly::<14>(to, header),
        18 => exactly::<18>(to, header),
        _ => None,
    };
    if copied.is_none() {
        to.copy_from_slice(header);
    }
}

/// Writes length field, ULPDU and PAD in runs between the Markers.
fn write_marked<P: Payload + ?Sized>(
    markers: Markers,
    ulpdu: u16,
    header: &[u8],
    payload: &P,
    offset: usize,
    len: usize,
    body: &mut [u8],
) {
    // The Markers include one between PAD and CRC, at the end of `body` (5044-4.4-12).
    for (at, fpduptr) in markers.each(body.len()) {
        if let Some(marker) = body.get_mut(at..at + MARKER) {
            let [high, low] = mutate!(fpduptr, MarkerPointerOff => fpduptr + 4).to_be_bytes();
            let reserved = mutate!(0, MarkerReservedSet => 1);
            marker.copy_from_slice(&[0, reserved, high, low]); // 5044-4.2-02
        }
    }
    let mut content = 0;
    let mut put = |bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8])| {
        let mut done = 0;
        while done < bytes {
            let run = markers.run(content).min(bytes - done);
            let at = markers.wire_offset(content);
            if let Some(place) = body.get_mut(at..at + run) {
                fill(done, place);
            }
            done += run;
            content += run;
        }
    };
    put(LENGTH_FIELD, &mut |_, place| {
        place.copy_from_slice(&ulpdu.to_be_bytes());
    });
    put(header.len(), &mut |done, place| {
        place.copy_from_slice(&header[done..done + place.len()]);
    });
    put(len, &mut |done, place| {
        payload.copy(offset + done, place, None);
    });
    put(pad_len(usize::from(ulpdu)), &mut |_, place| place.fill(0));
}

/// PAD and CRC of an FPDU framed in place, 4 to 7 bytes, which are sent after the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    bytes: [u8; 7],
    pad: usize,
}

impl Trailer {
    fn new(pad: usize) -> Self {
        Self {
            bytes: [0; 7],
            pad: pad.min(3),
        }
    }

    fn pad(&self) -> &[u8] {
        &self.bytes[..self.pad]
    }

    fn set_crc(&mut self, crc: u32) {
        self.bytes[self.pad..self.pad + CRC_FIELD].copy_from_slice(&crc.to_le_bytes());
    }
}

impl AsRef<[u8]> for Trailer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.pad + CRC_FIELD]
    }
}

#[cfg(test)]
mod tests;

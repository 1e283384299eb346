//! Framing of DDP segments in the stream of the LLP. Here this is MPA over the byte stream of TCP.
//!
//! The rest of a connection knows segments, and positions in the stream that is sent. Besides this
//! module, only the MPA startup with what it has negotiated, and the batch, which is told where a
//! frame ends (`TxBatch::end_of_fpdu`), know that a segment becomes an FPDU. A transport with
//! message boundaries (SCTP, RFC 5043) would be a second variant of [`Deframing`] and [`Framing`].
//! Their methods are all that the queues need of it.

use crate::cause::Cause;
use crate::mem::MemorySource;
use crate::mutants::mutate;
use uwarp_ddp::STag;
use uwarp_mpa::{DeframeError, Deframer, FpduSegments, Framer, MAX_ULPDU, Negotiated};
use uwarp_rdmap::StreamError;

use super::transmit::TxBatch;

pub(super) use uwarp_mpa::{Step, Ulpdu};

/// Receive side: finds the segments in received bytes.
pub(crate) struct Deframing {
    mpa: Deframer,
}

impl Deframing {
    pub(super) fn new(negotiated: &Negotiated) -> Self {
        Deframing {
            mpa: Deframer::new(negotiated.crc, negotiated.rx_markers),
        }
    }

    /// Returns the segment at the start of `bytes`, or the number of bytes that it needs. After an
    /// error, no later call finds a segment.
    #[inline]
    pub(super) fn next<'a>(&mut self, bytes: &'a [u8]) -> Result<Step<'a>, DeframeError> {
        self.mpa.next(bytes)
    }

    /// Undoes the last call of [`Self::next`], because the segment has to wait. Its bytes stay in
    /// the receive buffer.
    pub(super) fn put_back(&mut self, segment: &Ulpdu<'_>) {
        self.mpa.put_back(segment);
    }

    /// Returns true if the peer has sent a segment.
    pub(super) fn has_begun(&self) -> bool {
        self.mpa.position() > 0
    }

    /// Returns an error of the framing as the error and the cause of the end of the stream.
    pub(super) fn violation(error: DeframeError) -> (StreamError, Cause) {
        let code = error.code().code();
        (StreamError::Mpa(code), Cause::framing(error))
    }
}

/// Send side: appends segments to a batch.
pub(crate) struct Framing {
    mpa: Framer,
    /// Current MULPDU: maximum length of a segment to send, in bytes.
    mulpdu: usize,
    /// Maximum number of TCP segments for an FPDU.
    segments: FpduSegments,
    /// This side sends Markers, which lie within the payload.
    markers: bool,
}

/// A segment was not framed: its payload could not be read. The STag is that of memory that is
/// registered, but not mapped.
pub(super) type Unreadable = Option<STag>;

impl Framing {
    pub(super) fn new(negotiated: &Negotiated, segments: FpduSegments, emss: usize) -> Self {
        let markers = mutate!(negotiated.tx_markers, MarkersNotSent => false);
        Framing {
            mpa: Framer::new(negotiated.crc, markers),
            mulpdu: segments.mulpdu(emss, markers),
            segments,
            markers,
        }
    }

    /// Returns the maximum length of a segment to send, in bytes.
    #[inline]
    pub(super) fn mulpdu(&self) -> usize {
        self.mulpdu
    }

    /// Returns the maximum length of a segment whose payload is staged as one run of bytes. Returns
    /// `None` if no payload is.
    #[inline]
    pub(super) fn whole_mulpdu(&self) -> Option<usize> {
        (!self.markers).then(|| self.mulpdu.min(MAX_ULPDU))
    }

    /// Sets the MULPDU of later segments by the EMSS of the LLP.
    pub(super) fn set_emss(&mut self, emss: usize) {
        self.mulpdu = self.segments.mulpdu(emss, self.markers);
    }

    /// Returns true if a segment carries a checksum of its payload.
    pub(super) fn has_crc(&self) -> bool {
        self.mpa.has_crc()
    }

    /// Returns true if payload may be sent in place.
    ///
    /// With a CRC, the memory is read twice: for the CRC, and by TCP. The program must therefore
    /// promise (`still`) not to write to the payload until the request is complete. Without a CRC,
    /// every FPDU is valid whatever the program writes. Markers lie within the payload, so they
    /// exclude sending in place.
    pub(super) fn takes_in_place(&self, still: bool) -> bool {
        !self.markers && (still || !self.mpa.has_crc())
    }

    /// Frames a segment without payload.
    pub(super) fn head(&mut self, tx: &mut TxBatch, head: &[u8]) -> bool {
        tx.stage(|staged| self.mpa.frame(head, &[][..], 0, 0, staged))
            .is_ok()
    }

    /// Frames a segment with a copy of its payload, and with the CRC over the copy.
    pub(super) fn stage<P: MemorySource + ?Sized>(
        &mut self,
        tx: &mut TxBatch,
        head: &[u8],
        payload: &P,
        offset: usize,
        len: usize,
    ) -> Result<(), Unreadable> {
        let room = self.mpa.fpdu_len(head.len() + len) + mutate!(0, PadTooLong => 1);
        let mpa = &mut self.mpa;
        let before = mpa.position();
        let framed = tx.stage_over(room, |out| {
            let framed = mpa.frame_into(head, payload, offset, len, out);
            match payload.unmapped() {
                None => framed.map_err(|_| None),
                unmapped => Err(unmapped),
            }
        });
        if framed.is_err() {
            mpa.rewind(before);
        }
        framed
    }

    /// Does [`Self::stage`] for the whole payload of a short message, on a stream without Markers.
    /// The compiler knows the length of the head, and inlines what one caller uses.
    #[inline]
    pub(super) fn stage_whole<const N: usize, P: MemorySource + ?Sized>(
        &mut self,
        tx: &mut TxBatch,
        head: &[u8; N],
        payload: &P,
        len: usize,
    ) -> Option<()> {
        // Length field, pad and CRC need less than 16 bytes.
        let room = N + len + 16;
        let mpa = &mut self.mpa;
        let before = mpa.position();
        let framed = tx.stage_over(room, |out| {
            let framed = mpa.frame_into(head, payload, 0, len, out);
            if payload.unmapped().is_some() {
                return Err(());
            }
            framed.map_err(drop)
        });
        if framed.is_err() {
            mpa.rewind(before);
        }
        framed.ok()
    }

    /// Frames a segment with its payload in place.
    ///
    /// `pin` adds the memory of the payload to the batch, pinned or lent. It returns false if the
    /// memory is gone.
    pub(super) fn gather<P: MemorySource + ?Sized>(
        &mut self,
        tx: &mut TxBatch,
        head: &[u8],
        source: &P,
        (offset, len): (usize, usize),
        pin: impl FnOnce(&mut TxBatch) -> bool,
    ) -> Result<(), Unreadable> {
        let mpa = &mut self.mpa;
        let before = mpa.position();
        let trailer = tx.stage(|staged| {
            let start = staged.len();
            let framed = mpa.frame_in_place(head, source, offset, len, staged);
            let unmapped = source.unmapped();
            if unmapped.is_some() {
                staged.truncate(start);
                mpa.rewind(before);
                return Err(unmapped);
            }
            framed.map_err(|_| None)
        })?;
        // From here on the pins keep the memory registered, in place of the guard of `source`.
        let complete = pin(tx);
        tx.stage(|staged| staged.extend_from_slice(trailer.as_ref()));
        if complete { Ok(()) } else { Err(None) }
    }

    /// Forgets the last `bytes` bytes of the stream, which are dropped from the batch.
    pub(super) fn drop_last(&mut self, bytes: u64) {
        let position = self.mpa.position().saturating_sub(bytes);
        self.mpa.rewind(position);
    }
}

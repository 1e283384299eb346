//! Deframes arbitrary bytes, with and without CRC and Markers. However the stream is cut into
//! pieces, the ULPDUs and the error must be those of the model.

use crate::deframing::deframe;
use crate::input::{Cuts, Input};
use crate::model::fpdu;

/// Runs one input: flags (bit 0: CRC, bit 1: Markers), the lengths of the pieces, the stream.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.flags();
    let (crc, markers) = (flags(0), flags(1));
    let lengths = input.slice(64);
    let stream = input.take_rest();

    let expected = fpdu::open(stream, crc, markers);
    for lengths in [&[], lengths, &[1]] {
        let found = deframe(stream, crc, markers, Cuts::new(lengths));
        assert_eq!(found, expected, "pieces of {lengths:?}");
    }
}

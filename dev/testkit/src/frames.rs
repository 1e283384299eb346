//! Startup frames and segments in short, for tests that read streams.

use uwarp_oracle::{Fpdus, REPLY, REQUEST, Tagged, Untagged, startup};

/// Returns an MPA Request.
#[must_use]
pub fn request(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    startup(REQUEST, flags, revision, private_data)
}

/// Returns an MPA Reply.
#[must_use]
pub fn reply(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    startup(REPLY, flags, revision, private_data)
}

/// Returns an untagged message of one segment.
#[must_use]
pub fn untagged(opcode: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    Untagged::new(opcode, queue, msn, payload).bytes()
}

/// Returns a tagged message of one segment, for the STag 0x0012_3456 and the TO 0x1000.
#[must_use]
pub fn tagged(opcode: u8, payload: &[u8]) -> Vec<u8> {
    Tagged::new(opcode, 0x0012_3456, 0x1000, payload).bytes()
}

/// Returns true if Wireshark 4.0 computes a wrong number of Markers for an FPDU with this ULPDU
/// length. This is so if the FPDU contains a Marker and ends exactly where the next one is due.
#[must_use]
pub fn upsets_wireshark(encoder: &Fpdus, ulpdu_len: usize) -> bool {
    let mut copy = encoder.clone();
    let len = copy.seal(&vec![0; ulpdu_len]).len();
    let bare = (2 + ulpdu_len).next_multiple_of(4) + 4;
    len > bare && copy.position.is_multiple_of(512)
}

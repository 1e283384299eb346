//! The memory for the operations of RFC 7306: two words for atomics, and a note for the Write with
//! Immediate Data; what A does to it, and what B has to find.

use uwarp_verbs::{Completion, MemoryRegion, WcOpcode};

/// Bytes of the region, all 0 at first.
pub(super) const LEN: usize = 64;
/// Where the counter is, the lock, and the note.
pub(super) const COUNTER: usize = 0;
pub(super) const LOCK: usize = 8;
pub(super) const NOTE: usize = 32;

/// What A writes, and the Immediate Data behind it.
pub(super) const TEXT: &[u8; 16] = b"a note of 16 B!!";
pub(super) const IMMEDIATE: [u8; 8] = *b"look now";

/// How often A adds, and what.
pub(super) const ADDS: u64 = 100;
pub(super) const STEP: u64 = 7;
/// What A stores in the lock, and in vain tries to store while it is taken.
pub(super) const HOLDER: u64 = 0xA;
pub(super) const OTHER: u64 = 0xB;
/// All atomics: the adds, two attempts to take the lock, and a swap to release it.
pub(super) const ATOMICS: usize = ADDS as usize + 3;

/// Whether the note came with its Immediate Data.
pub(super) fn verify_note(region: &MemoryRegion, done: Option<&Completion>) -> Result<(), String> {
    let found = done.map(|done| (done.opcode, done.immediate));
    if found != Some((WcOpcode::RecvImmediate, Some(IMMEDIATE))) {
        return Err(format!("B's receive completed as {found:?}"));
    }
    let mut text = [0; TEXT.len()];
    region
        .read_at(NOTE, &mut text)
        .map_err(|error| error.to_string())?;
    if text == *TEXT {
        Ok(())
    } else {
        Err(format!("B found \"{}\"", text.escape_ascii()))
    }
}

/// Whether the words hold what A's atomics lead to.
pub(super) fn verify_words(region: &MemoryRegion) -> Result<(), String> {
    for (offset, expected, what) in [(COUNTER, ADDS * STEP, "the counter"), (LOCK, 0, "the lock")] {
        let found = word(region, offset)?;
        if found != expected {
            return Err(format!("{what} is {found}, expected {expected}"));
        }
    }
    Ok(())
}

/// A word of this host.
pub(super) fn word(region: &MemoryRegion, offset: usize) -> Result<u64, String> {
    let mut octets = [0; 8];
    region
        .read_at(offset, &mut octets)
        .map_err(|error| error.to_string())?;
    Ok(u64::from_ne_bytes(octets))
}

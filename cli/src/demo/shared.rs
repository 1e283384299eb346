//! Memory for the operations of RFC 7306: two words for atomics, and a note for the Write with
//! Immediate Data. This module defines the operations of A and the results that B expects.

use uwarp_verbs::{Completion, MemoryRegion, WcOpcode};

/// Length of the region in bytes. All bytes are 0 at first.
pub(super) const LEN: usize = 64;
/// Offset in bytes of the word that A's additions change.
pub(super) const COUNTER: usize = 0;
/// Offset in bytes of the word that A uses as a lock.
pub(super) const LOCK: usize = 8;
/// Offset in bytes of the text that A writes.
pub(super) const NOTE: usize = 32;

/// Text of the note.
pub(super) const TEXT: &[u8; 16] = b"a note of 16 B!!";
/// Immediate Data that follows the note.
pub(super) const IMMEDIATE: [u8; 8] = *b"look now";

/// Number of A's additions.
pub(super) const ADDS: u64 = 100;
/// Value that each addition adds.
pub(super) const STEP: u64 = 7;
/// Value that A stores in the free lock.
pub(super) const HOLDER: u64 = 0xA;
/// Value that A fails to store, because the lock is taken.
pub(super) const OTHER: u64 = 0xB;
/// Number of atomics: the additions, two attempts to take the lock, and a swap to release it.
pub(super) const ATOMICS: usize = ADDS as usize + 3;

/// Checks the text of the note and the completion that carries its Immediate Data.
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

/// Checks that the counter and the lock have the values that A's atomics produce.
pub(super) fn verify_words(region: &MemoryRegion) -> Result<(), String> {
    for (offset, expected, what) in [(COUNTER, ADDS * STEP, "the counter"), (LOCK, 0, "the lock")] {
        let found = word(region, offset)?;
        if found != expected {
            return Err(format!("{what} is {found}, expected {expected}"));
        }
    }
    Ok(())
}

/// Reads a word in the byte order of this host.
pub(super) fn word(region: &MemoryRegion, offset: usize) -> Result<u64, String> {
    let mut bytes = [0; 8];
    region
        .read_at(offset, &mut bytes)
        .map_err(|error| error.to_string())?;
    Ok(u64::from_ne_bytes(bytes))
}

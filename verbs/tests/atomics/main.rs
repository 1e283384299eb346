//! The operations of RFC 7306: atomics on the peer's memory, and Immediate Data.

#[path = "../common/mod.rs"]
mod common;

mod concurrent;
mod failures;
mod immediate;
mod operations;
mod order;
mod unknown;

use common::Side;
use uwarp_verbs::{Access, MemoryRegion, SendWr, Sge};

/// Registers words that the peer may read and change by atomics.
fn words(side: &Side, words: &[u64]) -> MemoryRegion {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    side.pd.register(bytes, access).unwrap()
}

/// Returns the word at `index`.
fn word(region: &MemoryRegion, index: usize) -> u64 {
    let mut bytes = [0; 8];
    region.read_at(8 * index, &mut bytes).unwrap();
    u64::from_ne_bytes(bytes)
}

/// Registers a sink for one result.
fn sink(side: &Side) -> MemoryRegion {
    side.blank(8)
}

fn all_of(sink: &MemoryRegion) -> [Sge; 1] {
    [sink.sge(0, 8)]
}

/// Posts the request that `make` builds with a sink, waits for its success, and returns the content
/// of the sink.
#[track_caller]
fn original(side: &Side, wr_id: u64, make: impl FnOnce(&[Sge]) -> SendWr<'_>) -> u64 {
    let sink = sink(side);
    let sges = all_of(&sink);
    side.qp.post_send(&make(&sges)).unwrap();
    let done = side.send_cq.success(wr_id);
    assert_eq!(done.byte_len, 8);
    word(&sink, 0)
}

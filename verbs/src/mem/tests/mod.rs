//! Tests of registered memory that need more than one of its files.

mod lists;
mod lives;
mod model;
mod pinned;
mod races;
mod slot_model;
mod slots;
mod write_target_cache;

use std::sync::Arc;

use super::*;

/// So many rounds or cases; Miri, which interprets, gets a few of them.
fn rounds(native: u32) -> u32 {
    if cfg!(miri) {
        (native / 100).clamp(3, 100)
    } else {
        native
    }
}

/// A table with room for a few thousand regions.
fn table() -> RegionTable {
    RegionTable::new(5000, 5000, None).unwrap()
}

/// A buffer of zeros.
fn buffer(len: usize) -> Arc<Buffer> {
    Arc::new(Buffer::zeroed(len).unwrap())
}

/// All remote rights.
fn remote() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// A registration of PD 1, for all its QPs, with all remote rights, addressed from 0.
fn spec(buffer: &Arc<Buffer>) -> RegionSpec {
    let memory = Backing::buffer(Arc::clone(buffer));
    RegionSpec {
        memory,
        to_base: Some(0),
        pd: 1,
        qp: None,
        access: remote(),
    }
}

/// A QP that leaves all to the regions.
fn asker(pd: u32, qp: u32) -> Asker {
    let access = Access::ALL;
    Asker { pd, qp, access }
}

/// A check for a Write by QP 7 of PD 1.
fn write_target(
    table: &RegionTable,
    stag: uwarp_ddp::STag,
    to: u64,
    len: u32,
) -> Result<Target, uwarp_ddp::TaggedFault> {
    table.check(stag, to, len, Need::RemoteWrite, &asker(1, 7))
}

/// A check for a Read by QP 7 of PD 1.
fn read_target(table: &RegionTable, stag: uwarp_ddp::STag, len: u32) -> Target {
    table
        .check(stag, 0, len, Need::RemoteRead, &asker(1, 7))
        .unwrap()
}

/// The pinned runs of a range.
fn pin(list: &SgList, offset: usize, len: usize) -> Option<Vec<PinnedRun>> {
    let mut runs = Vec::new();
    list.pin(offset, len, |run| runs.push(run)).then_some(runs)
}

/// All bytes of a buffer.
fn octets(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read_at(0, &mut out).unwrap();
    out
}

//! Tests of registered memory that involve several of its files.

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

/// Number of rounds or cases; reduced under Miri, which interprets the code.
fn rounds(native: u32) -> u32 {
    if cfg!(miri) {
        (native / 100).clamp(3, 100)
    } else {
        native
    }
}

/// A table with room for 5000 regions.
fn table() -> RegionTable {
    RegionTable::new(5000, 5000, None).unwrap()
}

/// A zeroed buffer.
fn buffer(len: usize) -> Arc<Buffer> {
    Arc::new(Buffer::zeroed(len).unwrap())
}

/// All remote rights.
fn remote() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// A registration for all QPs of PD 1, with all remote rights and TOs from 0.
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

/// A QP that grants all rights, so that only those of the region matter.
fn asker(pd: u32, qp: u32) -> Asker {
    let access = Access::ALL;
    Asker { pd, qp, access }
}

/// Checks a Write by QP 7 of PD 1.
fn write_target(
    table: &RegionTable,
    stag: uwarp_ddp::STag,
    to: u64,
    len: u32,
) -> Result<Target, uwarp_ddp::TaggedFault> {
    table.check(stag, to, len, Need::RemoteWrite, &asker(1, 7))
}

/// Checks a Read by QP 7 of PD 1.
fn read_target(table: &RegionTable, stag: uwarp_ddp::STag, len: u32) -> Target {
    table
        .check(stag, 0, len, Need::RemoteRead, &asker(1, 7))
        .unwrap()
}

/// Pins a range; `None` on failure.
fn pin(list: &SgList, offset: usize, len: usize) -> Option<Vec<PinnedRun>> {
    let mut runs = Vec::new();
    list.pin(offset, len, |run| runs.push(run)).then_some(runs)
}

/// All bytes of a buffer.
fn contents(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read_at(0, &mut out).unwrap();
    out
}

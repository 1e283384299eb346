//! Memory regions with STags and access rights.

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of rights")]
pub enum Right {
    Write,
    Read,
    Atomic,
    Invalidate,
}

/// Reason for refusing an access. [`check`] tests for the reasons in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of errors")]
pub enum Fault {
    Invalid,
    NotAssociated,
    Rights,
    Wrap,
    Bounds,
    Misaligned,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// STag of the region.
    pub stag: u32,
    /// TO of its first byte.
    pub base: u64,
    /// Bytes of the region.
    pub bytes: Vec<u8>,
    /// Permitted kinds of access.
    pub rights: Vec<Right>,
    /// True if the region belongs to the stream.
    pub associated: bool,
    /// False after the STag was invalidated.
    pub valid: bool,
}

/// Creates the regions that a peer can reach. Their rights differ, and some lie at the limits of
/// the TO range.
#[must_use]
pub fn regions() -> Vec<Region> {
    use Right::{Atomic, Invalidate, Read, Write};
    let region = |stag, base, len, rights: &[Right], associated| Region {
        stag,
        base,
        bytes: vec![0xC3; len],
        rights: rights.to_vec(),
        associated,
        valid: true,
    };
    vec![
        region(
            0x0000_0101,
            0,
            1024,
            &[Write, Read, Atomic, Invalidate],
            true,
        ),
        region(0x0000_0202, 5000, 2000, &[Write], true),
        region(0x8000_0303, 1 << 40, 640, &[Read], true),
        // The end is 2^64 - 1, so no access wraps. The last byte is at the second to last TO.
        region(
            0xFFFF_FFFF,
            u64::MAX - 256,
            256,
            &[Write, Read, Atomic],
            true,
        ),
        region(
            0x0000_0404,
            0,
            64,
            &[Write, Read, Atomic, Invalidate],
            false,
        ),
        region(0x0000_0505, 4096, 64, &[Invalidate], true),
    ]
}

/// Checks an access to `len` bytes at `to`. Returns the index of the region and the offset in it.
///
/// # Errors
/// The fault that the first failed check finds.
pub fn check(
    regions: &[Region],
    stag: u32,
    to: u64,
    len: u32,
    right: Right,
) -> Result<(usize, usize), Fault> {
    let index = regions
        .iter()
        .position(|region| region.valid && region.stag == stag)
        .ok_or(Fault::Invalid)?;
    let region = &regions[index];
    if !region.associated {
        return Err(Fault::NotAssociated);
    }
    if !region.rights.contains(&right) {
        return Err(Fault::Rights);
    }
    if right == Right::Invalidate {
        return Ok((index, 0));
    }
    let (start, end) = (u128::from(to), u128::from(to) + u128::from(len));
    let (first, behind) = (
        u128::from(region.base),
        u128::from(region.base) + region.bytes.len() as u128,
    );
    if end > u128::from(u64::MAX) {
        return Err(Fault::Wrap);
    }
    if start < first || end > behind {
        return Err(Fault::Bounds);
    }
    let offset = (start - first) as usize;
    if right == Right::Atomic && !offset.is_multiple_of(8) {
        return Err(Fault::Misaligned);
    }
    Ok((index, offset))
}

//! Memory with STags, and who may do what to it.

/// What an access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of rights")]
pub enum Right {
    Write,
    Read,
    Atomic,
    Invalidate,
}

/// Why an access is refused. The checks are made in this order.
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

/// A region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its STag.
    pub stag: u32,
    /// The TO of its first byte.
    pub base: u64,
    /// Its bytes.
    pub octets: Vec<u8>,
    /// What it may be used for.
    pub rights: Vec<Right>,
    /// Whether it belongs to the stream.
    pub associated: bool,
    /// It was not invalidated.
    pub valid: bool,
}

/// What a peer can reach: a few regions, each with other rights, at places where arithmetic goes wrong.
#[must_use]
pub fn regions() -> Vec<Region> {
    use Right::{Atomic, Invalidate, Read, Write};
    let region = |stag, base, len, rights: &[Right], associated| Region {
        stag,
        base,
        octets: vec![0xC3; len],
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
        // Up to the last TO but one: its end is 2^64 - 1, which does not wrap.
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

/// Where `len` bytes at `to` lie: the region, and the offset in it.
///
/// # Errors
/// The first check that fails.
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
        u128::from(region.base) + region.octets.len() as u128,
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

//! The memory of our side: regions in one arena, with bytes between them that nobody may touch,
//! and a model of what the arena should hold.
#![expect(
    unsafe_code,
    reason = "regions are registered in place, so that their surroundings can be watched"
)]

use std::ptr::NonNull;

use uwarp_verbs::{Access, MemoryRegion, Pd};

use crate::wire::filler;

/// Bytes of one region.
pub(crate) const REGION: usize = 2048;
/// Bytes before, between and behind the regions.
const GAP: usize = 512;
const REGIONS: usize = 4;
const ARENA: usize = GAP + REGIONS * (REGION + GAP);

/// Which region of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The peer may write here, and do atomics.
    Writable,
    /// The peer may read here.
    Readable,
    /// Only this side may use it: receives, sources, sinks.
    Local,
    /// The peer of another protection domain may do everything here.
    Foreign,
}

/// The regions and their model.
pub(crate) struct Memory {
    arena: NonNull<u8>,
    expected: Vec<u8>,
    pub(crate) writable: MemoryRegion,
    pub(crate) readable: MemoryRegion,
    pub(crate) local: MemoryRegion,
    pub(crate) foreign: MemoryRegion,
}

impl Memory {
    pub(crate) fn new(pd: &Pd, other: &Pd) -> Self {
        let expected = filler(7, ARENA);
        // Never given back: connections that end in the background may still have a right to it.
        let arena = NonNull::from(Box::leak(expected.clone().into_boxed_slice())).cast::<u8>();
        let register = |pd: &Pd, place: Place, access: Access| {
            // SAFETY: the arena lives for ever, this region is a part of it, and from here on it is
            // only reached through raw pointers.
            unsafe { pd.register_in_place(arena.add(start(place)), REGION, access) }.unwrap()
        };
        Memory {
            writable: register(
                pd,
                Place::Writable,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            ),
            readable: register(pd, Place::Readable, Access::REMOTE_READ),
            local: register(pd, Place::Local, Access::LOCAL_WRITE),
            foreign: register(
                other,
                Place::Foreign,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            ),
            arena,
            expected,
        }
    }

    /// From now on `octets` should be at `offset` of the region.
    pub(crate) fn expect(&mut self, place: Place, offset: usize, octets: &[u8]) {
        self.expected[start(place) + offset..][..octets.len()].copy_from_slice(octets);
    }

    /// What should be at `offset` of the region.
    pub(crate) fn expected(&self, place: Place, offset: usize, len: usize) -> &[u8] {
        &self.expected[start(place) + offset..][..len]
    }

    /// Whatever is there now in these bytes of the region is as it should be.
    pub(crate) fn allow(&mut self, place: Place, offset: usize, len: usize) {
        for at in start(place) + offset..start(place) + offset + len {
            // SAFETY: inside the arena, as above.
            self.expected[at] = unsafe { self.arena.add(at).read_volatile() };
        }
    }

    /// Compares the whole arena with the model. Call it when nothing is on its way any more.
    pub(crate) fn check(&self) {
        for (at, expected) in self.expected.iter().enumerate() {
            // SAFETY: inside the arena, which lives for ever; no reference to it exists.
            let found = unsafe { self.arena.add(at).read_volatile() };
            assert_eq!(
                found,
                *expected,
                "byte {at} of the arena (regions start at {GAP} + n * {})",
                REGION + GAP
            );
        }
    }
}

fn start(place: Place) -> usize {
    GAP + place as usize * (REGION + GAP)
}

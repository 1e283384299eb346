//! Memory of our side: regions in one arena, with guard bytes between them that must stay
//! unchanged. A model records the expected content of the arena.
#![expect(
    unsafe_code,
    reason = "regions are registered in place, so that their surroundings can be watched"
)]

use std::ptr::NonNull;

use uwarp_testkit::filler;
use uwarp_verbs::{Access, MemoryRegion, Pd};

/// Length of one region in bytes.
pub(crate) const REGION: usize = 2048;
/// Number of guard bytes before, between and after the regions.
const GAP: usize = 512;
const REGIONS: usize = 4;
const ARENA: usize = GAP + REGIONS * (REGION + GAP);

/// Region of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The peer may write here and do atomics.
    Writable,
    /// The peer may read here.
    Readable,
    /// This region is for local use only: receives, sources, sinks.
    Local,
    /// This region has all rights, but belongs to another protection domain than the connection
    /// under test.
    Foreign,
}

/// The arena with its regions, and the model of its content.
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
        // The arena is leaked, because connections that end in the background may still have the
        // right to use it.
        let arena = NonNull::from(Box::leak(expected.clone().into_boxed_slice())).cast::<u8>();
        let register = |pd: &Pd, place: Place, access: Access| {
            // SAFETY: the arena is never freed, this region is a part of it, and from here on it is
            // only accessed through raw pointers.
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

    /// Records that `bytes` are expected at `offset` of the region.
    pub(crate) fn expect(&mut self, place: Place, offset: usize, bytes: &[u8]) {
        self.expected[start(place) + offset..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Returns the expected bytes at `offset` of the region.
    pub(crate) fn expected(&self, place: Place, offset: usize, len: usize) -> &[u8] {
        &self.expected[start(place) + offset..][..len]
    }

    /// Records that the current content of this part of the region is expected.
    pub(crate) fn allow(&mut self, place: Place, offset: usize, len: usize) {
        for at in start(place) + offset..start(place) + offset + len {
            // SAFETY: the address is inside the arena, which is never freed; no reference to it
            // exists.
            self.expected[at] = unsafe { self.arena.add(at).read_volatile() };
        }
    }

    /// Compares the whole arena with the model. No data may be in transit during the call.
    pub(crate) fn check(&self) {
        for (at, expected) in self.expected.iter().enumerate() {
            // SAFETY: the address is inside the arena, which is never freed; no reference to it
            // exists.
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

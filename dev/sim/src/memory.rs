//! Registered memory with a model of its content.

use std::sync::Arc;

use uwarp_verbs::{Access, Buffer, MemoryRegion, Pd, Qp, Sge};

/// Initial value of memory that operations write to.
const FILL: u8 = 0xA5;

/// State of a byte in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// The byte has its initial value.
    Untouched,
    /// The byte has its initial value, or an operation has already placed the expected one.
    Perhaps,
    /// The byte has the expected value.
    Placed,
}

/// Memory and a model of its content. Each part is the target of at most one operation.
pub(crate) struct Tracked {
    buffer: Arc<Buffer>,
    /// `None` after deregistration, and where a [`LentRegion`](crate::lent_region::LentRegion)
    /// provides the STag.
    pub(crate) region: Option<MemoryRegion>,
    /// TO of the first byte, which is also its address in SGEs.
    base: u64,
    expected: Vec<u8>,
    known: Vec<Known>,
    free_from: usize,
    what: &'static str,
}

impl Tracked {
    pub(crate) fn new(
        pd: &Pd,
        what: &'static str,
        content: &[u8],
        access: Access,
        base: u64,
        only_for: Option<&Qp>,
    ) -> Result<Self, String> {
        let mut tracked = Self::holding(what, content)?;
        tracked.base = base;
        // The address in this process is not used, because it would differ between two runs.
        let mut builder = pd.region().access(access);
        builder = if base == 0 {
            builder.zero_based()
        } else {
            builder.iova(base)
        };
        if let Some(qp) = only_for {
            builder = builder.for_qp(qp);
        }
        let region = builder
            .buffer(Arc::clone(&tracked.buffer))
            .map_err(|error| error.to_string())?;
        tracked.region = Some(region);
        Ok(tracked)
    }

    /// Creates memory with this content and without a region.
    pub(crate) fn holding(what: &'static str, content: &[u8]) -> Result<Self, String> {
        let buffer = Buffer::zeroed(content.len()).map_err(|error| error.to_string())?;
        buffer
            .write_at(0, content)
            .map_err(|error| error.to_string())?;
        Ok(Tracked {
            buffer: Arc::new(buffer),
            region: None,
            base: 0,
            known: vec![Known::Untouched; content.len()],
            expected: content.to_vec(),
            free_from: 0,
            what,
        })
    }

    /// Creates memory filled with [`FILL`] and without a region.
    pub(crate) fn unregistered(what: &'static str, len: usize) -> Result<Self, String> {
        Self::holding(what, &vec![FILL; len])
    }

    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Creates memory filled with [`FILL`] and registers it.
    pub(crate) fn blank(
        pd: &Pd,
        what: &'static str,
        len: usize,
        access: Access,
        base: u64,
        only_for: Option<&Qp>,
    ) -> Result<Self, String> {
        Self::new(pd, what, &vec![FILL; len], access, base, only_for)
    }

    pub(crate) fn len(&self) -> usize {
        self.expected.len()
    }

    /// Takes the next `len` bytes that no operation uses yet.
    pub(crate) fn take(&mut self, len: usize) -> Option<usize> {
        let at = self.free_from;
        (at + len <= self.len()).then(|| {
            self.free_from = at + len;
            at
        })
    }

    pub(crate) fn free(&self) -> usize {
        self.len() - self.free_from
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.region.as_ref().map_or(0, MemoryRegion::rkey)
    }

    /// Returns the TO of a byte.
    pub(crate) fn to(&self, at: usize) -> u64 {
        self.base + at as u64
    }

    pub(crate) fn sge(&self, at: usize, len: usize) -> Sge {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        Sge {
            addr: self.to(at),
            len,
            lkey: self.region.as_ref().map_or(0, MemoryRegion::lkey),
        }
    }

    pub(crate) fn expected(&self, at: usize, len: usize) -> &[u8] {
        &self.expected[at..at + len]
    }

    /// Records that an operation will place `bytes`, or has begun to.
    pub(crate) fn mark_expected(&mut self, at: usize, bytes: &[u8]) {
        self.expected[at..at + bytes.len()].copy_from_slice(bytes);
        self.known[at..at + bytes.len()].fill(Known::Perhaps);
    }

    /// Records that the expected bytes are placed.
    pub(crate) fn mark_placed(&mut self, at: usize, len: usize) {
        self.known[at..at + len].fill(Known::Placed);
    }

    /// Returns the current content of a part.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // Parts come from `take`, so they are in bounds.
        let _ = self.buffer.read_at(at, &mut bytes);
        bytes
    }

    /// Returns true if each byte of a part is untouched or equal to the byte of `candidate` at the
    /// same index.
    pub(crate) fn is_mix_of(&self, at: usize, len: usize, candidate: &[u8]) -> bool {
        let bytes = self.read(at, len);
        let fits = |(index, byte): (usize, &u8)| {
            *byte == FILL || candidate.get(index).is_some_and(|may| may == byte)
        };
        bytes.iter().enumerate().all(fits)
    }

    /// Accepts the current content of a part as the expected one.
    pub(crate) fn settle(&mut self, at: usize, len: usize) {
        let found = self.read(at, len);
        self.expected[at..at + len].copy_from_slice(&found);
    }

    /// Compares the memory with the model.
    pub(crate) fn check(&self, whose: &str) -> Result<(), String> {
        let found = self.read(0, self.len());
        let pieces = found.chunks(PIECE).zip(self.expected.chunks(PIECE));
        for (number, (piece, expected)) in pieces.enumerate() {
            // Bytes that equal the expected ones pass in every state.
            if piece != expected {
                self.check_piece(whose, number * PIECE, piece)?;
            }
        }
        Ok(())
    }

    /// Compares bytes that were read from offset `from` with the model.
    fn check_piece(&self, whose: &str, from: usize, found: &[u8]) -> Result<(), String> {
        for (at, found) in (from..).zip(found) {
            let (expected, known) = (self.expected[at], self.known[at]);
            let fits = match known {
                Known::Untouched | Known::Placed => *found == expected,
                Known::Perhaps => *found == expected || *found == FILL,
            };
            if !fits {
                let what = self.what;
                return Err(format!(
                    "{whose}: byte {at} of {what} is {found:02x}, the model expects {expected:02x} ({known:?})"
                ));
            }
        }
        Ok(())
    }
}

/// Number of bytes compared at once.
const PIECE: usize = 256;

/// Draws the address that peers and SGEs use for memory of `len` bytes. At least 64 addresses
/// follow the memory, so that an access slightly past the end does not wrap.
pub(crate) fn base(random: &mut fastrand::Rng, len: usize) -> u64 {
    let most = u64::MAX - len as u64 - 64;
    match random.u8(0..4) {
        0 => 0,
        1 => random.u64(1..=4096),
        2 => random.u64(1..=most),
        _ => most - random.u64(0..64),
    }
}

/// Maximum number of elements of a work request.
pub(crate) const ELEMENTS: u32 = 8;

/// Divides the sink of a Read into elements, some of which may be empty. An empty element names no
/// memory.
pub(crate) fn divide(random: &mut fastrand::Rng, whole: Sge) -> Vec<Sge> {
    let count = match random.bool() {
        true => 1,
        false => random.u32(2..=ELEMENTS),
    };
    let mut cuts: Vec<u32> = (1..count).map(|_| random.u32(0..=whole.len)).collect();
    cuts.extend([0, whole.len]);
    cuts.sort_unstable();
    let part = |ends: &[u32]| Sge {
        addr: whole.addr.wrapping_add(ends[0].into()),
        len: ends[1] - ends[0],
        lkey: whole.lkey ^ u32::from(ends[0] == ends[1]),
    };
    cuts.windows(2).map(part).collect()
}

/// Creates pseudo-random bytes from a seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates memory with three parts: untouched, possibly placed, and placed. They begin and end
    /// within pieces.
    fn parts(len: usize) -> (Tracked, [usize; 3]) {
        let mut tracked = Tracked::unregistered("memory", 3 * len).unwrap();
        let content = pattern(1, 2 * len);
        tracked.mark_expected(len, &content);
        tracked.mark_placed(2 * len, len);
        tracked.buffer.write_at(2 * len, &content[len..]).unwrap();
        (tracked, [0, len, 2 * len])
    }

    #[test]
    fn memory_is_as_the_model_has_it() {
        for len in [1, 100, PIECE, 2 * PIECE + 7] {
            let (tracked, [_, perhaps, _]) = parts(len);
            // The memory passes with none, half and all of the possible bytes placed.
            tracked.check("a").unwrap();
            let content = tracked.expected(perhaps, len).to_vec();
            for come in [len / 2, len] {
                let bytes = &content[..come];
                tracked.buffer.write_at(perhaps, bytes).unwrap();
                tracked.check("a").unwrap();
            }
        }
    }

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let len = PIECE + 100;
        for at in 0..3 * len {
            let (tracked, _) = parts(len);
            let right = tracked.read(at, 1)[0];
            let mut wrong = right ^ 1;
            // In the second part, both the expected and the initial value are correct.
            if wrong == FILL || wrong == tracked.expected(at, 1)[0] {
                wrong ^= 2;
            }
            tracked.buffer.write_at(at, &[wrong]).unwrap();
            let said = tracked.check("a").unwrap_err();
            assert!(said.contains(&format!("byte {at} of memory")), "{said}");
        }
    }
}

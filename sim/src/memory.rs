//! Registered memory, and what has to be in it.

use std::sync::Arc;

use uwarp_verbs::{Access, Buffer, MemoryRegion, Pd, Qp, Sge};

/// What lies in memory before anything is placed there.
const FILL: u8 = 0xA5;

/// What is known of an byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// It is as it was at the beginning.
    Untouched,
    /// Something may have been placed, and if so, it is what is expected.
    Perhaps,
    /// What is expected was placed.
    Placed,
}

/// A region with a model of its content. Each part of it is the target of one operation at most.
pub(crate) struct Tracked {
    buffer: Arc<Buffer>,
    /// `None` once it was deregistered, and where others lend the memory an STag.
    pub(crate) region: Option<MemoryRegion>,
    /// The TO of the first byte, and its address in SGEs.
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
        // Never where it lies in memory, so that runs are alike: addresses of a process are not.
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

    /// Memory that has no region of its own.
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

    /// The same, in which nothing was placed yet.
    pub(crate) fn unregistered(what: &'static str, len: usize) -> Result<Self, String> {
        Self::holding(what, &vec![FILL; len])
    }

    pub(crate) fn buffer(&self) -> &Arc<Buffer> {
        &self.buffer
    }

    /// Memory in which nothing was placed yet.
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

    /// A part that no operation had yet.
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

    /// The TO of an byte.
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

    /// This may come, or has begun to.
    pub(crate) fn may_come(&mut self, at: usize, octets: &[u8]) {
        self.expected[at..at + octets.len()].copy_from_slice(octets);
        self.known[at..at + octets.len()].fill(Known::Perhaps);
    }

    /// What may come has come.
    pub(crate) fn has_come(&mut self, at: usize, len: usize) {
        self.known[at..at + len].fill(Known::Placed);
    }

    /// These bytes, whatever they are now.
    pub(crate) fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let mut octets = vec![0; len];
        // The parts come from `take`, so they are inside.
        let _ = self.buffer.read_at(at, &mut octets);
        octets
    }

    /// Whether part of it is untouched, or holds the beginning of what `candidate` says, in any mix.
    pub(crate) fn is_mix_of(&self, at: usize, len: usize, candidate: &[u8]) -> bool {
        let octets = self.read(at, len);
        let fits = |(index, octet): (usize, &u8)| {
            *octet == FILL || candidate.get(index).is_some_and(|may| may == octet)
        };
        octets.iter().enumerate().all(fits)
    }

    /// What was found in this part is what belongs there: nobody has to look any more.
    pub(crate) fn settle(&mut self, at: usize, len: usize) {
        let found = self.read(at, len);
        self.expected[at..at + len].copy_from_slice(&found);
    }

    /// Holds the memory against the model.
    pub(crate) fn check(&self, whose: &str) -> Result<(), String> {
        let found = self.read(0, self.len());
        let pieces = found.chunks(PIECE).zip(self.expected.chunks(PIECE));
        for (number, (piece, expected)) in pieces.enumerate() {
            // What is as expected fits, whatever is known of it.
            if piece != expected {
                self.check_piece(whose, number * PIECE, piece)?;
            }
        }
        Ok(())
    }

    /// The same for bytes that were found from `from` on.
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
                    "{whose}: byte {at} of {what} is {found:02x}, and the model has {expected:02x} ({known:?})"
                ));
            }
        }
        Ok(())
    }
}

/// Bytes that are compared at once.
const PIECE: usize = 256;

/// Where memory of so many bytes may begin for peers and in SGEs: some bytes more have room behind it, so that no sum wraps by
/// being one too far.
pub(crate) fn base(random: &mut fastrand::Rng, len: usize) -> u64 {
    let most = u64::MAX - len as u64 - 64;
    match random.u8(0..4) {
        0 => 0,
        1 => random.u64(1..=4096),
        2 => random.u64(1..=most),
        _ => most - random.u64(0..64),
    }
}

/// Bytes that look random.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut octets = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut octets);
    octets
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three parts: untouched, what may have come, what has come. They begin and end within pieces.
    fn parts(len: usize) -> (Tracked, [usize; 3]) {
        let mut tracked = Tracked::unregistered("memory", 3 * len).unwrap();
        let content = pattern(1, 2 * len);
        tracked.may_come(len, &content);
        tracked.has_come(2 * len, len);
        tracked.buffer.write_at(2 * len, &content[len..]).unwrap();
        (tracked, [0, len, 2 * len])
    }

    #[test]
    fn memory_is_as_the_model_has_it() {
        for len in [1, 100, PIECE, 2 * PIECE + 7] {
            let (tracked, [_, perhaps, _]) = parts(len);
            // Nothing of what may come has come, half of it, all.
            tracked.check("a").unwrap();
            let content = tracked.expected(perhaps, len).to_vec();
            for come in [len / 2, len] {
                let octets = &content[..come];
                tracked.buffer.write_at(perhaps, octets).unwrap();
                tracked.check("a").unwrap();
            }
        }
    }

    #[test]
    fn one_wrong_octet_is_found_wherever_it_is() {
        let len = PIECE + 100;
        for at in 0..3 * len {
            let (tracked, _) = parts(len);
            let right = tracked.read(at, 1)[0];
            let mut wrong = right ^ 1;
            // What may come is one byte, or still the one before.
            if wrong == FILL || wrong == tracked.expected(at, 1)[0] {
                wrong ^= 2;
            }
            tracked.buffer.write_at(at, &[wrong]).unwrap();
            let said = tracked.check("a").unwrap_err();
            assert!(said.contains(&format!("byte {at} of memory")), "{said}");
        }
    }
}

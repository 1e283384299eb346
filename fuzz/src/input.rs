//! The bytes of a fuzzer, taken as the choices that a target has to make.

/// Reads choices from the front of the input. An input that has run out gives zeros and empty slices, so that every
/// sequence of bytes is a valid input, and a longer one begins as a shorter one does.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// All of `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut octets = [0; N];
        let (taken, rest) = self.rest.split_at(self.rest.len().min(N));
        octets[..taken.len()].copy_from_slice(taken);
        self.rest = rest;
        octets
    }

    /// One byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    /// Two bytes, most significant first, as all numbers here.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// One of `0..count`, from one byte. `count` is at most 256.
    pub fn choice(&mut self, count: usize) -> usize {
        usize::from(self.u8()) % count.max(1)
    }

    /// An byte of flags: bit `n`.
    pub fn flags(&mut self) -> impl Fn(u8) -> bool + use<> {
        let octet = self.u8();
        move |bit| octet >> bit & 1 == 1
    }

    /// As many bytes as the two before them say, at most `limit` and at most those that are left.
    pub fn slice(&mut self, limit: usize) -> &'a [u8] {
        let len = usize::from(self.u16()).min(limit).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// All that is left.
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// Cuts a stream into the pieces in which it arrives: as the input says, again from its start when it has run out.
#[derive(Clone, Debug)]
pub struct Cuts<'a> {
    lengths: &'a [u8],
    next: usize,
}

impl<'a> Cuts<'a> {
    /// Pieces of the lengths that `lengths` gives: one byte each, squared above 127. Without any: one piece.
    #[must_use]
    pub const fn new(lengths: &'a [u8]) -> Self {
        Self { lengths, next: 0 }
    }

    /// The length of the next piece of `left` bytes: 1 at least if `left` is.
    pub fn piece(&mut self, left: usize) -> usize {
        let Some(&octet) = self.lengths.get(self.next) else {
            return left;
        };
        self.next = (self.next + 1) % self.lengths.len();
        let len = usize::from(octet);
        let len = if len > 127 { len * len } else { len };
        len.max(1).min(left)
    }

    /// `stream` in pieces.
    pub fn pieces<'s>(
        mut self,
        mut stream: &'s [u8],
    ) -> impl Iterator<Item = &'s [u8]> + use<'s, 'a> {
        std::iter::from_fn(move || {
            if stream.is_empty() {
                return None;
            }
            let (piece, rest) = stream.split_at(self.piece(stream.len()));
            stream = rest;
            Some(piece)
        })
    }
}

/// Writes what [`Input`] reads: for seeds and for tests.
#[derive(Clone, Debug, Default)]
pub struct Seed(Vec<u8>);

impl Seed {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// One byte.
    #[must_use]
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Two bytes.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Four bytes.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Eight bytes.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// A slice with its length before it.
    #[must_use]
    pub fn slice(self, octets: &[u8]) -> Self {
        let len = u16::try_from(octets.len()).expect("a slice of a seed is short");
        self.u16(len).rest(octets)
    }

    /// Bytes without a length: the rest of the input.
    #[must_use]
    pub fn rest(mut self, octets: &[u8]) -> Self {
        self.0.extend_from_slice(octets);
        self
    }

    /// The input.
    #[must_use]
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_reads_what_a_seed_wrote_and_then_zeros() {
        let seed = Seed::new()
            .u8(7)
            .u16(0x0102)
            .u32(0xDEAD_BEEF)
            .u64(9)
            .slice(b"abc")
            .rest(b"de")
            .done();
        let mut input = Input::new(&seed);
        assert_eq!(
            (input.u8(), input.u16(), input.u32(), input.u64()),
            (7, 0x0102, 0xDEAD_BEEF, 9)
        );
        assert_eq!(input.slice(100), b"abc");
        assert_eq!(input.take_rest(), b"de");
        assert!(input.is_empty());
        assert_eq!((input.u8(), input.u64(), input.slice(9)), (0, 0, &[][..]));
    }

    #[test]
    fn pieces_are_never_empty_and_together_the_stream() {
        let stream: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        for lengths in [&[][..], &[0], &[1, 2, 3], &[200, 1]] {
            let pieces: Vec<&[u8]> = Cuts::new(lengths).pieces(&stream).collect();
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
            assert_eq!(pieces.concat(), stream);
        }
    }
}

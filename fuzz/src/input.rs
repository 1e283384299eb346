//! Reads the choices of a target from the bytes of the fuzzer.

/// Reads choices from the front of the input. An exhausted input returns zeros and empty slices, so
/// every sequence of bytes is a valid input.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    /// Creates an input from all of `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }

    /// Returns true if no bytes are left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let (taken, rest) = self.rest.split_at(self.rest.len().min(N));
        bytes[..taken.len()].copy_from_slice(taken);
        self.rest = rest;
        bytes
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    /// Reads two bytes. All numbers are big-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Reads one byte and returns a number in `0..count`. `count` is at most 256.
    pub fn choice(&mut self, count: usize) -> usize {
        usize::from(self.u8()) % count.max(1)
    }

    /// Reads one byte of flags. The returned function tests bit `n`.
    pub fn flags(&mut self) -> impl Fn(u8) -> bool + use<> {
        let byte = self.u8();
        move |bit| byte >> bit & 1 == 1
    }

    /// Reads a length of two bytes and returns that many bytes, at most `limit` and at most the
    /// bytes left.
    pub fn slice(&mut self, limit: usize) -> &'a [u8] {
        let len = usize::from(self.u16()).min(limit).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// Takes all remaining bytes.
    pub fn take_rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// Cuts a stream into pieces. The lengths come from the input and repeat after the last one.
#[derive(Clone, Debug)]
pub struct Cuts<'a> {
    lengths: &'a [u8],
    next: usize,
}

impl<'a> Cuts<'a> {
    /// Creates pieces whose lengths are the bytes of `lengths`. A byte above 127 means its square.
    /// With empty `lengths` the stream is one piece.
    #[must_use]
    pub const fn new(lengths: &'a [u8]) -> Self {
        Self { lengths, next: 0 }
    }

    /// Returns the length of the next piece of `left` bytes. It is 0 only if `left` is 0.
    pub fn piece(&mut self, left: usize) -> usize {
        let Some(&byte) = self.lengths.get(self.next) else {
            return left;
        };
        self.next = (self.next + 1) % self.lengths.len();
        let len = usize::from(byte);
        let len = if len > 127 { len * len } else { len };
        len.max(1).min(left)
    }

    /// Iterates over the pieces of `stream`.
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

/// Writes the format that [`Input`] reads, for seeds and tests.
#[derive(Clone, Debug, Default)]
pub struct Seed(Vec<u8>);

impl Seed {
    /// Creates an empty seed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends one byte.
    #[must_use]
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Appends two bytes.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends four bytes.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends eight bytes.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Appends a slice, preceded by its length.
    #[must_use]
    pub fn slice(self, bytes: &[u8]) -> Self {
        let len = u16::try_from(bytes.len()).expect("a slice of a seed is at most 65535 bytes");
        self.u16(len).rest(bytes)
    }

    /// Appends bytes without a length, for `Input::take_rest`.
    #[must_use]
    pub fn rest(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Returns the bytes of the input.
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

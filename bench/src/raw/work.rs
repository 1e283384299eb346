//! Work that iWARP requires besides moving bytes, with and without the CRC. The bandwidth of a raw
//! stream with only this work is an upper bound.
//!
//! With the CRC, the sender computes the CRC of the written bytes. The receiver computes the CRC of
//! the received bytes and then copies them to their place, which is one copy. For a Read, the
//! sender first copies the bytes into staging. The FPDU of a Read Response must keep its CRC even
//! if the program writes to the memory in the meantime.

use std::io;

use uwarp_mpa::Crc32c;

/// Size of the staging buffer in bytes.
const STAGING: usize = 256 * 1024;
/// Number of bytes that are copied into staging before their CRC is computed, while they are still
/// in the first-level cache.
const STEP: usize = 8192;

/// Work at both ends, in addition to the receiver's copy into place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Work {
    /// True if the sender copies into staging.
    pub(crate) staged: bool,
    /// True if both ends compute the CRC.
    pub(crate) crc: bool,
}

impl Work {
    pub(crate) const ALL: [Work; 4] = [
        Work::of(false, true),
        Work::of(true, true),
        Work::of(false, false),
        Work::of(true, false),
    ];

    pub(crate) const fn of(staged: bool, crc: bool) -> Self {
        Work { staged, crc }
    }
}

/// The sending end, which sends the same message repeatedly.
pub(super) struct Source {
    work: Option<Work>,
    message: Vec<u8>,
    staging: Vec<u8>,
    crc: Crc32c,
}

impl Source {
    pub(super) fn new(work: Option<Work>, size: usize) -> Self {
        let staging = match work {
            Some(Work { staged: true, .. }) => size.min(STAGING),
            _ => 0,
        };
        Source {
            work,
            message: vec![0x5a; size],
            staging: vec![0; staging],
            crc: Crc32c::new(),
        }
    }

    /// Sends one message.
    pub(super) fn send(
        &mut self,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(work) = self.work else {
            return write(&self.message);
        };
        if !work.staged {
            if work.crc {
                self.crc.update(&self.message);
            }
            return write(&self.message);
        }
        for part in self.message.chunks(STAGING) {
            let staged = &mut self.staging[..part.len()];
            for (to, from) in staged.chunks_mut(STEP).zip(part.chunks(STEP)) {
                to.copy_from_slice(from);
                if work.crc {
                    self.crc.update(to);
                }
            }
            write(staged)?;
        }
        Ok(())
    }

    /// Returns the CRC of all messages, if it is computed.
    pub(super) fn crc(&self) -> Option<u32> {
        self.work?.crc.then(|| self.crc.finish())
    }
}

/// The receiving end, which places the bytes.
pub(super) struct Sink {
    work: Work,
    crc: Crc32c,
    /// Memory for one message, as in `uwarp perf`.
    place: Vec<u8>,
    at: usize,
}

impl Sink {
    /// Creates a sink, or returns `None` if there is no work and bytes are only read.
    pub(super) fn new(work: Option<Work>, size: usize) -> Option<Self> {
        work.map(|work| Sink {
            work,
            crc: Crc32c::new(),
            place: vec![0; size.max(1)],
            at: 0,
        })
    }

    /// Computes the CRC of the bytes first, then copies them into place.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.work.crc {
            self.crc.update(bytes);
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = &mut self.place[self.at..];
            let (part, behind) = rest.split_at(rest.len().min(room.len()));
            room[..part.len()].copy_from_slice(part);
            self.at = (self.at + part.len()) % self.place.len();
            rest = behind;
        }
        // Keeps the compiler from removing the copy, whose result is not used.
        std::hint::black_box(&mut self.place);
    }

    /// Returns the CRC of all received bytes, if it is computed.
    pub(super) fn crc(&self) -> Option<u32> {
        self.work.crc.then(|| self.crc.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_sent_has_the_crc_of_what_arrives_however_it_is_cut() {
        for work in Work::ALL {
            let size = STAGING + 3 * STEP + 5;
            let mut source = Source::new(Some(work), size);
            let mut stream = Vec::new();
            for _ in 0..3 {
                let write = |bytes: &[u8]| {
                    stream.extend_from_slice(bytes);
                    Ok(())
                };
                source.send(write).unwrap();
            }
            assert_eq!(stream, vec![0x5a; 3 * size]);
            let mut sink = Sink::new(Some(work), size).unwrap();
            stream.chunks(100_001).for_each(|part| sink.take(part));
            assert_eq!(source.crc(), work.crc.then(|| uwarp_mpa::crc32c(&stream)));
            assert_eq!(sink.crc(), source.crc());
        }
    }

    #[test]
    fn each_message_lies_where_the_one_before_it_lay() {
        let mut sink = Sink::new(Some(Work::of(false, true)), 4).unwrap();
        sink.take(b"abcdef");
        assert_eq!(sink.place, b"efcd");
        sink.take(b"ghijklmnop");
        assert_eq!(sink.place, b"mnop");
    }

    #[test]
    fn without_work_a_message_is_written_as_it_lies() {
        let mut source = Source::new(None, 3);
        let mut stream = Vec::new();
        let write = |bytes: &[u8]| {
            stream.extend_from_slice(bytes);
            Ok(())
        };
        source.send(write).unwrap();
        assert_eq!((stream.as_slice(), source.crc()), (&[0x5a; 3][..], None));
        assert!(Sink::new(None, 3).is_none());
    }
}

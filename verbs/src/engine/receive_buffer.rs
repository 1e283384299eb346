//! The receive buffer of a connection: taken from a pool when octets arrive, given back when none are left.

use parking_lot::Mutex;

/// Octets of one buffer. One read fills it with many FPDUs; the largest FPDU (64768 octets of ULPDU
/// with Markers) fits with room to spare.
const BUFFER: usize = 256 * 1024;
/// Buffers that the pool keeps for later.
const KEEP: usize = 16;

/// Receive buffers that are not in use, shared by all connections of a device.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
}

impl BufferPool {
    fn take(&self) -> Box<[u8]> {
        let pooled = self.free.lock().pop();
        pooled.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice())
    }

    fn give(&self, buffer: Box<[u8]>) {
        let mut free = self.free.lock();
        if free.len() < KEEP {
            free.push(buffer);
        }
    }
}

/// The octets that were received and not yet understood.
#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    buffer: Option<Box<[u8]>>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// Octets received and not yet consumed; the first is the next one of the stream.
    pub(crate) fn filled(&self) -> &[u8] {
        self.buffer
            .as_deref()
            .map_or(&[], |buffer| &buffer[self.start..self.end])
    }

    /// Room for the next read. Never empty: what is left over is moved to the front.
    pub(crate) fn space(&mut self, pool: &BufferPool) -> &mut [u8] {
        let buffer = self.buffer.get_or_insert_with(|| pool.take());
        if self.start > 0 {
            buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut buffer[self.end..]
    }

    /// `octets` were read into `space`.
    pub(crate) fn received(&mut self, octets: usize) {
        self.end += octets;
    }

    /// The first `octets` are consumed.
    pub(crate) fn discard(&mut self, octets: usize) {
        self.start += octets;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Gives the buffer back when nothing is left in it.
    pub(crate) fn release(&mut self, pool: &BufferPool) {
        if self.start == self.end
            && let Some(buffer) = self.buffer.take()
        {
            self.start = 0;
            self.end = 0;
            pool.give(buffer);
        }
    }

    /// Appends octets, if there is a buffer with room for them.
    #[cfg(test)]
    pub(crate) fn append(&mut self, octets: &[u8]) -> bool {
        let end = self.end;
        let room = self
            .buffer
            .as_deref_mut()
            .and_then(|buffer| buffer.get_mut(end..)?.get_mut(..octets.len()));
        let Some(room) = room else {
            return false;
        };
        room.copy_from_slice(octets);
        self.received(octets.len());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_over_stays_in_front_of_the_next_read() {
        let pool = BufferPool::default();
        let mut rx = ReceiveBuffer::default();
        rx.space(&pool);
        assert!(rx.append(b"abcdef"));
        rx.discard(4);
        rx.space(&pool)[..2].copy_from_slice(b"gh");
        rx.received(2);
        assert_eq!(rx.filled(), b"efgh");
    }

    #[test]
    fn an_empty_buffer_goes_back_to_the_pool_and_is_used_again() {
        let pool = BufferPool::default();
        let mut rx = ReceiveBuffer::default();
        rx.space(&pool);
        assert!(rx.append(b"abc"));
        rx.release(&pool);
        assert_eq!(
            pool.free.lock().len(),
            0,
            "a buffer with octets in it stays"
        );
        rx.discard(3);
        rx.release(&pool);
        assert_eq!(pool.free.lock().len(), 1);
        rx.space(&pool);
        assert_eq!(pool.free.lock().len(), 0);
    }
}

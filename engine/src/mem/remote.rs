//! Memory of a peer.

use super::OutOfRange;

/// Memory of a peer, as the peer advertises it by STag and tagged offset (RFC 5040 section 5.1).
/// The target of an RDMA Write or the source of a Read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBuffer {
    /// Address (tagged offset) of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// STag of the memory.
    pub rkey: u32,
}

impl RemoteBuffer {
    /// Describes memory of unknown length that starts at this address (`remote_addr` and `rkey` of
    /// `ibv_send_wr`). It is for programs whose own protocol does not carry the length. Only the
    /// peer then checks that requests stay within the memory.
    #[must_use]
    pub const fn at(addr: u64, rkey: u32) -> RemoteBuffer {
        RemoteBuffer {
            addr,
            len: u64::MAX,
            rkey,
        }
    }

    /// Length of [`to_bytes`](Self::to_bytes), in bytes.
    pub const BYTES: usize = 20;

    /// Serializes address (8 bytes), length (8) and STag (4) in network byte order, to be sent to
    /// the peer in a message or as private data. The form is uwarp's own: RFC 5040 section 3.1
    /// leaves it to the consumers.
    ///
    /// ```
    /// use uwarp_engine::mem::RemoteBuffer;
    /// let lent = RemoteBuffer { addr: 0x1000, len: 64, rkey: 0x1234_5601 };
    /// assert_eq!(RemoteBuffer::from_bytes(&lent.to_bytes()), Some(lent));
    /// ```
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Reads the form of [`to_bytes`](Self::to_bytes) from the start of a message; `None` if the
    /// message is shorter than [`BYTES`](Self::BYTES). The values come from the peer and may be
    /// wrong. The peer's side checks every access.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<RemoteBuffer> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (rkey, _) = rest.split_first_chunk()?;
        Some(RemoteBuffer {
            addr: u64::from_be_bytes(*addr),
            len: u64::from_be_bytes(*len),
            rkey: u32::from_be_bytes(*rkey),
        })
    }

    /// Returns the part with `len` bytes that starts at `offset`.
    ///
    /// # Errors
    /// [`OutOfRange`] if the part does not lie within the buffer.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteBuffer, OutOfRange> {
        let addr = self.addr.checked_add(offset);
        match (addr, offset.checked_add(len)) {
            (Some(addr), Some(end)) if end <= self.len => Ok(RemoteBuffer {
                addr,
                len,
                rkey: self.rkey,
            }),
            _ => Err(OutOfRange {
                offset: usize::try_from(offset).unwrap_or(usize::MAX),
                len: usize::try_from(len).unwrap_or(usize::MAX),
                size: usize::try_from(self.len).unwrap_or(usize::MAX),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENT: RemoteBuffer = RemoteBuffer {
        addr: 0x0102_0304_0506_0708,
        len: 100,
        rkey: 0x090A_0B0C,
    };

    #[test]
    fn a_remote_buffer_travels_as_20_bytes_in_network_order() {
        let bytes = LENT.to_bytes();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[8..], [0, 0, 0, 0, 0, 0, 0, 100, 9, 10, 11, 12]);
        assert_eq!(RemoteBuffer::from_bytes(&bytes), Some(LENT));
        let longer = [&bytes[..], b"and more"].concat();
        assert_eq!(RemoteBuffer::from_bytes(&longer), Some(LENT));
        assert_eq!(RemoteBuffer::from_bytes(&bytes[..19]), None);
    }

    #[test]
    fn a_part_of_a_remote_buffer_stays_inside() {
        let part = LENT.slice(90, 10).unwrap();
        assert_eq!((part.addr, part.len), (LENT.addr + 90, 10));
        assert_eq!(LENT.slice(100, 0).unwrap().len, 0);
        for (offset, len) in [(90, 11), (101, 0), (u64::MAX, 2), (1, u64::MAX)] {
            assert!(LENT.slice(offset, len).is_err(), "{offset} {len}");
        }
        let top = RemoteBuffer {
            addr: u64::MAX,
            ..LENT
        };
        assert!(top.slice(1, 1).is_err(), "an address that wraps is none");
    }
}

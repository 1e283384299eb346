//! Conversions between buffers and the types of the crate `bytes`.

use core::ptr::NonNull;

use bytes::{Bytes, BytesMut};

use super::{Buffer, Origin};

/// The buffer shares the bytes with other handles of the program, so it is
/// [not writable](Buffer::is_writable): peers may only read it.
///
/// The last handle may be dropped by any thread that uses the library, also while that thread holds
/// a lock of the library. An owner given to [`Bytes::from_owner`] must therefore not call the
/// library when it is dropped.
impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self {
            base: NonNull::new(bytes.as_ptr().cast_mut()).unwrap_or(NonNull::dangling()),
            len: bytes.len(),
            origin: Origin::Bytes(bytes),
        }
    }
}

/// The buffer has the length of `bytes`, without its spare capacity.
impl From<BytesMut> for Buffer {
    fn from(mut bytes: BytesMut) -> Self {
        Self {
            base: NonNull::new(bytes.as_mut_ptr()).unwrap_or(NonNull::dangling()),
            len: bytes.len(),
            origin: Origin::BytesMut(bytes),
        }
    }
}

/// Copies nothing if the buffer was made from [`Bytes`], [`BytesMut`] or a vector.
impl From<Buffer> for Bytes {
    fn from(mut buffer: Buffer) -> Self {
        match core::mem::replace(&mut buffer.origin, Origin::Nothing) {
            Origin::Bytes(bytes) => bytes,
            Origin::BytesMut(bytes) => bytes.freeze(),
            origin => {
                buffer.origin = origin;
                buffer.into_vec().into()
            }
        }
    }
}

/// Copies nothing if the buffer was made from [`BytesMut`] or a vector, or from [`Bytes`] without
/// another handle whose memory is a vector.
impl From<Buffer> for BytesMut {
    fn from(mut buffer: Buffer) -> Self {
        match core::mem::replace(&mut buffer.origin, Origin::Nothing) {
            Origin::BytesMut(bytes) => bytes,
            origin => {
                buffer.origin = origin;
                Bytes::from(buffer).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shared_and_not_written() {
        let bytes = Bytes::from(b"abcdef".to_vec()).slice(1..5);
        let buffer = Buffer::from(bytes.clone());
        assert_eq!(buffer.addr(), bytes.as_ptr() as u64);
        assert!(!buffer.is_writable());
        assert_eq!(buffer.write_at(0, b"X").unwrap_err().size, 0);
        // In place of the instructions that read, Miri gets atomic loads, for which Rust demands
        // memory that may be written.
        if !cfg!(miri) {
            let mut out = [0; 4];
            buffer.read_at(0, &mut out).unwrap();
            assert_eq!((&out, &bytes[..]), (b"bcde", &b"bcde"[..]));
        }
        let same = Bytes::from(buffer);
        assert_eq!(same.as_ptr(), bytes.as_ptr());
        assert_eq!(Buffer::from(same).into_vec(), b"bcde");
        assert_eq!(&bytes[..], b"bcde");
    }

    #[test]
    fn mutable_bytes_come_back_as_the_same_memory() {
        let mut bytes = BytesMut::with_capacity(64);
        bytes.extend_from_slice(b"head body");
        let body = bytes.split_off(5);
        let at = body.as_ptr();
        let buffer = Buffer::from(body);
        assert_eq!((buffer.addr(), buffer.len()), (at as u64, 4));
        buffer.write_at(0, b"B").unwrap();
        let body = BytesMut::from(buffer);
        assert_eq!((body.as_ptr(), &body[..]), (at, &b"Body"[..]));
        assert_eq!(&bytes[..], b"head ");
        assert_eq!(Buffer::from(body).into_vec(), b"Body");
    }

    #[test]
    fn every_buffer_converts_to_bytes() {
        let zeroed = || Buffer::zeroed(5).unwrap();
        assert_eq!(Bytes::from(zeroed()), [0; 5][..]);
        assert_eq!(BytesMut::from(zeroed()), [0; 5][..]);
        let vector = vec![7; 5];
        let at = vector.as_ptr();
        assert_eq!(BytesMut::from(Buffer::from(vector)).as_ptr(), at);
        assert!(Bytes::from(Buffer::from(Bytes::new())).is_empty());
        assert!(BytesMut::from(Buffer::from(BytesMut::new())).is_empty());
    }
}

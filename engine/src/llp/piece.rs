//! Runs of bytes that are known only by address.
//!
//! The application, or a peer, may write registered memory at any time. A Rust slice over it would
//! promise that this does not happen. A [`Piece`] is therefore an address and a length. Its bytes
//! are read by the kernel or copied, and never accessed through a slice.
#![expect(unsafe_code, reason = "memory that others may write meanwhile")]

use std::fmt;
use std::marker::PhantomData;

/// A run of bytes to send, known by address and length.
///
/// `Piece::from(&[u8])` is the safe way to create one. [`Piece::from_raw`] is for registered
/// memory, which others may write while it is sent. The bytes are never accessed through a slice.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Piece<'a> {
    // The type that the kernel expects, so that a slice of pieces can be passed as a gather list.
    iovec: libc::iovec,
    memory: PhantomData<&'a [u8]>,
}

// SAFETY: a `Piece` only allows reading bytes. Any thread may read the bytes during `'a`: `&[u8]`
// is `Send`, and `from_raw` requires it.
unsafe impl Send for Piece<'_> {}
// SAFETY: as above; nothing in a `Piece` changes through a shared reference.
unsafe impl Sync for Piece<'_> {}

impl<'a> Piece<'a> {
    /// Creates a piece over `len` bytes at `ptr`, which may change while they are sent. The bytes
    /// on the wire are then a mixture of old and new ones.
    ///
    /// # Safety
    /// For all of `'a`, `ptr` must be valid for reads of `len` bytes from any thread (it may dangle
    /// when `len` is 0), and `len` must not exceed `isize::MAX`. The memory may be uninitialised or
    /// shared, because only the kernel or a raw copy reads it.
    pub const unsafe fn from_raw(ptr: *const u8, len: usize) -> Self {
        Self {
            iovec: libc::iovec {
                iov_base: ptr.cast_mut().cast(),
                iov_len: len,
            },
            memory: PhantomData,
        }
    }

    /// Length of the piece in bytes.
    pub const fn len(&self) -> usize {
        self.iovec.iov_len
    }

    /// Returns true if the piece has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.iovec.iov_len == 0
    }

    /// Address of the bytes.
    pub const fn as_ptr(&self) -> *const u8 {
        self.iovec.iov_base.cast_const().cast()
    }

    /// Returns the rest of the piece after its first `bytes` bytes. The rest is empty if the piece
    /// has at most `bytes` bytes.
    #[must_use]
    pub fn skip(&self, bytes: usize) -> Self {
        let skipped = bytes.min(self.len());
        // SAFETY: `skipped` is at most the length. The address therefore stays within the bytes of
        // `self` or one past their end. The rest is part of `self`, whose bytes are valid for `'a`.
        unsafe { Self::from_raw(self.as_ptr().add(skipped), self.len() - skipped) }
    }

    /// Copies bytes, starting at `offset`, to the start of `out` until the piece or `out` ends.
    /// Returns the number of bytes copied: 0 if the memory is not mapped any more.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let rest = self.skip(offset);
        let count = rest.len().min(out.len());
        if count > 0 {
            // SAFETY: `rest` is valid for reads of its length, and `out` for writes of its length.
            // `count` is at most the smaller of these lengths. The ranges cannot overlap, because
            // `out` is an exclusive reference. Other threads may write the source meanwhile. The
            // copy uses raw addresses, and any bytes are valid `u8` values.
            if !unsafe { copy(rest.as_ptr(), out.as_mut_ptr(), count) } {
                return 0;
            }
        }
        count
    }

    /// Appends the first `len` bytes of the piece to `out`, or the whole piece if it is shorter.
    /// Returns false if the memory is not mapped any more; zeros are then appended.
    pub fn append_to(&self, len: usize, out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let count = len.min(self.len());
        out.resize(start + count, 0);
        out.get_mut(start..)
            .is_none_or(|room| self.copy_to(0, room) == count)
    }
}

/// Copies `count` bytes. Returns false if the source is not mapped. The loads have entries in the
/// fault table of [`mem`](crate::mem), whose signal handler continues at the label `fault`.
///
/// # Safety
/// `from` was valid for reads of `count` bytes when it was registered, and `to` is valid for writes
/// of them. The ranges do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) -> bool {
    // SAFETY: guaranteed by the caller. The loop copies blocks of 32 bytes, and the string
    // instruction copies the rest. SSE2 is part of x86-64; the direction flag is clear.
    unsafe {
        std::arch::asm!(
            "jmp 4f",
            "2:",
            "movups {a}, [rsi]",
            "movups {b}, [rsi + 16]",
            "3:",
            "movups [rdi], {a}",
            "movups [rdi + 16], {b}",
            "add rsi, 32",
            "add rdi, 32",
            "4:",
            "sub rcx, 32",
            "jae 2b",
            "add rcx, 32",
            "5:",
            "rep movsb",
            "6:",
            ".pushsection uwarp_faults, \"aR\"",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".long {fault} - .",
            ".long 5b - .",
            ".long 6b - .",
            ".long {fault} - .",
            ".popsection",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            inout("rcx") count => _,
            fault = label { return false },
            options(nostack),
        );
    }
    true
}

/// As on x86-64.
///
/// # Safety
/// As on x86-64.
#[cfg(all(target_arch = "aarch64", not(miri)))]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) -> bool {
    // SAFETY: guaranteed by the caller. The first loop copies blocks of 32 bytes, the second one
    // the rest.
    unsafe {
        std::arch::asm!(
            "b 4f",
            "2:",
            "ldp {a}, {b}, [{from}]",
            "ldp {c}, {d}, [{from}, #16]",
            "3:",
            "stp {a}, {b}, [{to}]",
            "stp {c}, {d}, [{to}, #16]",
            "add {from}, {from}, #32",
            "add {to}, {to}, #32",
            "4:",
            "subs {count}, {count}, #32",
            "b.hs 2b",
            "adds {count}, {count}, #32",
            "b.eq 7f",
            "5:",
            "ldrb {a:w}, [{from}], #1",
            "6:",
            "strb {a:w}, [{to}], #1",
            "subs {count}, {count}, #1",
            "b.ne 5b",
            "7:",
            ".pushsection uwarp_faults, \"aR\"",
            ".balign 4",
            ".long 2b - .",
            ".long 3b - .",
            ".long {fault} - .",
            ".long 5b - .",
            ".long 6b - .",
            ".long {fault} - .",
            ".popsection",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            count = inout(reg) count => _,
            a = out(reg) _,
            b = out(reg) _,
            c = out(reg) _,
            d = out(reg) _,
            fault = label { return false },
            options(nostack),
        );
    }
    true
}

/// Copies `count` bytes.
///
/// # Safety
/// `from` is valid for reads of `count` bytes, and `to` for writes. The ranges do not overlap.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
unsafe fn copy(from: *const u8, to: *mut u8, count: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, count) };
    true
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // SAFETY: a shared slice is valid for reads for `'a`, from any thread.
        unsafe { Self::from_raw(bytes.as_ptr(), bytes.len()) }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Piece<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl<'a> From<&'a Vec<u8>> for Piece<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::from(bytes.as_slice())
    }
}

impl fmt::Debug for Piece<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Piece({} bytes at {:p})", self.len(), self.as_ptr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_laid_out_as_the_kernels_iovec() {
        assert_eq!(size_of::<Piece<'_>>(), size_of::<libc::iovec>());
        assert_eq!(align_of::<Piece<'_>>(), align_of::<libc::iovec>());
    }

    #[test]
    fn copy_to_starts_at_the_offset_and_stops_at_the_shorter_end() {
        let piece = Piece::from(b"abcdef");
        let mut out = [0; 3];
        assert_eq!(piece.copy_to(2, &mut out), 3);
        assert_eq!(&out, b"cde");
        assert_eq!(piece.copy_to(5, &mut out), 1);
        assert_eq!(&out, b"fde");
        assert_eq!(piece.copy_to(6, &mut out), 0);
        assert_eq!(piece.copy_to(usize::MAX, &mut out), 0);
    }

    #[test]
    fn skip_never_leaves_the_piece() {
        let piece = Piece::from(b"abc");
        assert_eq!(piece.skip(2).len(), 1);
        assert!(piece.skip(3).is_empty());
        assert!(piece.skip(usize::MAX).is_empty());
    }

    #[test]
    fn append_to_takes_at_most_what_the_piece_has() {
        let mut out = b"x".to_vec();
        assert!(Piece::from(b"abc").append_to(2, &mut out));
        assert!(Piece::from(b"d").append_to(9, &mut out));
        assert_eq!(out, b"xabd");
    }
}

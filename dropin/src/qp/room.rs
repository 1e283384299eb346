//! Memory on the stack for parts of requests that must be copied: inline data, and unaligned
//! scatter/gather elements.
#![expect(
    unsafe_code,
    reason = "C entry points: the program guarantees that its pointers are valid"
)]

use core::ffi::c_int;
use core::mem::{self, MaybeUninit, offset_of};
use core::{ptr, slice};

use uwarp_verbs::Sge;

use crate::abi::ibv_sge;

// `ibv_sge` has the layout of `Sge`, so that lists of the program can be used in place.
const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && align_of::<Sge>() == align_of::<ibv_sge>()
        && offset_of!(Sge, addr) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, len) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey)
);

/// Bytes for inline data: at least the maximum of one request.
const BYTES: usize = 2048;
/// Number of unaligned elements: at least the maximum of one request.
const ELEMENTS: usize = 24;

/// Memory for the copies of one batch.
pub(super) struct Space {
    bytes: [MaybeUninit<u8>; BYTES],
    elements: [MaybeUninit<Sge>; ELEMENTS],
}

/// Unused part of a [`Space`].
pub(super) struct Room<'a> {
    bytes: &'a mut [MaybeUninit<u8>],
    elements: &'a mut [MaybeUninit<Sge>],
}

impl Space {
    pub(super) const fn new() -> Self {
        Self {
            bytes: [const { MaybeUninit::uninit() }; BYTES],
            elements: [const { MaybeUninit::uninit() }; ELEMENTS],
        }
    }

    pub(super) fn room(&mut self) -> Room<'_> {
        Room {
            bytes: &mut self.bytes,
            elements: &mut self.elements,
        }
    }
}

impl<'a> Room<'a> {
    /// Returns the elements of a list: in place if they are aligned, and otherwise copied.
    /// (libiscsi has them in a packed structure.) Returns `Ok(None)` if no memory is left for a
    /// copy.
    ///
    /// # Errors
    /// `EINVAL` if `count` is negative, or if `list` is NULL and `count` is not 0.
    ///
    /// # Safety
    /// `list` has `count` elements, and they do not change while the result is used.
    pub(super) unsafe fn elements(
        &mut self,
        list: *const ibv_sge,
        count: c_int,
    ) -> Result<Option<&'a [Sge]>, c_int> {
        let count = usize::try_from(count).map_err(|_| libc::EINVAL)?;
        if count == 0 {
            return Ok(Some(&[]));
        }
        if list.is_null() {
            return Err(libc::EINVAL);
        }
        if list.is_aligned() {
            // SAFETY: guaranteed by the caller; both types have the same layout (above).
            return Ok(Some(unsafe { slice::from_raw_parts(list.cast(), count) }));
        }
        let Some(mine) = take(&mut self.elements, count) else {
            return Ok(None);
        };
        // SAFETY: guaranteed by the caller; every byte of the copy is written.
        Ok(Some(unsafe {
            ptr::copy_nonoverlapping(
                list.cast::<u8>(),
                mine.as_mut_ptr().cast(),
                count * size_of::<Sge>(),
            );
            slice::from_raw_parts(mine.as_ptr().cast(), count)
        }))
    }

    /// Copies the inline data that the elements point to. Returns `None` if no memory is left.
    ///
    /// # Safety
    /// The data may be read.
    pub(super) unsafe fn gather(&mut self, sges: &[Sge]) -> Option<&'a [u8]> {
        let len = sges
            .iter()
            .try_fold(0_usize, |sum, sge| sum.checked_add(sge.len as usize))?;
        let mine = take(&mut self.bytes, len)?;
        let mut at = 0;
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            let from = ptr::with_exposed_provenance::<MaybeUninit<u8>>(sge.addr as usize);
            let len = sge.len as usize;
            // SAFETY: guaranteed by the caller; the elements have `mine.len()` bytes in all.
            unsafe { ptr::copy_nonoverlapping(from, mine.as_mut_ptr().add(at), len) };
            at += len;
        }
        // SAFETY: all bytes were written.
        Some(unsafe { slice::from_raw_parts(mine.as_ptr().cast(), len) })
    }
}

/// Returns the request at `at` if it is aligned, and otherwise a copy. Copying every request would
/// be slow: the program has just written it field by field, and a processor stalls when it reads
/// recent writes in another width.
///
/// # Safety
/// `at` points to a request that does not change while the result is used.
pub(super) unsafe fn aligned<W: Copy>(at: *const W, copy: &mut MaybeUninit<W>) -> &W {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match at.is_aligned() {
            true => &*at,
            false => copy.write(at.read_unaligned()),
        }
    }
}

/// Removes the first `count` elements from `left` and returns them. Returns `None` if it has fewer.
fn take<'a, T>(left: &mut &'a mut [T], count: usize) -> Option<&'a mut [T]> {
    if count > left.len() {
        return None;
    }
    let (mine, rest) = mem::take(left).split_at_mut(count);
    *left = rest;
    Some(mine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_that_one_request_may_have() {
        let limits = uwarp_verbs::Limits::default();
        assert!(limits.max_sge as usize <= ELEMENTS);
        assert!(limits.max_inline_data as usize <= BYTES);
    }
}

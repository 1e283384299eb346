//! Room on the stack for what requests say that cannot stay where the program has it: inline data, and elements that are not aligned.
#![expect(
    unsafe_code,
    reason = "entries from C: what pointers mean is the program's promise"
)]

use core::ffi::c_int;
use core::mem::{self, MaybeUninit, offset_of};
use core::{ptr, slice};

use uwarp_verbs::Sge;

use crate::abi::ibv_sge;

// Lists of the program's are those of the verbs.
const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && align_of::<Sge>() == align_of::<ibv_sge>()
        && offset_of!(Sge, addr) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, len) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey)
);

/// Bytes of inline data: at least those of one request.
const OCTETS: usize = 2048;
/// Elements that are not aligned: at least those of one request.
const ELEMENTS: usize = 24;

/// Where it is.
pub(super) struct Space {
    octets: [MaybeUninit<u8>; OCTETS],
    elements: [MaybeUninit<Sge>; ELEMENTS],
}

/// What of it is left.
pub(super) struct Room<'a> {
    octets: &'a mut [MaybeUninit<u8>],
    elements: &'a mut [MaybeUninit<Sge>],
}

impl Space {
    pub(super) const fn new() -> Self {
        Self {
            octets: [const { MaybeUninit::uninit() }; OCTETS],
            elements: [const { MaybeUninit::uninit() }; ELEMENTS],
        }
    }

    pub(super) fn room(&mut self) -> Room<'_> {
        Room {
            octets: &mut self.octets,
            elements: &mut self.elements,
        }
    }
}

impl<'a> Room<'a> {
    /// The elements of a list: themselves where they are aligned, copies where the program has them in a packed structure (as libiscsi
    /// has). `Ok(None)`: there is no room left for those.
    ///
    /// # Safety
    /// There are as many as the program says, and they stay as they are meanwhile.
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
            // SAFETY: the promise of the caller, for a structure of the same layout (above).
            return Ok(Some(unsafe { slice::from_raw_parts(list.cast(), count) }));
        }
        let Some(mine) = take(&mut self.elements, count) else {
            return Ok(None);
        };
        // SAFETY: the promise of the caller, of bytes as they are; all of them are written.
        Ok(Some(unsafe {
            ptr::copy_nonoverlapping(
                list.cast::<u8>(),
                mine.as_mut_ptr().cast(),
                count * size_of::<Sge>(),
            );
            slice::from_raw_parts(mine.as_ptr().cast(), count)
        }))
    }

    /// Copies the bytes that elements of an inline request name by their addresses. `None`: there is no room left for them.
    ///
    /// # Safety
    /// They may be read.
    pub(super) unsafe fn gather(&mut self, sges: &[Sge]) -> Option<&'a [u8]> {
        let len = sges
            .iter()
            .try_fold(0_usize, |sum, sge| sum.checked_add(sge.len as usize))?;
        let mine = take(&mut self.octets, len)?;
        let mut at = 0;
        for sge in sges.iter().filter(|sge| sge.len > 0) {
            let from = ptr::with_exposed_provenance::<MaybeUninit<u8>>(sge.addr as usize);
            let len = sge.len as usize;
            // SAFETY: the promise of the caller; together they have as many bytes as there are in `mine`.
            unsafe { ptr::copy_nonoverlapping(from, mine.as_mut_ptr().add(at), len) };
            at += len;
        }
        // SAFETY: all of it was written.
        Some(unsafe { slice::from_raw_parts(mine.as_ptr().cast(), len) })
    }
}

/// A request where the program has it, or a copy of one that is not aligned. To copy each would be to read what the program has just
/// written by other widths, for which a processor waits.
///
/// # Safety
/// There is one, and it stays as it is meanwhile.
pub(super) unsafe fn seen<W: Copy>(at: *const W, copy: &mut MaybeUninit<W>) -> &W {
    // SAFETY: the promise of the caller.
    unsafe {
        match at.is_aligned() {
            true => &*at,
            false => copy.write(at.read_unaligned()),
        }
    }
}

/// The first `count` of what is left.
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
        assert!(limits.max_inline_data as usize <= OCTETS);
    }
}

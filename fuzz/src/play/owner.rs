//! Implementation of the `Memory` trait, through which the stream checks each access to memory.

use std::collections::VecDeque;

use uwarp_ddp::{STag, TaggedFault, TaggedOffset, TaggedRange};
use uwarp_rdmap::{AtomicFault, Memory};

use super::GUARD;
use crate::model::memory::{Region, Right};

/// Memory of a [`Play`](super::Play). Its bounds checks use `TaggedRange` of `uwarp-ddp`.
#[derive(Debug)]
pub(super) struct Owner {
    pub(super) regions: Vec<Region>,
    pub(super) receives: VecDeque<Vec<u8>>,
}

impl Owner {
    fn check(
        &self,
        stag: STag,
        to: u64,
        len: u32,
        right: Right,
    ) -> Result<(usize, usize), TaggedFault> {
        let found = self.regions.iter().position(|region| region.stag == stag.0);
        let index = found.ok_or(TaggedFault::InvalidSTag)?;
        let region = &self.regions[index];
        if !region.associated {
            return Err(TaggedFault::NotAssociated);
        }
        if !region.rights.contains(&right) {
            return Err(TaggedFault::AccessRights);
        }
        let range = TaggedRange {
            base: TaggedOffset(region.base),
            len: region.bytes.len() as u64,
        };
        let place = range.locate(TaggedOffset(to), len)?;
        assert_eq!(place.end - place.start, u64::from(len));
        Ok((
            index,
            usize::try_from(place.start).expect("regions are short"),
        ))
    }
}

impl Memory for Owner {
    type Target = (usize, usize);

    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        assert!(len > 0, "a length of 0 is not checked");
        self.check(stag, to, len, Right::Write)
    }

    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        assert!(len > 0, "a length of 0 is not checked");
        self.check(stag, to, len, Right::Read)
    }

    fn check_atomic(&self, stag: STag, to: u64) -> Result<Self::Target, AtomicFault> {
        let place = self.check(stag, to, 8, Right::Atomic)?;
        if place.1.is_multiple_of(8) {
            Ok(place)
        } else {
            Err(AtomicFault::Misaligned)
        }
    }

    fn check_invalidate(&self, stag: STag) -> Result<(), TaggedFault> {
        let found = self.regions.iter().find(|region| region.stag == stag.0);
        match found {
            None => Err(TaggedFault::InvalidSTag),
            Some(region) if !region.associated => Err(TaggedFault::NotAssociated),
            Some(region) if !region.rights.contains(&Right::Invalidate) => {
                Err(TaggedFault::AccessRights)
            }
            Some(_) => Ok(()),
        }
    }

    fn receive_buffer(&self) -> Option<u32> {
        self.receives
            .front()
            .map(|buffer| (buffer.len() - 2 * GUARD) as u32)
    }
}

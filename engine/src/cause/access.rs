//! Causes for accesses of the peer that were refused here. This side knows all facts about the
//! memory.

use std::fmt;

use crate::mem::{Access, Named, StagFacts};
use uwarp_ddp::{DdpError, TaggedFault};
use uwarp_rdmap::{AtomicFault, ReadRequestHeader, StreamError};

use super::parts::{Account, Act, Layer, Who};

/// A refused access of the peer. It holds the fields of [`StagFacts`] directly, which keeps it
/// small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    fault: TaggedFault,
    act: Act,
    stag: u32,
    to: u64,
    len: u32,
    named: Named,
    base: u64,
    size: u64,
    access: Access,
}

impl Refusal {
    /// Creates the refusal of `act` on `len` bytes at `to` of `stag`. `facts` describe what the
    /// STag names.
    pub(crate) const fn new(
        fault: TaggedFault,
        act: Act,
        (stag, to, len): (u32, u64, u32),
        facts: StagFacts,
    ) -> Self {
        let StagFacts {
            named,
            base,
            size,
            access,
        } = facts;
        Refusal {
            fault,
            act,
            stag,
            to,
            len,
            named,
            base,
            size,
            access,
        }
    }

    /// Creates the refusal of a peer's Read whose source was revoked after `sent` bytes of the
    /// source were sent.
    pub(crate) fn source_gone(header: &ReadRequestHeader, sent: u32) -> Self {
        let left = header.advance(sent);
        let facts = StagFacts::without_region(Named::RevokedDuringRead);
        let place = (left.source_stag.0, left.source_to.0, left.len);
        Refusal::new(TaggedFault::InvalidSTag, Act::Read, place, facts)
    }

    /// Returns the error as the lower layers report it.
    fn error(&self) -> StreamError {
        match self.act {
            Act::Read => StreamError::Protection(self.fault),
            Act::Atomic => StreamError::Atomic(AtomicFault::Tagged(self.fault)),
            Act::Invalidate => StreamError::CannotInvalidate(self.fault),
            Act::Send
            | Act::Write
            | Act::ReadResponse
            | Act::Terminate
            | Act::Immediate
            | Act::AtomicResponse => StreamError::Ddp(DdpError::Tagged(self.fault)),
        }
    }

    /// Returns the right that the access needs.
    fn right(&self) -> Access {
        match self.act {
            Act::Read => Access::REMOTE_READ,
            Act::Atomic => Access::REMOTE_ATOMIC,
            Act::Invalidate => Access::NONE,
            Act::Send
            | Act::Write
            | Act::ReadResponse
            | Act::Terminate
            | Act::Immediate
            | Act::AtomicResponse => Access::REMOTE_WRITE,
        }
    }

    /// Returns true if the QP forbids the access although the region allows it.
    fn qp_forbids(&self) -> bool {
        self.fault == TaggedFault::AccessRights && self.access.contains(self.right())
    }

    pub(super) fn account(&self) -> Account {
        let error = self.error();
        let layer = match self.act {
            Act::Read | Act::Atomic | Act::Invalidate => Layer::Rdmap,
            Act::Send
            | Act::Write
            | Act::ReadResponse
            | Act::Terminate
            | Act::Immediate
            | Act::AtomicResponse => Layer::Ddp,
        };
        let who = match self.named {
            Named::RevokedDuringRead => Who::Program,
            Named::Nothing
            | Named::OtherKey
            | Named::Region
            | Named::Window
            | Named::Unbound
            | Named::Invalidated => Who::PeerProgram,
        };
        Account::new(self.title(), who, layer)
            .terminate(error.terminate_code())
            .against(error.requirement())
            .hint(self.hint())
    }

    /// Returns the kind of error with the failed check, in the terms of the RFCs.
    fn title(&self) -> &'static str {
        match (self.act, self.fault) {
            (Act::Invalidate, _) => "remote access error, the STag cannot be invalidated",
            (_, TaggedFault::InvalidSTag) => "remote access error, invalid STag",
            (_, TaggedFault::NotAssociated) => "remote access error, STag not associated",
            (_, TaggedFault::AccessRights) => "remote access error, access rights violation",
            (_, TaggedFault::ToWrap) => "remote access error, TO wrap",
            (_, TaggedFault::BaseOrBounds) => "remote access error, base or bounds violation",
        }
    }

    fn hint(&self) -> &'static str {
        match (self.fault, self.act) {
            (_, Act::Invalidate) => {
                "a peer may invalidate only a region that was registered for its QP alone (`Pd::register_for`), and only once"
            }
            _ if self.named == Named::RevokedDuringRead => {
                "keep a region registered until the peer is done with it; let the peer send a message then"
            }
            (TaggedFault::InvalidSTag, _) => {
                "compare the peer's rkey with the one it was given; keep a region registered until the peer is done with it"
            }
            (TaggedFault::NotAssociated, _) => {
                "register the memory in the protection domain of this QP, and not for another QP alone"
            }
            (TaggedFault::AccessRights, _) if self.qp_forbids() => {
                "give the QP the right too (its access attribute)"
            }
            (TaggedFault::AccessRights, Act::Read) => {
                "register it with REMOTE_READ, if the peer is meant to read it"
            }
            (TaggedFault::AccessRights, Act::Atomic) => {
                "register it with REMOTE_ATOMIC, if the peer is meant to do atomic operations on it"
            }
            (TaggedFault::AccessRights, _) => {
                "register it with REMOTE_WRITE, if the peer is meant to write it"
            }
            (TaggedFault::ToWrap | TaggedFault::BaseOrBounds, _) => {
                "compare the peer's address and length with those that it was given for the region"
            }
        }
    }

    /// Writes the access: `a Write of 64 bytes at offset 0`.
    fn attempt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Refusal { act, to, len, .. } = self;
        let article = act.article();
        write!(f, "{article} {act} of {len} bytes at ")?;
        match to.checked_sub(self.base) {
            Some(offset) if self.size > 0 => write!(f, "offset {offset} (TO {to:#x})"),
            _ => write!(f, "TO {to:#x}"),
        }
    }

    fn region(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.named {
            Named::Window => "memory window",
            Named::Nothing
            | Named::OtherKey
            | Named::Region
            | Named::Unbound
            | Named::Invalidated
            | Named::RevokedDuringRead => "region",
        };
        let Refusal { stag, size, .. } = self;
        write!(f, "{what} {stag:#010x} of {size} bytes")
    }

    /// Writes the sentence of a Send with Invalidate, which names only an STag.
    fn invalidation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stag = self.stag;
        write!(f, "the peer's Send would invalidate STag {stag:#010x}, ")?;
        f.write_str(match self.named {
            Named::Nothing => "which is not registered now",
            Named::OtherKey => "which has the index of a region, but another key",
            Named::Invalidated | Named::RevokedDuringRead => "which is already invalid",
            Named::Unbound => "which is not bound to memory now",
            Named::Region | Named::Window => "which other QPs may use too",
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.act == Act::Invalidate {
            return self.invalidation(f);
        }
        match (self.fault, self.named) {
            (_, Named::RevokedDuringRead) => write!(
                f,
                "the region of STag {:#010x} was deregistered or invalidated while the peer's Read was being answered",
                self.stag
            )?,
            (_, Named::Unbound) => write!(
                f,
                "STag {:#010x} belongs to a memory window or fast region that is not bound to memory now",
                self.stag
            )?,
            (_, Named::Nothing) => {
                let stag = self.stag;
                write!(f, "no region is registered now under STag {stag:#010x}")?;
            }
            (_, Named::OtherKey) => write!(
                f,
                "STag {:#010x} has the index of a region, but another key",
                self.stag
            )?,
            (_, Named::Invalidated) | (TaggedFault::InvalidSTag, Named::Region | Named::Window) => {
                self.region(f)?;
                write!(f, " was invalidated before")?;
            }
            (TaggedFault::NotAssociated, Named::Region | Named::Window) => {
                self.region(f)?;
                write!(f, " belongs to another protection domain or QP")?;
            }
            (TaggedFault::AccessRights, Named::Region | Named::Window) if self.qp_forbids() => {
                self.region(f)?;
                write!(
                    f,
                    " allows this access, but the QP does not; the peer attempted "
                )?;
                return self.attempt(f);
            }
            (TaggedFault::AccessRights, Named::Region | Named::Window) => {
                self.region(f)?;
                write!(f, " allows {}", RemoteRights(self.access))?;
            }
            (TaggedFault::ToWrap, Named::Region | Named::Window) => {
                self.region(f)?;
                write!(f, " does not wrap around the address space")?;
            }
            (TaggedFault::BaseOrBounds, Named::Region | Named::Window) => {
                self.region(f)?;
                write!(f, " begins at TO {:#x}", self.base)?;
            }
        }
        if self.named == Named::RevokedDuringRead {
            return write!(f, ": {} bytes of it were still to be sent", self.len);
        }
        write!(f, ", but the peer attempted ")?;
        self.attempt(f)
    }
}

/// Displays the rights that concern a peer.
struct RemoteRights(Access);

impl fmt::Display for RemoteRights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut none = true;
        for (right, name) in [
            (Access::REMOTE_READ, "Read"),
            (Access::REMOTE_WRITE, "Write"),
            (Access::REMOTE_ATOMIC, "atomics"),
        ] {
            if self.0.contains(right) {
                write!(f, "{}{name}", if none { "" } else { " and " })?;
                none = false;
            }
        }
        if none {
            f.write_str("no remote access")?;
        }
        Ok(())
    }
}

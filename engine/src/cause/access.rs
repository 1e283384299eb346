//! Causes for accesses of the peer that were refused here. This side knows all facts about the
//! memory.

use std::fmt;

use crate::mem::{Access, Named, StagFacts};
use uwarp_ddp::{STag, TaggedFault, TaggedOffset};
use uwarp_rdmap::{AccessError, Opcode, StreamError, TerminateCode};

use super::parts::{Account, Layer, Operation, Who};

/// A refused access of the peer. It holds the fields of [`AccessError`] and [`StagFacts`]
/// directly, which keeps it small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Refusal {
    opcode: Opcode,
    fault: TaggedFault,
    stag: STag,
    to: TaggedOffset,
    len: u32,
    named: Named,
    base: u64,
    size: u64,
    access: Access,
}

impl Refusal {
    /// Creates the refusal of an access. `facts` describe what the STag names.
    pub(crate) const fn new(error: AccessError, facts: StagFacts) -> Self {
        let AccessError {
            opcode,
            fault,
            stag,
            to,
            len,
        } = error;
        let StagFacts {
            named,
            base,
            size,
            access,
        } = facts;
        Refusal {
            opcode,
            fault,
            stag,
            to,
            len,
            named,
            base,
            size,
            access,
        }
    }

    /// Creates the refusal of a peer's Read whose source was revoked after the Read had arrived.
    pub(crate) fn source_gone(error: AccessError) -> Self {
        let facts = StagFacts::without_region(Named::RevokedDuringRead);
        Refusal::new(error, facts)
    }

    /// Returns the error as RDMAP reports it.
    const fn error(&self) -> AccessError {
        let &Refusal {
            opcode,
            fault,
            stag,
            to,
            len,
            ..
        } = self;
        AccessError {
            opcode,
            fault,
            stag,
            to,
            len,
        }
    }

    /// Returns the right that the access needs.
    fn right(&self) -> Access {
        match self.opcode {
            Opcode::ReadRequest => Access::REMOTE_READ,
            Opcode::AtomicRequest => Access::REMOTE_ATOMIC,
            opcode if opcode.invalidates() => Access::NONE,
            _ => Access::REMOTE_WRITE,
        }
    }

    /// Returns true if the QP forbids the access although the region allows it.
    fn qp_forbids(&self) -> bool {
        self.fault == TaggedFault::AccessRights && self.access.contains(self.right())
    }

    pub(super) fn account(&self) -> Account {
        let error = StreamError::Access(self.error());
        let code = error.terminate_code();
        let layer = match code {
            Some(TerminateCode { layer: 1, .. }) => Layer::Ddp,
            _ => Layer::Rdmap,
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
            .terminate(code)
            .against(error.requirement())
            .hint(self.hint())
    }

    /// Returns the kind of error with the failed check, in the terms of the RFCs.
    fn title(&self) -> &'static str {
        match (self.opcode, self.fault) {
            (opcode, _) if opcode.invalidates() => {
                "remote access error, the STag cannot be invalidated"
            }
            (_, TaggedFault::InvalidSTag) => "remote access error, invalid STag",
            (_, TaggedFault::NotAssociated) => "remote access error, STag not associated",
            (_, TaggedFault::AccessRights) => "remote access error, access rights violation",
            (_, TaggedFault::ToWrap) => "remote access error, TO wrap",
            (_, TaggedFault::BaseOrBounds) => "remote access error, base or bounds violation",
        }
    }

    fn hint(&self) -> &'static str {
        match (self.fault, self.opcode) {
            (_, opcode) if opcode.invalidates() => {
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
            (TaggedFault::AccessRights, Opcode::ReadRequest) => {
                "register it with REMOTE_READ, if the peer is meant to read it"
            }
            (TaggedFault::AccessRights, Opcode::AtomicRequest) => {
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
        let &Refusal {
            opcode, to, len, ..
        } = self;
        let operation = Operation(opcode);
        let article = operation.article();
        write!(f, "{article} {operation} of {len} bytes at ")?;
        match to.0.checked_sub(self.base) {
            Some(offset) if self.size > 0 => write!(f, "offset {offset} (TO {to})"),
            _ => write!(f, "TO {to}"),
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
        let (stag, size) = (self.stag, self.size);
        write!(f, "{what} {stag} of {size} bytes")
    }

    /// Writes the sentence of a Send with Invalidate, which names only an STag.
    fn invalidation(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stag = self.stag;
        write!(f, "the peer's Send would invalidate STag {stag}, ")?;
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
        let &Refusal {
            opcode,
            fault,
            stag,
            len,
            ..
        } = self;
        if opcode.invalidates() {
            return self.invalidation(f);
        }
        match (fault, self.named) {
            (_, Named::RevokedDuringRead) => write!(
                f,
                "the region of STag {stag} was deregistered or invalidated while the peer's Read was being answered"
            )?,
            (_, Named::Unbound) => write!(
                f,
                "STag {stag} belongs to a memory window or fast region that is not bound to memory now"
            )?,
            (_, Named::Nothing) => {
                write!(f, "no region is registered now under STag {stag}")?;
            }
            (_, Named::OtherKey) => {
                write!(f, "STag {stag} has the index of a region, but another key")?;
            }
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
            return write!(f, ": {len} bytes of it were still to be sent");
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

//! Access rights of registered memory.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// A set of access rights of registered memory; the values are those of `ibv_access_flags`.
///
/// Local read is always granted. Remote rights apply to a peer that knows the STag (RFC 5040
/// section 8.1). Grant only the rights that are needed (RFC 5042 section 6.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Access(u32);

impl Access {
    /// No right beyond local read (`access` 0 of `ibv_reg_mr`), for a source of Sends and Writes.
    pub const NONE: Self = Self(0);
    /// Receives and Read Responses may place data here (`IBV_ACCESS_LOCAL_WRITE`).
    pub const LOCAL_WRITE: Self = Self(1);
    /// A peer may write here by RDMA Write (`IBV_ACCESS_REMOTE_WRITE`; RFC 5040 section 5.1).
    ///
    /// Needs [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_WRITE: Self = Self(2);
    /// A peer may read this memory by RDMA Read (`IBV_ACCESS_REMOTE_READ`; RFC 5040 section 5.2).
    pub const REMOTE_READ: Self = Self(4);
    /// A peer may execute atomic operations here (RFC 7306); needs
    /// [`LOCAL_WRITE`](Self::LOCAL_WRITE).
    pub const REMOTE_ATOMIC: Self = Self(8);

    /// Memory windows may be bound to this region (`IBV_ACCESS_MW_BIND`).
    pub const WINDOW_BIND: Self = Self(16);
    /// All rights.
    pub const ALL: Self = Self(31);

    const NAMES: [(Self, &'static str); 5] = [
        (Self::LOCAL_WRITE, "local write"),
        (Self::REMOTE_WRITE, "remote write"),
        (Self::REMOTE_READ, "remote read"),
        (Self::REMOTE_ATOMIC, "remote atomic"),
        (Self::WINDOW_BIND, "window bind"),
    ];

    /// Splits `bits` (values of `ibv_access_flags`) into the known rights and the unknown bits.
    #[must_use]
    pub const fn from_bits(bits: u32) -> (Self, u32) {
        (Self(bits & Self::ALL.0), bits & !Self::ALL.0)
    }

    /// The value as `ibv_access_flags`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns true if every right of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns true if the set contains a remote right.
    #[must_use]
    pub const fn is_remote(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_READ.0 | Self::REMOTE_ATOMIC.0) != 0
    }

    /// Returns true if the set lets a peer change the memory but lacks local write.
    ///
    /// Registration refuses such a set, as `ibv_reg_mr` does.
    #[must_use]
    pub const fn lacks_local_write(self) -> bool {
        self.0 & (Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0) != 0
            && !self.contains(Self::LOCAL_WRITE)
    }
}

impl BitOr for Access {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for Access {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("local read")?;
        for (right, name) in Self::NAMES {
            if self.contains(right) {
                write!(f, ", {name}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Access({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_named_in_words() {
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ;
        assert_eq!(
            format!("{all:?}"),
            "Access(local read, local write, remote read)"
        );
        assert_eq!(format!("{:?}", Access::NONE), "Access(local read)");
    }

    #[test]
    fn all_rights_are_named() {
        for bit in 0..32 {
            let (right, unknown) = Access::from_bits(1 << bit);
            let named = Access::NAMES.iter().any(|(named, _)| *named == right);
            assert_eq!(named, unknown == 0, "bit {bit}");
        }
    }

    #[test]
    fn unknown_bits_are_given_back() {
        let (access, rest) = Access::from_bits(0x8000_0007);
        assert_eq!(access.bits(), 7);
        assert_eq!(rest, 0x8000_0000);
    }

    #[test]
    fn remote_write_and_atomic_need_local_write() {
        assert!(Access::REMOTE_WRITE.lacks_local_write());
        assert!(Access::REMOTE_ATOMIC.lacks_local_write());
        assert!(!Access::REMOTE_READ.lacks_local_write());
        assert!(!(Access::REMOTE_WRITE | Access::LOCAL_WRITE).lacks_local_write());
    }
}

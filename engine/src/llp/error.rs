//! [`LlpError`]: errors of the transport, with messages for users who do not know this code.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

/// Reason why the lower layer could not do what was requested.
///
/// The variants are split by blame:
///
/// * A wrong request by the local program: [`AddressInUse`](Self::AddressInUse),
///   [`AddressUnavailable`](Self::AddressUnavailable), [`FamilyMismatch`](Self::FamilyMismatch),
///   [`ZoneMissing`](Self::ZoneMissing), [`PermissionDenied`](Self::PermissionDenied),
///   [`Misuse`](Self::Misuse).
/// * The other end: [`Refused`](Self::Refused), [`Reset`](Self::Reset).
/// * The path between them: [`Unreachable`](Self::Unreachable), [`TimedOut`](Self::TimedOut).
/// * This machine: [`Exhausted`](Self::Exhausted), [`Io`](Self::Io).
/// * The link and its addresses: [`LinkDown`](Self::LinkDown),
///   [`KernelHasAddress`](Self::KernelHasAddress), [`DuplicateAddress`](Self::DuplicateAddress).
///
/// The message says what happened and, after the last semicolon, what to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LlpError {
    /// The other end answered the connection attempt with a reset: no program listens there.
    #[error(
        "nothing listens at {addr}: the connection was refused; check the address and the port, \
         and that the server has been started"
    )]
    Refused {
        /// Destination of the connection.
        addr: SocketAddr,
    },
    /// No route leads to the address.
    #[error(
        "{addr} cannot be reached from here: no route to it; check the address and the network"
    )]
    Unreachable {
        /// Destination of the connection, or the peer of an existing one.
        addr: SocketAddr,
    },
    /// The other end did not answer before TCP gave up.
    #[error(
        "no answer from {addr} for as long as TCP waits: the host is down, or a firewall drops \
         the packets"
    )]
    TimedOut {
        /// Address of the silent end.
        addr: SocketAddr,
    },
    /// The other end reset the connection; bytes in flight are lost.
    #[error("{addr} reset the connection: its program ended or gave the connection up")]
    Reset {
        /// Address of the end that reset it.
        addr: SocketAddr,
    },
    /// The connection has failed, or its sending direction is closed: nothing more can be sent.
    #[error("the connection to {addr} is closed: nothing more can be sent or received on it")]
    Broken {
        /// Address of the peer.
        addr: SocketAddr,
    },
    /// Another socket has the local address, or a connection between the same two addresses is in
    /// TIME-WAIT.
    #[error(
        "{addr} is in use: a socket of this or another program is bound to it or listens there, or one of its connections ended within the last minute (`ss -tan` shows which)"
    )]
    AddressInUse {
        /// Local address that was requested.
        addr: SocketAddr,
    },
    /// No interface of this machine (or of this stack in user space) has the local address.
    #[error(
        "{addr} is not an address of this machine; listen on one it has, or on 0.0.0.0 or [::]"
    )]
    AddressUnavailable {
        /// Local address that was requested.
        addr: SocketAddr,
    },
    /// The two ends of a connection have addresses of different families.
    #[error(
        "cannot connect from {local}, an {} address, to {peer}, an {} address; use two addresses \
         of one family", family(*.local), family(*.peer)
    )]
    FamilyMismatch {
        /// Local address that was requested.
        local: IpAddr,
        /// Destination of the connection.
        peer: IpAddr,
    },
    /// The IPv6 link-local address lacks the zone, which identifies the link of the address (RFC
    /// 4007 section 6).
    #[error(
        "{addr} is a link-local address, and its zone is missing: which link it is on; add the \
         interface, as in {addr}%eth0"
    )]
    ZoneMissing {
        /// Link-local address without its zone.
        addr: Ipv6Addr,
    },
    /// The system does not permit the operation.
    #[error("the system does not permit to {op}; ports below 1024 need a privilege, others do not")]
    PermissionDenied {
        /// Attempted operation, as a verb phrase.
        op: &'static str,
    },
    /// A limit of this process or machine was reached. A listener that reports this continues to
    /// listen.
    #[error("cannot {op}: no more {what}; close some, or raise the limit")]
    Exhausted {
        /// Attempted operation, as a verb phrase.
        op: &'static str,
        /// Resource that is exhausted.
        what: &'static str,
    },
    /// The request makes no sense in this state or with these settings.
    #[error("cannot {op}: {why}")]
    Misuse {
        /// Attempted operation, as a verb phrase.
        op: &'static str,
        /// Reason why it is impossible.
        why: &'static str,
    },
    /// The link under a TCP stack in user space failed permanently. Every connection over it has
    /// ended, and no new one can be made.
    #[error(
        "the link is down: {why}{}; every connection over it has ended; bring it back, then open \
         the device again", Because(*.errno)
    )]
    LinkDown {
        /// Cause of the failure.
        why: &'static str,
        /// Error number of the system, as in `errno.h`; 0 if it gave none.
        errno: i32,
    },
    /// The kernel of this machine has an address that belongs to a TCP stack in user space. The
    /// kernel therefore also processes packets for this address. It resets the connections of that
    /// stack, because it does not know them.
    #[error(
        "the kernel of this machine has the address {addr} too, and resets the connections of \
         this program; take it away from the kernel (`ip addr del {addr} dev INTERFACE`, with the \
         prefix that `ip addr` shows), or give this device an address of its own"
    )]
    KernelHasAddress {
        /// Address that is in conflict.
        addr: IpAddr,
    },
    /// Another host on the link claims an address of this side.
    #[error(
        "another host on the link, with the MAC address {}, uses {addr} too; give one of the two \
         another address", Mac(*.mac)
    )]
    DuplicateAddress {
        /// Address that is in conflict.
        addr: IpAddr,
        /// MAC address of the other host.
        mac: [u8; 6],
    },
    /// Any other failure of a system call.
    #[error("cannot {op}: {} (errno {errno})", describe(*.errno))]
    Io {
        /// Attempted operation, as a verb phrase.
        op: &'static str,
        /// Error number of the system, as in `errno.h`.
        errno: i32,
    },
}

/// Returns the address if it is a link-local one without a zone.
fn zoneless(addr: SocketAddr) -> Option<Ipv6Addr> {
    match addr {
        SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() && addr.scope_id() == 0 => {
            Some(*addr.ip())
        }
        _ => None,
    }
}

fn family(addr: IpAddr) -> &'static str {
    if addr.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// Returns the system's text for an errno, without the number.
fn describe(errno: i32) -> String {
    let words = io::Error::from_raw_os_error(errno).to_string();
    match words.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => words,
    }
}

/// Displays the system's text for an errno in brackets; nothing if the errno is 0.
struct Because(i32);

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            errno => write!(f, " ({}, errno {errno})", describe(errno)),
        }
    }
}

/// Displays a MAC address in the usual notation.
struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl LlpError {
    /// Returns true if the other end, not this program or machine, ended or refused the connection.
    pub fn is_remote(&self) -> bool {
        matches!(
            self,
            Self::Refused { .. } | Self::Reset { .. } | Self::TimedOut { .. }
        )
    }

    /// Converts the errno of a system call that concerns the address `addr`: the peer, or the local
    /// address that was requested. `op` names the call by a verb phrase.
    #[doc(hidden)]
    pub fn from_errno(op: &'static str, addr: SocketAddr, errno: Errno) -> Self {
        match errno {
            Errno::CONNREFUSED => Self::Refused { addr },
            Errno::HOSTUNREACH | Errno::NETUNREACH | Errno::NETDOWN | Errno::HOSTDOWN => {
                Self::Unreachable { addr }
            }
            Errno::TIMEDOUT => Self::TimedOut { addr },
            Errno::CONNRESET | Errno::CONNABORTED => Self::Reset { addr },
            Errno::PIPE | Errno::NOTCONN | Errno::SHUTDOWN => Self::Broken { addr },
            Errno::ADDRINUSE => Self::AddressInUse { addr },
            Errno::ADDRNOTAVAIL => Self::AddressUnavailable { addr },
            // Linux returns EINVAL for a link-local address without a zone.
            Errno::INVAL => match zoneless(addr) {
                Some(addr) => Self::ZoneMissing { addr },
                None => Self::from_local_errno(op, errno),
            },
            other => Self::from_local_errno(op, other),
        }
    }

    /// Checks that a connection can go from `local` to `to`: both must be of one family.
    ///
    /// # Errors
    /// [`FamilyMismatch`](Self::FamilyMismatch).
    pub fn check_families(local: SocketAddr, to: SocketAddr) -> Result<(), Self> {
        let (local, peer) = (local.ip(), to.ip());
        if local.is_ipv4() == peer.is_ipv4() {
            return Ok(());
        }
        Err(Self::FamilyMismatch { local, peer })
    }

    /// Does the same as [`Self::from_errno`], for calls that involve no address.
    #[doc(hidden)]
    pub fn from_local_errno(op: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::PermissionDenied { op },
            Errno::MFILE => Self::Exhausted {
                op,
                what: "file descriptors in this process (`ulimit -n`)",
            },
            Errno::NFILE => Self::Exhausted {
                op,
                what: "file descriptors on this machine",
            },
            Errno::NOBUFS | Errno::NOMEM => Self::Exhausted {
                op,
                what: "memory for sockets",
            },
            other => Self::Io {
                op,
                errno: other.raw_os_error(),
            },
        }
    }

    /// Converts the error of a socket call on a connection with (or to) `addr`, or on a listener at
    /// `addr`. `op` names the call by a verb phrase. It is meant for programs that also use sockets
    /// of their own.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "used as `map_err(|e| ...)` with an owned error"
    )]
    #[must_use]
    pub fn from_io(op: &'static str, addr: SocketAddr, error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) => Self::from_errno(op, addr, errno),
            None => Self::Io {
                op,
                errno: Errno::INVAL.raw_os_error(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 7174))
    }

    #[test]
    fn a_refused_connection_says_where_and_what_to_check() {
        let text = LlpError::from_errno("connect", addr(), Errno::CONNREFUSED).to_string();
        assert!(
            text.starts_with("nothing listens at 127.0.0.1:7174"),
            "{text}"
        );
        assert!(text.contains("server has been started"), "{text}");
    }

    #[test]
    fn an_unknown_errno_keeps_its_number_and_the_words_of_the_system() {
        let text = LlpError::from_errno("send", addr(), Errno::NOTSOCK).to_string();
        assert!(text.contains("cannot send"), "{text}");
        assert!(
            text.contains(&format!("(errno {})", Errno::NOTSOCK.raw_os_error())),
            "{text}"
        );
    }

    #[test]
    fn a_link_local_address_without_a_zone_is_what_the_system_finds_invalid() {
        let said = |text: &str| {
            LlpError::from_errno("connect", text.parse().unwrap(), Errno::INVAL).to_string()
        };
        let words = said("[fe80::1]:7174");
        assert!(words.contains("its zone is missing"), "{words}");
        assert!(words.ends_with("as in fe80::1%eth0"), "{words}");
        // EINVAL for an address with a zone, or for one that needs none, is another error.
        for other in ["[fe80::1%3]:7174", "[2001:db8::1]:7174", "192.0.2.1:7174"] {
            assert!(said(other).contains("Invalid argument"), "{other}");
        }
    }

    #[test]
    fn two_families_do_not_go_together() {
        let (v4, v6) = (addr(), "[::1]:0".parse().unwrap());
        assert_eq!(LlpError::check_families(v4, v4), Ok(()));
        assert_eq!(LlpError::check_families(v6, v6), Ok(()));
        let words = LlpError::check_families(v6, v4).unwrap_err().to_string();
        let due = "cannot connect from ::1, an IPv6 address, to 127.0.0.1, an IPv4 address";
        assert!(words.starts_with(due), "{words}");
    }

    #[test]
    fn only_what_the_other_end_did_counts_as_remote() {
        assert!(LlpError::Reset { addr: addr() }.is_remote());
        assert!(!LlpError::AddressInUse { addr: addr() }.is_remote());
    }
}

//! Networks that this machine and this user may use. The probes do not disturb other programs.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use rustix::net::{AddressFamily, SocketType, socket};

/// Bit number of `CAP_NET_ADMIN` in the field `CapEff` of `/proc/self/status`.
const CAP_NET_ADMIN: u32 = 12;

/// Kind of network, and whether it is usable here.
pub(super) struct NetworkKind {
    /// First word of the value of `--device`.
    pub(super) name: &'static str,
    pub(super) usable: bool,
    /// Description, or the missing privilege and what to try.
    pub(super) words: String,
}

/// Probes all kinds, in the order of `--help`.
pub(super) fn all() -> [NetworkKind; 4] {
    let inside = user_namespaces();
    [tcp(), tap(&inside), raw(&inside), unix()]
}

fn usable(name: &'static str, words: impl Into<String>) -> NetworkKind {
    NetworkKind {
        name,
        usable: true,
        words: words.into(),
    }
}

fn missing(name: &'static str, words: impl Into<String>) -> NetworkKind {
    NetworkKind {
        name,
        usable: false,
        words: words.into(),
    }
}

fn tcp() -> NetworkKind {
    let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
    let families = match (&v4, &v6) {
        (Ok(_), Ok(_)) => "IPv4 and IPv6",
        (Ok(_), Err(_)) => "IPv4 only",
        (Err(_), Ok(_)) => "IPv6 only",
        (Err(error), Err(_)) => {
            return missing(
                "tcp",
                format!("cannot listen on a port of the loopback interface: {error}"),
            );
        }
    };
    let control = setting("net/ipv4/tcp_congestion_control");
    usable(
        "tcp",
        format!(
            "the kernel's TCP, {families}, congestion control {}",
            control.as_deref().unwrap_or("unknown")
        ),
    )
}

fn tap(inside: &Result<(), String>) -> NetworkKind {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => missing(
            "tap",
            "/dev/net/tun is missing; try: modprobe tun, or in a container --device /dev/net/tun",
        ),
        Err(error) => missing("tap", format!("/dev/net/tun cannot be opened: {error}")),
        Ok(_) if has_capability(CAP_NET_ADMIN) => {
            usable("tap", "/dev/net/tun can be opened, with CAP_NET_ADMIN")
        }
        Ok(_) => missing(
            "tap",
            format!("CAP_NET_ADMIN is missing; {}", instead(inside)),
        ),
    }
}

fn raw(inside: &Result<(), String>) -> NetworkKind {
    match socket(AddressFamily::PACKET, SocketType::RAW, None) {
        Ok(_) => usable("raw", "packet sockets can be created"),
        Err(error) => missing(
            "raw",
            format!(
                "a packet socket needs CAP_NET_RAW: {}; {}",
                io::Error::from(error),
                instead(inside)
            ),
        ),
    }
}

fn unix() -> NetworkKind {
    usable(
        "unix",
        "Ethernet frames in Unix datagrams; needs no privilege",
    )
}

/// Suggestion for a user who lacks the privilege.
fn instead(inside: &Result<(), String>) -> String {
    match inside {
        Ok(()) => "try it in a network namespace of your own, with `unshare -Urn`".to_owned(),
        Err(why) => format!("`unshare -Urn` does not work here: {why}"),
    }
}

/// Checks whether users may create user namespaces. Fails if one of the kernel's settings forbids
/// it.
fn user_namespaces() -> Result<(), String> {
    let refused = [
        ("user/max_user_namespaces", "0"),
        ("kernel/unprivileged_userns_clone", "0"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ];
    let found = refused
        .iter()
        .find(|(name, value)| setting(name).as_deref() == Some(value));
    match found {
        Some((name, value)) => Err(format!("sysctl {} is {value}", name.replace('/', "."))),
        None => Ok(()),
    }
}

/// Returns the value of a file in `/proc/sys`, or `None` if the kernel has no such setting.
fn setting(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.trim().to_owned())
}

fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective(&status).is_some_and(|set| set >> number & 1 == 1)
}

/// Returns the effective capabilities from the text of `/proc/self/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_as_the_kernel_writes_them() {
        let status = "Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000001000\n";
        assert_eq!(effective(status), Some(1 << CAP_NET_ADMIN));
        assert_eq!(effective("Name:\tx\n"), None);
    }

    #[test]
    fn each_kind_is_judged_and_says_why() {
        let found = all();
        assert_eq!(
            found.each_ref().map(|kind| kind.name),
            ["tcp", "tap", "raw", "unix"]
        );
        assert!(found.iter().all(|kind| !kind.words.is_empty()));
        assert!(found[0].usable && found[3].usable, "the tests need both");
    }
}

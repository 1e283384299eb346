//! Addresses and ports that a user types. Every command parses them here.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::failure::{Failure, Report};

/// An address or a name without a port: `192.0.2.1`, `2001:db8::1`, `[2001:db8::1]`,
/// `fe80::1%eth0`, `host.example`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Host(String);

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((host, port)) = split_port(text) {
            return Err(format!(
                "it contains a port; give the address alone, `{host}`, and the port {port} in its own option"
            ));
        }
        let inner = text
            .strip_prefix('[')
            .map(|rest| rest.strip_suffix(']').ok_or("a `]` is missing"));
        let bare = inner.unwrap_or(Ok(text))?;
        if bare.is_empty() {
            return Err("it is empty; expected an address or a name".into());
        }
        if inner.is_some() && !is_ipv6(bare) {
            return Err("brackets are only for an IPv6 address, as in `[2001:db8::1]`".into());
        }
        // Neither a name nor an IPv4 address contains a colon.
        if bare.contains(':') && !is_ipv6(bare) {
            return Err("it is not an IPv6 address".into());
        }
        Ok(Host(bare.to_owned()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<IpAddr> for Host {
    fn from(ip: IpAddr) -> Self {
        Host(ip.to_string())
    }
}

impl Host {
    /// Resolves the host to an address with this port. Returns the first address of the same family
    /// as `like`. Without `like`, or if no address has that family, returns the first address.
    pub(crate) fn resolve(&self, port: u16, like: Option<IpAddr>) -> Result<SocketAddr, Failure> {
        let Host(name) = self;
        let found = (name.as_str(), port).to_socket_addrs();
        let found: Vec<_> = found.map_err(|error| self.unknown(&error))?.collect();
        let alike = |addr: &&SocketAddr| like.is_none_or(|like| like.is_ipv4() == addr.is_ipv4());
        let chosen = found.iter().find(alike).or(found.first());
        let none = "the name exists, but has no address";
        chosen.copied().ok_or_else(|| self.unknown(&none))
    }

    /// Resolves the address of a server. Port 0 is an error.
    pub(crate) fn server(&self, port: u16, like: Option<IpAddr>) -> Result<SocketAddr, Failure> {
        if port == 0 {
            let report = Report::new("nothing can listen on port 0");
            return Err(Failure::Usage(report.advice("give the port of the server")));
        }
        self.resolve(port, like)
    }

    /// Resolves an address of this machine, with port 0 (any port).
    pub(crate) fn local(&self) -> Result<SocketAddr, Failure> {
        self.resolve(0, None)
    }

    fn unknown(&self, why: &dyn fmt::Display) -> Failure {
        let Host(name) = self;
        if let Some((_, zone)) = name.split_once('%') {
            return Report::new(format!("this machine has no interface '{zone}'"))
                .fault(format!("the zone of the address given here, '{name}'"))
                .advice("use the name or the number of an interface, as `ip link` shows them")
                .into();
        }
        Report::new(format!("the host '{name}' has no known address: {why}"))
            .fault("the name given here, or the name service")
            .advice("use an IP address")
            .into()
    }
}

/// An address or a name with a port: `192.0.2.1:7174`, `[2001:db8::1]:7174`, `[fe80::1%eth0]:7174`,
/// `host.example:7174`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostPort {
    host: Host,
    port: u16,
}

impl FromStr for HostPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if is_ipv6(text) {
            return Err(
                "an IPv6 address with a port needs brackets; expected `[ADDRESS]:PORT`".into(),
            );
        }
        if text.starts_with('[') && !text.contains(']') {
            return Err("a `]` is missing".into());
        }
        let Some((host, port)) = split_port(text) else {
            return Err("it has no port; expected HOST:PORT".into());
        };
        let number = port.parse();
        let number = number.map_err(|_| format!("`{port}` is not a port; expected 0 to 65535"))?;
        Ok(HostPort {
            host: host.parse()?,
            port: number,
        })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostPort { host, port } = self;
        if is_ipv6(&host.0) {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

impl HostPort {
    /// Resolves the address to connect to.
    pub(crate) fn server(&self) -> Result<SocketAddr, Failure> {
        self.host.server(self.port, None)
    }

    /// Resolves the address to listen on. Port 0 selects a free port.
    pub(crate) fn listen(&self) -> Result<SocketAddr, Failure> {
        self.host.resolve(self.port, None)
    }
}

/// A port with or without an address: `7175`, `192.0.2.1:7175`, `[2001:db8::1]:7175`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum PortOrAddress {
    Port(u16),
    Address(HostPort),
}

impl FromStr for PortOrAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(':') {
            return text.parse().map(PortOrAddress::Address);
        }
        let port = text.parse().map(PortOrAddress::Port);
        port.map_err(|_| format!("`{text}` is neither a port (0 to 65535) nor ADDRESS:PORT"))
    }
}

/// Splits `HOST:PORT` or `[ADDRESS]:PORT`. An IPv6 address without brackets has no port.
fn split_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    let has_brackets = host.starts_with('[') && host.ends_with(']');
    (has_brackets || !host.contains(':')).then_some((host, port))
}

/// Returns true for an IPv6 address, with or without a zone.
fn is_ipv6(text: &str) -> bool {
    match text.split_once('%') {
        Some((_, "")) => false,
        Some((addr, _zone)) => addr.parse::<Ipv6Addr>().is_ok(),
        None => text.parse::<Ipv6Addr>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Result<Host, String> {
        text.parse()
    }

    #[test]
    fn addresses_are_taken_with_and_without_brackets() {
        for (text, addr) in [
            ("127.0.0.1", "127.0.0.1:7"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("::0", "[::]:7"),
        ] {
            let found = host(text).unwrap().resolve(7, None).unwrap();
            assert_eq!(found.to_string(), addr);
        }
    }

    #[test]
    fn a_zone_names_an_interface_of_this_machine() {
        let at_loopback = host("fe80::1%lo").unwrap().resolve(7, None).unwrap();
        let SocketAddr::V6(addr) = at_loopback else {
            panic!("{at_loopback}")
        };
        assert_ne!(addr.scope_id(), 0);
        assert_eq!(host("[fe80::1%lo]").unwrap(), host("fe80::1%lo").unwrap());
        let Err(Failure::Operation(report)) = host("fe80::1%uwarp-no").unwrap().resolve(7, None)
        else {
            panic!("an interface that does not exist")
        };
        let text = report.to_string();
        assert!(text.contains("has no interface 'uwarp-no'"), "{text}");
    }

    #[test]
    fn a_port_that_does_not_belong_there_is_named_with_its_address() {
        for (text, address, port) in [
            ("127.0.0.1:30001", "127.0.0.1", "30001"),
            ("[::1]:7174", "[::1]", "7174"),
            ("host.example:7174", "host.example", "7174"),
        ] {
            let said = host(text).unwrap_err();
            let due = format!("`{address}`, and the port {port} in its own option");
            assert!(said.contains(&due), "{said}");
        }
        for (text, words) in [
            ("", "empty"),
            ("[::1", "a `]` is missing"),
            ("[127.0.0.1]", "brackets are only for an IPv6 address"),
            ("fe80::1%", "not an IPv6 address"),
            ("1:2:3", "not an IPv6 address"),
        ] {
            let said = host(text).unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn an_address_with_a_port_has_its_form_by_its_family() {
        for text in [
            "127.0.0.1:7174",
            "[::1]:7174",
            "[fe80::1%lo]:1",
            "host.example:0",
        ] {
            assert_eq!(text.parse::<HostPort>().unwrap().to_string(), text);
        }
        for (text, words) in [
            ("127.0.0.1", "no port"),
            ("[::1]", "no port"),
            ("::1:7174", "`[ADDRESS]:PORT`"),
            ("127.0.0.1:65536", "`65536` is not a port"),
            ("127.0.0.1:", "`` is not a port"),
            (":7174", "empty"),
            ("[::1:7174", "a `]` is missing"),
        ] {
            let said = text.parse::<HostPort>().unwrap_err();
            assert!(said.contains(words), "{text}: {said}");
        }
    }

    #[test]
    fn of_several_addresses_that_of_the_wanted_family_is_taken() {
        let v4 = host("127.0.0.1").unwrap();
        // The host has only an address of the other family, which is returned. The library reports
        // the mismatch.
        let found = v4.resolve(7, Some("::1".parse().unwrap())).unwrap();
        assert!(found.is_ipv4());
    }
}

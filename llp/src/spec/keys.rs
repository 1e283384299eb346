//! Keys of a device specification that follow the name of the link: `ip=`, `mtu=` ...

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::SpecError;
use crate::ethernet::Offload;
use crate::smol::{Congestion, FaultSettings};
use crate::wire::MAX_MTU;

/// Smallest MTU that `mtu=` accepts (RFC 791 section 3.2).
const MIN_MTU: usize = 576;
/// Smallest MTU of IPv6 (RFC 8200 section 5).
const MIN_IPV6_MTU: usize = 1280;

const KNOWN: [&str; 12] = [
    "ip",
    "gw",
    "mtu",
    "mac",
    "congestion",
    "recovery",
    "offload",
    "loss",
    "duplicate",
    "reorder",
    "corrupt",
    "seed",
];

/// Values of a link's keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LinkKeys {
    pub(super) addresses: Vec<(IpAddr, u8)>,
    pub(super) gateways: Vec<IpAddr>,
    pub(super) mtu: Option<usize>,
    pub(super) mac: Option<[u8; 6]>,
    pub(super) congestion: Option<Congestion>,
    pub(super) early_recovery: Option<bool>,
    pub(super) offload: Option<Offload>,
    pub(super) faults: FaultSettings,
}

/// Keys with their unparsed values, in the order given.
pub(super) struct Keys<'a> {
    given: Vec<(&'static str, &'a str)>,
}

impl<'a> Keys<'a> {
    /// Splits `key=value` fields. Rejects unknown keys. Also rejects repeated keys, except `ip` and
    /// `gw`.
    pub(super) fn parse(fields: impl Iterator<Item = &'a str>) -> Result<Self, SpecError> {
        let mut given: Vec<(&'static str, &str)> = Vec::new();
        for field in fields {
            let (key, value) = field.split_once('=').ok_or_else(|| {
                SpecError::new(format!("`{field}` is not of the form key=value"), keys())
            })?;
            let key = KNOWN
                .into_iter()
                .find(|known| *known == key)
                .ok_or_else(|| SpecError::new(format!("there is no key `{key}`"), keys()))?;
            let repeats = matches!(key, "ip" | "gw");
            if !repeats && given.iter().any(|(other, _)| *other == key) {
                return Err(SpecError::new(format!("{key}= is given twice"), "it once"));
            }
            given.push((key, value));
        }
        Ok(Self { given })
    }

    /// Returns true if the field is a known key followed by `=`.
    pub(super) fn is_key(field: &str) -> bool {
        field
            .split_once('=')
            .is_some_and(|(key, _)| KNOWN.contains(&key))
    }

    /// Parses all values and checks that they are consistent with each other.
    pub(super) fn finish(self) -> Result<LinkKeys, SpecError> {
        let addresses = self.all("ip", address)?;
        if addresses.is_empty() {
            return Err(SpecError::new(
                "the address is missing",
                "ip=ADDR/PREFIX, for example `ip=192.0.2.1/24`: the address of this end, which no \
                 other host and no interface of this machine may have",
            ));
        }
        let link = LinkKeys {
            addresses,
            gateways: self.all("gw", |value| {
                single_host(value).map_err(|why| wrong("gw", value, why, "a router's address"))
            })?,
            mtu: self.one("mtu", mtu)?,
            mac: self.one("mac", mac)?,
            congestion: self.one("congestion", congestion)?,
            early_recovery: self.one("recovery", recovery)?,
            offload: self.one("offload", offload)?,
            faults: FaultSettings {
                seed: self.one("seed", seed)?.unwrap_or(0),
                loss: self.probability("loss")?,
                duplicate: self.probability("duplicate")?,
                reorder: self.probability("reorder")?,
                corrupt: self.probability("corrupt")?,
            },
        };
        link.check()?;
        Ok(link)
    }

    fn all<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, SpecError>,
    ) -> Result<Vec<T>, SpecError> {
        let values = self.given.iter().filter(|(given, _)| *given == key);
        values.map(|(_, value)| parse(value)).collect()
    }

    fn one<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, SpecError>,
    ) -> Result<Option<T>, SpecError> {
        Ok(self.all(key, parse)?.pop())
    }

    fn probability(&self, key: &str) -> Result<f64, SpecError> {
        let parse = |value: &str| match value.parse::<f64>() {
            Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
            _ => Err(SpecError::new(
                format!("{key}={value} is not a probability"),
                "a number from 0 to 1, for example 0.01 for one packet in a hundred",
            )),
        };
        Ok(self.one(key, parse)?.unwrap_or(0.0))
    }
}

/// Returns the list of all keys, for a message.
fn keys() -> String {
    let all: Vec<String> = KNOWN.iter().map(|key| format!("{key}=")).collect();
    format!("one of {} (a name or a path has no comma)", all.join(" "))
}

fn wrong(key: &str, value: &str, why: &str, expected: &str) -> SpecError {
    SpecError::new(format!("{key}={value}: {why}"), expected)
}

/// Parses an address. Rejects addresses that no single host on an Ethernet can have.
fn single_host(text: &str) -> Result<IpAddr, &'static str> {
    let addr = IpAddr::from_str(text).map_err(|_| "it is not an IP address")?;
    let v4_in_v6 = matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    if addr.is_unspecified() || matches!(addr, IpAddr::V4(v4) if v4.octets()[0] == 0) {
        Err("it means any address and not that of a single host")
    } else if addr.is_multicast() {
        Err("it is an address of a group and not that of a single host")
    } else if matches!(addr, IpAddr::V4(v4) if v4.octets()[0] >= 240) {
        Err("it is the broadcast address, or reserved, and not that of a single host")
    } else if addr.is_loopback() {
        Err("it is a loopback address, which no link carries")
    } else if v4_in_v6 {
        Err("it is an IPv4 address in IPv6 form, which no link carries")
    } else {
        Ok(addr)
    }
}

const ADDRESS: &str = "ADDR or ADDR/PREFIX, for example 192.0.2.1/24 or 2001:db8::1/64";

fn address(value: &str) -> Result<(IpAddr, u8), SpecError> {
    let fail = |why: &str| wrong("ip", value, why, ADDRESS);
    let (addr, prefix) = match value.split_once('/') {
        Some((addr, prefix)) => (addr, Some(prefix)),
        None => (value, None),
    };
    let addr = single_host(addr).map_err(fail)?;
    let (usual, most, name) = if addr.is_ipv4() {
        (24, 32, "the prefix of an IPv4 address is from 1 to 32")
    } else {
        (64, 128, "the prefix of an IPv6 address is from 1 to 128")
    };
    let prefix = match prefix {
        None => usual,
        Some(text) => match text.parse::<u8>() {
            Ok(prefix) if (1..=most).contains(&prefix) => prefix,
            _ => return Err(fail(name)),
        },
    };
    // Prefixes of 31 and 32 bits have no network address and no broadcast address (RFC 3021).
    if let IpAddr::V4(v4) = addr
        && prefix < 31
    {
        let hosts = u32::MAX >> prefix;
        match v4.to_bits() & hosts {
            0 => {
                return Err(fail(
                    "it is the address of the network and not of a single host",
                ));
            }
            bits if bits == hosts => {
                return Err(fail(
                    "it is the network's broadcast address and not that of a host",
                ));
            }
            _ => {}
        }
    }
    Ok((addr, prefix))
}

fn mtu(value: &str) -> Result<usize, SpecError> {
    match value.parse() {
        Ok(mtu) if (MIN_MTU..=MAX_MTU).contains(&mtu) => Ok(mtu),
        _ => Err(wrong(
            "mtu",
            value,
            "that is no MTU",
            &format!("bytes of the largest IP packet, {MIN_MTU} to {MAX_MTU}"),
        )),
    }
}

fn mac(value: &str) -> Result<[u8; 6], SpecError> {
    let fail = |why| {
        let expected = "six bytes in hexadecimal with colons, for example 02:00:00:00:00:01";
        wrong("mac", value, why, expected)
    };
    let byte = |text: &str| match text.len() {
        1 | 2 if text.bytes().all(|c| c.is_ascii_hexdigit()) => u8::from_str_radix(text, 16).ok(),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = value.split(':').map(byte).collect();
    let mac = bytes
        .and_then(|bytes| <[u8; 6]>::try_from(bytes).ok())
        .ok_or_else(|| fail("it is not a MAC address"))?;
    if mac[0] & 1 != 0 {
        return Err(fail(
            "it is the address of a group (the lowest bit of its first byte)",
        ));
    }
    if mac == [0; 6] {
        return Err(fail("it is the all-zero address, which no interface has"));
    }
    Ok(mac)
}

const CONGESTIONS: [(&str, Congestion); 3] = [
    ("none", Congestion::None),
    ("reno", Congestion::Reno),
    ("cubic", Congestion::Cubic),
];

fn congestion(value: &str) -> Result<Congestion, SpecError> {
    let found = CONGESTIONS.iter().find(|(name, _)| *name == value);
    found.map(|(_, congestion)| *congestion).ok_or_else(|| {
        let why = "there is no such congestion control";
        wrong("congestion", value, why, "none, reno or cubic")
    })
}

/// Names of the values of
/// [`LinkSettings::early_recovery`](crate::ethernet::LinkSettings::early_recovery).
const RECOVERIES: [(&str, bool); 2] = [("early", true), ("timer", false)];

fn recovery(value: &str) -> Result<bool, SpecError> {
    let found = RECOVERIES.iter().find(|(name, _)| *name == value);
    found.map(|(_, early)| *early).ok_or_else(|| {
        let why = "there is no such kind of recovery";
        wrong("recovery", value, why, "early or timer")
    })
}

const OFFLOADS: [(&str, Offload); 2] = [("auto", Offload::Auto), ("off", Offload::Off)];

fn offload(value: &str) -> Result<Offload, SpecError> {
    let found = OFFLOADS.iter().find(|(name, _)| *name == value);
    found
        .map(|(_, offload)| *offload)
        .ok_or_else(|| wrong("offload", value, "there is no such choice", "auto or off"))
}

fn seed(value: &str) -> Result<u64, SpecError> {
    let parsed = value.parse();
    parsed.map_err(|_| {
        wrong(
            "seed",
            value,
            "that is no seed",
            "a number from 0 to 2^64 - 1",
        )
    })
}

/// Returns true if the two addresses agree in their first `prefix` bits.
fn same_network(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            (one.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(prefix)
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            (one.to_bits() ^ other.to_bits()).leading_zeros() >= u32::from(prefix)
        }
        _ => false,
    }
}

impl LinkKeys {
    /// Checks that the addresses, the gateways and the MTU are consistent.
    fn check(&self) -> Result<(), SpecError> {
        for (index, (addr, _)) in self.addresses.iter().enumerate() {
            let before = self.addresses.iter().take(index);
            if before.into_iter().any(|(other, _)| other == addr) {
                return Err(SpecError::new(
                    format!("the address {addr} is given twice"),
                    "different addresses",
                ));
            }
            if let (IpAddr::V6(_), Some(mtu @ ..MIN_IPV6_MTU)) = (addr, self.mtu) {
                return Err(SpecError::new(
                    format!("mtu={mtu} is too small for the IPv6 address {addr}"),
                    format!("at least {MIN_IPV6_MTU} (RFC 8200 section 5)"),
                ));
            }
        }
        for (index, gateway) in self.gateways.iter().enumerate() {
            let before = self.gateways.iter().take(index);
            if before
                .into_iter()
                .any(|other| other.is_ipv4() == gateway.is_ipv4())
            {
                return Err(SpecError::new(
                    format!("gw={gateway} is the second router of its family"),
                    "at most one for IPv4 and one for IPv6",
                ));
            }
            if self.addresses.iter().any(|(addr, _)| addr == gateway) {
                return Err(SpecError::new(
                    format!("gw={gateway} is an address of this side"),
                    "the address of the router",
                ));
            }
            let on_link = |(addr, prefix): &(IpAddr, u8)| same_network(*addr, *gateway, *prefix);
            // Hosts usually know an IPv6 router by its link-local address. The link-local network
            // exists on every link.
            let link_local = matches!(gateway, IpAddr::V6(v6) if v6.is_unicast_link_local());
            if !link_local && !self.addresses.iter().any(on_link) {
                return Err(SpecError::new(
                    format!("gw={gateway} is in none of the networks that ip= names"),
                    "a router on this link; is the prefix of ip= right?",
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Display for LinkKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (addr, prefix) in &self.addresses {
            write!(f, ",ip={addr}/{prefix}")?;
        }
        for gateway in &self.gateways {
            write!(f, ",gw={gateway}")?;
        }
        if let Some(mtu) = self.mtu {
            write!(f, ",mtu={mtu}")?;
        }
        if let Some([a, b, c, d, e, g]) = self.mac {
            write!(f, ",mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")?;
        }
        let named = |(_, value): &&(&str, Congestion)| Some(*value) == self.congestion;
        if let Some((name, _)) = CONGESTIONS.iter().find(named) {
            write!(f, ",congestion={name}")?;
        }
        let named = |(_, value): &&(&str, bool)| Some(*value) == self.early_recovery;
        if let Some((name, _)) = RECOVERIES.iter().find(named) {
            write!(f, ",recovery={name}")?;
        }
        let named = |(_, value): &&(&str, Offload)| Some(*value) == self.offload;
        if let Some((name, _)) = OFFLOADS.iter().find(named) {
            write!(f, ",offload={name}")?;
        }
        let FaultSettings {
            seed,
            loss,
            duplicate,
            reorder,
            corrupt,
        } = self.faults;
        let probabilities = [
            ("loss", loss),
            ("duplicate", duplicate),
            ("reorder", reorder),
            ("corrupt", corrupt),
        ];
        for (key, value) in probabilities {
            if value > 0.0 {
                write!(f, ",{key}={value}")?;
            }
        }
        if seed > 0 {
            write!(f, ",seed={seed}")?;
        }
        Ok(())
    }
}

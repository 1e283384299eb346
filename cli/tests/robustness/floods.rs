//! Floods of SYNs against the TCP in user space. The attackers never complete a handshake.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::Result;
use crate::attacks::{Attack, AttackOutcome, Pace, Run};
use crate::link::LinkKind;
use crate::scene::Scene;
use crate::victim::Confined;

/// Flood on a link of this kind.
pub(crate) struct Flood {
    pub(crate) link: LinkKind,
    pub(crate) attack: Attack,
}

pub(crate) const FLOODS: &[Flood] = &[
    flood(
        LinkKind::Datagrams,
        "syn_flood_from_one_address",
        "SYNs of one silent address, IPv4 and then IPv6, to TCP in user space (`unix:`)",
        from_one_address,
    ),
    flood(
        LinkKind::Datagrams,
        "syn_flood_from_a_thousand_addresses",
        "SYNs of 1,000 silent addresses, IPv4 and then IPv6, to TCP in user space (`unix:`)",
        from_a_thousand_addresses,
    ),
    flood(
        LinkKind::Tap,
        "syn_flood_from_one_address_on_a_tap",
        "SYNs of one silent address, IPv4 and then IPv6, to TCP in user space (`tap:`)",
        from_one_address,
    ),
    flood(
        LinkKind::Tap,
        "syn_flood_from_a_thousand_addresses_on_a_tap",
        "SYNs of 1,000 silent addresses, IPv4 and then IPv6, to TCP in user space (`tap:`)",
        from_a_thousand_addresses,
    ),
];

/// Limit in MiB of the memory that a flood may add (SECURITY.md documents 5.2 MiB for its table).
const MEMORY: u64 = 32;

/// Maximum growth of the memory, in bytes, during the second half of a flood. The allocator keeps
/// what it has got, and entries of IPv6 are larger than those of IPv4. Observed: up to 3.5 MiB. A
/// leak of 32 bytes for each SYN of a full load exceeds the limit.
const ONCE_MORE: u64 = 8 << 20;

/// Minimum growth of the memory, in bytes, during the first half of a flood, which fills the table
/// of handshakes. Observed: 0.7 MiB on a busy machine, where the link drops SYNs, otherwise more
/// than 1 MiB.
const REACHED: u64 = 512 << 10;

/// Maximum number of bytes that remain when the handshakes are forgotten, a minute after the flood.
/// The allocator keeps what is between blocks in use. Observed: 3 to 6 MiB, less than the peak by
/// the table itself. The limit is above the size of the table, so it does not notice a table that
/// is kept, which a test of the table does. Buffers of connections would be 512 KiB for each SYN.
const MAY_KEEP: u64 = 8 << 20;

const fn flood(
    link: LinkKind,
    name: &'static str,
    title: &'static str,
    run: fn(&mut Scene, &mut Pace) -> Result<AttackOutcome>,
) -> Flood {
    let attack = Attack {
        name,
        title,
        load: [600_000, 12_000],
        rate: 10_000,
        confined: Confined::Not,
        memory: [MEMORY; 2],
        run: Run::Visited(run),
    };
    Flood { link, attack }
}

fn from_one_address(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    run(scene, pace, 1)
}

fn from_a_thousand_addresses(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    run(scene, pace, 1000)
}

/// Sends SYNs from this number of addresses to the listener at the IPv4 address, and then as many
/// to the one at the IPv6 address. A newcomer must be served in the middle of each.
fn run(scene: &mut Scene, pace: &mut Pace, addrs: usize) -> Result<AttackOutcome> {
    let link = scene.link.take().ok_or("the scene has no link")?;
    let half = pace.load() / 2;
    let (before, mut first) = (scene.victim.usage()?.memory, 0);
    for number in &mut *pace {
        if number == half {
            first = scene.victim.usage()?.memory;
        }
        let to = scene.listeners()[usize::from(number >= half)];
        let from = attacker(to.is_ipv6(), number % addrs)?;
        let port = u16::try_from(number % 60_000)? + 1;
        let packet = syn(SocketAddr::new(from, port), to, u32::try_from(number)?)?;
        link.send(&packet, to.ip())?;
    }
    let load = pace.summary();
    scene.link = Some(link);
    for listener in scene.listeners().to_vec() {
        scene.newcomer_at(listener)?;
    }
    // A SYN that the victim refuses to read would cost nothing.
    if first < before + REACHED {
        let added = first.saturating_sub(before);
        return Err(format!("the SYNs do not arrive: they added {added} bytes of memory").into());
    }
    let added = scene.victim.usage()?.memory.saturating_sub(first);
    if added > ONCE_MORE {
        return Err(format!("the second half adds {added} bytes of memory").into());
    }
    let outcome = AttackOutcome::new(
        load,
        &format!(
            "each SYN replaces the oldest handshake of the address that has the most (4,096 in all), so honest peers are served at \
             once; the second half adds {} KiB of memory",
            added >> 10
        ),
    );
    Ok(AttackOutcome {
        may_keep: Some(MAY_KEEP),
        ..outcome
    })
}

/// Returns the address of an attacker. Each is in a network of its own, because an IPv6 network
/// counts as one peer.
fn attacker(v6: bool, number: usize) -> Result<IpAddr> {
    let number = u16::try_from(number)?;
    if v6 {
        return Ok(Ipv6Addr::new(0x2001, 0xDB8, 1, number, 0, 0, 0, 1).into());
    }
    let [high, low] = number.to_be_bytes();
    // RFC 2544: addresses for tests of devices.
    Ok(Ipv4Addr::new(198, 18, high, low).into())
}

/// Makes a SYN as an IP packet.
fn syn(from: SocketAddr, to: SocketAddr, seq: u32) -> Result<Vec<u8>> {
    const TCP: u8 = 6;
    const LEN: u16 = 20;
    let mut segment = Vec::new();
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(seq.to_be_bytes());
    // No acknowledgement; five words of header, the flag SYN, a window; no checksum and no urgent
    // data.
    segment.extend([0, 0, 0, 0, 5 << 4, 2, 0xFF, 0xFF, 0, 0, 0, 0]);
    let (mut header, addrs) = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addrs = [from.octets(), to.octets()].concat();
            let mut header = vec![0x45, 0, 0, 20 + LEN as u8, 0, 0, 0x40, 0, 64, TCP, 0, 0];
            header.extend(&addrs);
            let sum = checksum(&[&header]);
            header[10..12].copy_from_slice(&sum);
            (header, addrs)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addrs = [from.octets(), to.octets()].concat();
            let mut header = vec![0x60, 0, 0, 0, 0, LEN as u8, TCP, 64];
            header.extend(&addrs);
            (header, addrs)
        }
        _ => return Err("the addresses are of two families".into()),
    };
    // The words of the pseudo header of IPv6 add up to the same as those of IPv4 (RFC 8200 section
    // 8.1).
    let sum = checksum(&[&addrs, &[0, TCP, 0, LEN as u8], &segment]);
    segment[16..18].copy_from_slice(&sum);
    header.extend(segment);
    Ok(header)
}

/// Internet checksum (RFC 1071) of these parts, each of an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

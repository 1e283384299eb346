//! Ethernet frames of a third host on the link. An honest third host uses its own addresses. Both
//! hosts must answer it, and the connection must not suffer. A lying third host uses addresses of
//! the other hosts.

use std::net::Ipv6Addr;

use super::hosts::{Link, address};
use crate::input::Input;

pub(super) const HEADER: usize = 14;
/// Addresses of the third host, the stranger.
const STRANGER: [u8; 4] = [192, 0, 2, 77];
const STRANGER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 77];
const STRANGER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 77);
/// Number of echo requests that a host answers in a burst (`ECHO_BURST` of the link).
const BURST: usize = 100;
/// With this many frames in flight, a host may drop the next one.
const ROOM: usize = 500;

pub(super) fn mac(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, 1 + host as u8]
}

pub(super) fn ipv6(host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xDB8, 0, 0, 0, 0, 0, 1 + host as u16)
}

fn ipv4_of(host: usize) -> [u8; 4] {
    match address(host).ip() {
        std::net::IpAddr::V4(ip) => ip.octets(),
        std::net::IpAddr::V6(_) => unreachable!("hosts are told apart by IPv4"),
    }
}

/// Returns the IPv4 packet in a frame if it carries TCP.
pub(super) fn ipv4(frame: &[u8]) -> Option<&[u8]> {
    let packet = frame.get(HEADER..)?;
    (frame[12..14] == [8, 0] && packet.get(9) == Some(&6)).then_some(packet)
}

fn framed(to: [u8; 6], from: [u8; 6], kind: u16, packet: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), packet].concat()
}

/// Builds a frame from one host to another.
pub(super) fn frame(to: usize, from: usize, kind: u16, packet: &[u8]) -> Vec<u8> {
    framed(mac(to), mac(from), kind, packet)
}

/// Computes the Internet checksum (RFC 1071) over the pieces.
fn checksum(pieces: &[&[u8]]) -> u16 {
    let mut sum = 0_u32;
    for piece in pieces {
        for pair in piece.chunks(2) {
            sum += u32::from(u16::from_be_bytes([
                pair[0],
                pair.get(1).copied().unwrap_or(0),
            ]));
        }
    }
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

/// Corrects the checksums of IPv4, TCP, ICMP and ICMPv6. smoltcp checks them in a replay on stable,
/// but not under a fuzzer. With valid checksums both kinds of run behave the same.
pub(super) fn seal(frame: &mut [u8]) {
    let Some((header, packet)) = frame.split_first_chunk_mut::<HEADER>() else {
        return;
    };
    match header[12..14] {
        [0x08, 0x00] => seal_v4(packet),
        [0x86, 0xDD] if packet.len() >= 44 && packet[6] == 58 => {
            let len = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            let (ip, icmp) = packet.split_at_mut(40);
            let len = len.min(icmp.len()).max(4);
            let icmp = &mut icmp[..len];
            icmp[2..4].fill(0);
            let pseudo = [0, 0, (len >> 8) as u8, len as u8, 0, 0, 0, 58];
            let sum = checksum(&[&ip[8..40], &pseudo, icmp]);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
}

fn seal_v4(packet: &mut [u8]) {
    let header = usize::from(packet.first().map_or(0, |first| first & 15)) * 4;
    if header < 20 || packet.len() < header {
        return;
    }
    let total = usize::from(u16::from_be_bytes([packet[2], packet[3]])).min(packet.len());
    let (ip, payload) = packet.split_at_mut(header);
    ip[10..12].fill(0);
    let sum = checksum(&[ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let payload = &mut payload[..total.saturating_sub(header)];
    let len = payload.len() as u16;
    match ip[9] {
        1 if len >= 4 => {
            payload[2..4].fill(0);
            let sum = checksum(&[payload]);
            payload[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        6 if len >= 20 => {
            payload[16..18].fill(0);
            let pseudo = [0, 6, (len >> 8) as u8, len as u8];
            let sum = checksum(&[&ip[12..20], &pseudo, payload]);
            payload[16..18].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {}
    }
}

/// Builds an IPv4 packet. `seal` must fill in its checksums.
fn packet_v4(from: [u8; 4], to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + payload.len() as u16).to_be_bytes();
    let head = [0x45, 0, high, low, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    [&head[..], &from, &to, payload].concat()
}

/// Builds an IPv6 packet with an ICMPv6 message. The hop limit is 255, as from a sender on the same
/// link.
fn packet_v6(from: [u8; 16], to: [u8; 16], message: &[u8]) -> Vec<u8> {
    let head = [0x60, 0, 0, 0, 0, message.len() as u8, 58, 255];
    [&head[..], &from, &to, message].concat()
}

fn arp(operation: u8, sender: ([u8; 6], [u8; 4]), target: ([u8; 6], [u8; 4])) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    [&head[..], &sender.0, &sender.1, &target.0, &target.1].concat()
}

/// Returns true if a frame in flight from `host` satisfies `is`. Also returns true if [`ROOM`]
/// frames are in flight, because the host may then have dropped the frame.
fn has_sent(link: &Link, host: usize, is: impl Fn(&[u8]) -> bool) -> bool {
    link.under_way(host, |frames| {
        frames.len() >= ROOM || frames.iter().any(|frame| is(frame))
    })
}

/// Delivers an address request or an echo request from an honest host, and checks that it is
/// answered.
pub(super) fn deliver_honest(link: &Link, to: usize, echoes: &mut usize, input: &mut Input<'_>) {
    let kind = input.u8();
    let own = ipv4_of(to);
    let question = arp(1, (STRANGER_MAC, STRANGER), ([0; 6], own));
    let whom = if kind & 4 == 0 { mac(to) } else { [0xFF; 6] };
    match kind & 3 {
        0 => {
            link.deliver(to, &framed(whom, STRANGER_MAC, 0x0806, &question));
            let answer = arp(2, (mac(to), own), (STRANGER_MAC, STRANGER));
            let answer = framed(STRANGER_MAC, mac(to), 0x0806, &answer);
            assert!(
                has_sent(link, to, |frame| frame.starts_with(&answer)),
                "no answer to ARP"
            );
        }
        1 => {
            let target = ipv6(to).octets();
            let from = STRANGER_V6.octets();
            let message = [
                &[135, 0, 0, 0, 0, 0, 0, 0][..],
                &target,
                &[1, 1],
                &STRANGER_MAC,
            ];
            let message = message.concat();
            let packet = packet_v6(from, target, &message);
            let mut frame = framed(mac(to), STRANGER_MAC, 0x86DD, &packet);
            seal(&mut frame);
            link.deliver(to, &frame);
            let advertised = |frame: &[u8]| {
                frame[..6] == STRANGER_MAC
                    && frame.get(54) == Some(&136)
                    && frame.get(62..78) == Some(&target[..])
            };
            assert!(has_sent(link, to, advertised), "no answer to NDP");
        }
        _ => {
            // The ARP request first teaches the host the stranger's address again, because a false
            // frame may have replaced it.
            link.deliver(to, &framed(mac(to), STRANGER_MAC, 0x0806, &question));
            let payload = input.slice(1200);
            let echo = |kind: u8| [&[kind, 0, 0, 0, 0, 7, 0, 9][..], payload].concat();
            let sealed = |from, to, kind, source, target| {
                let packet = packet_v4(from, to, 1, &echo(kind));
                let mut frame = framed(target, source, 0x0800, &packet);
                seal(&mut frame);
                frame
            };
            let request = sealed(STRANGER, own, 8, STRANGER_MAC, mac(to));
            let reply = sealed(own, STRANGER, 0, mac(to), STRANGER_MAC);
            link.deliver(to, &request);
            *echoes += 1;
            let answered = has_sent(link, to, |frame| frame.get(HEADER..) == reply.get(HEADER..));
            assert!(answered || *echoes > BURST, "no answer to an echo");
        }
    }
}

/// Delivers a frame from a lying host: a false claim of an address, an ICMP error about the
/// connection, or arbitrary bytes.
pub(super) fn deliver_false(link: &Link, to: usize, input: &mut Input<'_>) {
    let what = input.u8();
    let macs = [STRANGER_MAC, mac(to), mac(1 - to), [0xFF; 6], [0; 6]];
    let hosts = [
        STRANGER,
        ipv4_of(to),
        ipv4_of(1 - to),
        [0; 4],
        [192, 0, 2, 255],
    ];
    let mut frame = match what & 3 {
        0 => {
            let sender = (macs[input.choice(5)], hosts[input.choice(5)]);
            let target = (macs[input.choice(5)], hosts[input.choice(5)]);
            let packet = arp(input.u8() & 3, sender, target);
            framed(
                macs[usize::from(what >> 2) % 5],
                STRANGER_MAC,
                0x0806,
                &packet,
            )
        }
        1 => {
            // An ICMP error that quotes the last packet of the host, as a router would send it.
            let seen = link.seen(to);
            let quoted = &seen[..seen.len().min(28)];
            let [high, low] = input.u16().to_be_bytes();
            let head = [
                [3, 5, 11, 12][input.choice(4)],
                input.u8() & 15,
                0,
                0,
                0,
                0,
                high,
                low,
            ];
            let message = [&head[..], quoted].concat();
            let packet = packet_v4(hosts[input.choice(5)], ipv4_of(to), 1, &message);
            framed(mac(to), STRANGER_MAC, 0x0800, &packet)
        }
        2 => {
            let target = ipv6(input.choice(2)).octets();
            let options = input.slice(40);
            let head = [133 + input.u8() % 5, input.u8(), 0, 0, input.u8(), 0, 0, 0];
            let message = [&head[..], &target, options].concat();
            let source = ipv6(input.choice(3)).octets();
            let packet = packet_v6(source, ipv6(to).octets(), &message);
            framed(mac(to), STRANGER_MAC, 0x86DD, &packet)
        }
        _ => {
            let kind = [0x0800, 0x0806, 0x86DD, 0x8100][usize::from(what >> 2) % 4];
            framed(mac(to), macs[input.choice(5)], kind, input.slice(1500))
        }
    };
    if what & 0x80 == 0 {
        seal(&mut frame);
    }
    link.deliver(to, &frame);
}

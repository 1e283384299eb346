//! Malformed and random frames.

use super::icmp::about_v4;
use super::*;

#[test]
fn fragments_and_damaged_packets_are_counted() {
    let (host, wire) = host_and_wire();
    introduce(&wire, "192.0.2.2");
    let mut fragment = ping_v4(b"part");
    let mut ip = Ipv4Packet::new_unchecked(&mut fragment[..]);
    ip.set_more_frags(true);
    ip.fill_checksum();
    send(&wire, EtherType::Ipv4, &fragment);
    let mut damaged = ping_v4(b"whole");
    damaged[10] ^= 1;
    send(&wire, EtherType::Ipv4, &damaged);
    send(&wire, EtherType::Ipv4, &ping_v4(b"whole"));
    assert_eq!(pong_v4(&wire), b"whole");
    let counters = host.counters();
    assert_eq!((counters.fragments, counters.malformed), (1, 1));
}

/// Returns valid packets of several kinds, which the test damages.
fn samples() -> Vec<(EtherType, Vec<u8>)> {
    let mut packet = Packet::new(0);
    let mut samples = vec![(EtherType::Ipv4, ping_v4(b"sample"))];
    for addr in ["192.0.2.1", "2001:db8::1"] {
        let ask = Ask {
            addr: ip(addr),
            to: None,
        };
        let other = if addr.contains(':') {
            "2001:db8::7"
        } else {
            "192.0.2.7"
        };
        for header in [
            arp::write_question(ask, Some(ip(other)), PEER, &mut packet),
            arp::write_answer(ip(other), PEER, Some((ip(addr), OWN)), &mut packet),
        ] {
            let kind = frame::parse(&header).2.unwrap();
            samples.push((kind, packet.bytes().to_vec()));
        }
    }
    let syn = packet_with("192.0.2.7", "192.0.2.1", IpProtocol::Tcp, &[0; 20]);
    samples.push((
        EtherType::Ipv4,
        about_v4(&syn, Icmpv4DstUnreachable::FragRequired, 1400),
    ));
    samples.push((EtherType::Ipv4, syn));
    let tcp = packet_with("2001:db8::7", "2001:db8::1", IpProtocol::Tcp, &[0x50; 40]);
    samples.push((EtherType::Ipv6, tcp));
    let fragment = packet_with("2001:db8::7", "2001:db8::1", IpProtocol::Ipv6Frag, &[0; 40]);
    samples.push((EtherType::Ipv6, fragment));
    samples
}

#[derive(Debug, Clone)]
struct Damage {
    sample: prop::sample::Index,
    flips: Vec<(prop::sample::Index, u8)>,
    cut: Option<prop::sample::Index>,
    to: Mac,
}

fn damage() -> impl Strategy<Value = Damage> {
    let to = prop_oneof![
        Just(OWN),
        Just(BROADCAST),
        Just(frame::group(frame::ALL_NODES))
    ];
    (
        any::<prop::sample::Index>(),
        prop::collection::vec(any::<(prop::sample::Index, u8)>(), 0..6),
        any::<Option<prop::sample::Index>>(),
        to,
    )
        .prop_map(|(sample, flips, cut, to)| Damage {
            sample,
            flips,
            cut,
            to,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_frame_whatever_it_holds_stops_a_host(
        damaged in prop::collection::vec(damage(), 1..40),
        random in prop::collection::vec((any::<[u8; HEADER]>(), prop::collection::vec(any::<u8>(), 0..120)), 1..20),
    ) {
        let (host, wire) = host_and_wire();
        let samples = samples();
        let _listener = host.listen("0.0.0.0:0".parse().unwrap(), 4).unwrap();
        for Damage { sample, flips, cut, to } in damaged {
            let (kind, mut bytes) = sample.get(&samples).clone();
            for (at, byte) in flips {
                *at.get_mut(&mut bytes) ^= byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            wire.send(&frame::header(to, PEER, kind), &bytes).unwrap();
            wire.send_as_kernel(&frame::header(to, PEER, kind), &bytes);
        }
        for (mut header, bytes) in random {
            header[..6].copy_from_slice(&OWN);
            wire.send(&header, &bytes).unwrap();
        }
        introduce(&wire, "192.0.2.2");
        send(&wire, EtherType::Ipv4, &ping_v4(b"alive"));
        prop_assert_eq!(pong_v4(&wire), b"alive");
    }
}

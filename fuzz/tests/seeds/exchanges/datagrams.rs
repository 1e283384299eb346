//! Seeds of datagrams.

use uwarp_verbs::datagram_format::{Header, MAX_PAYLOAD};

/// Returns datagrams of each family and with each flag, and some that are dropped.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (from, to) in [
        ("192.0.2.1", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::2"),
        ("192.0.2.1", "2001:db8::2"),
    ] {
        for (immediate, solicited, traffic_class) in
            [(None, false, 0), (Some(*b"data"), true, 0xA5)]
        {
            let header = Header {
                source: 0x00AB_CD01,
                destination: 0x0012_3402,
                qkey: 0x1111_1111,
                immediate,
                solicited,
                traffic_class,
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
            };
            seeds.push([&header.to_bytes()[..], b"payload"].concat());
        }
    }
    let (first, last) = (seeds[0].clone(), seeds[5].clone());
    let at = |at: usize, byte: u8| {
        let mut other = first.clone();
        other[at] = byte;
        other
    };
    // Of another version, with unknown flags, a reserved byte, or Immediate Data without its flag;
    // cut; empty.
    seeds.extend([at(4, 2), at(5, 0xFF), at(7, 1), at(20, 7)]);
    seeds.extend([first[..55].to_vec(), first[..56].to_vec()]);
    let longest = [&last[..56], &[7; MAX_PAYLOAD + 1]].concat();
    seeds.extend([longest[..longest.len() - 1].to_vec(), longest]);
    seeds
}

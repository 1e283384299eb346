//! Seeds with events on the link between two hosts.

use uwarp_fuzz::input::Seed;

fn step(seed: Seed, from: u8, what: u8) -> Seed {
    seed.u8(what << 1 | from)
}

/// Appends steps that deliver the packets of both hosts, in two rounds.
fn carry(seed: Seed) -> Seed {
    [0, 1, 0, 1]
        .into_iter()
        .fold(seed, |seed, from| step(seed, from, 0).u8(15))
}

/// Appends steps that post a receive at the other host and a work request of `from`: 4 is a Send, 5
/// a Write, 6 a Read and 7 a FetchAdd.
fn post(seed: Seed, from: u8, kind: u8) -> Seed {
    step(step(seed, from ^ 1, 11), from, 8 + kind)
        .u16(1900)
        .u16(77)
}

/// Creates the seeds of `smoltcp_link`. Some have every operation of both hosts over a link without
/// faults, or with loss, duplication or delay. Others have damage in every header, or a third host
/// that sends resets, SYNs, windows and bytes.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for fault in [0, 3, 4, 5] {
        let mut seed = Seed::new();
        for kind in 4..8 {
            for from in [0, 1] {
                seed = post(seed, from, kind);
                seed = match fault {
                    0 => seed,
                    fault => step(seed, from, fault),
                };
                seed = step(carry(seed), from, 6);
            }
        }
        seeds.push(carry(seed).done());
    }
    // Damage in addresses, lengths, ports, sequence numbers, flags, the window, and the payload.
    for at in [2, 9, 12, 19, 21, 23, 27, 31, 32, 33, 35, 44, 60, 700] {
        let seed = step(post(Seed::new(), 0, 5), 0, 7).u8(0).u16(at).u8(4);
        seeds.push(carry(post(carry(seed), 1, 4)).done());
    }
    // A third host sends RST, SYN, FIN, an ACK of bytes that were not sent yet, a closed window,
    // bytes and options.
    let flags = |flags: u8| Seed::new().u8(4).u8(flags).done();
    let strange = [
        flags(0x04),
        flags(0x14),
        flags(0x02),
        flags(0x11),
        Seed::new().u8(2).u16(500).done(),
        Seed::new().u8(8).u16(0).done(),
        Seed::new().u8(0x40).slice(&[0; 100]).done(),
        Seed::new().u8(0x41).u16(10).slice(&[1; 30]).done(),
        Seed::new().u8(0x14).u8(2).u8(9).done(),
        Seed::new()
            .u8(0x20)
            .slice(&[5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 3, 3, 14])
            .done(),
        Seed::new().u8(0x80).u8(9).u8(0xFF).done(),
    ];
    for what in strange {
        for from in [0, 1] {
            let seed = carry(post(Seed::new(), 0, 4));
            let seed = step(seed, from, 9).rest(&what);
            seeds.push(carry(post(carry(seed), from, 5)).done());
        }
    }
    // Packets that belong to no connection.
    let seed = step(carry(Seed::new()), 0, 8).slice(&[0x45; 60]);
    seeds.push(step(seed, 1, 8).slice(&[0x60; 50]).done());
    // Every third of these seeds again, over Ethernet.
    let framed = |mut seed: Vec<u8>| {
        seed[0] |= 0x80;
        seed
    };
    seeds.extend(seeds.clone().into_iter().step_by(3).map(framed));
    seeds.extend(frames().into_iter().map(framed));
    seeds
}

/// Creates seeds with address and echo requests from an honest host, then with false claims and
/// reports.
fn frames() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for from in [0, 1] {
        for kind in 0..8 {
            let seed = step(post(carry(Seed::new()), from, 5), from, 8);
            let seed = seed.u8(kind);
            let seed = if kind & 2 == 0 {
                seed
            } else {
                seed.slice(b"echo")
            };
            seeds.push(carry(post(carry(seed), from ^ 1, 6)).done());
        }
        let seed = |what: u8| step(post(carry(Seed::new()), from, 5), from, 10).u8(what);
        // ARP claims: the other host is at the third host's MAC address, or at the broadcast
        // address; or the receiving host itself is at the third host's MAC address.
        for claim in [
            [0, 2, 1, 1, 2],
            [0, 2, 1, 1, 1],
            [3, 2, 1, 1, 2],
            [0, 1, 1, 1, 2],
        ] {
            let said = claim.into_iter().fold(seed(4), Seed::u8);
            seeds.push(carry(post(carry(said), from, 4)).done());
        }
        // ICMP: unreachable network, unreachable port, packet too long.
        for code in [0, 3, 4] {
            let said = seed(1).u16(600).u8(0).u8(code).u8(0);
            seeds.push(carry(post(carry(said), from, 4)).done());
        }
        // NDP: solicitation, advertisement.
        for kind in [2, 3] {
            let option = [2, 1, 2, 0, 0, 0, 0, 77];
            let said = seed(2).u8(1).slice(&option).u8(kind).u8(0).u8(0x60).u8(1);
            seeds.push(carry(post(carry(said), from, 4)).done());
        }
        seeds.push(carry(seed(7).u8(0).slice(&[0x45; 60])).done());
    }
    seeds
}

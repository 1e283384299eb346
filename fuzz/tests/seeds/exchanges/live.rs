//! Seeds for live devices: messages of a hostile peer, and steps of two ends that obey the
//! protocol.

use uwarp_fuzz::input::Seed;

/// Appends a valid message: its opcode, its place, and the bytes that `craft` reads for its
/// payload.
fn message(
    seed: Seed,
    opcode: u8,
    region: u8,
    place: u16,
    payload: impl FnOnce(Seed) -> Seed,
) -> Seed {
    // The last number is a cut at 0: the message arrives in one piece.
    payload(seed.u8(8).u8(opcode).u8(0).u8(region).u16(place)).u16(0)
}

/// Creates the seeds of `hostile_peer`: a conversation in every MPA mode, then conversations that
/// end with various errors.
pub(crate) fn hostile() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let ascending: Vec<u8> = (1..=90).collect();
    for flags in 0..8 {
        let mut seed = Seed::new()
            .u8(flags)
            .u8(0)
            .u16(300)
            .u8(0)
            .u16(64)
            .u8(0)
            .u16(0);
        // The device's Read of 200 bytes with its response, and its FetchAdd with its response.
        seed = seed.u8(3).u16(200).u8(0).u8(3).u16(9).u8(1);
        seed = message(seed, 2, 0, 0, |seed| seed.slice(&[1; 60]));
        seed = message(seed, 11, 0, 0, |seed| seed.u64(0x0102_0304_0506_0708));
        seed = message(seed, 0, 0, 0x0010, |seed| seed.slice(&ascending));
        seed = message(seed, 3, 0, 0, |seed| seed.slice(&[8; 250]));
        seed = message(seed, 10, 0, 0x8010, |seed| {
            [1, 2, 3, 4]
                .iter()
                .fold(seed.u8(0).u32(77), |seed, word| seed.u64(*word))
        });
        seed = message(seed, 1, 0, 0x0008, |seed| seed.u32(9).u16(100));
        seed = message(seed, 8, 0, 0, |seed| seed.u64(5));
        seed = message(seed, 4, 0, 0, |seed| seed.slice(&[]));
        // The region was invalidated, so this Write is an error.
        seed = message(seed, 0, 0, 0, |seed| seed.slice(&[7; 9]));
        seeds.push(seed.done());
    }
    for region in 0..7 {
        for (opcode, place) in [
            (0, 0),
            (0, 0x4004),
            (0, 0x4008),
            (0, 0xC001),
            (1, 0x0003),
            (10, 0x8001),
            (10, 0x0003),
            (4, 0),
        ] {
            let mut seed = Seed::new().u8(1).u8(0).u16(300);
            seed = message(seed, opcode, region, place, |seed| match opcode {
                1 => seed.u32(9).u16(0x8001),
                10 => [1, 2, 3, 4]
                    .iter()
                    .fold(seed.u8(2).u32(77), |seed, word| seed.u64(*word)),
                _ => seed.slice(&[7; 9]),
            });
            seeds.push(seed.done());
        }
    }
    seeds.extend(ended());
    seeds
}

/// Creates seeds with further ways in which a conversation ends.
fn ended() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    // The peer closes at once, or while a receive is posted.
    seeds.push(Seed::new().u8(1).done());
    seeds.push(Seed::new().u8(3).u8(0).u16(64).done());
    // A Write whose STag has a wrong key.
    let key = Seed::new().u8(1).u8(8).u8(0).u8(2).u8(0).u16(0);
    seeds.push(key.slice(&[7; 9]).u16(0).done());
    // A damaged byte, then a Terminate Message.
    let damaged = Seed::new()
        .u8(1)
        .u8(6)
        .u8(0)
        .u8(0)
        .u8(0)
        .u16(0)
        .slice(&[1; 40])
        .u16(9)
        .u8(1)
        .u16(0);
    seeds.push(damaged.done());
    let terminated = Seed::new().u8(1).u8(0).u16(9);
    seeds.push(message(terminated, 7, 0, 0, |seed| seed.slice(&[0x12, 2, 0, 0])).done());
    seeds
}

/// Creates the seeds of `connection_pair`: every operation of both sides, delivered at once or
/// late, and with damage.
pub(crate) fn pair() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for flags in 0..8 {
        for late in [false, true] {
            let mut seed = Seed::new().u8(flags);
            // A message of the first side permits the second side to send.
            seed = seed.u8(7).u8(6).u8(8).u16(100).u16(0).u8(0).u16(500);
            for kind in [8, 10, 12, 14, 9, 11, 13, 15] {
                // The other side posts a receive for the Sends.
                seed = seed.u8(6 | (kind & 1 ^ 1));
                seed = seed.u8(kind).u16(1700).u16(u16::from(kind) * 100);
                if !late {
                    seed = seed.u8(kind & 1).u16(700).u8(kind & 1).u16(4000);
                    seed = seed.u8(kind & 1 ^ 1).u16(4000);
                }
            }
            seeds.push(seed.done());
        }
    }
    for side in [0, 1] {
        let seed = Seed::new()
            .u8(1)
            .u8(7)
            .u8(6)
            .u8(8)
            .u16(100)
            .u16(0)
            .u8(0)
            .u16(500);
        let seed = seed
            .u8(10 | side)
            .u16(1000)
            .u16(0)
            .u8(4 | side)
            .u16(600)
            .u8(1);
        seeds.push(seed.u8(side).u16(9000).u8(6).u8(7).done());
    }
    seeds.extend(broken());
    seeds
}

/// Creates seeds in which a fault follows while a Read and a Write of both sides are in flight. The
/// fault is a cut or closed direction, a reset, a disconnect, an abort, a Terminate, a held
/// direction or a later clock.
fn broken() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for fault in 0..8 {
        for side in [0, 1] {
            let mut seed = Seed::new().u8(1);
            seed = seed.u8(0).u16(4000);
            for kind in [12, 10, 13, 11] {
                seed = seed.u8(kind).u16(900).u16(300);
            }
            seed = seed.u8(side).u16(500).u8(0xF0 | fault << 1 | side);
            seed = match fault {
                0 => seed.u16(700),
                6 => seed.u8(1),
                7 => seed.u8(200),
                _ => seed,
            };
            seeds.push(seed.u8(side ^ 1).u16(300).u8(10).u16(9).u16(8).done());
        }
    }
    seeds
}

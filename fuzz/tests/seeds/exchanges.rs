//! Seeds of each target, made from exchanges of the stack.

mod captures;
mod datagrams;
mod link;
mod live;
mod messages;
mod startup;
mod verbs;

use uwarp_fuzz::input::Seed;
use uwarp_mpa::Framer;

use messages::conversation;

/// Returns the seeds of a target.
pub(crate) fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "mpa_startup" => startup::seeds(),
        "mpa_deframe" => framed(),
        "mpa_sealed" => sealed(),
        "ddp_segment" => conversation(200)
            .into_iter()
            .map(|ulpdu| head(&ulpdu))
            .collect(),
        "rdmap_message" => messages::received(),
        "rdmap_terminate" => messages::terminates(),
        "ddp_placement" => messages::placed(),
        "capture_file" => captures::seeds(),
        "connection_pair" => live::pair(),
        "hostile_peer" => live::hostile(),
        "verbs_ops" => verbs::seeds(),
        "smoltcp_link" => link::seeds(),
        "ud_datagram" => datagrams::seeds(),
        other => panic!("no exchange for {other}"),
    }
}

/// Returns the first 90 bytes of a ULPDU: its headers, and bytes from which the target derives its
/// other choices.
fn head(ulpdu: &[u8]) -> Vec<u8> {
    ulpdu[..ulpdu.len().min(90)].to_vec()
}

/// Creates streams of the conversation in FPDUs. Each stream gives two seeds: one unchanged, and
/// one with a damaged and incomplete end.
fn framed() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (flags, mulpdu) in [(0, 128), (1, 300), (2, 500), (3, 128), (3, 1500)] {
        let mut framer = Framer::new(flags & 1 != 0, flags & 2 != 0);
        let mut stream = Vec::new();
        for ulpdu in conversation(mulpdu) {
            framer.frame(&ulpdu, &[0_u8; 0], 0, 0, &mut stream).unwrap();
        }
        seeds.push(
            Seed::new()
                .u8(flags)
                .slice(&[1, 7, 130])
                .rest(&stream)
                .done(),
        );
        stream.truncate(stream.len() - 3);
        *stream.last_mut().unwrap() ^= 1;
        seeds.push(Seed::new().u8(flags).slice(&[]).rest(&stream).done());
    }
    seeds
}

/// Creates seeds with the ULPDUs of the conversation. Bit 2 of the flags, set in the last three,
/// damages a byte.
fn sealed() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (flags, mulpdu) in [
        (0_u8, 128),
        (1, 300),
        (2, 500),
        (3, 128),
        (5, 700),
        (6, 700),
        (7, 700),
    ] {
        let mut seed = Seed::new().u8(flags).slice(&[3, 100]).u32(700).u8(0x20);
        for ulpdu in conversation(mulpdu) {
            seed = seed.slice(&ulpdu);
        }
        seeds.push(seed.done());
    }
    // A ULPDU padded to the maximum length, and one that is one byte longer.
    let longest = Seed::new().u8(8 | 3).slice(&[]).u32(0).u8(0);
    seeds.push(
        longest
            .u16(64_768)
            .slice(&[1])
            .u16(64_769)
            .slice(&[2])
            .done(),
    );
    seeds
}

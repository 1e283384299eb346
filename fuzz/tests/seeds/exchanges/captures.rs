//! Seeds from captures of the stack, without timestamps, and from choices for captures of the
//! model.

use uwarp_capture::{Capture, Direction, Flow, LinkType};
use uwarp_fuzz::input::Seed;
use uwarp_testkit::MemoryFile;

/// Sets the timestamps of Enhanced Packet Blocks to zero, so that a seed is the same in every run.
fn timeless(mut file: Vec<u8>) -> Vec<u8> {
    let mut at = 0;
    while at + 20 <= file.len() {
        let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        let (kind, len) = (number(at), number(at + 4) as usize);
        if kind == 6 {
            file[at + 12..at + 20].fill(0);
        }
        at += len;
    }
    file
}

/// Records a connection with a few messages.
fn flow(link: LinkType, v6: bool) -> Vec<u8> {
    let file = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
    let interface = capture.interface("tcp", link);
    let (local, peer) = if v6 {
        ("[2001:db8::1]:40000", "[2001:db8::2]:7174")
    } else {
        ("192.0.2.1:40000", "192.0.2.2:7174")
    };
    let mut flow = Flow::new(
        interface.clone(),
        local.parse().unwrap(),
        peer.parse().unwrap(),
        1460,
    );
    flow.opened(true);
    flow.sent(b"MPA ID Req Frame\x40\x01\x00\x00");
    flow.received(b"MPA ID Rep Frame\x40\x01\x00\x00");
    flow.sent(&[0, 2, 7, 7, 1, 2, 3, 4]);
    flow.local_fin();
    flow.peer_fin();
    drop(flow);
    interface.packet_with_comment(
        Direction::Inbound,
        "not TCP",
        &[&[0x45, 0, 0, 20], &[0; 16]],
    );
    let bytes = file.bytes();
    timeless(bytes)
}

/// Creates the seeds of `capture_file`.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![
        flow(LinkType::RawIp, false),
        flow(LinkType::Ethernet, false),
        flow(LinkType::Ethernet, true),
    ];
    seeds.push(seeds[0][..seeds[0].len() - 7].to_vec());
    let mut damaged = seeds[0].clone();
    let at = damaged.len() - 4;
    damaged[at] ^= 1;
    seeds.push(damaged);
    // A file in the older pcap format: two raw IP packets.
    let mut old = vec![
        0xD4, 0xC3, 0xB2, 0xA1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 101, 0, 0, 0,
    ];
    for byte in [1, 2] {
        old.extend_from_slice(&[
            byte, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0, 0x45, byte, 0, 0,
        ]);
    }
    seeds.push(old);
    // Choices for files of the model: both byte orders, all kinds of blocks.
    for big in [0, 1] {
        let mut seed = Seed::new().u8(big).u8(1).u8(1).u8(0).u8(2).u8(0).u8(1);
        for kind in [4, 5, 3, 6] {
            seed = seed.u8(kind);
            seed = match kind {
                3 => seed,
                4 => seed.slice(&[0x45; 33]),
                _ => seed.u8(1).u32(1_700_000_000).u8(0b1111).slice(&[0x60; 61]),
            };
        }
        seeds.push(seed.done());
    }
    seeds
}

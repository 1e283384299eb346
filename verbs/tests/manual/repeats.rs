//! Two runs with the same seed are identical, byte by byte.

use std::io;

use uwarp_testkit::MemoryFile;
use uwarp_verbs::capture::{Capture, Reader};
use uwarp_verbs::llp::smol::{FaultSettings, MemorySettings};
use uwarp_verbs::{RecvWr, RemoteBuffer, SendWr, Settings};

use crate::common::pattern;
use crate::{World, region};

/// Returns all packets of a connection with some traffic, over a link with faults.
fn packets(seed: u64) -> Vec<Vec<u8>> {
    let file = MemoryFile::default();
    let link = MemorySettings::default()
        .capture(Some(Capture::to_writer(Box::new(file.clone())).unwrap()))
        .faults(Some(
            FaultSettings::default()
                .seed(seed)
                .loss(0.05)
                .duplicate(0.05)
                .reorder(0.05),
        ));
    let world = World::with(seed, &Settings::default(), link);
    let ids = world.connect();
    let [a, b] = &world.sides;
    let (source, target) = (region(a, pattern(1, 100_000)), region(b, vec![0; 100_000]));
    let to = target.remote();
    for round in 0..8 {
        b.qp.post_recv(&RecvWr::new(round, &[])).unwrap();
        let sges = [source.sge(0, 100_000)];
        (a.qp.post_send(&SendWr::write(
            round,
            &sges,
            RemoteBuffer::at(to.addr, to.rkey),
        )))
        .unwrap();
        let sges = [source.sge(0, 0)];
        a.qp.post_send(&SendWr::send(round, &sges)).unwrap();
        world.run_until(|| b.recv_cq.0.poll_one().is_some());
    }
    ids[0].disconnect().unwrap();
    drop((world.next(), world.next()));
    let bytes = file.bytes();
    let mut reader = Reader::new(io::Cursor::new(bytes)).unwrap();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet().unwrap() {
        packets.push(packet.data);
    }
    packets
}

#[test]
fn two_runs_with_one_seed_have_the_same_packets_on_the_link_and_another_seed_has_others() {
    let (one, two, other) = (packets(7), packets(7), packets(8));
    assert!(one.len() > 500, "{} packets", one.len());
    assert_eq!(one.len(), two.len());
    for (number, (one, two)) in one.iter().zip(&two).enumerate() {
        assert_eq!(one, two, "packet {number}");
    }
    assert_ne!(one, other);
}

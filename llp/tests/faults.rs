//! Transfers over a link that loses, duplicates, reorders and damages packets.

mod common;

use std::net::SocketAddr;

use common::skipping::Link;
use common::*;
use uwarp_llp::smol::{Congestion, FaultCounts, FaultSettings, MemoryNetwork, MemorySettings};
use uwarp_llp::{LlpError, Network};

/// Transfers bytes and a FIN in both directions, and checks the bytes.
fn transfer(link: &Link, at: SocketAddr, bytes: usize, fpdus: bool, seed: u64) {
    let (client, server) = link.connected(at);
    let mut random = Random(seed | 1);
    let (from_a, from_b) = (random.bytes(bytes), random.bytes(bytes / 3));
    let mut a = End::new(client, from_a, seed);
    let mut b = End::new(server, from_b, seed + 1);
    if fpdus {
        (a, b) = (a.with_fpdus(1460), b.with_fpdus(200));
    }
    link.transfer(&mut a, &mut b);
}

fn second(v6: bool) -> SocketAddr {
    if v6 {
        "[2001:db8::2]:7174".parse().unwrap()
    } else {
        "192.0.2.2:7174".parse().unwrap()
    }
}

/// Runs transfers over a link with these faults, with several seeds. Returns the sums of the fault
/// counts. A failure prints its seed.
fn play(faults: FaultSettings, congestion: Congestion, bytes: usize) -> [FaultCounts; 2] {
    let mut sums = [FaultCounts::default(); 2];
    for seed in 0..6 {
        for (v6, fpdus) in [(false, false), (false, true), (true, true)] {
            let settings = MemorySettings::default()
                .faults(Some(faults.seed(seed)))
                .congestion(congestion);
            let what = format!("seed {seed}, IPv6 {v6}, FPDUs {fpdus}, {faults:?}, {congestion:?}");
            let link = Link::new(&settings);
            let run = std::panic::AssertUnwindSafe(|| {
                transfer(&link, second(v6), bytes, fpdus, seed);
            });
            if let Err(panic) = std::panic::catch_unwind(run) {
                eprintln!("{what}");
                std::panic::resume_unwind(panic);
            }
            for (sum, host) in sums.iter_mut().zip([&link.a, &link.b]) {
                let counts = host.fault_counts().unwrap();
                sum.packets += counts.packets;
                sum.lost += counts.lost;
                sum.duplicated += counts.duplicated;
                sum.reordered += counts.reordered;
                sum.corrupted += counts.corrupted;
            }
        }
    }
    sums
}

#[test]
fn transfers_survive_loss() {
    let loss = FaultSettings::default().loss(0.02);
    for congestion in [Congestion::None, Congestion::Reno, Congestion::Cubic] {
        let sums = play(loss, congestion, 300_000);
        assert!(sums.iter().all(|sum| sum.lost > 20), "{sums:?}");
    }
}

#[test]
fn transfers_survive_heavy_loss() {
    let loss = FaultSettings::default().loss(0.2);
    let sums = play(loss, Congestion::None, 60_000);
    assert!(sums.iter().all(|sum| sum.lost > 20), "{sums:?}");
}

#[test]
fn transfers_survive_doubles() {
    let duplicate = FaultSettings::default().duplicate(0.2);
    let sums = play(duplicate, Congestion::None, 300_000);
    assert!(sums.iter().all(|sum| sum.duplicated > 100), "{sums:?}");
}

#[test]
fn transfers_survive_reordering() {
    let reorder = FaultSettings::default().reorder(0.1);
    for congestion in [Congestion::None, Congestion::Reno] {
        let sums = play(reorder, congestion, 300_000);
        assert!(sums.iter().all(|sum| sum.reordered > 100), "{sums:?}");
    }
}

#[test]
fn transfers_survive_corruption_by_the_checksums_of_tcp() {
    let corrupt = FaultSettings::default().corrupt(0.02);
    let sums = play(corrupt, Congestion::None, 300_000);
    assert!(sums.iter().all(|sum| sum.corrupted > 20), "{sums:?}");
}

#[test]
fn transfers_survive_all_faults_at_once() {
    let all = FaultSettings::default()
        .seed(0)
        .loss(0.02)
        .duplicate(0.02)
        .reorder(0.02)
        .corrupt(0.02);
    for congestion in [Congestion::None, Congestion::Reno] {
        play(all, congestion, 200_000);
    }
}

#[test]
fn a_link_that_loses_everything_times_out() {
    let link =
        Link::new(&MemorySettings::default().faults(Some(FaultSettings::default().loss(1.0))));
    let mut client = link.a.connect(None, second(false)).unwrap();
    let error = loop {
        client.clear_readiness();
        client.drive();
        match client.connect_progress() {
            Ok(stands) => assert!(!stands),
            Err(error) => break error,
        }
        link.wait(&[client.fd()], [client.deadline(), None]);
    };
    assert_eq!(
        error,
        LlpError::TimedOut {
            addr: second(false)
        }
    );
    let counts = link.a.fault_counts().unwrap();
    assert!(counts.packets > 3 && counts.lost == counts.packets);
    assert_eq!(link.b.fault_counts().unwrap(), FaultCounts::default());
}

#[test]
fn what_is_no_probability_is_refused_in_words() {
    let settings = MemorySettings::default().faults(Some(FaultSettings::default().loss(1.5)));
    let error = MemoryNetwork::pair(&settings).err().unwrap().to_string();
    assert!(error.contains("probability of a fault"), "{error}");
}

#[test]
fn a_link_with_faults_says_so_and_one_without_counts_nothing() {
    let plain = MemoryNetwork::pair(&MemorySettings::default()).unwrap().0;
    assert_eq!(plain.fault_counts(), None);
    let faults = Some(FaultSettings::default());
    let settings = MemorySettings::default().faults(faults);
    let faulty = MemoryNetwork::pair(&settings).unwrap().0;
    assert_eq!(
        faulty.describe(),
        "smoltcp over memory with faults, MTU 1500"
    );
}

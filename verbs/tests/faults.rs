//! All operations over a link that loses, duplicates, reorders and damages packets: TCP and MPA
//! deliver every byte to its place.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod common;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::{Setup, Side, Wire, content, pattern, same};
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::smol::{Clock, FaultSettings, MemoryNetwork, MemorySettings};
use uwarp_verbs::{RecvWr, RemoteBuffer, SendWr, Status};

/// Clock of TCP. After `connected` has set it, it runs a hundred times as fast as the machine's
/// clock. A lost segment, which costs a second, then takes 10 ms. From then on the tests poll,
/// because a thread that sleeps until a deadline of this clock would oversleep.
#[derive(Default)]
struct Fast(OnceLock<Instant>);

impl Clock for Fast {
    fn now(&self) -> Instant {
        match self.0.get() {
            Some(since) => *since + since.elapsed() * 100,
            None => Instant::now(),
        }
    }
}

/// Time without a completion after which a test counts as hung. Normal runs stay far below it.
const HANGS: Duration = Duration::from_secs(120);

fn connected(faults: FaultSettings) -> (Side, Side, [MemoryNetwork; 2]) {
    let clock = Arc::new(Fast::default());
    let settings = MemorySettings::default()
        .faults(Some(faults))
        .clock(Arc::<Fast>::clone(&clock));
    let (first, second) = MemoryNetwork::pair(&settings).unwrap();
    let networks: [Arc<dyn Network>; 2] = [Arc::new(first.clone()), Arc::new(second.clone())];
    let at: SocketAddr = "192.0.2.2:7174".parse().unwrap();
    let setup = Setup::new(Wire::MEMORY).peer_to_peer();
    let ends = setup.unconnected_over(networks, at);
    ends.join();
    clock.0.get_or_init(Instant::now);
    (ends.a, ends.b, [first, second])
}

/// Polls all CQs until `sends` requests of A and `receives` receives of B have completed, each in
/// posting order.
fn complete(a: &Side, b: &Side, sends: u64, receives: u64) {
    let started = Instant::now();
    let mut counts = [0; 2];
    while counts != [sends, receives] {
        for (cq, count) in [&a.send_cq, &b.recv_cq].into_iter().zip(&mut counts) {
            if let Some(completion) = cq.poll_one() {
                assert_eq!(
                    (completion.wr_id, completion.status),
                    (*count, Status::Success),
                    "{completion:?}"
                );
                *count += 1;
            }
        }
        assert!(started.elapsed() < HANGS, "{counts:?} completions");
    }
}

/// Sends messages of many sizes, and a Write and a Read of 1 MiB.
fn traffic(a: &Side, b: &Side, seed: u64) {
    const LEN: usize = 1 << 20;
    const SENDS: usize = 40;
    let size = |number: usize| number * number * 31 % 20_000;
    let (source, target, sink) = (a.filled(seed, LEN), b.blank(LEN), a.blank(LEN));
    let sinks: Vec<_> = (0..SENDS).map(|number| b.blank(size(number))).collect();
    for (number, sink) in sinks.iter().enumerate() {
        let sges = [sink.sge(0, size(number) as u32)];
        b.qp.post_recv(&RecvWr::new(number as u64, &sges)).unwrap();
    }
    for number in 0..SENDS {
        let sges = [source.sge(number as u64, size(number) as u32)];
        a.qp.post_send(&SendWr::send(number as u64, &sges)).unwrap();
    }
    complete(a, b, SENDS as u64, SENDS as u64);
    let data = pattern(seed, LEN);
    for (number, sink) in sinks.iter().enumerate() {
        let len = size(number);
        same(&content(sink)[..len], &data[number..][..len], "a Send");
    }
    let remote = target.remote();
    let (from, to) = ([source.sge(0, LEN as u32)], [sink.sge(0, LEN as u32)]);
    a.qp.post_send(&SendWr::write(
        0,
        &from,
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.qp.post_send(&SendWr::read(
        1,
        &to,
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    complete(a, b, 2, 0);
    same(&content(&target), &data, "written");
    same(&content(&sink), &data, "read");
}

#[test]
fn every_byte_arrives_whatever_befalls_the_packets() {
    let none = FaultSettings::default();
    let kinds = [
        none.loss(0.01),
        none.duplicate(0.1),
        none.reorder(0.05),
        none.corrupt(0.01),
        FaultSettings::default()
            .seed(0)
            .loss(0.01)
            .duplicate(0.01)
            .reorder(0.01)
            .corrupt(0.01),
    ];
    for kind in kinds {
        for seed in 1..4 {
            let faults = kind.seed(seed);
            // Cargo shows this line if the test fails.
            eprintln!("{faults:?}");
            let (a, b, hosts) = connected(faults);
            traffic(&a, &b, seed);
            traffic(&b, &a, seed + 10);
            for host in hosts {
                let counts = host.fault_counts().unwrap();
                let injected =
                    counts.lost + counts.duplicated + counts.reordered + counts.corrupted;
                assert!(injected > 0, "{counts:?}");
            }
        }
    }
}

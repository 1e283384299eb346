//! QPs with two CQs, only one of which has many connections, and connections over several networks.

use super::*;

use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::llp::{Llp, Network};
use uwarp_verbs::{AcceptOptions, ConnectOptions, RemoteBuffer};

/// Creates connections whose accepting QPs all share one CQ. The other CQ of each QP belongs to
/// that QP alone. `shared_receives`: true if the CQ for receives is the shared one.
fn one_shared(wire: Wire, shared_receives: bool) -> (World, Vec<CqHandle>) {
    let mut world = World::new(wire, 0, HOUR);
    let mut own = Vec::new();
    for _ in 0..8 {
        let b = &world.ends.b;
        let cq = b.device.create_cq(64).unwrap();
        let cqs = match shared_receives {
            true => [&cq, &b.recv_cq.0],
            false => [&b.send_cq.0, &cq],
        };
        let theirs = b.pd.create_qp(cqs[0], cqs[1], QpCaps::default()).unwrap();
        let mine = world.ends.a.another_qp();
        world.join(&mine, &theirs);
        world.pairs.push((mine, theirs));
        own.push(CqHandle(cq));
    }
    (world, own)
}

/// Only the CQ to which a message completes is polled or waited on.
#[test]
fn a_qp_may_complete_to_a_cq_with_many_and_to_one_of_its_own() {
    for (wire, shared_receives) in [
        (Wire::Kernel, true),
        (Wire::Kernel, false),
        (Wire::MEMORY, true),
        (Wire::MEMORY, false),
    ] {
        let (world, own) = one_shared(wire, shared_receives);
        let (a, b) = (&world.ends.a, &world.ends.b);
        for round in 0..60 {
            let number = round * 3 % 8;
            let (mine, theirs) = &world.pairs[number];
            let (sends, receives) = match shared_receives {
                true => (&own[number], &b.recv_cq),
                false => (&b.send_cq, &own[number]),
            };
            let next = |cq: &CqHandle| match round % 2 {
                0 => {
                    cq.next();
                }
                _ => until("a completion", || taken(cq) == 1),
            };
            theirs.post_recv(&RecvWr::new(1, &[])).unwrap();
            mine.post_send(&SendWr::send(1, &[])).unwrap();
            next(&a.send_cq);
            next(receives);
            // A Read completes when its response arrives.
            theirs
                .post_send(&SendWr::read(1, &[], RemoteBuffer::at(0, 0)))
                .unwrap();
            until("the Read at its target", || {
                assert_eq!(taken(&a.recv_cq), 0);
                sends_are_there(sends, round)
            });
        }
    }
}

/// Waits for a short time, or polls. Returns true if there was a completion.
fn sends_are_there(cq: &CqHandle, round: usize) -> bool {
    match round % 2 {
        0 => cq.wait(Some(Duration::from_millis(1))).is_some(),
        _ => taken(cq) == 1,
    }
}

/// Connects two streams of an in-memory link, for devices over another network.
fn stream(number: u16) -> [Box<dyn Llp>; 2] {
    let (one, other) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let addr = ([192, 0, 2, 2], 1000 + number).into();
    let mut listener = other.listen(addr, 1).unwrap();
    let mut ours = one.connect(None, addr).unwrap();
    let mut theirs = None;
    until("the stream", || {
        ours.drive();
        theirs = theirs.take().or_else(|| listener.try_accept().unwrap());
        ours.connect_progress().unwrap() && theirs.is_some()
    });
    [ours, theirs.unwrap()]
}

#[test]
fn sockets_and_streams_in_memory_may_share_a_cq() {
    let mut world = World::new(Wire::Kernel, 3, HOUR);
    for number in 0..4 {
        let [ours, theirs] = stream(number);
        let Ends { a, b, .. } = &world.ends;
        let (mine, other) = (a.another_qp(), b.another_qp());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connect = ConnectOptions::default().peer_to_peer(true);
                mine.connect_over(ours, &connect).unwrap();
            });
            let request = b.device.request_over(theirs, &[]).unwrap();
            request.accept(&other, &AcceptOptions::default()).unwrap();
        });
        world.pairs.push((mine, other));
    }
    for _ in 0..5 {
        world.exchange();
    }
    let (a, b) = (&world.ends.a, &world.ends.b);
    for (mine, theirs) in &world.pairs {
        theirs.post_recv(&RecvWr::new(1, &[])).unwrap();
        mine.post_send(&SendWr::send(1, &[])).unwrap();
        a.send_cq.success(1);
        b.recv_cq.success(1);
    }
}

//! Many connections of one CQ, in a process without a free descriptor for their epoll set. The
//! limit applies to the whole process, so this is a separate test binary.

mod common;

use std::fs::File;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use uwarp_verbs::{Qp, RecvWr, SendWr};

#[test]
fn without_a_descriptor_for_a_set_each_poll_asks_all_connections() {
    let current = Some(128);
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let ends = Setup::new(Wire::Kernel).peer_to_peer().unconnected();
    let (a, b) = (&ends.a, &ends.b);
    let mut hoard = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        hoard.push(file);
    }
    let mut pairs: Vec<(Qp, Qp)> = Vec::new();
    let add = |pairs: &mut Vec<(Qp, Qp)>| pairs.push((a.another_qp(), b.another_qp()));
    (0..6).for_each(|_| add(&mut pairs));
    drop(hoard);
    let serve = |pairs: &[(Qp, Qp)]| {
        for (mine, theirs) in pairs {
            theirs.post_recv(&RecvWr::new(1, &[])).unwrap();
            mine.post_send(&SendWr::send(1, &[])).unwrap();
            a.send_cq.success(1);
            until("the message", || b.recv_cq.poll_one().is_some());
        }
    };
    for (mine, theirs) in &pairs {
        join(
            &ends.listener,
            mine,
            theirs,
            &ends.setup.connect,
            &ends.setup.accept,
        );
    }
    serve(&pairs);
    // A descriptor is free now. The next connection makes the library move all connections into an
    // epoll set.
    add(&mut pairs);
    let (mine, theirs) = &pairs[6];
    join(
        &ends.listener,
        mine,
        theirs,
        &ends.setup.connect,
        &ends.setup.accept,
    );
    serve(&pairs);
    serve(&pairs);
}

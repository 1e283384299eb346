//! Many connections of one CQ, which are polled as a group. The group must not miss an event that a
//! single connection would detect.
//!
//! With a `takeover` of an hour, only polls and sleeping threads drive a group that was polled. If
//! they miss an event, the background does not detect it either, and the test hangs.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

#[path = "../common/mod.rs"]
mod common;
mod endings;
mod mixed;
mod polls;
mod waits;

use std::time::Duration;

use common::*;
use uwarp_verbs::{Completion, Cq, OnNoReceive, Qp, QpCaps, RecvWr, SendWr, Settings, Status};

const HOUR: Duration = Duration::from_secs(3600);

/// Two devices with many connections between them. On each side all connections complete to the
/// same CQs.
struct World {
    ends: Ends,
    pairs: Vec<(Qp, Qp)>,
}

impl World {
    fn new(wire: Wire, count: usize, takeover: Duration) -> World {
        let mut setup = Setup::new(wire);
        for settings in &mut setup.settings {
            settings.takeover = takeover;
        }
        World::of(setup, count)
    }

    fn of(mut setup: Setup, count: usize) -> World {
        setup.cq_depth = 4096;
        let setup = setup.peer_to_peer();
        let ends = setup.unconnected();
        let mut world = World {
            ends,
            pairs: Vec::new(),
        };
        for _ in 0..count {
            world.add();
        }
        world
    }

    /// Creates connections whose last messages were received by polls.
    fn polled(wire: Wire, count: usize) -> World {
        World::new(wire, count, HOUR).warmed_up()
    }

    /// Does the same as [`World::polled`], with QPs that hold a message until a receive is posted.
    fn holding(wire: Wire, count: usize) -> World {
        let mut setup = Setup::new(wire);
        for settings in &mut setup.settings {
            settings.takeover = HOUR;
            settings.on_no_receive = OnNoReceive::Hold(HOUR);
        }
        World::of(setup, count).warmed_up()
    }

    fn warmed_up(self) -> World {
        for _ in 0..3 {
            self.exchange();
        }
        self
    }

    fn add(&mut self) {
        let (a, b) = (self.ends.a.another_qp(), self.ends.b.another_qp());
        self.join(&a, &b);
        self.pairs.push((a, b));
    }

    fn join(&self, a: &Qp, b: &Qp) {
        let Ends {
            listener, setup, ..
        } = &self.ends;
        join(listener, a, b, &setup.connect, &setup.accept);
    }

    fn cqs(&self) -> [&Cq; 4] {
        let Ends { a, b, .. } = &self.ends;
        [&a.send_cq, &a.recv_cq, &b.send_cq, &b.recv_cq]
    }

    /// Exchanges a Send each way on each connection. Uses only polls.
    fn exchange(&self) {
        let count = self.pairs.len();
        for (number, (a, b)) in (0..).zip(&self.pairs) {
            for (from, to) in [(a, b), (b, a)] {
                to.post_recv(&RecvWr::new(number, &[])).unwrap();
                from.post_send(&SendWr::send(number, &[])).unwrap();
            }
        }
        let mut left = [count; 4];
        until("all of them", || {
            for (cq, left) in self.cqs().into_iter().zip(&mut left) {
                *left -= taken(cq);
            }
            left == [0; 4]
        });
    }
}

/// Polls once, and checks that all completions are successful. Returns their number.
fn taken(cq: &Cq) -> usize {
    let mut some = [Completion::default(); 7];
    let count = cq.poll(&mut some);
    for completion in &some[..count] {
        assert_eq!(completion.status, Status::Success, "{completion:?}");
    }
    count
}

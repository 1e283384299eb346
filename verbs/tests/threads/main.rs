//! All activities at the same time. Threads connect, post to the same QP, poll and wait on shared
//! CQs and a channel, register and deregister memory, bind windows, resize a CQ, disconnect and
//! abort. One SRQ serves all connections of the server. Nothing may be lost, duplicated or torn,
//! and nothing may be left over at the end.
//!
//! This is an ordinary test, written for ThreadSanitizer:
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu \
//!     -p uwarp-verbs --test threads
//! ```
//!
//! Build and run take three minutes and ten seconds on two cores. The sanitizer checks everything
//! but registered memory: queues, tables, state words and locks, including those of `parking_lot`
//! and of `std` (`-Zbuild-std` builds `std` with the sanitizer).
//!
//! The sanitizer does not check registered memory, because it cannot see the copies, which are
//! inline assembly. By design peers race with the program there, so the test checks by content that
//! nothing is torn. The sanitizer also cannot see an order that only the kernel guarantees (a
//! socket, an eventfd), because system calls are inline assembly as well. Threads hand over data
//! under locks, so nothing depends on that order.

mod churn;
mod client;
#[path = "../common/mod.rs"]
mod common;
mod ledger;
mod server;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{Setup, Wire};
use ledger::{Ledger, Life};
use server::Server;

/// Number of threads that have connections.
const CLIENTS: u32 = 4;
/// Number of consecutive connections of each of these threads.
const LIVES: u32 = 6;
/// Number of rounds of each of the two threads that post to a connection.
const ROUNDS: u32 = 32;

/// Returns all connections of all clients.
fn lives() -> impl Iterator<Item = Life> {
    (0..CLIENTS).flat_map(|client| (0..LIVES).map(move |number| Life { client, number }))
}

fn everything_at_once(wire: Wire) {
    let ends = Setup::new(wire).unconnected();
    let server = Server::new(&ends.b);
    let cq = ends.a.device.create_cq(4096).unwrap();
    let ledger = Ledger::new(cq.clone(), CLIENTS);
    let addr = ends.listener.local_addr();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receivers: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| server.receive(&stop)))
            .collect();
        let acceptors: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| server.accept(&ends.listener, CLIENTS * LIVES)))
            .collect();
        let churners = [
            scope.spawn(|| churn::churn(&ends.a, &cq, &stop)),
            scope.spawn(|| churn::churn(&ends.b, server.cq(0), &stop)),
        ];
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (ledger, server, a) = (&ledger, &server, &ends.a);
                scope.spawn(move || {
                    for number in 0..LIVES {
                        client::live(a, ledger, server, addr, Life { client, number });
                    }
                })
            })
            .collect();
        // If a thread fails, the other threads must not wait forever.
        let mut failed = false;
        for thread in clients.into_iter().chain(acceptors) {
            failed |= thread.join().is_err();
        }
        if !failed {
            server.wait_ended();
        }
        stop.store(true, Ordering::Release);
        for thread in receivers.into_iter().chain(churners) {
            failed |= thread.join().is_err();
        }
        assert!(!failed, "a thread failed; its message is above");
    });
    ledger.nothing_is_left();
    server.check(lives());
    for side in [&ends.a, &ends.b] {
        assert_eq!(side.device.lost_events(), 0);
    }
}

#[test]
fn nothing_is_lost_doubled_or_torn_over_kernel_tcp() {
    everything_at_once(Wire::Kernel);
}

#[test]
fn nothing_is_lost_doubled_or_torn_over_the_memory_link() {
    everything_at_once(Wire::MEMORY);
}

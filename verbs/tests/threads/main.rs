//! Everything at once: threads that connect, post to the same QP, poll and wait at shared CQs and at a channel, register
//! and deregister, bind windows, resize a CQ, disconnect and abort, with one SRQ for all connections of the server.
//! Nothing may be lost, doubled or torn, and at the end nothing may be left.
//!
//! It is an ordinary test, and it is made for ThreadSanitizer:
//!
//! ```text
//! RUSTFLAGS=-Zsanitizer=thread cargo +nightly test -Zbuild-std --target x86_64-unknown-linux-gnu \
//!     -p uwarp-verbs --test threads
//! ```
//!
//! (Build and run take three minutes and ten seconds on two cores.) There, this is checked: all that is not registered memory, which is queues, tables, state words and locks (also those of
//! `parking_lot` and of `std`, which is built along). This is not: registered memory, whose copies are inline assembly that
//! the sanitizer does not see (peers race with the program there by design; that nothing is torn is checked by content, at
//! the end of what orders it), and order that comes from the kernel alone (a socket, an eventfd), because system calls
//! are inline assembly too. What is handed from thread to thread goes through locks, so nothing depends on that order.

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

/// Threads that have connections.
const CLIENTS: u32 = 4;
/// Connections of each, one after the other.
const LIVES: u32 = 6;
/// What each of the two threads that post to a connection does.
const ROUNDS: u32 = 32;

/// All lives of all clients.
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
        // Whatever fails, the others must not wait for it for ever.
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
        assert!(!failed, "a thread failed; its words are above");
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

//! Writes whose completion another connection may report.

use std::time::Duration;

use uwarp_verbs::{PairOptions, Qp, SendWr};

use crate::Host;
use crate::common::{Setup, Wire, until};

#[test]
fn a_write_is_in_the_memory_of_the_peer_when_it_completes() {
    let [a, b] = [Host::here(), Host::here()];
    let qp = |host: &Host| {
        let builder = host
            .pd
            .qp()
            .rendezvous(&host.rendezvous)
            .placed_writes(true);
        builder.build(&host.cq, &host.cq).unwrap()
    };
    let (x, y) = (qp(&a), qp(&b));
    crate::meet([&a, &b], [&x, &y]);
    every_write_is_placed([&a, &b], &x);
}

#[test]
fn the_choice_may_be_made_with_the_peer() {
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    let placed = PairOptions::default().placed_writes(Some(true));
    x.pair(b.peer(&y), &placed).unwrap();
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    every_write_is_placed([&a, &b], &x);
    let itself = a.qp();
    itself.pair(a.peer(&itself), &placed).unwrap();
    every_write_is_placed([&a, &a], &itself);
}

/// Writes from a QP of `a` to the memory of `b`, and looks there after each completion.
fn every_write_is_placed([a, b]: [&Host; 2], qp: &Qp) {
    for number in 1..=3000_u64 {
        let bytes = number.to_le_bytes();
        let remote = b.region.remote().slice(512, 8).unwrap();
        qp.post_send(&SendWr::write_inline(number, &bytes, remote))
            .unwrap();
        a.cq.success(number);
        let mut placed = [0; 8];
        b.region.read_at(512, &mut placed).unwrap();
        assert_eq!(placed, bytes);
    }
}

#[test]
fn the_setting_of_a_device_holds_for_connections_by_address_too() {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].placed_writes = true;
    let (a, b) = setup.connected();
    let region = b.blank(4096);
    for number in 1..=1000_u64 {
        let bytes = number.to_le_bytes();
        let remote = region.remote().slice(64, 8).unwrap();
        a.qp.post_send(&SendWr::write_inline(number, &bytes, remote))
            .unwrap();
        a.send_cq.success(number);
        let mut placed = [0; 8];
        region.read_at(64, &mut placed).unwrap();
        assert_eq!(placed, bytes);
    }
}

#[test]
fn a_write_to_a_peer_that_has_gone_fails() {
    let [a, b] = [Host::here(), Host::here()];
    let builder = a.pd.qp().rendezvous(&a.rendezvous).placed_writes(true);
    let (x, y) = (builder.build(&a.cq, &a.cq).unwrap(), b.qp());
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    crate::exchange([&a, &b], [&x, &y]);
    drop(y);
    let remote = b.region.remote();
    x.post_send(&SendWr::write_inline(
        7,
        b"nobody",
        remote.slice(0, 6).unwrap(),
    ))
    .unwrap();
    a.gone(7);
}

#[test]
fn two_programs_that_answer_each_others_writes_confirm_every_one() {
    const ROUNDS: u64 = 20_000;
    let [a, b] = [Host::here(), Host::here()];
    let (x, y) = (a.qp(), b.qp());
    let placed = PairOptions::default().placed_writes(Some(true));
    x.pair(b.peer(&y), &placed).unwrap();
    y.pair(a.peer(&x), &placed).unwrap();
    let seen = |host: &Host| {
        let mut bytes = [0; 8];
        host.region.read_at(512, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    let write = |from: &Host, qp: &Qp, to: &Host, number: u64| {
        let remote = to.region.remote().slice(512, 8).unwrap();
        let bytes = number.to_le_bytes();
        qp.post_send(&SendWr::write_inline(number, &bytes, remote))
            .unwrap();
        // Polls as perftest does. A wait would not count as a program that calls again.
        until("the completion", || from.cq.poll_one().is_some());
        assert!(seen(to) >= number);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1..=ROUNDS {
                until("the answer", || seen(&b) >= number);
                write(&b, &y, &a, number);
            }
        });
        for number in 1..=ROUNDS {
            write(&a, &x, &b, number);
            until("the answer", || seen(&a) >= number);
        }
    });
    // The other program calls no more. Its last confirmations must not wait for a call.
    for number in ROUNDS + 1..=ROUNDS + 5 {
        write(&a, &x, &b, number);
    }
    // Nothing is kept in a process that exits.
    for host in [&a, &b] {
        host.device.finish_confirmations(Duration::from_secs(60));
    }
    write(&a, &x, &b, ROUNDS + 6);
}

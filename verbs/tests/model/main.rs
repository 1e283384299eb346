//! Two connected endpoints perform random operations of every kind. A model, which contains no
//! protocol, predicts memory, STags and completions.
//!
//! A case consists of a few phases. In a phase both sides post requests at the same time. Some
//! requests are valid, and the others are refused when posted. Between phases a region is
//! reregistered, or the connection ends (gracefully, by an abort, or by a wrong request). Its QPs
//! are then reset and connected again.
//!
//! A failure names the seed, and `UWARP_SEED=<seed> cargo test -p uwarp-verbs --test model` repeats
//! it. `UWARP_CASES=<n>` runs more cases. A seed that has found a fault is kept in [`KEPT`].
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod between;
mod case;
#[path = "../common/mod.rs"]
mod common;
mod loan;
mod plan;
mod play;
mod player;
mod random;
mod ready;

use between::between;
use case::{Case, Phase};
use common::{Setup, Wire};
use plan::prepare;
use play::play;
use player::Player;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use random::case;
use uwarp_verbs::{QpCaps, Revision, SrqAttr};

/// Number of cases over the memory link and over kernel TCP.
const CASES: [u32; 2] = [40, 10];

/// Seeds that have found faults. So far these were deliberate faults: local requests that ignored
/// their fence, and windows that outlived the reset of their QP. A change of `random.rs` gives all
/// seeds another meaning.
const KEPT: [u64; 2] = [1_795_312_492_954_163_187, 1_795_312_501_598_569_230];

fn run(wire: Wire, case: &Case) {
    let link = &case.link;
    let mut setup = Setup::new(match wire {
        Wire::Kernel => wire,
        Wire::Memory { .. } => Wire::Memory {
            mtu: link.mtu,
            buffer: link.buffer,
        },
    });
    for (index, settings) in setup.settings.iter_mut().enumerate() {
        (settings.crc, settings.markers) = (link.crc[index], link.markers[index]);
        // A wake-up is a Write, which a busy machine would add to those of the model.
        settings.wake_up = None;
    }
    if link.revision_1 {
        setup.settings[0].revision = Revision::One;
    }
    setup.connect.peer_to_peer = link.peer_to_peer;
    (setup.connect.ird, setup.connect.ord) = (link.depth, link.depth);
    (setup.accept.ird, setup.accept.ord) = (link.depth, link.depth);
    setup.caps = QpCaps::default().max_send_wr(link.send_queue);
    let mut ends = setup.unconnected();
    for (side, shared) in [&mut ends.a, &mut ends.b].into_iter().zip(link.srq) {
        if shared {
            let srq = side.pd.create_srq(SrqAttr::default()).unwrap();
            let builder = side.pd.qp().caps(setup.caps).srq(&srq);
            side.qp = builder.build(&side.send_cq, &side.recv_cq).unwrap();
        }
    }
    ends.join();
    let (a, b) = (&ends.a, &ends.b);
    let (mut left, mut right) = (Player::new(a, 1), Player::new(b, 2));
    for (phase, Phase { ops, then }) in (1..).zip(&case.phases) {
        let of_a = prepare(phase, link.send_queue, &mut left, &mut right, &ops[0]);
        let of_b = prepare(phase, link.send_queue, &mut right, &mut left, &ops[1]);
        let [mine, theirs] = [&mut left, &mut right].map(|player| {
            (
                std::mem::take(&mut player.sends),
                std::mem::take(&mut player.receives),
            )
        });
        std::thread::scope(|scope| {
            scope.spawn(|| play(a, &of_a, link.batch, mine.0, mine.1));
            scope.spawn(|| play(b, &of_b, link.batch, theirs.0, theirs.1));
        });
        left.check("initiator");
        right.check("responder");
        match then.who() {
            0 => between(&ends, &mut left, &mut right, *then),
            _ => between(&ends, &mut right, &mut left, *then),
        }
        left.check("initiator, before the next phase");
        right.check("responder, before the next phase");
    }
    a.qp.disconnect();
    for side in [a, b] {
        side.wait_end();
        // Nothing is left over, and no completion is duplicated.
        side.send_cq.assert_empty();
        side.recv_cq.assert_empty();
    }
    left.check("initiator, at the end");
    right.check("responder, at the end");
}

/// Returns a number from the environment, if the variable has one.
fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    value.parse().ok()
}

/// Runs cases of `UWARP_SEED`, or otherwise of a new seed.
fn check(wire: Wire, cases: u32) {
    let seed = number("UWARP_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        now.as_nanos() as u64 ^ u64::from(std::process::id())
    });
    let cases = number("UWARP_CASES").map_or(cases, |cases| cases as u32);
    check_seed(wire, cases, seed);
}

/// Runs the cases of one seed. Shrinks a failing case and reports it with the seed.
fn check_seed(wire: Wire, cases: u32, seed: u64) {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let result = TestRunner::new_with_rng(config, rng).run(&case(), |case| {
        run(wire, &case);
        Ok(())
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, case)) => {
            panic!("UWARP_SEED={seed} over {wire:?}: {why}\nthe smallest case found: {case:#?}")
        }
        Err(TestError::Abort(why)) => panic!("UWARP_SEED={seed} over {wire:?}: {why}"),
    }
}

#[test]
fn two_endpoints_do_what_the_model_says_over_the_memory_link() {
    check(Wire::MEMORY, CASES[0]);
}

#[test]
fn two_endpoints_do_what_the_model_says_over_kernel_tcp() {
    check(Wire::Kernel, CASES[1]);
}

#[test]
fn seeds_that_have_found_something_find_nothing_any_more() {
    for seed in KEPT {
        check_seed(Wire::MEMORY, CASES[0], seed);
    }
}

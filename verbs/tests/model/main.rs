//! Two connected endpoints do random things to each other; a model that knows nothing of protocols
//! says what memory and completions must be at the end.
//!
//! A failure names the seed; `UWARP_SEED=<seed> cargo test -p uwarp-verbs --test model` plays it
//! again. `UWARP_CASES=<n>` plays more.

mod case;
#[path = "../common/mod.rs"]
mod common;
mod player;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use case::{Case, case};
use common::{LIMIT, Setup, Side, Wire};
use player::{Player, Ready, prepare};
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use uwarp_verbs::{Completion, PostErrorKind, QpCaps, Revision, SendWr};

/// Cases over the memory link, and over kernel TCP.
const CASES: [u32; 2] = [40, 10];

/// Does one side's requests of a phase, and takes the completions of both its queues.
fn play(
    side: &Side,
    ready: &[Ready],
    batch: usize,
    mut sends: VecDeque<Completion>,
    mut receives: VecDeque<Completion>,
) {
    let deadline = Instant::now() + LIMIT;
    let mut next = 0;
    let mut take = |wait: bool| {
        let mut some = [Completion::default(); 3];
        for (cq, awaited, what) in [
            (&side.send_cq, &mut sends, "send"),
            (&side.recv_cq, &mut receives, "receive"),
        ] {
            let mut count = cq.poll(&mut some);
            // Waiting drives just as polling does.
            if count == 0
                && wait
                && !awaited.is_empty()
                && let Some(one) = cq.wait(Some(Duration::from_millis(100)))
            {
                (some[0], count) = (one, 1);
            }
            for got in &some[..count] {
                let expected = awaited.pop_front();
                assert_eq!(Some(*got), expected, "{what} completion");
            }
        }
        assert!(
            Instant::now() < deadline,
            "still awaited: {sends:?}, {receives:?}; the QP is in state {}, {:?}",
            side.qp.state(),
            side.qp.end_reason()
        );
        sends.is_empty() && receives.is_empty()
    };
    while next < ready.len() {
        let until = ready.len().min(next + batch);
        let list: Vec<SendWr<'_>> = ready[next..until].iter().map(Ready::wr).collect();
        let (polls, before) = (ready[next].poll, next);
        next = match side.qp.post_send_list(&list) {
            Ok(()) => until,
            Err(error) => {
                assert!(
                    matches!(error.kind, PostErrorKind::SendQueueFull { .. }),
                    "{error}"
                );
                next + error.index
            }
        };
        if polls || next == before {
            take(false);
        }
    }
    while !take(true) {}
}

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
    }
    if link.revision_1 {
        setup.settings[0].revision = Revision::One;
    }
    setup.connect.peer_to_peer = link.peer_to_peer;
    (setup.connect.ird, setup.connect.ord) = (link.depth, link.depth);
    (setup.accept.ird, setup.accept.ord) = (link.depth, link.depth);
    setup.caps = QpCaps {
        max_send_wr: link.send_queue,
        ..QpCaps::default()
    };
    let (a, b) = setup.connected();
    let (mut left, mut right) = (Player::new(&a, 1), Player::new(&b, 2));
    for [of_a, of_b] in &case.phases {
        let of_a = prepare(&mut left, &mut right, of_a);
        let of_b = prepare(&mut right, &mut left, of_b);
        let [mine, theirs] = [&mut left, &mut right].map(|player| {
            (
                std::mem::take(&mut player.sends),
                std::mem::take(&mut player.receives),
            )
        });
        std::thread::scope(|scope| {
            scope.spawn(|| play(&a, &of_a, link.batch, mine.0, mine.1));
            scope.spawn(|| play(&b, &of_b, link.batch, theirs.0, theirs.1));
        });
        left.check("initiator");
        right.check("responder");
    }
    a.qp.disconnect();
    for side in [&a, &b] {
        side.wait_end();
        // Nothing was left, and nothing came twice.
        side.send_cq.is_empty();
        side.recv_cq.is_empty();
    }
    left.check("initiator, at the end");
    right.check("responder, at the end");
}

/// Runs the cases of one seed; a failure is made as small as it gets and told with the seed.
fn check(wire: Wire, cases: u32) {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u64>().ok())
    };
    let seed = number("UWARP_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        now.as_nanos() as u64 ^ u64::from(std::process::id())
    });
    let cases = number("UWARP_CASES").map_or(cases, |cases| cases as u32);
    let mut octets = [0; 32];
    octets[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 200,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &octets);
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

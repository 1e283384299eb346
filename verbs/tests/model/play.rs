//! Posts the requests of a phase and polls their completions.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use uwarp_verbs::{Completion, SendWr};

use crate::common::{LIMIT, Side};
use crate::ready::{Ready, is_full};

/// Runs one side's requests of a phase, and checks the completions of both its queues.
pub(crate) fn play(
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
            // Waiting makes progress as polling does.
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
        let (first, before) = (&ready[next], next);
        if let Some(depth) = first.resize {
            side.send_cq.resize(depth).unwrap();
        }
        next += if first.is_alone() {
            usize::from(first.post_alone(&side.qp))
        } else {
            let rest = &ready[next..ready.len().min(next + batch)];
            let list: Vec<SendWr<'_>> = rest
                .iter()
                .take_while(|ready| !ready.is_alone())
                .map(Ready::wr)
                .collect();
            match side.qp.post_send_list(&list) {
                Ok(()) => list.len(),
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    error.index
                }
            }
        };
        if first.poll || next == before {
            take(false);
        }
    }
    while !take(true) {}
}

//! Transfers over a wire that loses, duplicates and reorders packets in both directions.
//!
//! The transfers run without CRC. siw misreads a CRC whose bytes arrive in two segments, because
//! `siw_get_trailer` stores the second part over the first. siw then reports the FPDU as damaged.
//! TCP may cut the stream anywhere (RFC 5044 section 5.1), and our TCP does so when it retransmits.
//! The tests compare every byte of the data.

use std::time::Duration;

use uwarp_interop::{Failure, Outcome, PATIENCE, Result, Rig};
use uwarp_verbs::llp::smol::{FaultCounts, FaultSettings};
use uwarp_verbs::{Settings, Timeouts};

use crate::Case;
use crate::bench::{Bench, By, Op};
use crate::pair::{Role, Terms};
use crate::transfers::SIZES;

const LARGE: usize = 16 << 20;

/// Probability of a loss. In each case, faults hit hundreds of packets. A lost packet can take a
/// second, the shortest retransmission timeout of TCP.
const LOSS: f64 = 0.001;
/// Probability of each of the other faults.
const OTHER: f64 = 0.01;

/// Returns the kinds of faults: name for tests, and settings.
fn kinds() -> [(&'static str, FaultSettings); 4] {
    let none = FaultSettings::default();
    let loss = none.loss(LOSS);
    let reorder = none.reorder(OTHER);
    let duplicate = none.duplicate(OTHER);
    let all = none.loss(LOSS).reorder(OTHER).duplicate(OTHER);
    [
        ("loss", loss),
        ("reorder", reorder),
        ("duplicate", duplicate),
        ("all", all),
    ]
}

/// Returns the cases: each kind alone over Unix datagrams, and all kinds together over TAP. Kernel
/// TCP has no fault injection.
pub(crate) fn cases(wire: &str) -> Vec<Case> {
    let kinds: Vec<_> = match wire {
        "unix_datagrams" => kinds().into(),
        "tap" => kinds()[3..].into(),
        _ => Vec::new(),
    };
    let mut cases = Vec::new();
    for (seed, (kind, faults)) in (1..).zip(kinds) {
        for role in Role::BOTH {
            let faults = faults.seed(seed);
            cases.push(Case {
                suite: "faults",
                name: format!("{}::{kind}", role.name()),
                title: format!(
                    "every operation both ways, 0 bytes to 16 MiB, {}: {}",
                    role.title(),
                    words(&faults)
                ),
                run: Box::new(move |rig| transfers(rig, role, faults)),
            });
        }
    }
    cases
}

fn words(faults: &FaultSettings) -> String {
    let rates = [
        (faults.loss, "lost"),
        (faults.reorder, "reordered"),
        (faults.duplicate, "duplicated"),
    ];
    let words: Vec<String> = rates
        .iter()
        .filter(|(rate, _)| *rate > 0.0)
        .map(|(rate, what)| format!("{} % of packets {what}", rate * 100.0))
        .collect();
    words.join(", ")
}

fn transfers(rig: &mut Rig, role: Role, faults: FaultSettings) -> Result<Outcome> {
    let network = rig.wire.faulty(faults)?;
    let terms = Terms {
        settings: patient(),
        network: Some(network.clone()),
        ..Terms::default()
    };
    let run = |rig: &mut Rig| -> Result<()> {
        let mut bench = Bench::open(rig, role, &terms, LARGE)?;
        bench.agreed(|info| !info.crc)?;
        for len in SIZES {
            // With 16 MiB, only one operation of each message type is run.
            let ops: &[Op] = if len < LARGE { &Op::ALL } else { &Op::PLAIN };
            for op in ops {
                for by in By::BOTH {
                    bench.run(&mut rig.agent, by, *op, len)?;
                }
            }
        }
        bench.close(&mut rig.agent, role)
    };
    let result = run(rig);
    let counts = network.fault_counts();
    result.map_err(|failure| failure.during(format!("{faults:?}, until then {counts:?}")))?;
    let Some((outbound, inbound)) = counts else {
        return Err(Failure::new("the link has no faults"));
    };
    for (direction, counts) in [("outbound", outbound), ("inbound", inbound)] {
        if !happened(&faults, &counts) {
            return Err(Failure::new(format!(
                "{direction}: not all of the faults happened, or others did: {counts:?}"
            )));
        }
    }
    Ok(Outcome::Deviation(
        "without CRC: siw misreads a CRC that two TCP segments share, as after a retransmission"
            .to_owned(),
    ))
}

/// Returns true if exactly the faults with a nonzero probability occurred.
fn happened(faults: &FaultSettings, counts: &FaultCounts) -> bool {
    [
        (faults.loss, counts.lost),
        (faults.reorder, counts.reordered),
        (faults.duplicate, counts.duplicated),
    ]
    .iter()
    .all(|(rate, count)| (*rate > 0.0) == (*count > 0))
}

/// Returns settings without CRC, and with timeouts that a few consecutive losses do not reach.
fn patient() -> Settings {
    let long: Duration = PATIENCE;
    Settings::default().crc(false).timeouts(
        Timeouts::default()
            .connect(long)
            .reply(long)
            .request(long)
            .rtr(long)
            .close(long),
    )
}

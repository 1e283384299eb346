//! List of the attacks, each with its load and its limits.

use std::thread;
use std::time::{Duration, Instant};

use crate::report::{Figures, MIB};
use crate::scene::Scene;
use crate::victim::Confined;
use crate::{Result, deaths, messages, startup, strangers, unread};

/// Definition of one attack.
pub(crate) struct Attack {
    /// Name of the test.
    pub(crate) name: &'static str,
    /// Title in the table.
    pub(crate) title: &'static str,
    /// Number of repetitions in a full run and in a small one.
    pub(crate) load: [usize; 2],
    /// Maximum number of repetitions a second. Without a limit, attacker and victim would compete
    /// for two processors, and the figures would show the scheduling of the operating system.
    pub(crate) rate: usize,
    pub(crate) confined: Confined,
    /// Maximum memory in MiB that the victim may use besides the application's memory, in a full
    /// run and in a small one. The limits are close to the observed values, so that a leak shows.
    pub(crate) memory: [u64; 2],
    pub(crate) run: Run,
}

/// Function that runs an attack, by the process that it attacks. Returns an error if the process
/// misbehaved.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// The victim of a scene, to which honest peers connect during the attack.
    Visited(fn(&mut Scene, &mut Pace) -> Result<AttackOutcome>),
    /// The victim of a scene, which cannot serve new peers during the attack. They connect as soon
    /// as it is over.
    VisitedLater(fn(&mut Scene, &mut Pace) -> Result<AttackOutcome>),
    /// A process that the function starts, with honest peers of its own.
    Own(Own),
}

/// Function that starts the process which it attacks. Its second argument is true in a full run.
/// Returns nothing if it was skipped.
pub(crate) type Own = fn(&mut Pace, bool) -> Result<Option<(AttackOutcome, Figures)>>;

/// Outcome of an attack, for the table.
pub(crate) struct AttackOutcome {
    pub(crate) load: String,
    pub(crate) result: String,
    /// Bytes that the victim's application registered for the attack.
    pub(crate) own_memory: u64,
    /// Maximum number of bytes that the victim may keep, if it has to give its memory back within
    /// minutes after the attack.
    pub(crate) may_keep: Option<u64>,
}

impl AttackOutcome {
    pub(crate) fn new(load: String, result: &str) -> AttackOutcome {
        AttackOutcome {
            load,
            result: result.to_owned(),
            own_memory: 0,
            may_keep: None,
        }
    }
}

/// Limit in MiB for attacks with few connections at a time, however many they open in all. The
/// allocator keeps some memory. Observed: 4 to 5 MiB, and 7 MiB after 100,000 connections. A leak
/// of 1 KiB for each of 10,000 connections exceeds the limit.
const SOME: [u64; 2] = [8; 2];

pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "half_open",
        title: "connections that never send anything",
        load: [10_000, 200],
        rate: 5_000,
        confined: Confined::Not,
        // 1,024 connections in startup use 1 to 2 KiB each.
        memory: [12; 2],
        run: Run::Visited(startup::half_open),
    },
    Attack {
        name: "half_open_from_many_addresses",
        title: "connections that never send anything, from eight addresses",
        load: [10_000, 200],
        rate: 5_000,
        confined: Confined::Not,
        // 4,096 connections in startup, and the timers of reset connections, which stay until they
        // expire.
        memory: [16; 2],
        run: Run::Visited(startup::half_open_from_many_addresses),
    },
    Attack {
        name: "accepted_and_silent",
        title: "accepted connections that never send anything",
        load: [1_000, 200],
        rate: 500,
        confined: Confined::Not,
        // 1,000 connections of the application use 12 KiB each.
        memory: [20; 2],
        run: Run::Visited(startup::accepted_and_silent),
    },
    Attack {
        name: "out_of_descriptors",
        title: "connections that never send anything, until the victim has no descriptors left (128)",
        load: [1_000, 300],
        rate: 1_000,
        confined: Confined::Descriptors(128),
        memory: SOME,
        run: Run::VisitedLater(startup::out_of_descriptors),
    },
    Attack {
        name: "slow_startup",
        title: "an MPA Request at one byte a second",
        load: [1_000, 20],
        rate: 1_000,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(startup::slow_startup),
    },
    Attack {
        name: "oversized_private_data",
        title: "Private Data of 513 to 65,535 bytes",
        load: [10_000, 100],
        rate: 2_000,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(startup::oversized_private_data),
    },
    Attack {
        name: "connect_and_reset",
        title: "connects and resets at once",
        load: [100_000, 500],
        rate: 5_000,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(startup::connect_and_reset),
    },
    Attack {
        name: "terminate_storm",
        title: "Terminate Messages, a hundred in a row on each connection",
        load: [5_000, 20],
        rate: 500,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(messages::terminate_storm),
    },
    Attack {
        name: "reads_of_4_gib",
        title: "Reads of 4 GiB from a region of 16 MiB",
        load: [5_000, 20],
        rate: 500,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(messages::reads_of_4_gib),
    },
    Attack {
        name: "reads_without_reading",
        title: "sixteen Reads of a region of 16 MiB each, by peers that never read the responses",
        load: [1_000, 8],
        rate: 250,
        confined: Confined::Not,
        // The batches of one address use at most 64 MiB (SECURITY.md). Each of 1,000 connections
        // also has a small batch, and 12 KiB of the application.
        memory: [112, 20],
        run: Run::Visited(messages::reads_without_reading),
    },
    Attack {
        name: "unfinished_fpdus",
        title: "FPDUs of 60,000 bytes without their last one, from two addresses",
        load: [1_000, 40],
        rate: 250,
        confined: Confined::Not,
        // At most 64 MiB for each of the two addresses (SECURITY.md), and 12 KiB for each
        // connection.
        memory: [144, 20],
        run: Run::Visited(messages::unfinished_fpdus),
    },
    Attack {
        name: "all_together",
        title: "silent connections, accepted or not, unread Reads and unfinished FPDUs by turns, each from an address of its own",
        load: [1_000, 40],
        rate: 250,
        confined: Confined::Not,
        // At most 64 MiB for the Reads and 64 MiB for the FPDUs, and 12 KiB for each connection.
        memory: [144, 24],
        run: Run::Visited(messages::all_together),
    },
    Attack {
        name: "stag_guessing",
        title: "Writes to guessed STags",
        load: [1_000_000, 500],
        rate: 2_000,
        confined: Confined::Not,
        // A leak of 17 bytes for each connection exceeds this.
        memory: [16; 2],
        run: Run::Visited(messages::stag_guessing),
    },
    Attack {
        name: "zero_length_flood",
        title: "empty RDMA Writes, and empty segments of a Send that never ends",
        load: [10_000_000, 10_000],
        rate: 1_000_000,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(messages::zero_length_flood),
    },
    Attack {
        name: "strangers_at_the_control_port",
        title: "requests of web pages, and silent connections, at the control port of the agent",
        load: [4_000, 200],
        rate: 200,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(strangers::at_the_control_port),
    },
    Attack {
        name: "words_on_stderr_of_a_command",
        title: "garbage for `uwarp rping -s -P`, from eight addresses, and nobody reads its standard error",
        load: [40_000, 400],
        rate: 1_000,
        confined: Confined::Not,
        // The server has a thread and its buffers for each client until that has ended. Observed:
        // 10 to 16 MiB with up to 30 clients at a time.
        memory: [32, 8],
        run: Run::Own(unread::of_a_command),
    },
    Attack {
        name: "words_on_stderr_of_a_program",
        title: "garbage for a C program on the drop-in library, from eight addresses, and nobody reads its standard error",
        load: [40_000, 400],
        rate: 1_000,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Own(unread::of_a_program),
    },
    Attack {
        name: "peer_killed",
        title: "a peer killed (SIGKILL) in the middle of a Write",
        // All controllers of an agent together have less than 1 GiB.
        load: [512, 16],
        rate: usize::MAX,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Visited(deaths::peer_killed),
    },
    Attack {
        name: "victim_killed",
        title: "the victim killed (SIGKILL) and started again",
        load: [10, 2],
        rate: 1,
        confined: Confined::Not,
        memory: SOME,
        run: Run::Own(deaths::victim_killed),
    },
    Attack {
        name: ROUNDS,
        title: "all of the above against one process, one after the other (except those that need a process of their own)",
        load: [6, 3],
        rate: usize::MAX,
        confined: Confined::OneArena,
        // The largest of the small loads above is allowed 24 MiB. The allocator also keeps some
        // memory after each attack. Observed: 17 MiB.
        memory: [32; 2],
        run: Run::Visited(rounds),
    },
];

const ROUNDS: &str = "rounds";

/// Repeats all attacks with small loads on one process. Memory that an attack leaks adds up.
fn rounds(scene: &mut Scene, pace: &mut Pace) -> Result<AttackOutcome> {
    /// Maximum number of bytes that the later half of the rounds may add: the last three of six
    /// rounds, or the last one of three. Observed: nothing, or 250 KiB (a table that doubles). A
    /// leak of 256 bytes for each connection of a round would add 512 KiB.
    const ONCE_MORE: u64 = 512 << 10;
    let before = scene.victim.usage()?;
    let (mut left, mut own_memory) = (Vec::new(), 0);
    let planned = pace.load();
    let mut rounds = planned;
    // On a busy machine, a late round sometimes added a few megabytes once. As far as is known, the
    // stack then kept a limited number of large buffers for reuse. A leak would grow in each round,
    // so twice as many rounds distinguish the two cases.
    while left.len() < rounds {
        pace.next();
        for attack in ATTACKS.iter().filter(|attack| attack.name != ROUNDS) {
            // The others need a process of their own.
            let Run::Visited(run) = attack.run else {
                continue;
            };
            let outcome = run(scene, &mut Pace::new(attack.load[1], attack.rate));
            let outcome = outcome.map_err(|error| format!("{}: {error}", attack.name))?;
            scene.victim.wait_recovered(before)?;
            own_memory = outcome.own_memory.max(own_memory);
        }
        left.push(scene.victim.usage()?.memory);
        if left.len() == planned && grows(&left, ONCE_MORE) {
            rounds = 2 * planned;
        }
    }
    if left.is_empty() {
        return Err("no round was played".into());
    }
    if grows(&left, ONCE_MORE) {
        return Err(format!("the memory grows with each round: {left:?} bytes").into());
    }
    let load = format!("{} rounds with small loads", left.len());
    let mib = left.iter().map(|bytes| *bytes as f64 / MIB);
    let left: Vec<_> = mib.map(|mib| format!("{mib:.1}")).collect();
    let outcome = format!("memory after each round: {} MiB", left.join(", "));
    Ok(AttackOutcome {
        own_memory,
        ..AttackOutcome::new(load, &outcome)
    })
}

/// Returns true if the later half of the rounds added more than `most` bytes, computed from the
/// median of these rounds. The median ignores a buffer that is kept for reuse, because it is added
/// once.
fn grows(left: &[u64], most: u64) -> bool {
    let later = &left[left.len().saturating_sub(1) / 2..];
    let added = |pair: &[u64]| pair[1].saturating_sub(pair[0]);
    let mut rounds: Vec<u64> = later.windows(2).map(added).collect();
    rounds.sort_unstable();
    let median = rounds.get(rounds.len() / 2);
    median.is_some_and(|median| median * rounds.len() as u64 > most)
}

/// Tests `grows`, without a victim.
pub(crate) fn memory_grows_where_most_of_the_later_rounds_add_to_it() {
    const MIB: u64 = 1 << 20;
    assert!(!grows(&[], MIB) && !grows(&[7], MIB) && !grows(&[1, 9 * MIB, 9 * MIB], MIB));
    assert!(grows(&[0, 0, 2 * MIB], MIB));
    assert!(grows(&[0, 0, 0, MIB, 2 * MIB, 3 * MIB], 2 * MIB));
    assert!(grows(&[0, 0, 0, 3 * MIB, 3 * MIB, 6 * MIB], 2 * MIB));
    assert!(!grows(&[0, 0, 0, 3 * MIB, 3 * MIB, 3 * MIB], 2 * MIB));
}

/// Counts the repetitions of a load, at a limited rate.
pub(crate) struct Pace {
    load: usize,
    rate: usize,
    done: usize,
    start: Instant,
}

impl Pace {
    pub(crate) fn new(load: usize, rate: usize) -> Pace {
        let (done, start) = (0, Instant::now());
        Pace {
            load,
            rate,
            done,
            start,
        }
    }

    /// Number of repetitions planned.
    pub(crate) fn load(&self) -> usize {
        self.load
    }

    /// Describes the repetitions so far and their rate.
    pub(crate) fn summary(&self) -> String {
        let rate = self.done as f64 / self.start.elapsed().as_secs_f64();
        format!("{}, {} a second", many(self.done), many(rate as usize))
    }
}

impl Iterator for Pace {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.done == self.load {
            return None;
        }
        let due = self.start + Duration::from_secs_f64(self.done as f64 / self.rate as f64);
        let early = due.saturating_duration_since(Instant::now());
        // Short sleeps are combined, because each sleep takes longer than requested.
        if early > Duration::from_millis(1) {
            thread::sleep(early);
        }
        self.done += 1;
        Some(self.done - 1)
    }
}

/// Formats a number with a comma for each thousand.
pub(crate) fn many(what: usize) -> String {
    let digits = what.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

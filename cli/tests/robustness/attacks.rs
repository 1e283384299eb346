//! The attacks, each with its load.

use std::thread;
use std::time::{Duration, Instant};

use crate::report::MIB;
use crate::scene::Scene;
use crate::victim::{Confined, Usage};
use crate::{Result, deaths, messages, startup};

/// One attack.
pub(crate) struct Attack {
    /// Of the test.
    pub(crate) name: &'static str,
    /// For the table.
    pub(crate) title: &'static str,
    /// How often, in a whole run; and in a small one.
    pub(crate) load: [usize; 2],
    /// At most so often a second. An attacker who takes all he can get of two processors would show how three processes share
    /// them, and not what the victim does.
    pub(crate) rate: usize,
    pub(crate) confined: Confined,
    /// The most MiB of memory that it may add to what the application takes, in either run: near what is seen, so that a leak shows.
    pub(crate) memory: [u64; 2],
    /// Whether honest peers come to the same listener all the time. They cannot where there are no descriptors or no process.
    pub(crate) visited: bool,
    /// Says what came of it, as long as nothing is wrong.
    pub(crate) run: fn(&mut Scene, &mut Pace) -> Result<Told>,
}

/// What the table says of an attack.
pub(crate) struct Told {
    pub(crate) load: String,
    pub(crate) outcome: String,
    /// Bytes that the application of the victim took for it.
    pub(crate) own_memory: u64,
    /// What the process held that was attacked, before and at most, when it is another one than that of the scene.
    pub(crate) itself: Option<(Usage, Usage)>,
}

impl Told {
    pub(crate) fn new(load: String, outcome: &str) -> Told {
        Told {
            load,
            outcome: outcome.to_owned(),
            own_memory: 0,
            itself: None,
        }
    }
}

/// MiB for what the allocator keeps after a few connections at a time, however many there were in all: 4 to 5 are seen, 7 after
/// 100,000 connections, and a leak of 1 KiB for each of 10,000 is more.
const SOME: [u64; 2] = [8; 2];

pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "half_open",
        title: "connections that never say anything",
        load: [10_000, 200],
        rate: 5_000,
        confined: Confined::Not,
        // 2,048 connections in startup, of 1 to 2 KiB.
        memory: [12; 2],
        visited: true,
        run: startup::half_open,
    },
    Attack {
        name: "half_open_from_many_addresses",
        title: "connections that never say anything, from eight addresses",
        load: [10_000, 200],
        rate: 5_000,
        confined: Confined::Not,
        // 4,096 connections in startup, and the timers of those that were reset, until they would have been due.
        memory: [16; 2],
        visited: true,
        run: startup::half_open_from_many_addresses,
    },
    Attack {
        name: "accepted_and_silent",
        title: "connections that are accepted and then never say anything",
        load: [1_000, 200],
        rate: 500,
        confined: Confined::Not,
        // 1,000 of the application's connections, of 12 KiB.
        memory: [20; 2],
        visited: true,
        run: startup::accepted_and_silent,
    },
    Attack {
        name: "out_of_descriptors",
        title: "connections that never say anything, until the victim has no more descriptors (128)",
        load: [1_000, 300],
        rate: 1_000,
        confined: Confined::Descriptors(128),
        memory: SOME,
        visited: false,
        run: startup::out_of_descriptors,
    },
    Attack {
        name: "slow_startup",
        title: "an MPA Request at one byte a second",
        load: [1_000, 20],
        rate: 1_000,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: startup::slow_startup,
    },
    Attack {
        name: "oversized_private_data",
        title: "Private Data of 513 to 65,535 bytes",
        load: [10_000, 100],
        rate: 2_000,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: startup::oversized_private_data,
    },
    Attack {
        name: "connect_and_reset",
        title: "connects and resets at once",
        load: [100_000, 500],
        rate: 5_000,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: startup::connect_and_reset,
    },
    Attack {
        name: "terminate_storm",
        title: "Terminate Messages, a hundred in a row on each connection",
        load: [5_000, 20],
        rate: 500,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: messages::terminate_storm,
    },
    Attack {
        name: "reads_of_4_gib",
        title: "Reads of 4 GiB from a region of 16 MiB",
        load: [5_000, 20],
        rate: 500,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: messages::reads_of_4_gib,
    },
    Attack {
        name: "reads_without_reading",
        title: "sixteen Reads of a region of 16 MiB each, by peers that take none of the answers",
        load: [64, 8],
        rate: 64,
        confined: Confined::Not,
        // A batch of answers for each connection, as SECURITY.md has it: up to 1.1 MiB.
        memory: [80, 20],
        visited: true,
        run: messages::reads_without_reading,
    },
    Attack {
        name: "stag_guessing",
        title: "Writes to guessed STags",
        load: [1_000_000, 500],
        rate: 2_000,
        confined: Confined::Not,
        // A leak of 17 bytes for each of its connections is more.
        memory: [16; 2],
        visited: true,
        run: messages::stag_guessing,
    },
    Attack {
        name: "zero_length_flood",
        title: "RDMA Writes of no bytes, and segments of no bytes of a Send that never ends",
        load: [10_000_000, 10_000],
        rate: 1_000_000,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: messages::zero_length_flood,
    },
    Attack {
        name: "peer_killed",
        title: "a peer killed (SIGKILL) in the middle of a Write",
        load: [1024, 16],
        rate: usize::MAX,
        confined: Confined::Not,
        memory: SOME,
        visited: true,
        run: deaths::peer_killed,
    },
    Attack {
        name: "victim_killed",
        title: "our own process killed (SIGKILL) and started again",
        load: [10, 2],
        rate: 1,
        confined: Confined::Not,
        memory: SOME,
        visited: false,
        run: deaths::victim_killed,
    },
    Attack {
        name: ROUNDS,
        title: "all of the above at one process, one after the other (but out of descriptors, and it is not killed)",
        load: [6, 3],
        rate: usize::MAX,
        confined: Confined::OneArena,
        // A few stalled Reads besides, and what the allocator keeps of all attacks together.
        memory: [16; 2],
        visited: true,
        run: rounds,
    },
];

const ROUNDS: &str = "rounds";

/// All attacks with small loads, again and again: what one leaves behind adds up.
fn rounds(scene: &mut Scene, pace: &mut Pace) -> Result<Told> {
    /// The most memory that the later half may add: of six rounds the last three, of three the last one. Nothing or 250 KiB is
    /// seen (a table that doubles), where 256 bytes for each connection of a round would be 512 KiB.
    const ONCE_MORE: u64 = 512 << 10;
    let before = scene.victim.usage()?;
    let (mut left, mut own_memory) = (Vec::new(), 0);
    let planned = pace.load();
    let mut rounds = planned;
    // On a busy machine some megabytes came in a late round and stayed, and no more came: large buffers that are kept for the next time, up to
    // a number, as far as is known. What is lost is lost again in each round: twice as many tell the two apart.
    while left.len() < rounds {
        pace.next();
        // Those that nobody can visit end the process, or take a process of its own.
        let attacks = ATTACKS.iter().filter(|attack| attack.visited);
        for attack in attacks.filter(|attack| attack.name != ROUNDS) {
            let told = (attack.run)(scene, &mut Pace::new(attack.load[1], attack.rate));
            let told = told.map_err(|error| format!("{}: {error}", attack.name))?;
            scene.victim.recovers(before)?;
            own_memory = told.own_memory.max(own_memory);
        }
        left.push(scene.victim.usage()?.memory);
        if left.len() == planned && grows(&left, ONCE_MORE) {
            rounds = 2 * planned;
        }
    }
    if left.is_empty() {
        return Err("there was no round".into());
    }
    if grows(&left, ONCE_MORE) {
        return Err(format!("the memory grows, round by round: {left:?} bytes").into());
    }
    let load = format!("{} rounds with small loads", left.len());
    let mib = left.iter().map(|octets| *octets as f64 / MIB);
    let left: Vec<_> = mib.map(|mib| format!("{mib:.1}")).collect();
    let outcome = format!("memory after each round: {} MiB", left.join(", "));
    Ok(Told {
        own_memory,
        ..Told::new(load, &outcome)
    })
}

/// Whether the later half of the rounds added more memory than that, as the median of its rounds has it: a buffer that is kept is added once.
fn grows(left: &[u64], most: u64) -> bool {
    let later = &left[left.len().saturating_sub(1) / 2..];
    let added = |pair: &[u64]| pair[1].saturating_sub(pair[0]);
    let mut rounds: Vec<u64> = later.windows(2).map(added).collect();
    rounds.sort_unstable();
    let median = rounds.get(rounds.len() / 2);
    median.is_some_and(|median| median * rounds.len() as u64 > most)
}

/// A test of the above, without a victim.
pub(crate) fn memory_grows_where_most_of_the_later_rounds_add_to_it() {
    const MIB: u64 = 1 << 20;
    assert!(!grows(&[], MIB) && !grows(&[7], MIB) && !grows(&[1, 9 * MIB, 9 * MIB], MIB));
    assert!(grows(&[0, 0, 2 * MIB], MIB));
    assert!(grows(&[0, 0, 0, MIB, 2 * MIB, 3 * MIB], 2 * MIB));
    assert!(grows(&[0, 0, 0, 3 * MIB, 3 * MIB, 6 * MIB], 2 * MIB));
    assert!(!grows(&[0, 0, 0, 3 * MIB, 3 * MIB, 3 * MIB], 2 * MIB));
}

/// Gives the numbers of a load, no faster than they may come.
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

    /// How many there are in all.
    pub(crate) fn load(&self) -> usize {
        self.load
    }

    /// How many there were, and how fast.
    pub(crate) fn told(&self) -> String {
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
        // One sleep for several: each takes longer than it should.
        if early > Duration::from_millis(1) {
            thread::sleep(early);
        }
        self.done += 1;
        Some(self.done - 1)
    }
}

/// A number with a comma for each thousand.
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

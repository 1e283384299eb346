//! A few runs of the simulator; `./ci.sh sim` plays thousands.

use uwarp_sim::{Log, Options, run};

const QUIET: Options = Options {
    log: Log::Off,
    crc: true,
};

/// As many as are quick in a debug build.
const RUNS: std::ops::Range<u64> = 1..17;

#[test]
fn whatever_befalls_the_network_and_the_programs_what_has_to_hold_holds() {
    for seed in RUNS {
        if let Err(error) = run(seed, QUIET) {
            panic!("seed {seed}: {error}\nagain, step by step: ./ci.sh sim --seed {seed} --log");
        }
    }
}

#[test]
fn two_runs_with_one_seed_are_alike_octet_by_octet() {
    for seed in RUNS.take(8) {
        let [one, two] = [(); 2].map(|()| run(seed, QUIET).unwrap());
        assert_eq!(one, two, "seed {seed}");
        assert_ne!(one.digest, run(seed + 1, QUIET).unwrap().digest);
    }
}

/// The runs are worth something: packets are lost and damaged, and requests succeed and fail.
#[test]
fn runs_have_traffic_and_faults() {
    let (mut packets, mut completions) = ([0; 2], [0; 2]);
    for seed in RUNS {
        let outcome = run(seed, QUIET).unwrap();
        for index in 0..2 {
            packets[index] += outcome.packets[index];
            completions[index] += outcome.completions[index];
        }
    }
    let [sent, damaged] = packets;
    assert!(sent > 5000 && damaged > 5, "{packets:?}");
    let [succeeded, failed] = completions;
    assert!(succeeded > 1000 && failed > 100, "{completions:?}");
}

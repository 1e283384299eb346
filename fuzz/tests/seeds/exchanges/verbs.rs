//! Seeds with sequences of calls that programs make.

use uwarp_fuzz::input::Seed;

/// Flag of a call: all of its effects happen before the next call.
const SETTLE: u8 = 0x20;

/// Connects two QPs of one domain and one CQ, and registers a region of 512 bytes with all rights.
fn connected(seed: Seed) -> Seed {
    seed.u8(SETTLE | 30).u8(4).u8(3)
}

/// Posts a receive to a QP, or to an SRQ, whose numbers follow those of the QPs.
fn receive(seed: Seed, at: u8) -> Seed {
    seed.u8(SETTLE | 12).u8(at).u8(0).u8(0).u16(128).u16(64)
}

/// Registers a region of a domain with these rights, for one QP, or for all QPs if `qp` is 15.
fn region(seed: Seed, pd: u8, qp: u8, access: u8) -> Seed {
    seed.u8(4).u8(pd).u8(qp).u16(512).u8(access).u8(0)
}

/// Posts a request with an element of region `own` and the remote address of region `their`.
fn with(seed: Seed, at: u8, kind: u8, (own, their): (u8, u8)) -> Seed {
    let seed = seed.u8(SETTLE | 15).u8(at).u8(kind).u8(0);
    let seed = seed.u8(0).u8(own).u16(0).u16(8);
    seed.u8(their).u16(64).u8(20)
}

/// Posts a request to a send queue: its kind and flags, one element, the remote address, the inline
/// length.
fn send(seed: Seed, at: u8, kind: u8, flags: u8) -> Seed {
    let len = if kind == 6 || kind == 7 { 8 } else { 48 };
    let seed = seed.u8(SETTLE | 15).u8(at).u8(kind).u8(flags);
    let seed = seed.u8(0).u8(0).u16(0).u16(len);
    seed.u8(0).u16(256).u8(20)
}

fn poll(seed: Seed) -> Seed {
    seed.u8(SETTLE | 21).u8(0)
}

/// Creates the seeds of `verbs_ops`: every operation between two QPs, every way to end, objects
/// destroyed while in use in every order, and connection management call by call.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for flags in [0, 1, 2, 4] {
        let mut seed = connected(Seed::new());
        // Requests that invalidate come last.
        for kind in [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1] {
            seed = receive(seed, 1);
            seed = send(seed, 0, kind, flags);
            seed = poll(seed);
        }
        seeds.push(seed.done());
    }
    // Disconnect, abort, reset, and Modify QP by both sets of names, with work of all kinds before
    // and after.
    for how in 0..8 {
        for to in 0..7 {
            let mut seed = receive(connected(Seed::new()), 1);
            seed = send(seed, 0, 3, 0).u8(24).u8(0).u8(how).u8(to);
            seed = send(send(seed, 0, 0, 0), 0, 5, 1);
            seed = poll(receive(seed, 0)).u8(SETTLE | 24).u8(0).u8(2).u8(0);
            seeds.push(send(receive(seed, 0), 0, 0, 0).u8(25).u8(0).done());
        }
    }
    // Each kind of object is destroyed while the connection is up.
    for (call, how) in [
        (6, 0),
        (6, 1),
        (8, 0),
        (8, 1),
        (9, 0),
        (9, 1),
        (10, 1),
        (11, 0),
    ] {
        let mut seed = send(receive(connected(Seed::new()), 1), 0, 0, 0);
        seed = seed.u8(SETTLE | call).u8(0).u8(how);
        seeds.push(poll(send(seed, 0, 3, 0)).u8(25).u8(0).done());
    }
    seeds.extend(regions());
    seeds.push(windows());
    seeds.push(shared());
    seeds.push(by_hand());
    // A CQ that is too small.
    let mut seed = Seed::new().u8(0).u8(1).u8(2);
    seed = connected(seed);
    for _ in 0..6 {
        seed = send(seed, 0, 4, 0);
    }
    seeds.push(poll(seed).u8(29).u8(1).done());
    seeds
}

/// Creates seeds with regions of another domain, for another QP, and with each single right.
/// Requests of several kinds use them.
fn regions() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for access in [1, 3, 5, 9] {
        for kind in [0, 3, 5, 6] {
            let mut seed = connected(Seed::new()).u8(0);
            seed = region(seed, 1, 15, access);
            seed = region(seed, 0, 1, access);
            seed = region(seed, 0, 15, access);
            seed = receive(seed, 1);
            for (own, their) in [(1, 0), (2, 0), (3, 0), (0, 3)] {
                seed = with(seed, 0, kind, (own, their));
            }
            seeds.push(poll(seed).u8(25).u8(0).done());
        }
    }
    // A Write into a region of another domain, and one into a region that only the writer's own QP
    // may use.
    for (at, their) in [(0, 1), (1, 2)] {
        let seed = connected(Seed::new()).u8(0);
        let seed = region(region(seed, 1, 15, 3), 0, 1, 3);
        let seed = with(seed, 0, 3, (0, 0));
        seeds.push(poll(with(seed, at, 3, (0, their))).u8(25).u8(0).done());
    }
    seeds
}

/// Binds and uses windows of all kinds. The region cannot be deregistered meanwhile.
fn windows() -> Vec<u8> {
    let mut seed = connected(Seed::new());
    for kind in 0..3 {
        seed = seed.u8(5).u8(0).u8(kind);
        let bind = seed.u8(SETTLE | 20).u8(0).u8(u8::from(kind == 0)).u8(kind);
        seed = bind.u8(0).u16(0).u16(100).u8(6);
    }
    seed = seed.u8(6).u8(0).u8(1);
    // A Write through the first window, at offset 16.
    seed = seed
        .u8(SETTLE | 15)
        .u8(1)
        .u8(4)
        .u8(0)
        .u8(2)
        .u8(0x80)
        .u16(16)
        .u8(9);
    seed = poll(seed).u8(7).u8(0).u8(7).u8(0).u8(7).u8(0);
    seed.u8(6).u8(0).u8(1).done()
}

/// Uses QPs with a shared receive queue, and modifies its limit and its size.
fn shared() -> Vec<u8> {
    let mut seed = Seed::new().u8(0).u8(1).u8(0).u8(3).u8(0).u8(10);
    seed = seed.u8(SETTLE | 30).u8(4).u8(0);
    seed = seed.u8(30).u8(0).u8(0).u8(11).u8(2);
    for _ in 0..3 {
        seed = receive(seed, 2);
    }
    for kind in [0, 2, 10] {
        seed = send(seed, 0, kind, 4);
    }
    poll(seed).u8(29).u8(0).u8(10).u8(0).u8(1).done()
}

/// Connects by single calls of the connection manager. The first request is rejected. The second is
/// accepted, and its connection is ended. Some events are acknowledged late.
fn by_hand() -> Vec<u8> {
    let call = |seed: Seed, call: u8, id: u8, flags: u8| {
        // The flags determine how many bytes follow. Here they select the default port, the default
        // depth and three bytes of Private Data.
        seed.u8(SETTLE | 26).u8(call).u8(id).u8(flags).u8(0)
    };
    let mut seed = Seed::new().u8(0).u8(1).u8(0);
    seed = seed
        .u8(2)
        .u8(0)
        .u8(0)
        .u8(0)
        .u8(3)
        .u8(2)
        .u8(0)
        .u8(0)
        .u8(0)
        .u8(3);
    // Id 0 listens, id 1 connects.
    seed = seed.u8(26).u8(0).u8(26).u8(0);
    seed = call(seed, 1, 0, 1);
    seed = call(seed, 2, 0, 1).u8(4);
    for round in 0..2 {
        seed = call(seed, 3, 1, 1);
        seed = call(seed, 4, 1, 1);
        seed = call(seed, 5, 1, 1);
        for _ in 0..3 {
            seed = seed.u8(28).u8(round);
        }
        seed = call(seed, 9 - 2 * round, 2, 1);
        seed = seed.u8(SETTLE | 28).u8(0).u8(SETTLE | 28).u8(0);
    }
    seed = call(seed, 10, 1, 1);
    seed = seed.u8(28).u8(0).u8(28).u8(0).u8(30).u8(3);
    for id in [2, 1, 0] {
        seed = call(seed, 11, id, 1);
    }
    seed.u8(23).u8(23).done()
}

//! IRD and ORD. Checks the negotiated depths. Then posts one more Read than the depths permit at
//! the same time.

use std::sync::Arc;

use uwarp_interop::{Failure, Outcome, Post, QpParams, Result, Rig, pattern, sge};
use uwarp_testkit::MemoryFile;
use uwarp_verbs::capture::Capture;
use uwarp_verbs::llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_verbs::{Device, Peer, QpCaps, RemoteBuffer, SendWr, Settings, Sge, WcOpcode};

use crate::Case;
use crate::bench::{Bench, bytes};
use crate::captured::{Outstanding, outstanding};
use crate::errors::same;
use crate::pair::{Ours, Role, Terms};

/// Depths to test. The maximum of siw is 128.
const DEPTHS: [u8; 4] = [1, 2, 16, 128];
/// Length of a Read in bytes. It takes more than one segment of siw and needs no padding, for the
/// reason at `transfers::READ_LEN`.
const LEN: usize = 2004;
/// Depth of the queues, in Reads.
const QUEUE: u32 = 256;

/// Depths that an application requests.
#[derive(Clone, Copy, Debug)]
struct Depths {
    ird: u8,
    ord: u8,
}

impl Depths {
    fn of(depth: u8) -> Depths {
        Depths {
            ird: depth,
            ord: depth,
        }
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        for depth in DEPTHS {
            cases.push(case(
                format!("{}::ours_{depth}", role.name()),
                format!(
                    "IRD and ORD {depth} of uwarp, 1, 2, 16 and 128 of siw: as many Reads as that permits and one more, \
                     both ways, {}",
                    role.title()
                ),
                move |rig| {
                    let rows = DEPTHS.map(|theirs| (Depths::of(depth), Depths::of(theirs)));
                    all(rig, role, &rows)
                },
            ));
        }
        cases.push(case(
            format!("{}::different", role.name()),
            format!(
                "IRD 1 and ORD 128, or the other way round, on each side: as many Reads as that permits and one more, \
                 both ways, {}",
                role.title()
            ),
            move |rig| {
                let (few, many) = (Depths { ird: 1, ord: 128 }, Depths { ird: 128, ord: 1 });
                all(rig, role, &[(few, many), (many, few), (few, few), (many, many)])
            },
        ));
    }
    cases
}

fn case(
    name: String,
    title: String,
    run: impl Fn(&mut Rig) -> Result<Outcome> + Send + Sync + 'static,
) -> Case {
    Case {
        suite: "ird_ord",
        name,
        title,
        run: Box::new(run),
    }
}

fn all(rig: &mut Rig, role: Role, rows: &[(Depths, Depths)]) -> Result<Outcome> {
    let mut overrun = false;
    for (ours, theirs) in rows {
        let more = one(rig, role, *ours, *theirs)
            .map_err(|failure| failure.during(format!("we want {ours:?}, siw {theirs:?}")))?;
        overrun |= more;
    }
    Ok(if overrun {
        Outcome::Deviation(
            "an initiating siw uses our IRD as its ORD, even if its consumer asked for less \
             (RFC 6581 section 9.1)"
                .to_owned(),
        )
    } else {
        Outcome::Passed
    })
}

/// Negotiated depths of our side, and those that siw must announce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Agreed {
    ird: u16,
    ord: u16,
    peer_ird: Option<u16>,
    peer_ord: Option<u16>,
}

/// Returns the depths according to RFC 6581 section 9.1. A responder raises its IRD to the
/// initiator's ORD. As responder, siw announces the smaller of its application's ORD and our IRD as
/// its ORD.
fn expected(role: Role, ours: Depths, theirs: Depths) -> Agreed {
    let [our_ird, our_ord] = [ours.ird, ours.ord].map(u16::from);
    let [their_ird, their_ord] = [theirs.ird, theirs.ord].map(u16::from);
    match role {
        Role::GuestServes => Agreed {
            ird: our_ird,
            ord: our_ord,
            peer_ird: Some(their_ird.max(our_ord)),
            peer_ord: Some(their_ord.min(our_ird)),
        },
        Role::GuestConnects => Agreed {
            ird: our_ird.max(their_ord),
            ord: our_ord.min(their_ird),
            peer_ird: Some(their_ird),
            peer_ord: Some(their_ord),
        },
    }
}

/// Runs a connection with these depths. Returns true if siw had more Reads outstanding than its
/// application requested.
fn one(rig: &mut Rig, role: Role, ours: Depths, theirs: Depths) -> Result<bool> {
    let terms = Terms {
        ird: ours.ird,
        ord: ours.ord,
        their_depths: Some((theirs.ird, theirs.ord)),
        settings: Settings::default().peer(Peer::Siw),
        caps: QpCaps::default().max_send_wr(QUEUE),
        qp_params: QpParams {
            send_wr: QUEUE,
            ..QpParams::default()
        },
        ..Terms::default()
    };
    let capture = MemoryFile::default();
    let seen = rig.wire.name() == "kernel_tcp";
    let end = if seen {
        let to = Capture::to_writer(Box::new(capture.clone()))?;
        let network = KernelNetwork::new(KernelSettings::default(), Some(&to));
        let device = Device::open(Arc::new(network), terms.settings.clone())?;
        Ours::on(device, &terms)?
    } else {
        Ours::new(rig, &terms)?
    };
    let reads = usize::from(u8::MAX);
    let bench = Bench::open_with(rig, role, end, &terms, 2 * reads * LEN)?;
    let want = expected(role, ours, theirs);
    let info = bench.ours.qp.connection();
    let info = info.ok_or_else(|| Failure::new("our side has no connection"))?;
    let agreed = Agreed {
        ird: info.ird,
        ord: info.ord,
        peer_ird: info.peer_ird,
        peer_ord: info.peer_ord,
    };
    same("agreed", &agreed, &want)?;
    // One more than our IRD, which is more than siw may have outstanding.
    read_both_ways(
        rig,
        &bench,
        usize::from(want.ord) + 1,
        usize::from(want.ird) + 1,
    )?;
    bench.close(&mut rig.agent, role)?;
    if !seen {
        return Ok(false);
    }
    let Outstanding {
        ours: by_us,
        theirs: by_guest,
    } = outstanding(capture.bytes())?;
    same(
        "the most Reads of ours at once",
        &by_us,
        &usize::from(want.ord),
    )?;
    if by_guest > usize::from(want.ird) {
        return Err(Failure::new(format!(
            "siw had {by_guest} Reads outstanding, where our IRD is {}",
            want.ird
        )));
    }
    Ok(by_guest > usize::from(theirs.ord))
}

/// Posts all Reads on both sides, then waits for them.
fn read_both_ways(rig: &mut Rig, bench: &Bench, by_us: usize, by_guest: usize) -> Result<()> {
    let agent = &mut rig.agent;
    let (near, far) = (&bench.near, &bench.far);
    let half = usize::from(u8::MAX) * LEN;
    near.write_at(0, &pattern(1, 0, by_guest * LEN))?;
    agent.fill(far, 0, by_us * LEN, 2)?;
    let stride = LEN as u64;
    let mut reads = Post::new("read", 1000, sge(far, half, LEN)).remote(near.addr(), near.rkey());
    (reads.count, reads.stride, reads.rstride) = (by_guest as u64, stride, stride);
    agent.post(bench.conn, &reads)?;
    let sinks: Vec<[Sge; 1]> = (0..by_us)
        .map(|number| [near.sge((half + number * LEN) as u64, bytes(LEN))])
        .collect();
    let reads: Vec<SendWr<'_>> = (2000..)
        .zip(&sinks)
        .map(|(id, sink)| {
            SendWr::read(
                id,
                sink,
                RemoteBuffer::at(far.addr + (id - 2000) * stride, far.rkey),
            )
        })
        .collect();
    bench.ours.qp.post_send_list(&reads)?;
    for id in (2000..).take(by_us) {
        bench.ours.completion(id, WcOpcode::RdmaRead)?;
    }
    for id in (1000..).take(by_guest) {
        agent.completion(bench.conn)?.expect(id, "read")?;
    }
    bench.holds(half, &pattern(2, 0, by_us * LEN))?;
    agent.check(far, half, by_guest * LEN, 1, 0)?;
    agent.check_zero(far, half + by_guest * LEN, 1)
}

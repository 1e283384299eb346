//! Deep queues: thousands of work requests outstanding on both sides at the same time.

use uwarp_interop::{Agent, Conn, Failure, Outcome, PATIENCE, Post, QpParams, Result, Rig};
use uwarp_interop::{pattern, sge};
use uwarp_verbs::{QpCaps, RecvWr, RemoteBuffer, SendWr, Settings, Sge, Status, WcOpcode};

use crate::Case;
use crate::bench::{Bench, Op, bytes};
use crate::pair::{Ours, Role, Terms};

/// Maximum queue depth of siw, which is also uwarp's default maximum.
const DEEPEST: usize = 32_768;
/// Maximum number of requests that one command of the agent can post.
const BATCH: usize = 4096;
/// Length of a message in bytes. siw corrupts messages of up to 32 bytes that cross a page
/// boundary.
const LEN: usize = 100;

/// Requests that each side posts before it waits. In each of `rounds` rounds, a side posts `burst`
/// requests of each kind.
#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    title: &'static str,
    ops: &'static [Op],
    burst: usize,
    rounds: usize,
}

const PLANS: [Plan; 5] = [
    Plan {
        name: "sends",
        title: "4,096 Sends outstanding each way at once",
        ops: &[Op::Send],
        burst: 4096,
        rounds: 1,
    },
    Plan {
        name: "writes",
        title: "4,096 Writes outstanding each way at once",
        ops: &[Op::Write],
        burst: 4096,
        rounds: 1,
    },
    Plan {
        name: "reads",
        title: "4,096 Reads in the queue each way at once",
        ops: &[Op::Read],
        burst: 4096,
        rounds: 1,
    },
    Plan {
        name: "mixed",
        title: "1,024 Sends, Writes and Reads each, in turns of 64, outstanding each way at once",
        ops: &[Op::Send, Op::Write, Op::Read],
        burst: 64,
        rounds: 16,
    },
    Plan {
        name: "deepest",
        title: "32,768 Sends outstanding each way at once, in queues as deep as siw has them",
        ops: &[Op::Send],
        burst: DEEPEST - 1,
        rounds: 1,
    },
];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        for plan in PLANS {
            cases.push(Case {
                suite: "deep_queues",
                name: format!("{}::{}", role.name(), plan.name),
                title: format!("{}, {}", plan.title, role.title()),
                run: Box::new(move |rig| deep(rig, role, plan)),
            });
        }
    }
    cases
}

impl Plan {
    /// Returns the number of requests of each kind.
    fn each(self) -> usize {
        self.burst * self.rounds
    }

    /// Returns the number of bytes of all requests of one kind.
    fn part(self) -> usize {
        self.each() * LEN
    }

    /// Returns the number of bytes of all requests. The first half of a region has the sources, the
    /// second half the sinks.
    fn half(self) -> usize {
        self.ops.len() * self.part()
    }

    /// Iterates over the bursts in posting order: kind, offset of its first source, offset of its
    /// first sink.
    fn bursts(self) -> impl Iterator<Item = (Op, usize, usize)> {
        let kinds = move |round| {
            (self.ops.iter().enumerate()).map(move |(kind, op)| {
                let at = kind * self.part() + round * self.burst * LEN;
                (*op, at, self.half() + at)
            })
        };
        (0..self.rounds).flat_map(kinds)
    }
}

/// Number of the first receive.
const RECEIVES: u64 = 100_000;
/// Number of the first request in the send queue.
const REQUESTS: u64 = 200_000;

fn deep(rig: &mut Rig, role: Role, plan: Plan) -> Result<Outcome> {
    // QEMU's user network forwards bytes as soon as the guest has room for them, so it may cut the
    // stream anywhere.
    let cut = plan.burst > BATCH && rig.wire.name() == "kernel_tcp";
    // Each side has one more Send at the end, which arrives after all Writes.
    let depth = bytes(plan.ops.len() * plan.each() + 1);
    let terms = Terms {
        caps: QpCaps::default().max_send_wr(depth).max_recv_wr(depth),
        qp_params: QpParams {
            send_wr: depth,
            recv_wr: depth,
            sge: 1,
            ..QpParams::default()
        },
        settings: Settings::default().crc(!cut),
        ..Terms::default()
    };
    let bench = Bench::open(rig, role, &terms, 2 * plan.half())?;
    let agent = &mut rig.agent;
    bench.near.write_at(0, &pattern(1, 0, plan.half()))?;
    agent.fill(&bench.far, 0, plan.half(), 2)?;
    let sends = plan.ops.contains(&Op::Send);
    let receives = if sends { plan.each() + 1 } else { 1 };
    receive(agent, &bench, plan, sends)?;
    post_by_guest(agent, &bench, plan)?;
    post_by_us(&bench, plan)?;

    let requests = || {
        plan.bursts()
            .flat_map(|(op, ..)| vec![op; plan.burst])
            .chain([Op::Send])
    };
    completed_here(&bench.ours, requests(), receives)
        .map_err(|failure| failure.during(troubles(agent)))?;
    let overtaken = completed_there(agent, bench.conn, requests(), receives)?;
    bench.holds(plan.half(), &pattern(2, 0, plan.half()))?;
    agent.check(&bench.far, plan.half(), plan.half(), 1, 0)?;
    bench.close(agent, role)?;
    if cut {
        return Ok(Outcome::Deviation(
            "on kernel TCP without CRC: siw misreads a CRC that two TCP segments share".to_owned(),
        ));
    }
    Ok(if overtaken {
        Outcome::Deviation(
            "siw completes a Send or a Write before Reads that were posted earlier (a matter of its verbs)"
                .to_owned(),
        )
    } else {
        Outcome::Passed
    })
}

/// Posts a receive for each Send, and one for the final Send, on both sides.
fn receive(agent: &mut Agent, bench: &Bench, plan: Plan, sends: bool) -> Result<()> {
    let count = if sends { plan.each() } else { 0 };
    let last = RECEIVES + count as u64;
    // Sends are the first kind, so their sinks are first.
    for at in (0..count).step_by(BATCH) {
        let sink = sge(&bench.far, plan.half() + at * LEN, LEN);
        let (some, id) = ((count - at).min(BATCH), RECEIVES + at as u64);
        agent.recv(bench.conn, id, &sink, some as u64, LEN as u64)?;
    }
    agent.recv(bench.conn, last, &sge(&bench.far, 0, 1), 1, 0)?;
    let sinks: Vec<[Sge; 1]> = (0..count)
        .map(|number| place(bench, plan.half() + number * LEN))
        .collect();
    let mut receives: Vec<RecvWr<'_>> = (RECEIVES..)
        .zip(&sinks)
        .map(|(id, sink)| RecvWr::new(id, sink))
        .collect();
    receives.push(RecvWr::new(last, &[]));
    Ok(bench.ours.qp.post_recv_list(&receives)?)
}

/// Returns the scatter/gather list of one message.
fn place(bench: &Bench, at: usize) -> [Sge; 1] {
    [bench.near.sge(at as u64, bytes(LEN))]
}

fn post_by_guest(agent: &mut Agent, bench: &Bench, plan: Plan) -> Result<()> {
    let (near, far) = (&bench.near, &bench.far);
    let mut id = REQUESTS;
    for (op, source, sink) in plan.bursts() {
        for at in (0..plan.burst).step_by(BATCH) {
            let some = (plan.burst - at).min(BATCH) as u64;
            let (source, sink) = (source + at * LEN, sink + at * LEN);
            let (name, local, remote) = match op {
                Op::Read => ("read", sink, source),
                Op::Write => ("write", source, sink),
                _ => ("send", source, 0),
            };
            let mut post = Post::new(name, id, sge(far, local, LEN));
            if op != Op::Send {
                post = post.remote(near.addr() + remote as u64, near.rkey());
                post.rstride = LEN as u64;
            }
            (post.count, post.stride) = (some, LEN as u64);
            agent.post(bench.conn, &post)?;
            id += some;
        }
    }
    agent.post(bench.conn, &Post::new("send", id, ""))
}

/// Posts all requests of our side in one call of the verbs.
fn post_by_us(bench: &Bench, plan: Plan) -> Result<()> {
    let far = &bench.far;
    let places: Vec<(Op, [Sge; 1], u64)> = plan
        .bursts()
        .flat_map(|(op, source, sink)| {
            (0..plan.burst).map(move |number| {
                let (source, sink) = (source + number * LEN, sink + number * LEN);
                match op {
                    Op::Read => (op, place(bench, sink), far.addr + source as u64),
                    _ => (op, place(bench, source), far.addr + sink as u64),
                }
            })
        })
        .collect();
    let mut requests: Vec<SendWr<'_>> = (REQUESTS..)
        .zip(&places)
        .map(|(id, (op, list, remote))| match op {
            Op::Read => SendWr::read(id, list, RemoteBuffer::at(*remote, far.rkey)),
            Op::Write => SendWr::write(id, list, RemoteBuffer::at(*remote, far.rkey)),
            _ => SendWr::send(id, list),
        })
        .collect();
    requests.push(SendWr::send(REQUESTS + requests.len() as u64, &[]));
    Ok(bench.ours.qp.post_send_list(&requests)?)
}

/// Checks that all requests and receives complete on our side, each queue in posting order.
fn completed_here(ours: &Ours, requests: impl Iterator<Item = Op>, receives: usize) -> Result<()> {
    let opcode = |op| match op {
        Op::Read => WcOpcode::RdmaRead,
        Op::Write => WcOpcode::RdmaWrite,
        _ => WcOpcode::Send,
    };
    let mut requests = (REQUESTS..).zip(requests.map(opcode)).peekable();
    let mut receives = (RECEIVES..).take(receives).peekable();
    while requests.peek().is_some() || receives.peek().is_some() {
        let came = ours.cq.wait(Some(PATIENCE)).ok_or_else(|| {
            let end = ours.qp.end_reason().map(|reason| reason.to_string());
            Failure::new(format!(
                "no completion on our side in time; next would be {:?} or receive {:?}; end: {end:?}",
                requests.peek(),
                receives.peek()
            ))
        })?;
        let want = match came.opcode {
            WcOpcode::Recv => receives.next().map(|id| (id, WcOpcode::Recv)),
            _ => requests.next(),
        };
        if want != Some((came.wr_id, came.opcode)) || came.status != Status::Success {
            let end = ours.qp.end_reason().map(|reason| reason.to_string());
            return Err(Failure::new(format!(
                "expected {want:?} to complete on our side, got: {came:?}; end: {end:?}"
            )));
        }
    }
    Ok(())
}

/// Checks that all requests and receives complete in the guest. Their order may differ, because siw
/// completes a Send or a Write when it is sent, even before Reads that were posted earlier. Returns
/// true if the order differed.
fn completed_there(
    agent: &mut Agent,
    conn: Conn,
    requests: impl Iterator<Item = Op>,
    receives: usize,
) -> Result<bool> {
    let numbered: Vec<(u64, Op)> = (REQUESTS..).zip(requests).collect();
    let (reads, others): (Vec<_>, Vec<_>) =
        numbered.into_iter().partition(|(_, op)| *op == Op::Read);
    let mut reads = reads.into_iter().map(|(id, _)| id).peekable();
    let mut others = others.into_iter().peekable();
    let mut receives = (RECEIVES..).take(receives).peekable();
    let mut overtaken = false;
    while reads.peek().is_some() || others.peek().is_some() || receives.peek().is_some() {
        let came = agent.completion(conn)?;
        let want = match came.op.as_str() {
            "recv" => receives.next().map(|id| (id, "recv")),
            "read" => reads.next().map(|id| (id, "read")),
            _ => others.next().map(|(id, op)| {
                overtaken |= reads.peek().is_some_and(|read| *read < id);
                (id, if op == Op::Write { "write" } else { "send" })
            }),
        };
        let Some((id, op)) = want else {
            return Err(Failure::new(format!("one completion too many: {came:?}")));
        };
        came.expect(id, op)?;
    }
    Ok(overtaken)
}

/// Describes failures that the guest has reported, for an error message.
fn troubles(agent: &mut Agent) -> String {
    // The agent answers after all pending reports.
    let asked = agent.query().err();
    let bad = |line: &String| !line.contains("success");
    let lines: Vec<String> = agent.unread().into_iter().filter(bad).take(4).collect();
    format!("in the guest {lines:?} {asked:?}")
}

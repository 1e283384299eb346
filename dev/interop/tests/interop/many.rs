//! Many connections: one after another, and at the same time.

use serde_json::json;
use uwarp_interop::{Agent, Conn, Failure, Outcome, PATIENCE};
use uwarp_interop::{Post, QpParams, Region, Result, Rig, pattern, sge};
use uwarp_verbs::{
    Access, Completion, EndReason, MemoryRegion, RecvWr, RemoteBuffer, SendWr, Status, WcOpcode,
};

use crate::Case;
use crate::bench::bytes;
use crate::pair::{Ours, Role, Terms};
use crate::responder_listener::ResponderListener;
use crate::transfers::case;

const CHURN: usize = 200;
const AT_ONCE: usize = 8;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        let (name, title) = (role.name(), role.title());
        cases.push(case(
            format!("{name}::churn"),
            format!("{CHURN} connections one after another, a Send each way on each, {title}"),
            move |rig| churn(rig, role),
        ));
        cases.push(case(
            format!("{name}::at_once"),
            format!("{AT_ONCE} connections at once, Sends and Writes both ways on all, {title}"),
            move |rig| at_once(rig, role),
        ));
    }
    cases
}

/// Creates another QP on the same device, domain and CQ.
fn another(ours: &Ours, terms: &Terms) -> Result<Ours> {
    let (device, pd, cq) = (ours.device.clone(), ours.pd.clone(), ours.cq.clone());
    let qp = pd.create_qp(&cq, &cq, terms.caps)?;
    Ok(Ours { device, pd, cq, qp })
}

/// Number of bytes that each connection sends each way.
const SMALL: usize = 100;

fn churn(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let terms = Terms::default();
    let ours = Ours::new(rig, &terms)?;
    let near = ours.region(SMALL, Access::LOCAL_WRITE)?;
    let far = rig.agent.reg(2 * SMALL, "lw")?;
    let responder = ResponderListener::open(rig, &ours, role, QpParams::default())?;
    for number in 0..CHURN {
        let ours = another(&ours, &terms)?;
        let conn = responder.connect(rig, &ours.qp)?;
        exchange(&mut rig.agent, role, conn, (&ours, &near), &far, number)
            .and_then(|()| close_gracefully(&mut rig.agent, conn, &ours, number))
            .map_err(|failure| failure.during(format!("connection {number} of {CHURN}")))?;
    }
    Ok(Outcome::Passed)
}

/// Sends a message each way, the initiator first.
fn exchange(
    agent: &mut Agent,
    role: Role,
    conn: Conn,
    (ours, near): (&Ours, &MemoryRegion),
    far: &Region,
    number: usize,
) -> Result<()> {
    let seed = number as u64;
    let (to_guest, to_us) = (pattern(seed, 0, SMALL), pattern(seed, 1000, SMALL));
    let sink = [near.sge(0, bytes(SMALL))];
    ours.qp.post_recv(&RecvWr::new(1, &sink))?;
    agent.recv(conn, 2, &sge(far, 0, SMALL), 1, 0)?;
    // The second half of the region is the guest's source.
    let mr = far.number;
    agent.command(
        &json!({"cmd": "fill", "mr": mr, "off": SMALL, "len": SMALL, "seed": seed,
        "at": 1000}),
    )?;
    let forth = |agent: &mut Agent| -> Result<()> {
        ours.qp.post_send(&SendWr::send_inline(3, &to_guest))?;
        ours.completion(3, WcOpcode::Send)?;
        agent.completion(conn)?.expect(2, "recv")?;
        agent.check(far, 0, SMALL, seed, 0)
    };
    if role == Role::GuestServes {
        forth(agent)?;
    }
    agent.post(conn, &Post::new("send", 4, sge(far, SMALL, SMALL)))?;
    ours.completion(1, WcOpcode::Recv)?;
    agent.completion(conn)?.expect(4, "send")?;
    let mut came = vec![0; SMALL];
    near.read_at(0, &mut came)?;
    if came != to_us {
        return Err(Failure::new("the received bytes differ from the sent ones"));
    }
    if role == Role::GuestConnects {
        forth(agent)?;
    }
    Ok(())
}

/// Ends a connection gracefully. Our side ends the connections with an even number, and the guest
/// ends those with an odd number.
pub(crate) fn close_gracefully(
    agent: &mut Agent,
    conn: Conn,
    ours: &Ours,
    number: usize,
) -> Result<()> {
    let by_us = number.is_multiple_of(2);
    if by_us {
        ours.qp.disconnect();
    } else {
        agent.disconnect(conn)?;
    }
    agent.event(conn, "disconnected")?;
    if !ours.qp.wait_closed(PATIENCE) {
        return Err(Failure::new("our side does not close"));
    }
    match (by_us, ours.qp.end_reason()) {
        (true, Some(EndReason::LocalDisconnect)) | (false, Some(EndReason::PeerDisconnect)) => {
            agent.destroy(conn)
        }
        (_, reason) => Err(Failure::new(format!(
            "the close was not orderly: {reason:?}"
        ))),
    }
}

/// Number of messages that each side sends on each connection.
const ROUNDS: usize = 8;
/// Length of a message in bytes.
const CHUNK: usize = 50_001;

/// One of several simultaneous connections. The first half of each region holds the data to send.
/// The second half is the sink.
struct Lane {
    ours: Ours,
    conn: Conn,
    near: MemoryRegion,
    far: Region,
    seed: u64,
}

fn at_once(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let terms = Terms::default();
    let mut ours = Ours::new(rig, &terms)?;
    // The CQ has room for the completions of all QPs.
    let depth = terms.caps.max_send_wr + terms.caps.max_recv_wr;
    ours.cq = ours.device.create_cq(depth * bytes(AT_ONCE))?;
    let responder = ResponderListener::open(rig, &ours, role, QpParams::default())?;
    let half = ROUNDS * CHUNK;
    let mut lanes = Vec::new();
    for number in 0..AT_ONCE {
        let ours = another(&ours, &terms)?;
        let conn = responder.connect(rig, &ours.qp)?;
        let near = ours.region(2 * half, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let far = rig.agent.reg(2 * half, "lw,rw")?;
        let seed = number as u64 + 1;
        near.write_at(0, &pattern(seed, 0, half))?;
        rig.agent.fill(&far, 0, half, seed + 100)?;
        lanes.push(Lane {
            ours,
            conn,
            near,
            far,
            seed,
        });
    }
    let agent = &mut rig.agent;
    if role == Role::GuestConnects {
        for lane in &lanes {
            lane.ours.qp.post_recv(&RecvWr::new(1, &[]))?;
            agent.post(lane.conn, &Post::new("send", 1, ""))?;
            agent.completion(lane.conn)?.expect(1, "send")?;
        }
        for _ in &lanes {
            ours.completion(1, WcOpcode::Recv)?;
        }
    }
    // All receives are posted first. Even rounds are Writes, odd ones are Sends. The last round is
    // a Send, which arrives after all Writes.
    for lane in &lanes {
        lane.receive(agent)?;
    }
    for round in 0..ROUNDS {
        for lane in &lanes {
            lane.send(agent, round)?;
        }
    }
    let each = ROUNDS + ROUNDS / 2;
    let mut successes = 0;
    while successes < each * AT_ONCE {
        match ours.cq.wait(Some(PATIENCE)) {
            Some(Completion {
                status: Status::Success,
                ..
            }) => successes += 1,
            other => {
                return Err(Failure::new(format!(
                    "after {successes} successes: {other:?}"
                )));
            }
        }
    }
    for lane in &lanes {
        for _ in 0..each {
            let came = agent.completion(lane.conn)?;
            if came.status != "success" {
                return Err(Failure::new(format!(
                    "a failed completion in the guest: {came:?}"
                )));
            }
        }
        agent.check(&lane.far, half, half, lane.seed, 0)?;
        let mut came = vec![0; half];
        lane.near.read_at(half, &mut came)?;
        if came != pattern(lane.seed + 100, 0, half) {
            return Err(Failure::new(format!(
                "the received bytes of connection {} are wrong",
                lane.seed
            )));
        }
    }
    for (number, lane) in lanes.iter().enumerate() {
        close_gracefully(agent, lane.conn, &lane.ours, number)?;
    }
    Ok(Outcome::Passed)
}

impl Lane {
    /// Posts receives for the Sends of both sides.
    fn receive(&self, agent: &mut Agent) -> Result<()> {
        let half = ROUNDS * CHUNK;
        for round in (1..ROUNDS).step_by(2) {
            let at = half + round * CHUNK;
            let sink = [self.near.sge(at as u64, bytes(CHUNK))];
            self.ours.qp.post_recv(&RecvWr::new(round as u64, &sink))?;
            agent.recv(self.conn, round as u64, &sge(&self.far, at, CHUNK), 1, 0)?;
        }
        Ok(())
    }

    /// Posts one message in each direction and does not wait for the completions.
    fn send(&self, agent: &mut Agent, round: usize) -> Result<()> {
        let (half, at) = (ROUNDS * CHUNK, round * CHUNK);
        let to = (half + at) as u64;
        let (far, near) = (&self.far, &self.near);
        let source = [near.sge(at as u64, bytes(CHUNK))];
        let id = 100 + round as u64;
        let theirs = sge(far, at, CHUNK);
        if round.is_multiple_of(2) {
            let write = SendWr::write(id, &source, RemoteBuffer::at(far.addr + to, far.rkey));
            self.ours.qp.post_send(&write)?;
            let write = Post::new("write", id, theirs);
            agent.post(self.conn, &write.remote(near.addr() + to, near.rkey()))
        } else {
            self.ours.qp.post_send(&SendWr::send(id, &source))?;
            agent.post(self.conn, &Post::new("send", id, theirs))
        }
    }
}

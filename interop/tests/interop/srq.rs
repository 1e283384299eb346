//! Shared receive queues: siw's, which our Sends fill, and ours, which siw's Sends fill.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use uwarp_interop::{Agent, Conn, Failure, Outcome, PATIENCE, Post, QpWish, Region, Result, Rig};
use uwarp_interop::{SrqNum, pattern, sge};
use uwarp_verbs::{
    Access, AsyncEvent, MemoryRegion, OnNoReceive, QpCaps, RecvWr, SendWr, Sge, Srq, SrqAttr,
    SrqModify, Status, WcOpcode,
};

use crate::Case;
use crate::bench::octets;
use crate::door::Door;
use crate::errors::{same, theirs};
use crate::many::part;
use crate::pair::{Ours, Role, Terms};
use crate::transfers::sent;

/// Connections that share a queue, and messages on each.
const LANES: usize = 4;
const EACH: usize = 24;
/// Octets that a receive has room for: more than one segment.
const LEN: usize = 3000;
/// Receives for all.
const ALL: usize = LANES * EACH;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        for (name, who, ends) in [
            (
                "siw_s",
                "siw's SRQ with 4 QPs: Sends by uwarp on all of them",
                Ends {
                    guest: true,
                    us: false,
                },
            ),
            (
                "ours",
                "our SRQ with 4 QPs: Sends by siw on all of them",
                Ends {
                    guest: false,
                    us: true,
                },
            ),
            (
                "both",
                "an SRQ with 4 QPs on each side: Sends both ways on all of them",
                Ends {
                    guest: true,
                    us: true,
                },
            ),
        ] {
            cases.push(case(
                &format!("{}::{name}", role.name()),
                &format!("{who}, {}", role.title()),
                move |rig| shared(rig, role, ends),
            ));
        }
    }
    cases.extend([
        case(
            "siw_s::limit",
            "the limit of siw's SRQ: an event once when fewer receives are left, and again when it is armed again",
            limit_of_guest,
        ),
        case(
            "ours::limit",
            "the limit of our SRQ: an event once when siw's Sends leave fewer receives, and again when it is armed again",
            limit_of_ours,
        ),
        case(
            "siw_s::resize",
            "siw's SRQ is neither resized nor queried",
            no_resize,
        ),
        case(
            "siw_s::empty",
            "siw's SRQ is empty: Terminate 1/2/02 on the connection of that Send, the others go on",
            empty_at_guest,
        ),
        case(
            "ours::empty",
            "our SRQ is empty: Terminate 1/2/02 on the connection of that Send, the others go on",
            empty_at_us,
        ),
        case(
            "ours::hold",
            "our SRQ is empty, and QPs that hold messages: siw's Sends wait for receives",
            hold,
        ),
        case(
            "siw_s::every_operation",
            "Sends of all kinds, Writes and Reads by uwarp and siw on QPs with siw's SRQ",
            every_operation,
        ),
        case(
            "ours::every_operation",
            "Sends of all kinds, Writes and Reads by uwarp and siw on QPs with our SRQ",
            every_operation_of_ours,
        ),
    ]);
    cases
}

fn case(
    name: &str,
    title: &str,
    run: impl Fn(&mut Rig) -> Result<Outcome> + Send + Sync + 'static,
) -> Case {
    Case {
        suite: "srq",
        name: name.to_owned(),
        title: title.to_owned(),
        run: Box::new(run),
    }
}

/// Which side has a shared receive queue.
#[derive(Clone, Copy)]
struct Ends {
    guest: bool,
    us: bool,
}

/// One of the connections.
struct Lane {
    ours: Ours,
    conn: Conn,
}

/// Both ends with all connections, and memory for every message of each side.
struct Lanes {
    ours: Ours,
    lanes: Vec<Lane>,
    near: MemoryRegion,
    far: Region,
    our_srq: Option<Srq>,
    their_srq: Option<SrqNum>,
}

/// Where the receives are: behind what is sent.
const SINKS: usize = ALL * LEN;

impl Lanes {
    fn open(rig: &mut Rig, role: Role, ends: Ends, hold: Option<OnNoReceive>) -> Result<Lanes> {
        let terms = Terms::default();
        let mut ours = Ours::new(rig, &terms)?;
        ours.cq = ours.device.create_cq(octets(4 * ALL))?;
        let near = ours.region(
            2 * SINKS,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        )?;
        let far = rig.agent.reg(2 * SINKS, "lw,rw,rr")?;
        let attr = SrqAttr {
            max_wr: octets(ALL),
            ..SrqAttr::default()
        };
        let our_srq = if ends.us {
            Some(ours.pd.create_srq(attr)?)
        } else {
            None
        };
        let their_srq = if ends.guest {
            Some(rig.agent.srq(ALL as u64)?)
        } else {
            None
        };
        let wish = QpWish {
            recv_wr: octets(ALL),
            srq: their_srq,
            ..QpWish::default()
        };
        let door = Door::open(rig, &ours, role, wish)?;
        let mut all = Lanes {
            ours,
            lanes: Vec::new(),
            near,
            far,
            our_srq,
            their_srq,
        };
        for _ in 0..LANES {
            let end = all.end(hold)?;
            let conn = door.connect(rig, &end.qp)?;
            if role == Role::GuestConnects {
                first_message(&mut rig.agent, &all, &end, conn)?;
            }
            all.lanes.push(Lane { ours: end, conn });
        }
        Ok(all)
    }

    /// One more QP of ours.
    fn end(&self, hold: Option<OnNoReceive>) -> Result<Ours> {
        let Ours { device, pd, cq, .. } = &self.ours;
        let mut builder = pd.qp().caps(QpCaps::default());
        if let Some(srq) = &self.our_srq {
            builder = builder.srq(srq);
        }
        if let Some(what) = hold {
            builder = builder.on_no_receive(what);
        }
        let qp = builder.build(cq, cq)?;
        let (device, pd, cq) = (device.clone(), pd.clone(), cq.clone());
        Ok(Ours { device, pd, cq, qp })
    }

    /// Posts those receives on our side, each for its slot behind the messages.
    fn receive(&self, slots: std::ops::Range<usize>) -> Result<()> {
        let sinks: Vec<[Sge; 1]> = slots
            .clone()
            .map(|slot| [self.near.sge((SINKS + slot * LEN) as u64, octets(LEN))])
            .collect();
        let receives: Vec<RecvWr<'_>> = slots
            .zip(&sinks)
            .map(|(slot, sink)| RecvWr::new(slot as u64, sink))
            .collect();
        match &self.our_srq {
            Some(srq) => Ok(srq.post_recv_list(&receives)?),
            None => Err(Failure::new("this side has no shared receive queue")),
        }
    }

    /// The same in the guest.
    fn receive_there(&self, agent: &mut Agent, slots: std::ops::Range<usize>) -> Result<()> {
        let Some(srq) = self.their_srq else {
            return Err(Failure::new("the guest has no shared receive queue"));
        };
        let sink = sge(&self.far, SINKS + slots.start * LEN, LEN);
        agent.srq_recv(
            srq,
            slots.start as u64,
            &sink,
            slots.len() as u64,
            LEN as u64,
        )
    }

    /// Ends all connections as they should end.
    fn close(self, agent: &mut Agent) -> Result<()> {
        for (number, lane) in self.lanes.iter().enumerate() {
            part(agent, lane.conn, &lane.ours, number)?;
        }
        match (agent.unread(), self.ours.cq.poll_one()) {
            (theirs, None) if theirs.is_empty() => Ok(()),
            left => Err(Failure::new(format!(
                "left over in the guest and on our side: {left:?}"
            ))),
        }
    }
}

/// It is the initiator's (RFC 5044 section 7.1.2), and empty.
fn first_message(agent: &mut Agent, all: &Lanes, end: &Ours, conn: Conn) -> Result<()> {
    let receive = RecvWr::new(1000, &[]);
    match &all.our_srq {
        Some(srq) => srq.post_recv(&receive)?,
        None => end.qp.post_recv(&receive)?,
    }
    agent.post(conn, &Post::new("send", 1000, ""))?;
    end.completion(1000, WcOpcode::Recv)?;
    agent.completion(conn)?.expect(1000, "send")?;
    Ok(())
}

/// Octets of a message: several lengths, none as short as what siw cuts wrongly at a page.
fn len(lane: usize, number: usize) -> usize {
    33 + (lane * 1009 + number * 643) % (LEN - 32)
}

/// Where a message is, in the memory of who sends it.
fn source(lane: usize, number: usize) -> usize {
    (lane * EACH + number) * LEN
}

fn shared(rig: &mut Rig, role: Role, ends: Ends) -> Result<Outcome> {
    let all = Lanes::open(rig, role, ends, None)?;
    let agent = &mut rig.agent;
    all.near.write_at(0, &pattern(1, 0, SINKS))?;
    agent.fill(&all.far, 0, SINKS, 2)?;
    if ends.us {
        all.receive(0..ALL)?;
    }
    if ends.guest {
        all.receive_there(agent, 0..ALL)?;
    }
    for number in 0..EACH {
        for (index, lane) in all.lanes.iter().enumerate() {
            let (at, len) = (source(index, number), len(index, number));
            let id = 1000 + number as u64;
            if ends.guest {
                let list = [all.near.sge(at as u64, octets(len))];
                lane.ours.qp.post_send(&SendWr::send(id, &list))?;
            }
            if ends.us {
                agent.post(lane.conn, &Post::new("send", id, sge(&all.far, at, len)))?;
            }
        }
    }
    received_here(&all, ends)?;
    received_there(agent, &all, ends)?;
    all.close(agent)?;
    Ok(Outcome::Passed)
}

/// Our completions: every message in a receive of its own, on each connection in order.
fn received_here(all: &Lanes, ends: Ends) -> Result<()> {
    let mut sends = [0; LANES];
    let mut receives = [0; LANES];
    let mut slots = BTreeSet::new();
    let each = |side: bool| if side { EACH } else { 0 };
    while sends != [each(ends.guest); LANES] || receives != [each(ends.us); LANES] {
        let came = (all.ours.cq.wait(Some(PATIENCE))).ok_or_else(|| {
            Failure::new(format!(
                "only so many on our side in time: sent {sends:?}, received {receives:?}"
            ))
        })?;
        let lane = all
            .lanes
            .iter()
            .position(|lane| lane.ours.qp.qp_num() == came.qp_num);
        let (Some(lane), Status::Success) = (lane, came.status) else {
            return Err(Failure::new(format!("on our side came {came:?}")));
        };
        if came.opcode == WcOpcode::Send {
            same(
                "the Send that completes",
                &came.wr_id,
                &(1000 + sends[lane] as u64),
            )?;
            sends[lane] += 1;
            continue;
        }
        let number = receives[lane];
        receives[lane] += 1;
        let slot = usize::try_from(came.wr_id)?;
        same("each receive is used once", &slots.insert(slot), &true)?;
        let len = len(lane, number);
        same("octets received", &came.byte_len, &octets(len))?;
        let mut octets = vec![0; len];
        all.near.read_at(SINKS + slot * LEN, &mut octets)?;
        if octets != pattern(2, source(lane, number) as u64, len) {
            return Err(Failure::new(format!(
                "message {number} of connection {lane} is not what was sent"
            )));
        }
    }
    Ok(())
}

/// The same in the guest.
fn received_there(agent: &mut Agent, all: &Lanes, ends: Ends) -> Result<()> {
    let mut slots = BTreeSet::new();
    for (index, lane) in all.lanes.iter().enumerate() {
        let (mut sends, mut receives) = (0, 0);
        let each = |side: bool| if side { EACH } else { 0 };
        while (sends, receives) != (each(ends.us), each(ends.guest)) {
            let came = agent.completion(lane.conn)?;
            if came.op == "send" {
                came.expect(1000 + sends as u64, "send")?;
                sends += 1;
                continue;
            }
            came.expect(came.wr_id, "recv")?;
            let slot = usize::try_from(came.wr_id)?;
            same("each receive is used once", &slots.insert(slot), &true)?;
            let len = len(index, receives);
            same("octets received", &came.len, &(len as u64))?;
            let at = source(index, receives) as u64;
            agent.check(&all.far, SINKS + slot * LEN, len, 1, at)?;
            receives += 1;
        }
    }
    Ok(())
}

const THEIRS: Ends = Ends {
    guest: true,
    us: false,
};
const OURS: Ends = Ends {
    guest: false,
    us: true,
};

/// One Send by us on that connection, of octets of its own, into that receive of siw's SRQ.
fn send_to(agent: &mut Agent, all: &Lanes, lane: usize, slot: u64) -> Result<()> {
    let lane = &all.lanes[lane];
    lane.ours
        .qp
        .post_send(&SendWr::send_inline(slot, &pattern(slot, 0, 40)))?;
    lane.ours.completion(slot, WcOpcode::Send)?;
    agent.completion(lane.conn)?.expect(slot, "recv")?;
    agent.check(&all.far, SINKS + usize::try_from(slot)? * LEN, 40, slot, 0)
}

/// One Send by siw on that connection, into that receive of our SRQ.
fn send_from(agent: &mut Agent, all: &Lanes, lane: usize, slot: u64) -> Result<()> {
    let lane = &all.lanes[lane];
    agent.fill(&all.far, 0, 40, slot)?;
    agent.post(lane.conn, &Post::new("send", slot, sge(&all.far, 0, 40)))?;
    let came = lane.ours.completion(slot, WcOpcode::Recv)?;
    same("the QP that took it", &came.qp_num, &lane.ours.qp.qp_num())?;
    agent.completion(lane.conn)?.expect(slot, "send")?;
    let mut octets = [0; 40];
    all.near
        .read_at(SINKS + usize::try_from(slot)? * LEN, &mut octets)?;
    same("what has come", &octets.to_vec(), &pattern(slot, 0, 40))
}

const REACHED: &str = "SRQ limit reached";

fn limit_of_guest(rig: &mut Rig) -> Result<Outcome> {
    let all = Lanes::open(rig, Role::GuestServes, THEIRS, None)?;
    let agent = &mut rig.agent;
    let Some(srq) = all.their_srq else {
        return Err(Failure::new("the guest has no shared receive queue"));
    };
    all.receive_there(agent, 0..20)?;
    agent.srq_limit(srq, 10)?;
    for slot in 0..10 {
        send_to(agent, &all, usize::try_from(slot)? % LANES, slot)?;
    }
    agent.query()?;
    same("events while 10 are left", &agent.unread(), &Vec::new())?;
    send_to(agent, &all, 1, 10)?;
    same("the event", &agent.srq_event(srq)?, &REACHED.to_owned())?;
    send_to(agent, &all, 2, 11)?;
    agent.query()?;
    same("events after the first", &agent.unread(), &Vec::new())?;
    agent.srq_limit(srq, 8)?;
    send_to(agent, &all, 3, 12)?;
    same(
        "the second event",
        &agent.srq_event(srq)?,
        &REACHED.to_owned(),
    )?;
    all.close(agent)?;
    Ok(Outcome::Passed)
}

fn no_resize(rig: &mut Rig) -> Result<Outcome> {
    let agent = &mut rig.agent;
    let srq = agent.srq(16)?.0;
    // EOPNOTSUPP.
    for command in [
        json!({"cmd": "srq_modify", "srq": srq, "max_wr": 32}),
        json!({"cmd": "srq_query", "srq": srq}),
    ] {
        same("errno", &agent.try_command(&command)?["errno"], &json!(95))?;
    }
    agent.command(&json!({"cmd": "srq_destroy", "srq": srq}))?;
    Ok(Outcome::Deviation(
        "a matter of its verbs; no RFC has them".to_owned(),
    ))
}

/// Whether our device has told that the limit is reached, since it was last asked.
fn reached(all: &Lanes) -> bool {
    let mut reached = false;
    while let Some(event) = all.ours.device.poll_event() {
        reached |= matches!(event, AsyncEvent::SrqLimitReached { .. });
    }
    reached
}

fn limit_of_ours(rig: &mut Rig) -> Result<Outcome> {
    let all = Lanes::open(rig, Role::GuestServes, OURS, None)?;
    let agent = &mut rig.agent;
    let Some(srq) = &all.our_srq else {
        return Err(Failure::new("our side has no shared receive queue"));
    };
    let arm = |limit| {
        srq.modify(SrqModify {
            limit: Some(limit),
            ..SrqModify::default()
        })
    };
    all.receive(0..20)?;
    arm(10)?;
    for slot in 0..10 {
        send_from(agent, &all, usize::try_from(slot)? % LANES, slot)?;
    }
    same("an event while 10 are left", &reached(&all), &false)?;
    send_from(agent, &all, 1, 10)?;
    same("an event when 9 are left", &reached(&all), &true)?;
    send_from(agent, &all, 2, 11)?;
    same("an event after the first", &reached(&all), &false)?;
    arm(8)?;
    same("an event while 8 are left", &reached(&all), &false)?;
    send_from(agent, &all, 3, 12)?;
    same("an event when 7 are left", &reached(&all), &true)?;
    same("receives left", &srq.posted(), &7)?;
    all.close(agent)?;
    Ok(Outcome::Passed)
}

fn empty_at_guest(rig: &mut Rig) -> Result<Outcome> {
    let mut all = Lanes::open(rig, Role::GuestServes, THEIRS, None)?;
    let agent = &mut rig.agent;
    all.receive_there(agent, 0..2)?;
    send_to(agent, &all, 0, 0)?;
    send_to(agent, &all, 1, 1)?;
    let failed = all.lanes.remove(0);
    failed
        .ours
        .qp
        .post_send(&SendWr::send_inline(2, &[1; 40]))?;
    failed.ours.completion(2, WcOpcode::Send)?;
    let reason = crate::errors::end(&failed.ours)?;
    crate::errors::says(
        &reason.to_string(),
        "the peer ended the connection: Send refused: no buffer available for the message (DDP untagged buffer error, 1/2/02); message ",
        &[],
    )?;
    agent.event(failed.conn, "disconnected")?;
    agent.destroy(failed.conn)?;
    all.receive_there(agent, 3..5)?;
    send_to(agent, &all, 0, 3)?;
    send_to(agent, &all, 1, 4)?;
    all.close(agent)?;
    Ok(Outcome::Deviation(
        "Layer and EType are exchanged, M, D and R at the low end".to_owned(),
    ))
}

fn empty_at_us(rig: &mut Rig) -> Result<Outcome> {
    let mut all = Lanes::open(rig, Role::GuestServes, OURS, None)?;
    let agent = &mut rig.agent;
    all.receive(0..2)?;
    send_from(agent, &all, 0, 0)?;
    send_from(agent, &all, 1, 1)?;
    let failed = all.lanes.remove(0);
    agent.post(failed.conn, &Post::new("send", 2, sge(&all.far, 0, 40)))?;
    let reason = crate::errors::end(&failed.ours)?;
    same("Terminate 1/2/02", &sent(&reason, (1, 2, 2)), &true)?;
    agent.event(failed.conn, "disconnected")?;
    // The Send was on its way: whether siw calls it done is a race in the guest.
    same(
        "completions in the guest",
        &theirs(agent, failed.conn, 1)?.len(),
        &1,
    )?;
    last_wqe(&all, failed.ours.qp.qp_num())?;
    all.receive(3..5)?;
    send_from(agent, &all, 0, 3)?;
    send_from(agent, &all, 1, 4)?;
    Ok(Outcome::Passed)
}

/// That our device has told that this QP takes no more receives.
fn last_wqe(all: &Lanes, failed: u32) -> Result<()> {
    while let Some(event) = all.ours.device.wait_event(Some(PATIENCE)) {
        if matches!(event, AsyncEvent::LastWqeReached { qp_num } if qp_num == failed) {
            return Ok(());
        }
    }
    Err(Failure::new(
        "our device has not said LastWqeReached of that QP",
    ))
}

fn hold(rig: &mut Rig) -> Result<Outcome> {
    let hold = OnNoReceive::Hold(Duration::from_secs(60));
    let all = Lanes::open(rig, Role::GuestServes, OURS, Some(hold))?;
    let agent = &mut rig.agent;
    agent.fill(&all.far, 0, SINKS, 2)?;
    for number in 0..EACH {
        for (index, lane) in all.lanes.iter().enumerate() {
            let (at, len) = (source(index, number), len(index, number));
            let send = Post::new("send", 1000 + number as u64, sge(&all.far, at, len));
            agent.post(lane.conn, &send)?;
        }
    }
    // siw completes a Send when TCP has it: all are on their way, and nothing is received.
    for lane in &all.lanes {
        for number in 0..EACH {
            agent
                .completion(lane.conn)?
                .expect(1000 + number as u64, "send")?;
        }
    }
    same(
        "a completion before there is a receive",
        &all.ours.cq.poll_one(),
        &None,
    )?;
    // First fewer than there are connections.
    all.receive(0..2)?;
    all.receive(2..ALL)?;
    received_here(&all, OURS)?;
    all.close(agent)?;
    Ok(Outcome::Passed)
}

/// One of each kind on each connection, by both sides.
fn operations(agent: &mut Agent, all: &Lanes, ends: Ends) -> Result<()> {
    let (near, far) = (&all.near, &all.far);
    near.write_at(0, &pattern(1, 0, SINKS))?;
    agent.fill(far, 0, SINKS, 2)?;
    for (index, lane) in all.lanes.iter().enumerate() {
        let at = source(index, 0);
        let (there, here) = (
            far.addr + (SINKS + at) as u64,
            near.addr() + (SINKS + at) as u64,
        );
        let piece = |number: usize| [near.sge((at + number * LEN) as u64, octets(LEN))];
        let (whole, sink) = (piece(0), [near.sge((SINKS + at + LEN) as u64, octets(LEN))]);
        let from = far.addr + at as u64;
        lane.ours.qp.post_send_list(&[
            SendWr::write(1, &whole, there, far.rkey),
            SendWr::read(2, &sink, from, far.rkey),
        ])?;
        lane.ours.completion(1, WcOpcode::RdmaWrite)?;
        lane.ours.completion(2, WcOpcode::RdmaRead)?;
        agent.check(far, SINKS + at, LEN, 1, at as u64)?;
        let write = Post::new("write", 3, sge(far, at, LEN)).remote(here, near.rkey());
        agent.post(lane.conn, &write)?;
        let read = Post::new("read", 4, sge(far, SINKS + at + LEN, LEN));
        agent.post(
            lane.conn,
            &read.remote(near.addr() + at as u64, near.rkey()),
        )?;
        agent.completion(lane.conn)?.expect(3, "write")?;
        // Its answer has come behind the Write.
        agent.completion(lane.conn)?.expect(4, "read")?;
        agent.check(far, SINKS + at + LEN, LEN, 1, at as u64)?;
        let mut octets = vec![0; 2 * LEN];
        near.read_at(SINKS + at, &mut octets)?;
        let want = pattern(2, at as u64, LEN);
        same(
            "what siw wrote and we read",
            &(octets == [&want[..], &want].concat()),
            &true,
        )?;
        if ends.guest {
            sends_by_us(agent, all, index)?;
        } else {
            sends_by_guest(agent, all, index)?;
        }
    }
    Ok(())
}

/// Receives that a connection takes in [`operations`]: behind what it writes and reads.
fn slot(lane: usize, number: usize) -> usize {
    lane * EACH + 4 + number
}

/// With SE, with Invalidate, with both.
const KINDS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

fn sends_by_us(agent: &mut Agent, all: &Lanes, index: usize) -> Result<()> {
    let lane = &all.lanes[index];
    for (number, (se, invalidate)) in KINDS.into_iter().enumerate() {
        let slot = slot(index, number);
        all.receive_there(agent, slot..slot + 1)?;
        let data = pattern(slot as u64, 0, 40);
        let mut send = SendWr::send_inline(5, &data);
        if se {
            send = send.solicited();
        }
        if invalidate {
            send = send.invalidate(agent.reg(64, "lw,rw")?.rkey);
        }
        lane.ours.qp.post_send(&send)?;
        lane.ours.completion(5, WcOpcode::Send)?;
        agent.completion(lane.conn)?.expect(slot as u64, "recv")?;
        agent.check(&all.far, SINKS + slot * LEN, 40, slot as u64, 0)?;
    }
    Ok(())
}

fn sends_by_guest(agent: &mut Agent, all: &Lanes, index: usize) -> Result<()> {
    let lane = &all.lanes[index];
    for (number, (se, invalidate)) in KINDS.into_iter().enumerate() {
        let slot = slot(index, number);
        all.receive(slot..slot + 1)?;
        agent.fill(&all.far, source(index, 2), 40, slot as u64)?;
        let mut send = Post::new("send", 5, sge(&all.far, source(index, 2), 40));
        send.solicited = se;
        let mut stag = None;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = lane
            .ours
            .pd
            .register_for(&lane.ours.qp, vec![0; 64], rights)?;
        if invalidate {
            stag = Some(region.rkey());
            send.op = "send_inv";
            (send.inv, send.rkey) = (region.rkey(), region.rkey());
        }
        agent.post(lane.conn, &send)?;
        let came = lane.ours.completion(slot as u64, WcOpcode::Recv)?;
        same(
            "SE and STag",
            &(came.solicited, came.invalidated),
            &(se, stag),
        )?;
        agent.completion(lane.conn)?.expect(5, "send")?;
        let mut octets = [0; 40];
        all.near.read_at(SINKS + slot * LEN, &mut octets)?;
        same(
            "what has come",
            &octets.to_vec(),
            &pattern(slot as u64, 0, 40),
        )?;
    }
    Ok(())
}

fn every_operation(rig: &mut Rig) -> Result<Outcome> {
    let all = Lanes::open(rig, Role::GuestServes, THEIRS, None)?;
    operations(&mut rig.agent, &all, THEIRS)?;
    all.close(&mut rig.agent)?;
    Ok(Outcome::Passed)
}

fn every_operation_of_ours(rig: &mut Rig) -> Result<Outcome> {
    let all = Lanes::open(rig, Role::GuestConnects, OURS, None)?;
    operations(&mut rig.agent, &all, OURS)?;
    all.close(&mut rig.agent)?;
    Ok(Outcome::Passed)
}

//! Shared receive queues: an SRQ of siw that receives our Sends, and an SRQ of ours that receives
//! siw's Sends.

mod bounds;
mod operations;
mod traffic;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use uwarp_interop::{Agent, Conn, Failure, Outcome, PATIENCE, Post, QpParams, Region, Result, Rig};
use uwarp_interop::{SrqNum, pattern, sge};
use uwarp_verbs::{
    Access, AsyncEvent, MemoryRegion, OnNoReceive, QpCaps, RecvWr, SendWr, Sge, Srq, SrqAttr,
    SrqModify, Status, WcOpcode,
};

use crate::Case;
use crate::bench::bytes;
use crate::errors::{same, theirs};
use crate::many::close_gracefully;
use crate::pair::{Ours, Role, Terms};
use crate::responder_listener::ResponderListener;
use crate::transfers::sent;

/// Number of connections that share a queue.
const LANES: usize = 4;
/// Number of messages on each connection.
const EACH: usize = 24;
/// Length of a receive in bytes, which is more than one segment.
const LEN: usize = 3000;
/// Number of receives for all messages.
const ALL: usize = LANES * EACH;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = traffic::cases();
    cases.extend(bounds::cases());
    cases.extend(operations::cases());
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

const THEIRS: Ends = Ends {
    guest: true,
    us: false,
};
const OURS: Ends = Ends {
    guest: false,
    us: true,
};

/// Sides that have a shared receive queue.
#[derive(Clone, Copy)]
struct Ends {
    guest: bool,
    us: bool,
}

/// One of the connections that share a queue.
struct Lane {
    ours: Ours,
    conn: Conn,
}

/// All connections, and memory for every message of each side.
struct Lanes {
    ours: Ours,
    lanes: Vec<Lane>,
    near: MemoryRegion,
    far: Region,
    our_srq: Option<Srq>,
    their_srq: Option<SrqNum>,
}

/// Offset of the receive buffers, which follow the sources.
const SINKS: usize = ALL * LEN;

impl Lanes {
    fn open(rig: &mut Rig, role: Role, ends: Ends, hold: Option<OnNoReceive>) -> Result<Lanes> {
        let terms = Terms::default();
        let mut ours = Ours::new(rig, &terms)?;
        ours.cq = ours.device.create_cq(bytes(4 * ALL))?;
        let near = ours.region(
            2 * SINKS,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        )?;
        let far = rig.agent.reg(2 * SINKS, "lw,rw,rr")?;
        let attr = SrqAttr::default().max_wr(bytes(ALL));
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
        let qp_params = QpParams {
            recv_wr: bytes(ALL),
            srq: their_srq,
            ..QpParams::default()
        };
        let responder = ResponderListener::open(rig, &ours, role, qp_params)?;
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
            let conn = responder.connect(rig, &end.qp)?;
            if role == Role::GuestConnects {
                first_message(&mut rig.agent, &all, &end, conn)?;
            }
            all.lanes.push(Lane { ours: end, conn });
        }
        Ok(all)
    }

    /// Creates one more QP on our side.
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

    /// Posts receives to our SRQ, one for each slot. The buffers of the slots follow the sources.
    fn receive(&self, slots: std::ops::Range<usize>) -> Result<()> {
        let sinks: Vec<[Sge; 1]> = slots
            .clone()
            .map(|slot| [self.near.sge((SINKS + slot * LEN) as u64, bytes(LEN))])
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

    /// Posts the same receives to the guest's SRQ.
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

    /// Ends all connections gracefully.
    fn close(self, agent: &mut Agent) -> Result<()> {
        for (number, lane) in self.lanes.iter().enumerate() {
            close_gracefully(agent, lane.conn, &lane.ours, number)?;
        }
        match (agent.unread(), self.ours.cq.poll_one()) {
            (theirs, None) if theirs.is_empty() => Ok(()),
            left => Err(Failure::new(format!(
                "left over in the guest and on our side: {left:?}"
            ))),
        }
    }
}

/// Sends the first message of a connection. It is empty, and the initiator must send it (RFC 5044
/// section 7.1.2).
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

/// Returns the length of a message. There are several lengths. None is short enough for siw's fault
/// at page boundaries.
fn len(lane: usize, number: usize) -> usize {
    33 + (lane * 1009 + number * 643) % (LEN - 32)
}

/// Returns the offset of a message in the sender's region.
fn source(lane: usize, number: usize) -> usize {
    (lane * EACH + number) * LEN
}

//! Pinned defects of siw in single operations.

use serde_json::json;
use uwarp_interop::{Failure, Outcome, Post, Result, Rig, pattern, sge};
use uwarp_verbs::{RecvWr, RemoteBuffer, SendWr, Status, WcOpcode};

use crate::Case;
use crate::bench::{Bench, GUARD, bytes};
use crate::pair::{Role, Terms};
use crate::transfers::{STAG_0, case, sent};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        cases.push(case(
            format!("{}::stag_0", role.name()),
            format!("Send with Invalidate by siw's library, {}", role.title()),
            move |rig| stag_0(rig, role),
        ));
        cases.push(case(
            format!("{}::straddle", role.name()),
            format!(
                "a short Read of siw's memory across two pages, {}",
                role.title()
            ),
            move |rig| straddle(rig, role),
        ));
        cases.push(case(
            format!("{}::solicited_event", role.name()),
            format!(
                "the solicited event of a Send with SE to siw, {}",
                role.title()
            ),
            move |rig| solicited_event(rig, role),
        ));
    }
    cases
}

/// siw's library takes the STag from the wrong field. Programs that follow the standard API leave
/// this field unset. RFC 5040 section 7.1 requires our side to end the connection, because STag 0
/// was never assigned.
fn stag_0(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let bench = Bench::open(rig, role, &Terms::default(), GUARD)?;
    let agent = &mut rig.agent;
    let region = bench.own_region()?;
    bench.ours.qp.post_recv(&RecvWr::new(10, &[]))?;
    let mut send = Post::new("send_inv", 11, "");
    send.inv = region.rkey();
    agent.post(bench.conn, &send)?;
    agent.event(bench.conn, "disconnected")?;
    // The code means: RDMAP, remote protection, STag cannot be invalidated.
    bench.ended("TerminateSent", |reason| sent(reason, (0, 1, 9)))?;
    match bench.ours.cq.poll_one() {
        Some(receive) if receive.wr_id == 10 && receive.status == Status::RemoteInvalidRequest => {}
        other => return Err(Failure::new(format!("our receive ended with: {other:?}"))),
    }
    Ok(Outcome::Deviation(format!(
        "{STAG_0}; uwarp ends the connection"
    )))
}

/// siw sends up to 32 bytes in one piece with their header. If a page boundary divides them into
/// unequal parts, siw copies them wrongly. The bytes are then wrong although the CRC is valid.
fn straddle(rig: &mut Rig, role: Role) -> Result<Outcome> {
    const PAGE: usize = 4096;
    const LEN: usize = 32;
    let bench = Bench::open(rig, role, &Terms::default(), 2 * PAGE)?;
    let agent = &mut rig.agent;
    agent.fill(&bench.far, 0, 2 * PAGE, 9)?;
    let read = |off: usize| -> Result<Vec<u8>> {
        let sink = [bench.near.sge(0, bytes(LEN))];
        let (from, rkey) = (bench.far.addr + off as u64, bench.far.rkey);
        bench
            .ours
            .qp
            .post_send(&SendWr::read(20, &sink, RemoteBuffer::at(from, rkey)))?;
        bench.ours.completion(20, WcOpcode::RdmaRead)?;
        let mut came = vec![0; LEN];
        bench.near.read_at(0, &mut came)?;
        Ok(came)
    };
    // Two equal halves are copied correctly.
    let even = PAGE - LEN / 2;
    if read(even)? != pattern(9, even as u64, LEN) {
        return Err(Failure::new(
            "a Read of two equal halves in two pages is wrong",
        ));
    }
    let uneven = PAGE - 10;
    let (came, want) = (read(uneven)?, pattern(9, uneven as u64, LEN));
    bench.close(agent, role)?;
    if came == want {
        return Ok(Outcome::Passed);
    }
    if came[..10] != want[..10] {
        return Err(Failure::new("even the bytes in the first page are wrong"));
    }
    Ok(Outcome::Deviation(
        "siw's answer to a Read of 3 to 32 bytes in two pages has wrong bytes and a valid CRC \
         (fixed in Linux by aac27aa8c5cf)"
            .to_owned(),
    ))
}

/// siw raises no event for a Send with SE if its application requests only solicited events.
fn solicited_event(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let mut terms = Terms::default();
    terms.qp_params.notify = "solicited";
    // siw does not accept a receive without an element.
    let inbox = rig.agent.reg(1, "lw")?;
    // `Bench` cannot be used, because without events the application is not notified of the first
    // message.
    let pair = crate::pair::connect(rig, role, &terms, |agent, conn, ours| {
        ours.qp.post_recv(&RecvWr::new(1, &[]))?;
        agent.recv(conn, 1, &sge(&inbox, 0, 1), 1, 0)
    })?;
    let (agent, conn) = (&mut rig.agent, pair.conn);
    if role == Role::GuestConnects {
        agent.post(conn, &Post::new("send", 2, ""))?;
        pair.ours.completion(1, WcOpcode::Recv)?;
    }
    pair.ours.qp.post_send(&SendWr::send(3, &[]).solicited())?;
    pair.ours.completion(3, WcOpcode::Send)?;
    // Polling finds the completion. An event would have reported it earlier.
    let sends = u64::from(role == Role::GuestConnects);
    let mut polled = 0;
    while polled < 1 + sends {
        if !agent.unread().is_empty() && polled == 0 {
            return Ok(Outcome::Passed);
        }
        let answer = agent.command(&json!({"cmd": "poll", "conn": conn.0}))?;
        polled += answer["count"].as_u64().unwrap_or(0);
    }
    if sends == 1 {
        agent.completion(conn)?.expect(2, "send")?;
    }
    agent.completion(conn)?.expect(1, "recv")?;
    Ok(Outcome::Deviation(
        "siw raises no solicited event for a Send with SE (RFC 5040 section 5.3); the completion is found by polling"
            .to_owned(),
    ))
}

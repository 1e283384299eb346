//! The limit and the size of an SRQ, and an empty SRQ.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    vec![
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
            "siw's SRQ is empty: Terminate 1/2/02 on the connection of that Send, the others continue",
            empty_at_guest,
        ),
        case(
            "ours::empty",
            "our SRQ is empty: Terminate 1/2/02 on the connection of that Send, the others continue",
            empty_at_us,
        ),
    ]
}

/// Sends pattern bytes from our side on this connection. The bytes must arrive in receive `slot` of
/// siw's SRQ.
fn send_to(agent: &mut Agent, all: &Lanes, lane: usize, slot: u64) -> Result<()> {
    let lane = &all.lanes[lane];
    lane.ours
        .qp
        .post_send(&SendWr::send_inline(slot, &pattern(slot, 0, 40)))?;
    lane.ours.completion(slot, WcOpcode::Send)?;
    agent.completion(lane.conn)?.expect(slot, "recv")?;
    agent.check(&all.far, SINKS + usize::try_from(slot)? * LEN, 40, slot, 0)
}

/// Sends pattern bytes from siw on this connection. The bytes must arrive in receive `slot` of our
/// SRQ.
fn send_from(agent: &mut Agent, all: &Lanes, lane: usize, slot: u64) -> Result<()> {
    let lane = &all.lanes[lane];
    agent.fill(&all.far, 0, 40, slot)?;
    agent.post(lane.conn, &Post::new("send", slot, sge(&all.far, 0, 40)))?;
    let came = lane.ours.completion(slot, WcOpcode::Recv)?;
    same("the QP that took it", &came.qp_num, &lane.ours.qp.qp_num())?;
    agent.completion(lane.conn)?.expect(slot, "send")?;
    let mut bytes = [0; 40];
    all.near
        .read_at(SINKS + usize::try_from(slot)? * LEN, &mut bytes)?;
    same("the received bytes", &bytes.to_vec(), &pattern(slot, 0, 40))
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
    // 95 is EOPNOTSUPP.
    for command in [
        json!({"cmd": "srq_modify", "srq": srq, "max_wr": 32}),
        json!({"cmd": "srq_query", "srq": srq}),
    ] {
        same("errno", &agent.try_command(&command)?["errno"], &json!(95))?;
    }
    agent.command(&json!({"cmd": "srq_destroy", "srq": srq}))?;
    Ok(Outcome::Deviation(
        "a matter of its verbs, which no RFC specifies".to_owned(),
    ))
}

/// Returns true if our device has reported the limit since the last call.
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
    let arm = |limit| srq.modify(SrqModify::default().limit(Some(limit)));
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
        "",
        &["no buffer available for the message", "1/2/02"],
    )?;
    agent.event(failed.conn, "disconnected")?;
    agent.destroy(failed.conn)?;
    all.receive_there(agent, 3..5)?;
    send_to(agent, &all, 0, 3)?;
    send_to(agent, &all, 1, 4)?;
    all.close(agent)?;
    Ok(Outcome::Deviation(
        "Layer and EType are exchanged; M, D and R are in the low bits".to_owned(),
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
    // The Send was in flight. Whether it succeeds depends on a race in the guest.
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

/// Checks that our device has reported that this QP takes no more receives.
fn last_wqe(all: &Lanes, failed: u32) -> Result<()> {
    while let Some(event) = all.ours.device.wait_event(Some(PATIENCE)) {
        if matches!(event, AsyncEvent::LastWqeReached { qp_num } if qp_num == failed) {
            return Ok(());
        }
    }
    Err(Failure::new(
        "our device has not reported LastWqeReached for that QP",
    ))
}

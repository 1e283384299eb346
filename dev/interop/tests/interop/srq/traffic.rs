//! Messages of several lengths on all connections at once.

use super::*;

pub(super) fn cases() -> Vec<Case> {
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
    cases.push(case(
        "ours::hold",
        "our SRQ is empty and its QPs hold messages: siw's Sends wait for receives",
        hold,
    ));
    cases
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
                let list = [all.near.sge(at as u64, bytes(len))];
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

/// Checks the completions on our side: every message uses its own receive, and each connection
/// completes in sending order.
fn received_here(all: &Lanes, ends: Ends) -> Result<()> {
    let mut sends = [0; LANES];
    let mut receives = [0; LANES];
    let mut slots = BTreeSet::new();
    let each = |side: bool| if side { EACH } else { 0 };
    while sends != [each(ends.guest); LANES] || receives != [each(ends.us); LANES] {
        let came = (all.ours.cq.wait(Some(PATIENCE))).ok_or_else(|| {
            Failure::new(format!(
                "not all completions on our side in time: sent {sends:?}, received {receives:?}"
            ))
        })?;
        let lane = all
            .lanes
            .iter()
            .position(|lane| lane.ours.qp.qp_num() == came.qp_num);
        let (Some(lane), Status::Success) = (lane, came.status) else {
            return Err(Failure::new(format!(
                "unexpected completion on our side: {came:?}"
            )));
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
        same("bytes received", &came.byte_len, &bytes(len))?;
        let mut bytes = vec![0; len];
        all.near.read_at(SINKS + slot * LEN, &mut bytes)?;
        if bytes != pattern(2, source(lane, number) as u64, len) {
            return Err(Failure::new(format!(
                "message {number} of connection {lane} is not what was sent"
            )));
        }
    }
    Ok(())
}

/// Checks the completions in the guest in the same way.
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
            same("bytes received", &came.len, &(len as u64))?;
            let at = source(index, receives) as u64;
            agent.check(&all.far, SINKS + slot * LEN, len, 1, at)?;
            receives += 1;
        }
    }
    Ok(())
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
    // siw completes a Send when TCP has accepted it. So all Sends are in flight, and none is
    // received yet.
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
    // There are at first fewer receives than connections.
    all.receive(0..2)?;
    all.receive(2..ALL)?;
    received_here(&all, OURS)?;
    all.close(agent)?;
    Ok(Outcome::Passed)
}

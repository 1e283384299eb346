//! Every operation on QPs with a shared receive queue.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    vec![
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
    ]
}

/// Runs one operation of each kind on each connection, by both sides.
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
        let piece = |number: usize| [near.sge((at + number * LEN) as u64, bytes(LEN))];
        let (whole, sink) = (piece(0), [near.sge((SINKS + at + LEN) as u64, bytes(LEN))]);
        let from = far.addr + at as u64;
        lane.ours.qp.post_send_list(&[
            SendWr::write(1, &whole, uwarp_verbs::RemoteBuffer::at(there, far.rkey)),
            SendWr::read(2, &sink, uwarp_verbs::RemoteBuffer::at(from, far.rkey)),
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
        // The response to the Read has arrived after the Write.
        agent.completion(lane.conn)?.expect(4, "read")?;
        agent.check(far, SINKS + at + LEN, LEN, 1, at as u64)?;
        let mut bytes = vec![0; 2 * LEN];
        near.read_at(SINKS + at, &mut bytes)?;
        let want = pattern(2, at as u64, LEN);
        same(
            "the bytes that siw wrote and we read",
            &(bytes == [&want[..], &want].concat()),
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

/// Returns the slot of a receive in [`operations`]. The slots follow the part of the region that
/// the connection writes and reads.
fn slot(lane: usize, number: usize) -> usize {
    lane * EACH + 4 + number
}

/// The four kinds of Send, by the flags SE and Invalidate.
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
        let mut bytes = [0; 40];
        all.near.read_at(SINKS + slot * LEN, &mut bytes)?;
        same(
            "the received bytes",
            &bytes.to_vec(),
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

//! Work requests that each side posts through its verbs.

use uwarp_interop::{Failure, Outcome, PATIENCE, Post, Result, Rig, pattern, sge};
use uwarp_verbs::{Access, EndReason, MemoryRegion, RecvWr, RemoteBuffer, SendWr, WcOpcode};

use crate::Case;
use crate::pair::{Ours, Pair, Role, Terms, connect};

/// Length of a message in bytes, which takes more than one FPDU on any link.
const LEN: usize = 100_000;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        cases.push(Case {
            suite: "verbs",
            name: format!("{}::round_trip", role.name()),
            title: format!("Send, Write and Read, each way, {}", who(role)),
            run: Box::new(move |rig| round_trip(rig, role)),
        });
        // siw accepts 256 bytes, but sends wrong lengths above 251.
        for len in [0, 1, 251] {
            cases.push(Case {
                suite: "verbs",
                name: format!("{}::private_data_{len}", role.name()),
                title: format!("{len} bytes of private data, each way, {}", who(role)),
                run: Box::new(move |rig| private_data(rig, role, len)),
            });
        }
    }
    cases
}

fn who(role: Role) -> &'static str {
    match role {
        Role::GuestServes => "siw as responder",
        Role::GuestConnects => "siw as initiator",
    }
}

/// Checks that our region holds the pattern of `seed`.
fn check(region: &MemoryRegion, seed: u64, len: usize) -> Result<()> {
    let mut came = vec![0; len];
    region.read_at(0, &mut came)?;
    let want = pattern(seed, 0, len);
    match (0..len).find(|at| came[*at] != want[*at]) {
        None => Ok(()),
        Some(at) => Err(Failure::new(format!(
            "byte {at} of {len} in our region is {}, but the pattern of seed {seed} has {} there",
            came[at], want[at]
        ))),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "100,000")]
fn round_trip(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let len = LEN as u32;
    let theirs = rig.agent.reg(LEN, "lw,rw,rr")?;
    let inbox = rig.agent.reg(LEN, "lw")?;
    let mut our_inbox = None;
    let receives = |agent: &mut uwarp_interop::Agent, conn, ours: &Ours| {
        agent.recv(conn, 10, &sge(&inbox, 0, LEN), 2, 0)?;
        let region = ours.region(LEN, Access::LOCAL_WRITE)?;
        for wr_id in [20, 21] {
            ours.qp
                .post_recv(&RecvWr::new(wr_id, &[region.sge(0, len)]))?;
        }
        our_inbox = Some(region);
        Ok(())
    };
    let pair = connect(rig, role, &Terms::default(), receives)?;
    let Some(our_inbox) = our_inbox else {
        return Err(Failure::new("no receives were posted"));
    };
    let Pair { ours, conn, .. } = pair;
    let agent = &mut rig.agent;
    let region = ours.region(
        LEN,
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
    )?;
    let all = [region.sge(0, len)];

    // Each side sends one message. The initiator must send first.
    let send_ours = |agent: &mut uwarp_interop::Agent| {
        region.write_at(0, &pattern(1, 0, LEN))?;
        ours.qp.post_send(&SendWr::send(1, &all))?;
        ours.completion(1, WcOpcode::Send)?;
        let received = agent.completion(conn)?;
        received.expect(10, "recv")?;
        agent.check(&inbox, 0, LEN, 1, 0)
    };
    if role == Role::GuestServes {
        send_ours(agent)?;
    }
    agent.fill(&theirs, 0, LEN, 2)?;
    agent.post(conn, &Post::new("send", 2, sge(&theirs, 0, LEN)))?;
    ours.completion(20, WcOpcode::Recv)?;
    agent.completion(conn)?.expect(2, "send")?;
    check(&our_inbox, 2, LEN)?;
    if role == Role::GuestConnects {
        send_ours(agent)?;
    }

    // Each side writes once. The Send after a Write shows that the Write has arrived.
    region.write_at(0, &pattern(3, 0, LEN))?;
    ours.qp.post_send_list(&[
        SendWr::write(3, &all, RemoteBuffer::at(theirs.addr, theirs.rkey)),
        SendWr::send(4, &[]),
    ])?;
    ours.completion(3, WcOpcode::RdmaWrite)?;
    ours.completion(4, WcOpcode::Send)?;
    agent.completion(conn)?.expect(11, "recv")?;
    agent.check(&theirs, 0, LEN, 3, 0)?;
    agent.fill(&inbox, 0, LEN, 5)?;
    let (to, rkey) = (region.addr(), region.rkey());
    agent.post(
        conn,
        &Post::new("write", 5, sge(&inbox, 0, LEN)).remote(to, rkey),
    )?;
    agent.post(conn, &Post::new("send", 6, ""))?;
    agent.completion(conn)?.expect(5, "write")?;
    agent.completion(conn)?.expect(6, "send")?;
    ours.completion(21, WcOpcode::Recv)?;
    check(&region, 5, LEN)?;

    // Each side reads once.
    agent.fill(&theirs, 0, LEN, 7)?;
    ours.qp.post_send(&SendWr::read(
        7,
        &all,
        RemoteBuffer::at(theirs.addr, theirs.rkey),
    ))?;
    ours.completion(7, WcOpcode::RdmaRead)?;
    check(&region, 7, LEN)?;
    region.write_at(0, &pattern(8, 0, LEN))?;
    agent.post(
        conn,
        &Post::new("read", 8, sge(&inbox, 0, LEN)).remote(to, rkey),
    )?;
    agent.completion(conn)?.expect(8, "read")?;
    agent.check(&inbox, 0, LEN, 8, 0)?;

    ours.qp.disconnect();
    agent.event(conn, "disconnected")?;
    if !ours.qp.wait_closed(PATIENCE) {
        return Err(Failure::new("our side does not close"));
    }
    match ours.qp.end_reason() {
        Some(EndReason::LocalDisconnect) => Ok(Outcome::Passed),
        other => Err(Failure::new(format!(
            "our disconnect should end the connection, but it ended with: {other:?}"
        ))),
    }
}

fn private_data(rig: &mut Rig, role: Role, len: usize) -> Result<Outcome> {
    let terms = Terms {
        our_data: pattern(1, 0, len),
        their_data: pattern(2, 0, len),
        ..Terms::default()
    };
    let pair = connect(rig, role, &terms, |_, _, _| Ok(()))?;
    for (who, came, want) in [
        ("the guest", &pair.heard.private_data, &terms.our_data),
        ("we", &pair.private_data, &terms.their_data),
    ] {
        if came != want {
            return Err(Failure::new(format!(
                "{who} received {came:02x?} as private data, but {want:02x?} was sent"
            )));
        }
    }
    Ok(Outcome::Passed)
}

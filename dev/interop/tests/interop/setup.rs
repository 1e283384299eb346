//! Connection setup: revisions, peer-to-peer mode, private data of a reject.

use std::thread;

use uwarp_interop::{Answer, Failure, Listen, Outcome, PATIENCE, Post, QpParams, Result, Rig};
use uwarp_interop::{pattern, sge};
use uwarp_verbs::{
    ConnectError, ConnectOptions, Listener, Peer, RecvWr, Revision, RtrKinds, SendWr, Settings,
    WcOpcode,
};

use crate::Case;
use crate::bench::Bench;
use crate::pair::{Ours, Role, Terms, connect};
use crate::transfers::{FEW_SIZES, all_operations, case};

/// Lengths of Private Data. siw accepts 256 bytes, but sends wrong lengths above 251.
const PRIVATE_DATA: [usize; 3] = [0, 1, 251];

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, revision) in [(1, Revision::One), (2, Revision::Two)] {
        cases.push(case(
            format!("guest_serves::revision_{number}"),
            format!("MPA revision {number} of ours, then Send, Write and Read both ways"),
            move |rig| with_revision(rig, revision),
        ));
    }
    let none = RtrKinds::NONE;
    for (name, rtr) in [
        (
            "write",
            RtrKinds {
                write: true,
                ..none
            },
        ),
        ("read", RtrKinds { read: true, ..none }),
        ("any", RtrKinds::ALL),
    ] {
        cases.push(case(
            format!("guest_serves::peer_to_peer_{name}"),
            format!("peer-to-peer mode, RTR: {name}; siw sends first"),
            move |rig| peer_to_peer(rig, rtr),
        ));
    }
    for role in Role::BOTH {
        let (name, title) = (role.name(), role.title());
        cases.push(case(
            format!("{name}::reject"),
            format!("reject with 0, 1 and 251 bytes of private data, {title}"),
            move |rig| reject(rig, role),
        ));
    }
    cases
}

fn with_revision(rig: &mut Rig, revision: Revision) -> Result<Outcome> {
    let terms = Terms {
        settings: Settings::default().revision(revision),
        ..Terms::default()
    };
    let mut bench = Bench::open(rig, Role::GuestServes, &terms, 1 << 20)?;
    bench.agreed(|info| info.revision == revision && info.crc)?;
    if revision == Revision::Two {
        bench.agreed(|info| (info.peer_ird, info.peer_ord) == (Some(16), Some(16)))?;
    }
    all_operations(&mut bench, &mut rig.agent, &FEW_SIZES)?;
    bench.close(&mut rig.agent, Role::GuestServes)?;
    Ok(Outcome::Passed)
}

/// Connects in the peer-to-peer model, with a responder that sends first. siw accepts any message
/// as the RTR indication. It misses a message that arrives too early, so the profile delays ours.
fn peer_to_peer(rig: &mut Rig, rtr: RtrKinds) -> Result<Outcome> {
    let terms = Terms {
        settings: Settings::default().rtr(rtr).peer(Peer::Siw),
        peer_to_peer: true,
        ..Terms::default()
    };
    let region = rig.agent.reg(64, "lw,rw,rr")?;
    let pair = connect(rig, Role::GuestServes, &terms, |_, _, ours| {
        Ok(ours.qp.post_recv(&RecvWr::new(1, &[]))?)
    })?;
    let (agent, conn, ours) = (&mut rig.agent, pair.conn, &pair.ours);
    agent.post(conn, &Post::new("send", 2, ""))?;
    ours.completion(1, WcOpcode::Recv)?;
    agent.completion(conn)?.expect(2, "send")?;
    agent.recv(conn, 3, &sge(&region, 0, 64), 1, 0)?;
    ours.qp
        .post_send(&SendWr::send_inline(4, &pattern(4, 0, 64)))?;
    ours.completion(4, WcOpcode::Send)?;
    agent.completion(conn)?.expect(3, "recv")?;
    agent.check(&region, 0, 64, 4, 0)?;
    ours.qp.disconnect();
    agent.event(conn, "disconnected")?;
    if !ours.qp.wait_closed(PATIENCE) {
        return Err(Failure::new("our side does not close"));
    }
    Ok(Outcome::Passed)
}

fn reject(rig: &mut Rig, role: Role) -> Result<Outcome> {
    for len in PRIVATE_DATA {
        let data = pattern(7, 0, len);
        let ours = Ours::new(rig, &Terms::default())?;
        let came = match role {
            Role::GuestServes => rejected_by_guest(rig, &ours, &data)?,
            Role::GuestConnects => rejected_by_us(rig, &ours, &data)?,
        };
        if came != data {
            return Err(Failure::new(format!(
                "{data:02x?} was sent with the reject, but {came:02x?} was received"
            )));
        }
    }
    Ok(Outcome::Passed)
}

/// Lets the guest reject our connect. Returns the private data that we receive.
fn rejected_by_guest(rig: &mut Rig, ours: &Ours, data: &[u8]) -> Result<Vec<u8>> {
    let port = rig.guest_port();
    let to = rig.wire.guest_addr(port);
    let agent = &mut rig.agent;
    let listener = agent.listen(port, &Listen::default())?;
    let connected = thread::scope(|scope| {
        let connecting = scope.spawn(|| ours.qp.connect(to, &ConnectOptions::default()));
        let request = agent.request(listener)?;
        agent.reject(request.conn, data)?;
        joined(connecting.join())
    })?;
    agent.unlisten(listener)?;
    match connected {
        Err(ConnectError::Rejected { private_data, .. }) => Ok(private_data),
        other => Err(Failure::new(format!(
            "expected a reject, but our connect ended with: {other:?}"
        ))),
    }
}

/// Rejects the guest's connect. Returns the private data that the guest receives. Checks that the
/// status of the guest's event is ECONNRESET.
fn rejected_by_us(rig: &mut Rig, ours: &Ours, data: &[u8]) -> Result<Vec<u8>> {
    let listener = listen(rig, ours)?;
    let (ip, port) = (rig.wire.our_ip_for_guest(), listener.local_addr().port());
    let conn = rig.agent.open_conn(ip, port, &QpParams::default())?;
    rig.agent.connect(conn, &Answer::default())?;
    listener.wait_request(Some(PATIENCE))?.reject(data)?;
    let event = rig.agent.event(conn, "rejected")?;
    if event.status != -104 {
        return Err(Failure::new(format!("its status is {}", event.status)));
    }
    Ok(event.private_data)
}

pub(crate) fn joined<T>(result: thread::Result<T>) -> Result<T> {
    result.map_err(|_| Failure::new("our connect panicked"))
}

pub(crate) fn listen(rig: &Rig, ours: &Ours) -> Result<Listener> {
    Ok(ours.device.listen((rig.wire.our_ip(), 0).into())?)
}

//! Send with Invalidate: STags of ours that siw invalidates, STags that we refuse to invalidate,
//! and STags that siw lets us invalidate. `transfers` covers regions for one QP and single regions
//! of siw, in all sizes. `errors` and `pins` cover unknown STags.

mod refused;

use serde_json::json;
use uwarp_interop::{Agent, Failure, Outcome, Post, Region, Result, Rig, pattern, sge};
use uwarp_verbs::{
    Access, Buffer, EndReason, FastRegion, MemoryRegion, MemoryWindow, RecvWr, RemoteBuffer,
    SendWr, Status, WcOpcode, WindowKind, inc_rkey,
};

use crate::Case;
use crate::bench::{Bench, GUARD, bytes};
use crate::errors::{end, same, says};
use crate::pair::{Role, Terms};
use crate::transfers::sent;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, title, kind) in [
        ("fast_registration", "a fast registration", Kind::Fast),
        (
            "window_2a",
            "a memory window of type 2A",
            Kind::Window(WindowKind::Type2A),
        ),
        (
            "window_2b",
            "a memory window of type 2B",
            Kind::Window(WindowKind::Type2B),
        ),
    ] {
        cases.push(case(
            format!("by_guest::{name}"),
            format!("siw invalidates {title} of ours, with and without SE; a new STag works, old ones do not"),
            move |rig| taken(rig, kind),
        ));
    }
    cases.extend(refused::cases());
    cases.extend([
        case(
            "by_us::read".to_owned(),
            "we invalidate an ordinary region of siw's, with and without SE: a Read of it is refused".to_owned(),
            read_of_the_dead,
        ),
        case(
            "by_us::own_use".to_owned(),
            "we invalidate an ordinary region of siw's: its own consumer cannot send from it, but can deregister it".to_owned(),
            own_use,
        ),
        case(
            "by_us::again".to_owned(),
            "we invalidate a region of siw's that is already invalid: it accepts the Send".to_owned(),
            again,
        ),
        case(
            "by_us::other_pd".to_owned(),
            "we name a region of siw's of another protection domain, with SE: the connection continues, and ends with a late Terminate 0/1/09".to_owned(),
            other_pd,
        ),
    ]);
    cases
}

fn case(
    name: String,
    title: String,
    run: impl Fn(&mut Rig) -> Result<Outcome> + Send + Sync + 'static,
) -> Case {
    Case {
        suite: "invalidate",
        name,
        title,
        run: Box::new(run),
    }
}

/// Creates a Send with Invalidate from siw. siw's library sends the STag in the field `rkey`; see
/// `stag_0` in `quirks`.
fn send_inv(stag: u32, se: bool) -> Post {
    Post {
        solicited: se,
        inv: stag,
        rkey: stag,
        ..Post::new("send_inv", 11, "")
    }
}

/// Kind of our memory. Its STag can be made valid and invalidated.
#[derive(Clone, Copy)]
enum Kind {
    Fast,
    Window(WindowKind),
}

enum Lent {
    Fast(FastRegion),
    Window(MemoryWindow, MemoryRegion),
}

const REMOTE: Access = Access::REMOTE_WRITE;

fn lending() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::WINDOW_BIND
}

impl Lent {
    fn new(bench: &Bench, kind: Kind) -> Result<Lent> {
        let pd = &bench.ours.pd;
        Ok(match kind {
            Kind::Fast => Lent::Fast(pd.alloc_fast_region(Buffer::zeroed(GUARD)?)?),
            Kind::Window(kind) => {
                let region = pd.register(vec![0; GUARD], lending())?;
                Lent::Window(pd.alloc_window(kind)?, region)
            }
        })
    }

    fn stag(&self) -> u32 {
        match self {
            Lent::Fast(region) => region.stag(),
            Lent::Window(window, _) => window.rkey(),
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Lent::Fast(region) => region.is_valid(),
            Lent::Window(window, _) => window.is_bound(),
        }
    }

    /// Makes all of the memory valid under this STag. Returns the address for the peer.
    fn open(&self, bench: &Bench, stag: u32) -> Result<u64> {
        let (request, opcode, addr) = match self {
            Lent::Fast(region) => {
                let part = region.register(stag, 0, GUARD as u64, Access::LOCAL_WRITE | REMOTE);
                (SendWr::register(20, &part), WcOpcode::Register, part.iova)
            }
            Lent::Window(_, region) => {
                let bind = region.window(0, GUARD as u64, REMOTE);
                let request = SendWr::bind_window(20, stag, &bind);
                (request, WcOpcode::BindWindow, bind.addr)
            }
        };
        bench.ours.qp.post_send(&request)?;
        bench.ours.completion(20, opcode)?;
        Ok(addr)
    }

    fn content(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; GUARD];
        match self {
            Lent::Fast(region) => region.read_at(0, &mut bytes)?,
            Lent::Window(_, region) => region.read_at(0, &mut bytes)?,
        }
        Ok(bytes)
    }
}

/// Runs three rounds: the memory is made valid, siw writes to it, and siw's next Send invalidates
/// it.
fn taken(rig: &mut Rig, kind: Kind) -> Result<Outcome> {
    let bench = Bench::open(rig, Role::GuestConnects, &Terms::default(), GUARD)?;
    let agent = &mut rig.agent;
    let lent = Lent::new(&bench, kind)?;
    let (mut stag, mut first) = (lent.stag(), None);
    for (seed, se) in [(1, false), (2, true), (3, false)] {
        stag = inc_rkey(stag);
        let addr = lent.open(&bench, stag)?;
        first.get_or_insert((addr, stag));
        bench.ours.qp.post_recv(&RecvWr::new(10, &[]))?;
        agent.fill(&bench.far, 0, GUARD, seed)?;
        let write = Post::new("write", 12, sge(&bench.far, 0, GUARD)).remote(addr, stag);
        agent.post(bench.conn, &write)?;
        agent.post(bench.conn, &send_inv(stag, se))?;
        let came = bench.ours.completion(10, WcOpcode::Recv)?;
        let want = (Some(stag), se);
        same(
            "the STag, and SE",
            &(came.invalidated, came.solicited),
            &want,
        )?;
        same("whether it is valid", &lent.is_valid(), &false)?;
        same("what siw wrote", &lent.content()?, &pattern(seed, 0, GUARD))?;
        agent.completion(bench.conn)?.expect(12, "write")?;
        agent.completion(bench.conn)?.expect(11, "send")?;
    }
    if let Lent::Window(_, region) = &lent {
        // The region of the window is still valid.
        let write = Post::new("write", 13, sge(&bench.far, 0, GUARD));
        agent.post(bench.conn, &write.remote(region.addr(), region.rkey()))?;
        agent.completion(bench.conn)?.expect(13, "write")?;
    }
    // Makes the memory valid again. Its first STag must stay invalid.
    lent.open(&bench, inc_rkey(stag))?;
    let Some((addr, dead)) = first else {
        return Err(Failure::new("nothing was lent"));
    };
    agent.fill(&bench.far, 0, GUARD, 4)?;
    let write = Post::new("write", 14, sge(&bench.far, 0, GUARD)).remote(addr, dead);
    agent.post(bench.conn, &write)?;
    bench.ended("Terminate 1/1/00", |reason| sent(reason, (1, 1, 0)))?;
    same("what is there", &lent.content()?, &pattern(3, 0, GUARD))?;
    agent.event(bench.conn, "disconnected")?;
    Ok(Outcome::Passed)
}

/// Registers a region of siw and invalidates it. siw needs no permission from its application.
fn invalidated(agent: &mut Agent, bench: &Bench, se: bool) -> Result<Region> {
    let region = agent.reg(GUARD, "lw,rw,rr")?;
    invalidate(agent, bench, &region, se)?;
    Ok(region)
}

fn invalidate(agent: &mut Agent, bench: &Bench, region: &Region, se: bool) -> Result<()> {
    agent.recv(bench.conn, 10, &sge(&bench.far, 0, 1), 1, 0)?;
    let mut send = SendWr::send(11, &[]).invalidate(region.rkey);
    if se {
        send = send.solicited();
    }
    bench.ours.qp.post_send(&send)?;
    bench.ours.completion(11, WcOpcode::Send)?;
    agent.completion(bench.conn)?.expect(10, "recv")?;
    Ok(())
}

fn read_of_the_dead(rig: &mut Rig) -> Result<Outcome> {
    for se in [false, true] {
        let bench = Bench::open(rig, Role::GuestServes, &Terms::default(), GUARD)?;
        let agent = &mut rig.agent;
        let region = invalidated(agent, &bench, se)?;
        let sink = [bench.near.sge(0, bytes(GUARD))];
        let read = SendWr::read(12, &sink, RemoteBuffer::at(region.addr, region.rkey));
        bench.ours.qp.post_send(&read)?;
        bench.ended("Terminate 0/1/00", |reason| match reason {
            EndReason::TerminateReceived { terminate, .. } => {
                (terminate.layer(), terminate.etype(), terminate.code()) == (0, 1, 0)
            }
            _ => false,
        })?;
        let status = bench.ours.cq.poll_one().map(|done| done.status);
        same("our Read", &status, &Some(Status::RemoteAccess))?;
        agent.event(bench.conn, "disconnected")?;
    }
    Ok(Outcome::Deviation(
        "no consumer has permitted us to invalidate it (RFC 5040 section 8.1.1)".to_owned(),
    ))
}

fn own_use(rig: &mut Rig) -> Result<Outcome> {
    let bench = Bench::open(rig, Role::GuestServes, &Terms::default(), GUARD)?;
    let agent = &mut rig.agent;
    let region = invalidated(agent, &bench, false)?;
    bench.ours.qp.post_recv(&RecvWr::new(20, &[]))?;
    agent.post(bench.conn, &Post::new("send", 13, sge(&region, 0, GUARD)))?;
    let came = agent.completion(bench.conn)?;
    same(
        "the consumer's own Send",
        &(came.wr_id, came.status.as_str()),
        &(13, "loc_qp_op_err"),
    )?;
    agent.command(&json!({"cmd": "dereg", "mr": region.number}))?;
    Ok(Outcome::Deviation(
        "no consumer has permitted us to invalidate it (RFC 5040 section 8.1.1)".to_owned(),
    ))
}

fn again(rig: &mut Rig) -> Result<Outcome> {
    let bench = Bench::open(rig, Role::GuestServes, &Terms::default(), GUARD)?;
    let agent = &mut rig.agent;
    let region = invalidated(agent, &bench, false)?;
    invalidate(agent, &bench, &region, true)?;
    bench.close(agent, Role::GuestServes)?;
    Ok(Outcome::Deviation(
        "RFC 5040 section 7.2 requires a check of the STag, which is not valid".to_owned(),
    ))
}

fn other_pd(rig: &mut Rig) -> Result<Outcome> {
    let bench = Bench::open(rig, Role::GuestServes, &Terms::default(), GUARD)?;
    let agent = &mut rig.agent;
    let answer = agent.command(&json!({"cmd": "reg", "len": GUARD, "access": "lw,rw", "pd": 1}))?;
    let stag = u32::try_from(answer["rkey"].as_u64().unwrap_or(0))?;
    agent.recv(bench.conn, 100, &sge(&bench.far, 0, GUARD), 2, 0)?;
    let data = pattern(2, 0, GUARD);
    let send = SendWr::send_inline(1, &data);
    bench
        .ours
        .qp
        .post_send(&send.invalidate(stag).solicited())?;
    bench.ours.completion(1, WcOpcode::Send)?;
    let came = agent.completion(bench.conn)?;
    let want = (100, "rem_inv_req_err");
    same("the receive", &(came.wr_id, came.status.as_str()), &want)?;
    bench
        .ours
        .qp
        .post_send(&SendWr::send_inline(2, &pattern(3, 0, GUARD)))?;
    bench.ours.completion(2, WcOpcode::Send)?;
    agent.completion(bench.conn)?.expect(101, "recv")?;
    agent.check(&bench.far, 0, GUARD, 3, 0)?;
    agent.disconnect(bench.conn)?;
    let reason = end(&bench.ours)?;
    let EndReason::TerminateReceived { terminate, .. } = &reason else {
        return Err(Failure::new(format!(
            "expected a late Terminate Message of siw, but the connection ended with: {reason:?}"
        )));
    };
    let code = (terminate.layer(), terminate.etype(), terminate.code());
    same("siw's Terminate Message", &code, &(0, 1, 0x09))?;
    Ok(Outcome::Deviation(
        "RFC 5040 section 7.1 requires the Terminate Message at once, with the header of that Send"
            .to_owned(),
    ))
}

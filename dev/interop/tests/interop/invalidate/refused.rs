//! STags of ours that a Send from siw must not invalidate.

use super::*;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for refused in REFUSED {
        cases.push(case(
            format!("by_guest::refused_{}", refused.name),
            format!(
                "siw sends a Send that invalidates {}; we answer with Terminate 0/1/09",
                refused.title
            ),
            move |rig| refuse(rig, refused),
        ));
    }
    cases
}

/// An STag that a Send from siw must not invalidate (5040-8.1.1-04, 5040-7.2-04).
#[derive(Clone, Copy)]
struct Refused {
    name: &'static str,
    title: &'static str,
    /// Returns the STag, and an object whose drop would deregister its memory.
    make: fn(&mut Agent, &Bench) -> Result<(u32, Kept)>,
}

type Kept = Box<dyn std::any::Any>;

const REFUSED: [Refused; 7] = [
    Refused {
        name: "region_of_the_domain",
        title: "a region of ours for the whole protection domain",
        make: |_, bench| {
            let region = bench.ours.region(GUARD, lending())?;
            Ok((region.rkey(), Box::new(region)))
        },
    },
    Refused {
        name: "region_of_another_qp",
        title: "a region of ours for another QP only",
        make: |_, bench| {
            let (pd, cq) = (&bench.ours.pd, &bench.ours.cq);
            let other = pd.qp().build(cq, cq)?;
            let region = pd.register_for(&other, vec![0; GUARD], lending())?;
            Ok((region.rkey(), Box::new((region, other))))
        },
    },
    Refused {
        name: "region_with_a_window",
        title: "a region of ours that a window is bound to",
        make: |_, bench| {
            let (pd, qp) = (&bench.ours.pd, &bench.ours.qp);
            let region = pd.register_for(qp, vec![0; GUARD], lending())?;
            let window = pd.alloc_window(WindowKind::Type2B)?;
            let bind = region.window(0, GUARD as u64, REMOTE);
            qp.post_send(&SendWr::bind_window(20, inc_rkey(window.rkey()), &bind))?;
            bench.ours.completion(20, WcOpcode::BindWindow)?;
            Ok((region.rkey(), Box::new((window, region))))
        },
    },
    Refused {
        name: "window_1",
        title: "a memory window of type 1 of ours",
        make: |_, bench| {
            let (pd, qp) = (&bench.ours.pd, &bench.ours.qp);
            let region = pd.register(vec![0; GUARD], lending())?;
            let mut window = pd.alloc_window(WindowKind::Type1)?;
            let rkey = qp.bind_mw(&mut window, 20, &region.window(0, GUARD as u64, REMOTE))?;
            bench.ours.completion(20, WcOpcode::BindWindow)?;
            Ok((rkey, Box::new((window, region))))
        },
    },
    Refused {
        name: "fast_of_the_domain",
        title: "a fast registration of ours for the whole protection domain",
        make: |_, bench| {
            let region = bench.ours.pd.alloc_fast_region(Buffer::zeroed(GUARD)?)?;
            let part = region.register(region.stag(), 0, GUARD as u64, Access::LOCAL_WRITE);
            let request = SendWr::register(20, &part.for_pd());
            bench.ours.qp.post_send(&request)?;
            bench.ours.completion(20, WcOpcode::Register)?;
            Ok((part.stag, Box::new(region)))
        },
    },
    Refused {
        name: "wrong_key",
        title: "a region of ours by an STag with the wrong key",
        make: |_, bench| {
            let region = bench.own_region()?;
            Ok((region.rkey() ^ 1, Box::new(region)))
        },
    },
    Refused {
        name: "again",
        title: "a region of ours that it has invalidated before",
        make: |agent, bench| {
            let region = bench.own_region()?;
            bench.ours.qp.post_recv(&RecvWr::new(30, &[]))?;
            agent.post(bench.conn, &send_inv(region.rkey(), false))?;
            bench.ours.completion(30, WcOpcode::Recv)?;
            agent.completion(bench.conn)?.expect(11, "send")?;
            Ok((region.rkey(), Box::new(region)))
        },
    },
];

fn refuse(rig: &mut Rig, refused: Refused) -> Result<Outcome> {
    for se in [false, true] {
        let bench = Bench::open(rig, Role::GuestConnects, &Terms::default(), GUARD)?;
        let agent = &mut rig.agent;
        let (stag, kept) = (refused.make)(agent, &bench)?;
        bench.ours.qp.post_recv(&RecvWr::new(10, &[]))?;
        agent.post(bench.conn, &send_inv(stag, se))?;
        // The code means: RDMAP, remote protection, STag cannot be invalidated.
        bench.ended("Terminate 0/1/09", |reason| sent(reason, (0, 1, 9)))?;
        let reason = end(&bench.ours)?.to_string();
        let told = "this side ended the connection with Terminate 0/1/09";
        says(&reason, "", &["the STag cannot be invalidated", told])?;
        match bench.ours.cq.poll_one() {
            Some(came) if (came.wr_id, came.status) == (10, Status::RemoteInvalidRequest) => {}
            other => return Err(Failure::new(format!("our receive ended with: {other:?}"))),
        }
        agent.event(bench.conn, "disconnected")?;
        drop(kept);
    }
    Ok(Outcome::Passed)
}

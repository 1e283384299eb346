//! The application in the guest breaks the rules through its verbs. Our side must react as the RFCs
//! require.

use uwarp_interop::{Failure, Outcome, Post, Result, Rig, sge};
use uwarp_verbs::{Access, EndReason, Layer, RecvWr, Status, Who};

use super::{blames, case, end, layer, ours, over_or_caught_sending, same, says, theirs};
use crate::Case;
use crate::pair::{Pair, Role, Terms, connect};

const LEN: usize = 64;
/// Number of bytes that each request moves.
const PART: usize = 16;

/// Our regions that the guest may address. A pair is the TO and the STag of a region.
struct PeerRegions {
    /// Region with all rights.
    all: (u64, u32),
    /// Region without the right of remote write.
    read_only: (u64, u32),
    /// Region without the right of remote read.
    write_only: (u64, u32),
    /// Region with all rights, in another protection domain.
    foreign: (u64, u32),
    /// Scatter/gather list of [`LEN`] bytes of the guest's memory.
    source: String,
    /// Scatter/gather list of [`PART`] bytes of the guest's memory.
    part: String,
}

struct Row {
    name: &'static str,
    title: &'static str,
    wrong: fn(&PeerRegions) -> Post,
    /// Length in bytes of the receive that we have posted, if there is one.
    receive: Option<usize>,
    /// Layer, Error Type and Error Code of our Terminate Message.
    code: (u8, u8, u8),
    /// Part of the reason that our application gets.
    words: &'static str,
    /// Expected status of our receive.
    received: Status,
    /// Possible statuses of the guest's request.
    done: &'static [&'static str],
}

const FLUSHED: &str = "wr_flush_err";

/// Possible statuses of a Write or a Send. The request completes with success when TCP has accepted
/// it. If our Terminate Message arrives earlier, siw completes the request with an error. The verbs
/// permit both.
const SENT: &[&str] = &["success", "loc_qp_op_err", FLUSHED];
/// Possible statuses of a Read without a response. Success is not among them.
const UNANSWERED: &[&str] = &[FLUSHED, "loc_qp_op_err"];

const ROWS: &[Row] = &[
    Row {
        name: "write_bad_stag",
        title: "a Write to an unknown STag",
        wrong: |regions| Post::new("write", 1, &regions.part).remote(regions.all.0, !regions.all.1),
        receive: Some(LEN),
        code: (1, 1, 0x00),
        words: "invalid STag",
        received: Status::WrFlush,
        done: SENT,
    },
    Row {
        name: "write_wrong_key",
        title: "a Write with the wrong key of an STag",
        wrong: |regions| {
            Post::new("write", 1, &regions.part).remote(regions.all.0, regions.all.1 ^ 1)
        },
        receive: Some(LEN),
        code: (1, 1, 0x00),
        words: "invalid STag",
        received: Status::WrFlush,
        done: SENT,
    },
    // RFC 5041 has no code for a missing right, because it leaves access rights to the ULP.
    Row {
        name: "write_no_right",
        title: "a Write to memory without the right of remote write",
        wrong: |regions| {
            Post::new("write", 1, &regions.part).remote(regions.read_only.0, regions.read_only.1)
        },
        receive: Some(LEN),
        code: (1, 1, 0x00),
        words: "access rights violation",
        received: Status::WrFlush,
        done: SENT,
    },
    Row {
        name: "write_other_pd",
        title: "a Write to memory of another protection domain",
        wrong: |regions| {
            Post::new("write", 1, &regions.part).remote(regions.foreign.0, regions.foreign.1)
        },
        receive: Some(LEN),
        code: (1, 1, 0x00),
        words: "not associated",
        received: Status::WrFlush,
        done: SENT,
    },
    Row {
        name: "write_out_of_bounds",
        title: "a Write that ends one byte after the memory",
        wrong: |regions| {
            let to = regions.all.0 + (LEN - PART + 1) as u64;
            Post::new("write", 1, &regions.part).remote(to, regions.all.1)
        },
        receive: Some(LEN),
        code: (1, 1, 0x01),
        words: "base or bounds violation",
        received: Status::WrFlush,
        done: SENT,
    },
    Row {
        name: "write_to_wrap",
        title: "a Write whose TO wraps past 2^64",
        wrong: |regions| Post::new("write", 1, &regions.part).remote(u64::MAX - 1, regions.all.1),
        receive: Some(LEN),
        code: (1, 1, 0x03),
        words: "TO wrap",
        received: Status::WrFlush,
        done: SENT,
    },
    Row {
        name: "read_bad_stag",
        title: "a Read from an unknown STag",
        wrong: |regions| Post::new("read", 1, &regions.part).remote(regions.all.0, !regions.all.1),
        receive: Some(LEN),
        code: (0, 1, 0x00),
        words: "invalid STag",
        received: Status::WrFlush,
        done: UNANSWERED,
    },
    Row {
        name: "read_wrong_key",
        title: "a Read with the wrong key of an STag",
        wrong: |regions| {
            Post::new("read", 1, &regions.part).remote(regions.all.0, regions.all.1 ^ 1)
        },
        receive: Some(LEN),
        code: (0, 1, 0x00),
        words: "invalid STag",
        received: Status::WrFlush,
        done: UNANSWERED,
    },
    Row {
        name: "read_no_right",
        title: "a Read from memory without the right of remote read",
        wrong: |regions| {
            Post::new("read", 1, &regions.part).remote(regions.write_only.0, regions.write_only.1)
        },
        receive: Some(LEN),
        code: (0, 1, 0x02),
        words: "access rights violation",
        received: Status::WrFlush,
        done: UNANSWERED,
    },
    Row {
        name: "read_other_pd",
        title: "a Read from memory of another protection domain",
        wrong: |regions| {
            Post::new("read", 1, &regions.part).remote(regions.foreign.0, regions.foreign.1)
        },
        receive: Some(LEN),
        code: (0, 1, 0x00),
        words: "not associated",
        received: Status::WrFlush,
        done: UNANSWERED,
    },
    Row {
        name: "read_out_of_bounds",
        title: "a Read that begins one byte before the memory",
        wrong: |regions| {
            Post::new("read", 1, &regions.part).remote(regions.all.0 - 1, regions.all.1)
        },
        receive: Some(LEN),
        code: (0, 1, 0x01),
        words: "base or bounds violation",
        received: Status::WrFlush,
        done: UNANSWERED,
    },
    Row {
        name: "read_to_wrap",
        title: "a Read whose TO wraps past 2^64",
        wrong: |regions| Post::new("read", 1, &regions.part).remote(u64::MAX - 1, regions.all.1),
        receive: Some(LEN),
        code: (0, 1, 0x04),
        words: "TO wrap",
        received: Status::WrFlush,
        done: UNANSWERED,
    },
    Row {
        name: "send_no_receive",
        title: "a Send without a receive",
        wrong: |regions| Post::new("send", 1, &regions.source),
        receive: None,
        code: (1, 2, 0x02),
        words: "no receive is posted",
        received: Status::WrFlush,
        done: SENT,
    },
    Row {
        name: "send_too_long",
        title: "a Send one byte longer than the receive",
        wrong: |regions| Post::new("send", 1, &regions.source),
        receive: Some(LEN - 1),
        code: (1, 2, 0x05),
        words: "the receive posted for it takes 63",
        received: Status::LocalLength,
        done: SENT,
    },
    // siw's user library sends `rkey` in place of `invalidate_rkey` (Q17), so `rkey` is wrong here.
    Row {
        name: "send_inv_bad_stag",
        title: "a Send that invalidates an unknown STag",
        wrong: |regions| Post::new("send_inv", 1, &regions.source).remote(0, !regions.all.1),
        receive: Some(LEN),
        code: (0, 1, 0x09),
        words: "the STag cannot be invalidated: the peer's Send would invalidate",
        received: Status::RemoteInvalidRequest,
        done: SENT,
    },
    Row {
        name: "send_inv_other_pd",
        title: "a Send that invalidates an STag of another protection domain",
        wrong: |regions| Post::new("send_inv", 1, &regions.source).remote(0, regions.foreign.1),
        receive: Some(LEN),
        code: (0, 1, 0x09),
        words: "which other QPs may use too",
        received: Status::RemoteInvalidRequest,
        done: SENT,
    },
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = ROWS
        .iter()
        .map(|row| {
            let (layer, etype, code) = row.code;
            let title = format!(
                "siw sends {}; we answer with Terminate {layer:x}/{etype:x}/{code:02x}",
                row.title
            );
            case(&format!("siw_wrong::{}", row.name), title, |rig| {
                judge(rig, row)
            })
        })
        .collect();
    cases.push(case(
        "siw_wrong::more_reads_than_ird",
        "siw sends a fourth Read although IRD is 3; we answer with Terminate 1/2/02".to_owned(),
        more_reads_than_ird,
    ));
    cases
}

fn judge(rig: &mut Rig, row: &Row) -> Result<Outcome> {
    let source = rig.agent.reg(LEN, "lw")?;
    let mut inbox = None;
    let pair = connect(
        rig,
        Role::GuestConnects,
        &Terms::default(),
        |agent, conn, ours| {
            agent.recv(conn, 100, &sge(&source, 0, LEN), 1, 0)?;
            let region = ours.region(LEN, Access::LOCAL_WRITE)?;
            if let Some(len) = row.receive {
                let sges = [region.sge(0, u32::try_from(len)?)];
                ours.qp.post_recv(&RecvWr::new(200, &sges))?;
            }
            inbox = Some(region);
            Ok(())
        },
    )?;
    let Pair { ours: us, conn, .. } = pair;
    let (lw, rw, rr) = (
        Access::LOCAL_WRITE,
        Access::REMOTE_WRITE,
        Access::REMOTE_READ,
    );
    let other_pd = us.device.alloc_pd()?;
    let all = us.region(LEN, lw | rw | rr)?;
    let read_only = us.region(LEN, lw | rr)?;
    let write_only = us.region(LEN, lw | rw)?;
    let foreign = other_pd.register(vec![0; LEN], lw | rw | rr)?;
    let regions = PeerRegions {
        all: (all.addr(), all.rkey()),
        read_only: (read_only.addr(), read_only.rkey()),
        write_only: (write_only.addr(), write_only.rkey()),
        foreign: (foreign.addr(), foreign.rkey()),
        source: sge(&source, 0, LEN),
        part: sge(&source, 0, PART),
    };
    rig.agent.fill(&source, 0, LEN, 3)?;
    rig.agent.post(conn, &(row.wrong)(&regions))?;

    let (title, who) = match row.code {
        (1, 2, 0x02) => ("no receive posted: ", Who::Program),
        (1, 2, 0x05) => ("local length error: ", Who::PeerProgram),
        _ => ("remote access error, ", Who::PeerProgram),
    };
    let whose = (title, (who, layer(row.code)));
    judged(&end(&us)?, row.code, whose, row.words)?;
    if row.receive.is_some() {
        same("our receive", &ours(&us, 1)?, &vec![(200, row.received)])?;
    }
    let mut done = theirs(&mut rig.agent, conn, 2)?;
    let receive = done.split_off(1);
    same("the guest's request", &done[0].0, &1)?;
    within("the guest's request", &done[0].1, row.done)?;
    same("its receive", &receive, &vec![(100, FLUSHED.to_owned())])?;
    over_or_caught_sending(&mut rig.agent, conn)?;
    // Nothing was placed, and nothing was invalidated.
    for region in [&all, &read_only, &write_only, &foreign] {
        let mut bytes = [1; LEN];
        region.read_at(0, &mut bytes)?;
        same("our memory", &bytes, &[0; LEN])?;
    }
    drop(inbox);
    Ok(Outcome::Passed)
}

/// Checks that a status is one of the allowed ones.
fn within(what: &str, status: &str, allowed: &[&str]) -> Result<()> {
    if allowed.contains(&status) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what} ended with {status}, expected one of {allowed:?}"
    )))
}

/// Checks our Terminate Message and the reason that our side reports.
fn judged(
    reason: &EndReason,
    code: (u8, u8, u8),
    (title, whose): (&str, (Who, Layer)),
    words: &str,
) -> Result<()> {
    let EndReason::TerminateSent {
        terminate: Some(terminate),
        ..
    } = reason
    else {
        return Err(Failure::new(format!(
            "expected a Terminate Message of ours, but the connection ended with: {reason:?}"
        )));
    };
    let sent = (terminate.layer(), terminate.etype(), terminate.code());
    same("our Terminate Message", &sent, &code)?;
    let (layer, etype, code) = code;
    let told =
        format!("this side ended the connection with Terminate {layer:x}/{etype:x}/{code:02x}");
    blames(&reason.cause(), whose, sent)?;
    says(&reason.to_string(), title, &[words, &told])
}

/// siw rounds its ORD up to a power of two (Q6). With an IRD of 3 it has 4 Reads outstanding, which
/// violates RFC 6581 section 9.1. The peer profile announces powers of two, so this happens only
/// without the profile.
fn more_reads_than_ird(rig: &mut Rig) -> Result<Outcome> {
    // Reads are so long that the fourth one arrives before the response to the first is complete.
    const READ: usize = 8 << 20;
    let sink = rig.agent.reg(READ, "lw")?;
    let terms = Terms {
        ird: 3,
        ord: 3,
        ..Terms::default()
    };
    let nothing = |_: &mut _, _, _: &_| Ok(());
    let Pair { ours: us, conn, .. } = connect(rig, Role::GuestConnects, &terms, nothing)?;
    let source = us.region(READ, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let mut reads = Post::new("read", 1, sge(&sink, 0, READ)).remote(source.addr(), source.rkey());
    reads.count = 4;
    rig.agent.post(conn, &reads)?;
    judged(
        &end(&us)?,
        (1, 2, 0x02),
        ("protocol error: ", (Who::PeerStack, Layer::Rdmap)),
        "one more Read or Atomic Request than the 3 that may be outstanding (IRD)",
    )?;
    for (number, (wr_id, status)) in (1..).zip(theirs(&mut rig.agent, conn, 4)?) {
        same("the guest's request", &wr_id, &number)?;
        within("the guest's Read", &status, UNANSWERED)?;
    }
    over_or_caught_sending(&mut rig.agent, conn)?;
    Ok(Outcome::Deviation(
        "siw rounds its ORD up to a power of two; with `--peer siw` we announce one".to_owned(),
    ))
}

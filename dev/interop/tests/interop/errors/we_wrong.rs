//! Our side breaks the rules through its verbs. siw answers with a Terminate Message, whose
//! description our application must get.
//!
//! siw swaps Layer and EType and has M, D and R in the low bits of their byte (5040-4.8-02; Q11).
//! Each Terminate Message here has a DDP header, so its layout is certain even without a profile.
//! RFC 5041 has no code for a missing right (5041-7.1-11). siw has no code for a Send that is too
//! long (5041-7.1-04) or for a TO wrap (5041-7.1-14; Q12).

use serde_json::json;
use uwarp_interop::{Failure, Outcome, Region, Result, Rig, sge};
use uwarp_verbs::{
    Access, EndReason, Peer, RecvWr, RemoteBuffer, SendWr, Settings, Sge, Status, Who,
};

use super::{
    ACCESS, FATAL, INVALID, blames, case, end, layer, ours, over, polled, same, says, theirs,
};
use crate::Case;
use crate::pair::{Pair, Role, Terms, connect};

const LEN: usize = 64;
const PART: u32 = 16;

/// Regions of the guest.
struct PeerRegions {
    all: Region,
    /// Region without the right of remote write.
    read_only: Region,
    /// Region in another protection domain.
    foreign: Region,
}

struct Row {
    name: &'static str,
    title: &'static str,
    wrong: for<'a> fn(&PeerRegions, &'a [Sge]) -> SendWr<'a>,
    /// Number of bytes that the request moves.
    len: u32,
    /// Length in bytes of the receive in the guest, if there is one.
    receive: Option<usize>,
    /// Layer, Error Type and Error Code, read in siw's layout.
    code: (u8, u8, u8),
    /// Code that the RFCs require, if it is different.
    rfc: Option<(u8, u8, u8)>,
    /// Start of the description.
    start: &'static str,
    /// Other parts of the description.
    words: &'static [&'static str],
    /// Expected status of our request.
    done: Status,
    /// Expected status of the guest's receive.
    received: &'static str,
    /// Expected event of the guest's device.
    device: &'static str,
}

const FLUSHED: &str = "wr_flush_err";
/// Status of a receive that never completes. siw ends the connection while it responds to a Read,
/// and flushes nothing.
const NEVER: &str = "";
const LAYOUT: &str = "; sent in the layout of Linux siw";
const WRITE_STAG: &str = "which means by it: the STag is unknown or its key is wrong, or its region has no right of remote write";
const NO_BUFFER: &str = "which means by it: no receive was posted for the Send, or the Send is longer than the receive (RFC 5041 has 1/2/02 for the first and 1/2/05 for the second)";

const ROWS: &[Row] = &[
    Row {
        name: "write_bad_stag",
        title: "a Write to an unknown STag",
        wrong: |regions, from| {
            SendWr::write(
                1,
                from,
                RemoteBuffer::at(regions.all.addr, !regions.all.rkey),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (1, 1, 0x00),
        rfc: None,
        start: "RDMA Write refused: invalid STag (DDP tagged buffer error, 1/1/00); STag ",
        words: &[LAYOUT, WRITE_STAG, "with 16 bytes of payload"],
        done: Status::Success,
        received: FLUSHED,
        device: "",
    },
    Row {
        name: "write_wrong_key",
        title: "a Write with the wrong key of an STag",
        wrong: |regions, from| {
            SendWr::write(
                1,
                from,
                RemoteBuffer::at(regions.all.addr, regions.all.rkey ^ 1),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (1, 1, 0x00),
        rfc: None,
        start: "RDMA Write refused: invalid STag (DDP tagged buffer error, 1/1/00); STag ",
        words: &[LAYOUT, WRITE_STAG],
        done: Status::Success,
        received: FLUSHED,
        device: "",
    },
    Row {
        name: "write_no_right",
        title: "a Write to memory without the right of remote write",
        wrong: |regions, from| {
            SendWr::write(
                1,
                from,
                RemoteBuffer::at(regions.read_only.addr, regions.read_only.rkey),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (1, 1, 0x00),
        rfc: None,
        start: "RDMA Write refused: invalid STag (DDP tagged buffer error, 1/1/00); STag ",
        words: &[LAYOUT, WRITE_STAG],
        done: Status::Success,
        received: FLUSHED,
        device: ACCESS,
    },
    Row {
        name: "write_other_pd",
        title: "a Write to memory of another protection domain",
        wrong: |regions, from| {
            SendWr::write(
                1,
                from,
                RemoteBuffer::at(regions.foreign.addr, regions.foreign.rkey),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (1, 1, 0x02),
        rfc: None,
        start: "RDMA Write refused: STag not associated with the DDP stream (DDP tagged buffer error, 1/1/02); STag ",
        words: &[LAYOUT],
        done: Status::Success,
        received: FLUSHED,
        device: ACCESS,
    },
    Row {
        name: "write_out_of_bounds",
        title: "a Write that ends one byte after the memory",
        wrong: |regions, from| {
            SendWr::write(
                1,
                from,
                RemoteBuffer::at(regions.all.addr + 49, regions.all.rkey),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (1, 1, 0x01),
        rfc: None,
        start: "RDMA Write refused: base or bounds violation (DDP tagged buffer error, 1/1/01); STag ",
        words: &[LAYOUT],
        done: Status::Success,
        received: FLUSHED,
        device: ACCESS,
    },
    Row {
        name: "write_to_wrap",
        title: "a Write whose TO wraps past 2^64",
        wrong: |regions, from| {
            SendWr::write(1, from, RemoteBuffer::at(u64::MAX - 1, regions.all.rkey))
        },
        len: PART,
        receive: Some(LEN),
        code: (1, 0, 0x00),
        rfc: Some((1, 1, 0x03)),
        start: "RDMA Write refused: a local error of DDP at the sender, without details (DDP local catastrophic error, 1/0/00)",
        words: &[
            LAYOUT,
            "which means by it: TO and length of the Write wrap past 2^64 (RFC 5041 has 1/1/03, TO wrap)",
        ],
        done: Status::Success,
        received: FLUSHED,
        device: "",
    },
    Row {
        name: "read_bad_stag",
        title: "a Read from an unknown STag",
        wrong: |regions, to| {
            SendWr::read(1, to, RemoteBuffer::at(regions.all.addr, !regions.all.rkey))
        },
        len: PART,
        receive: Some(LEN),
        code: (0, 1, 0x00),
        rfc: None,
        start: "RDMA Read Request refused: invalid STag (RDMAP remote protection error, 0/1/00); source STag ",
        words: &[LAYOUT, ", 16 bytes"],
        done: Status::RemoteAccess,
        received: NEVER,
        device: INVALID,
    },
    Row {
        name: "read_wrong_key",
        title: "a Read with the wrong key of an STag",
        wrong: |regions, to| {
            SendWr::read(
                1,
                to,
                RemoteBuffer::at(regions.all.addr, regions.all.rkey ^ 1),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (0, 1, 0x00),
        rfc: None,
        start: "RDMA Read Request refused: invalid STag (RDMAP remote protection error, 0/1/00); source STag ",
        words: &[LAYOUT, ", 16 bytes"],
        done: Status::RemoteAccess,
        received: NEVER,
        device: INVALID,
    },
    Row {
        name: "read_other_pd",
        title: "a Read from memory of another protection domain",
        wrong: |regions, to| {
            SendWr::read(
                1,
                to,
                RemoteBuffer::at(regions.foreign.addr, regions.foreign.rkey),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (0, 1, 0x03),
        rfc: None,
        start: "RDMA Read Request refused: STag not associated with the RDMAP stream (RDMAP remote protection error, 0/1/03); source STag ",
        words: &[LAYOUT, ", 16 bytes"],
        done: Status::RemoteAccess,
        received: NEVER,
        device: INVALID,
    },
    Row {
        name: "read_out_of_bounds",
        title: "a Read that begins one byte before the memory",
        wrong: |regions, to| {
            SendWr::read(
                1,
                to,
                RemoteBuffer::at(regions.all.addr - 1, regions.all.rkey),
            )
        },
        len: PART,
        receive: Some(LEN),
        code: (0, 1, 0x01),
        rfc: None,
        start: "RDMA Read Request refused: base or bounds violation (RDMAP remote protection error, 0/1/01); source STag ",
        words: &[LAYOUT, ", 16 bytes"],
        done: Status::RemoteAccess,
        received: NEVER,
        device: INVALID,
    },
    Row {
        name: "send_no_receive",
        title: "a Send without a receive",
        wrong: |_, from| SendWr::send(1, from),
        len: PART,
        receive: None,
        code: (1, 2, 0x02),
        rfc: None,
        start: "Send refused: no buffer available for the message (DDP untagged buffer error, 1/2/02); message ",
        words: &[LAYOUT, NO_BUFFER],
        done: Status::Success,
        received: FLUSHED,
        device: "",
    },
    Row {
        name: "send_too_long",
        title: "a Send one byte longer than the receive",
        wrong: |_, from| SendWr::send(1, from),
        len: PART,
        receive: Some(PART as usize - 1),
        code: (1, 2, 0x02),
        rfc: None,
        start: "Send refused: no buffer available for the message (DDP untagged buffer error, 1/2/02); message ",
        words: &[LAYOUT, NO_BUFFER],
        done: Status::Success,
        received: "loc_len_err",
        device: FATAL,
    },
];

pub(super) fn cases() -> Vec<Case> {
    ROWS.iter()
        .map(|row| {
            let (layer, etype, code) = row.code;
            let title = format!(
                "we send {}; siw answers with Terminate {layer:x}/{etype:x}/{code:02x}",
                row.title
            );
            case(&format!("we_wrong::{}", row.name), title, |rig| {
                // Runs the row with and without the profile of siw, because the layout is certain.
                refused(rig, row, Peer::Siw, Role::GuestServes)
                    .map_err(|failure| failure.during("with the profile of siw"))?;
                refused(rig, row, Peer::Rfc, Role::GuestConnects)
                    .map_err(|failure| failure.during("without a profile"))?;
                Ok(Outcome::Deviation(deviation(row)))
            })
        })
        .collect()
}

fn deviation(row: &Row) -> String {
    let mut text = "Layer and EType are exchanged; M, D and R are in the low bits".to_owned();
    if row.name == "write_no_right" {
        text.push_str("; no code of its own for the right");
    }
    if row.received == NEVER {
        text.push_str("; siw's own receives are never flushed");
    }
    if row.name == "send_too_long" {
        text.push_str("; RFC 5041 has 1/2/05");
    }
    if let Some((layer, etype, code)) = row.rfc {
        text.push_str(&format!("; RFC 5041 has {layer:x}/{etype:x}/{code:02x}"));
    }
    text
}

fn refused(rig: &mut Rig, row: &Row, peer: Peer, role: Role) -> Result<()> {
    let inbox = rig.agent.reg(LEN, "lw")?;
    let all = rig.agent.reg(LEN, "lw,rw,rr")?;
    let read_only = rig.agent.reg(LEN, "lw,rr")?;
    let foreign = rig
        .agent
        .command(&json!({"cmd": "reg", "len": LEN, "access": "lw,rw,rr", "pd": 1}))?;
    let number = |key: &str| {
        let number = foreign[key].as_u64();
        number.ok_or_else(|| Failure::new(format!("the agent said {foreign}")))
    };
    let foreign = Region {
        number: number("mr")?,
        addr: number("addr")?,
        rkey: u32::try_from(number("rkey")?)?,
        len: LEN,
    };
    let regions = PeerRegions {
        all,
        read_only,
        foreign,
    };
    let settings = Settings::default().peer(peer);
    let terms = Terms {
        settings,
        ..Terms::default()
    };
    let pair = connect(rig, role, &terms, |agent, conn, ours| {
        if let Some(len) = row.receive {
            agent.recv(conn, 100, &sge(&inbox, 0, len), 1, 0)?;
        }
        for wr_id in [200, 201] {
            ours.qp.post_recv(&RecvWr::new(wr_id, &[]))?;
        }
        Ok(())
    })?;
    let Pair { ours: us, conn, .. } = pair;
    let mut want = vec![
        (1, row.done),
        (200, Status::WrFlush),
        (201, Status::WrFlush),
    ];
    if role == Role::GuestConnects {
        // A responder may not send before the first FPDU of the initiator.
        rig.agent
            .post(conn, &uwarp_interop::Post::new("send", 99, ""))?;
        rig.agent.completion(conn)?.expect(99, "send")?;
        want[1].1 = Status::Success;
    }
    let memory = us.region(LEN, Access::LOCAL_WRITE)?;
    let sges = [memory.sge(0, row.len)];
    us.qp.post_send(&(row.wrong)(&regions, &sges))?;

    told(&end(&us)?, row, peer)?;
    same("our completions", &ours(&us, 3)?, &want)?;
    if row.received == NEVER {
        over(&mut rig.agent, conn, row.device)?;
        return polled(&mut rig.agent, conn, 0);
    }
    if row.receive.is_some() {
        let flushed = vec![(100, row.received.to_owned())];
        same(
            "completions in the guest",
            &theirs(&mut rig.agent, conn, 1)?,
            &flushed,
        )?;
    }
    over(&mut rig.agent, conn, row.device)?;
    for region in [&regions.all, &regions.read_only, &regions.foreign] {
        rig.agent.check_zero(region, 0, LEN)?;
    }
    Ok(())
}

fn told(reason: &EndReason, row: &Row, peer: Peer) -> Result<()> {
    let EndReason::TerminateReceived { terminate, .. } = reason else {
        return Err(Failure::new(format!(
            "expected a Terminate Message of siw, but the connection ended with: {reason:?}"
        )));
    };
    let came = (terminate.layer(), terminate.etype(), terminate.code());
    same("the Terminate Message", &came, &row.code)?;
    same(
        "the layout that it was read with",
        &terminate.read_as(),
        &Peer::Siw,
    )?;
    let rfc = terminate.rfc_reason();
    let want = row.rfc.unwrap_or(row.code);
    same(
        "its code in the RFCs",
        &(rfc.layer, rfc.etype, rfc.code),
        &want,
    )?;
    let what = format!("with the profile {peer}");
    says(&terminate.to_string(), row.start, row.words).map_err(|failure| failure.during(&what))?;
    // The reason for the end of the connection has its own text, in terms of the RFCs.
    let (title, who) = match want {
        (1, 2, 0x02) => (
            "remote operation error: the peer refused ",
            Who::PeerProgram,
        ),
        _ => ("remote access error: the peer refused ", Who::Program),
    };
    blames(&reason.cause(), (who, layer(row.code)), row.code)?;
    let kind = format!("{} ({}", rfc.name(), rfc.kind());
    says(&reason.to_string(), title, &[&kind, "Linux siw"]).map_err(|failure| failure.during(what))
}

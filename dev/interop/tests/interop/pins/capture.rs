//! Bytes that our side has sent to siw, read from a capture. Checks that nothing in them crashes
//! the guest's kernel (Q22). `engine/src/connection/tests/emitted.rs` shows the same for random
//! work requests.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;

use uwarp_interop::{Failure, Outcome, Post, Result, Rig, sge};
use uwarp_testkit::MemoryFile;
use uwarp_verbs::capture::{Capture, Direction, Reader};
use uwarp_verbs::llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_verbs::{Access, Device, Peer, RecvWr, RemoteBuffer, SendWr, Settings, WcOpcode};

use super::case;
use crate::Case;
use crate::errors::same;
use crate::pair::{Ours, Pair, Role, Terms, connect_with};

const LEN: usize = 4096;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "capture::guest_serves",
            "empty Writes as siw takes them, seen in a capture, siw as responder",
            |rig| captured(rig, Role::GuestServes),
        ),
        case(
            "capture::guest_connects",
            "empty Writes and an MPA Reply as siw takes them, seen in a capture, siw as initiator",
            |rig| captured(rig, Role::GuestConnects),
        ),
    ]
}

fn captured(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let memory = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(memory.clone()))?;
    let network = KernelNetwork::new(KernelSettings::default(), Some(&capture));
    let settings = Settings::default().peer(Peer::Siw);
    let device = Device::open(Arc::new(network), settings)?;
    let terms = Terms::default();
    let inbox = rig.agent.reg(LEN, "lw")?;
    let target = rig.agent.reg(LEN, "lw,rw,rr")?;
    let pair = connect_with(
        rig,
        role,
        Ours::on(device, &terms)?,
        &terms,
        |agent, conn, ours| {
            agent.recv(conn, 100, &sge(&inbox, 0, LEN), 4, 0)?;
            Ok(ours.qp.post_recv(&RecvWr::new(200, &[]))?)
        },
    )?;
    let Pair { ours, conn, .. } = pair;
    if role == Role::GuestConnects {
        rig.agent.post(conn, &Post::new("send", 9, ""))?;
        rig.agent.completion(conn)?.expect(9, "send")?;
        ours.completion(200, WcOpcode::Recv)?;
    }
    let region = ours.region(LEN, Access::LOCAL_WRITE)?;
    let (none, full) = (region.sge(0, 0), region.sge(0, 4096));
    let (to, rkey) = (target.addr, target.rkey);
    // Empty Writes in every form that the verbs permit, before and after a Write of several
    // segments.
    ours.qp.post_send_list(&[
        SendWr::write(1, &[], RemoteBuffer::at(to, rkey)),
        SendWr::write(2, &[none], RemoteBuffer::at(0, 0)),
        SendWr::write_inline(3, &[], RemoteBuffer::at(to, rkey)),
        SendWr::write(4, &[none, full, none], RemoteBuffer::at(to, rkey)),
        SendWr::write(5, &[none, none], RemoteBuffer::at(to, rkey)),
        SendWr::send(6, &[none]),
    ])?;
    for wr_id in 1..=5 {
        ours.completion(wr_id, WcOpcode::RdmaWrite)?;
    }
    ours.completion(6, WcOpcode::Send)?;
    rig.agent.completion(conn)?.expect(100, "recv")?;
    ours.qp.disconnect();
    rig.agent.event(conn, "disconnected")?;
    same(
        "our side closes",
        &ours.qp.wait_closed(uwarp_interop::PATIENCE),
        &true,
    )?;

    let sent = sent(memory.bytes())?;
    let frame = startup_is_whole(&sent)?;
    let empty = writes_are_whole(&sent[frame..])?;
    same("empty Writes in the capture", &empty, &4)?;
    Ok(Outcome::Passed)
}

/// Returns the bytes that our side has sent, in stream order.
fn sent(file: Vec<u8>) -> Result<Vec<u8>> {
    let mut streams: BTreeMap<(SocketAddr, SocketAddr), Vec<u8>> = BTreeMap::new();
    for packet in Reader::new(Cursor::new(file))? {
        let packet = packet?;
        let Some(segment) = packet.tcp() else {
            continue;
        };
        if packet.direction == Direction::Outbound {
            let key = (segment.source, segment.destination);
            streams.entry(key).or_default().extend(segment.payload);
        }
    }
    same("connections in the capture", &streams.len(), &1)?;
    Ok(streams.into_values().next().unwrap_or_default())
}

/// Returns the length of our startup frame. Checks that it has S set, and therefore IRD and ORD.
fn startup_is_whole(sent: &[u8]) -> Result<usize> {
    let head = sent
        .first_chunk::<20>()
        .ok_or_else(|| Failure::new("the capture has no startup frame"))?;
    let len = usize::from(u16::from_be_bytes([head[18], head[19]]));
    same("S and Rev", &(head[16] & 0x10, head[17]), &(0x10, 2))?;
    if len < 4 {
        return Err(Failure::new(format!(
            "our startup frame says S and has {len} bytes of private data"
        )));
    }
    Ok(20 + len)
}

/// Counts the empty Writes. Checks that a segment without payload is the last of its message.
fn writes_are_whole(mut fpdus: &[u8]) -> Result<usize> {
    let mut empty = 0;
    while let Some(head) = fpdus.first_chunk::<2>() {
        let len = usize::from(u16::from_be_bytes(*head));
        let ulpdu = fpdus
            .get(2..2 + len)
            .ok_or_else(|| Failure::new("the capture ends inside an FPDU"))?;
        let (tagged, last) = (ulpdu[0] & 0x80 != 0, ulpdu[0] & 0x40 != 0);
        if tagged && len == 14 {
            same("L of an empty Write", &last, &true)?;
            empty += 1;
        }
        let whole = (2 + len).next_multiple_of(4) + 4;
        fpdus = fpdus
            .get(whole..)
            .ok_or_else(|| Failure::new("the capture ends inside an FPDU"))?;
    }
    Ok(empty)
}

//! Defects that show through the verbs of both sides, on every wire.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use uwarp_interop::{
    Answer, Failure, Listen, Outcome, PATIENCE, Post, QpParams, Result, Rig, pattern, sge,
};
use uwarp_verbs::{
    Access, ConnectOptions, EndReason, Peer, RecvWr, RemoteBuffer, SendWr, Settings, StartupError,
    WcOpcode,
};

use super::{case, deviation};
use crate::Case;
use crate::errors::{end, same, says};
use crate::pair::{Ours, Pair, Role, Terms, connect};

const LEN: usize = 64;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "verbs::read_without_the_right",
            "siw answers a Read from memory without the right of remote read",
            read_without_the_right,
        ),
        case(
            "verbs::send_inv_refused",
            "a Send with Invalidate that siw refuses: the connection continues, and ends with a late Terminate 0/2/09",
            send_inv_refused,
        ),
        case(
            "verbs::invalidate_any_key",
            "siw invalidates a region by an STag with the wrong key",
            invalidate_any_key,
        ),
        case(
            "verbs::solicited_event",
            "a solicited event of ours does not wake siw's consumer",
            solicited_event,
        ),
        case(
            "verbs::query_qp",
            "siw's ibv_query_qp reports RESET for a QP in RTS",
            query_qp,
        ),
        case(
            "verbs::receive_without_elements",
            "siw's ibv_post_recv refuses a receive without elements",
            receive_without_elements,
        ),
        case(
            "verbs::responder_sends_first",
            "a Send of siw as responder before our first FPDU reaches our consumer",
            responder_sends_first,
        ),
        case(
            "verbs::first_fpdu_at_once",
            "20 connections to siw whose first Send is posted at once, with its profile",
            first_fpdu_at_once,
        ),
        case(
            "verbs::private_data_252",
            "252 to 255 bytes of private data of siw's consumer: we refuse the MPA Request",
            private_data_252,
        ),
    ]
}

fn siw() -> Terms {
    Terms {
        settings: Settings::default().peer(Peer::Siw),
        ..Terms::default()
    }
}

/// Q13. siw violates 5040-5.2.1-12.
fn read_without_the_right(rig: &mut Rig) -> Result<Outcome> {
    let local = rig.agent.reg(LEN, "lw")?;
    rig.agent.fill(&local, 0, LEN, 1)?;
    let Pair { ours, .. } = connect(rig, Role::GuestServes, &siw(), |_, _, _| Ok(()))?;
    let region = ours.region(LEN, Access::LOCAL_WRITE)?;
    let to = [region.sge(0, u32::try_from(LEN)?)];
    ours.qp.post_send(&SendWr::read(
        1,
        &to,
        RemoteBuffer::at(local.addr, local.rkey),
    ))?;
    ours.completion(1, WcOpcode::RdmaRead)?;
    let mut came = [0; LEN];
    region.read_at(0, &mut came)?;
    same("bytes read", &came.to_vec(), &pattern(1, 0, LEN))?;
    deviation("RFC 5040 section 5.2.1 requires the right to be checked")
}

/// siw does not send a Terminate Message at once, as 5040-5.3-12 and 5040-7.1-03 require.
fn send_inv_refused(rig: &mut Rig) -> Result<Outcome> {
    let inbox = rig.agent.reg(2 * LEN, "lw")?;
    let pair = connect(rig, Role::GuestServes, &siw(), |agent, conn, _| {
        agent.recv(conn, 100, &sge(&inbox, 0, LEN), 2, LEN as u64)
    })?;
    let Pair { ours, conn, .. } = pair;
    let bad = !inbox.rkey;
    ours.qp
        .post_send(&SendWr::send_inline(1, &pattern(2, 0, LEN)).invalidate(bad))?;
    ours.completion(1, WcOpcode::Send)?;
    let received = rig.agent.completion(conn)?;
    same(
        "the receive",
        &(received.wr_id, received.status.as_str()),
        &(100, "rem_inv_req_err"),
    )?;
    ours.qp
        .post_send(&SendWr::send_inline(2, &pattern(3, 0, LEN)))?;
    ours.completion(2, WcOpcode::Send)?;
    rig.agent.completion(conn)?.expect(101, "recv")?;
    rig.agent.check(&inbox, LEN, LEN, 3, 0)?;
    rig.agent.disconnect(conn)?;
    let reason = end(&ours)?;
    let EndReason::TerminateReceived { terminate, .. } = &reason else {
        return Err(Failure::new(format!(
            "expected a late Terminate Message of siw, but the connection ended with: {reason:?}"
        )));
    };
    let code = (terminate.layer(), terminate.etype(), terminate.code());
    same("siw's Terminate Message", &code, &(0, 2, 0x09))?;
    says(
        &reason.to_string(),
        "remote access error: the peer ended the connection: STag cannot be invalidated (RDMAP remote operation error, 0/2/09)",
        &[
            "sent in the layout of Linux siw, which means by it: an earlier Send named an STag that it could not invalidate; the header is that of a later message",
        ],
    )?;
    deviation(
        "RFC 5040 section 7.1 requires the Terminate Message at once, with the header of that Send",
    )
}

/// siw uses only the index of the STag and ignores its key, although 5040-7.2-04 requires a valid
/// STag. The region is an ordinary region. The guest's application has not permitted peers to
/// invalidate it.
fn invalidate_any_key(rig: &mut Rig) -> Result<Outcome> {
    let inbox = rig.agent.reg(LEN, "lw")?;
    let all = rig.agent.reg(LEN, "lw,rw,rr")?;
    let pair = connect(rig, Role::GuestServes, &siw(), |agent, conn, _| {
        agent.recv(conn, 100, &sge(&inbox, 0, LEN), 1, 0)
    })?;
    let Pair { ours, conn, .. } = pair;
    let write = pattern(4, 0, 16);
    ours.qp.post_send(&SendWr::write_inline(
        1,
        &write,
        RemoteBuffer::at(all.addr, all.rkey),
    ))?;
    ours.qp
        .post_send(&SendWr::send_inline(2, &[5]).invalidate(all.rkey ^ 0x5a))?;
    ours.completion(1, WcOpcode::RdmaWrite)?;
    ours.completion(2, WcOpcode::Send)?;
    let received = rig.agent.completion(conn)?;
    // siw does not report the invalidation to its application. 5040-5.3-11 requires the
    // invalidation, and the verbs have a flag to report it.
    same(
        "the STag in the completion",
        &received.expect(100, "recv")?.invalidated,
        &None,
    )?;
    rig.agent.check(&all, 0, 16, 4, 0)?;
    ours.qp.post_send(&SendWr::write_inline(
        3,
        &write,
        RemoteBuffer::at(all.addr + 16, all.rkey),
    ))?;
    let reason = end(&ours)?;
    says(
        &reason.to_string(),
        "remote access error: the peer refused a Write of 16 bytes",
        &["invalid STag (DDP tagged buffer error, 1/1/00)"],
    )?;
    rig.agent.check_zero(&all, 16, 16)?;
    deviation(
        "RFC 5040 section 7.2 requires the STag and its key to be checked; it is not reported to the consumer",
    )
}

/// Q18. A Send with Solicited Event must raise an event at its receiver (RFC 5040 section 5.3).
fn solicited_event(rig: &mut Rig) -> Result<Outcome> {
    let inbox = rig.agent.reg(LEN, "lw,rr")?;
    let mut terms = siw();
    terms.qp_params.notify = "solicited";
    let pair = connect(rig, Role::GuestServes, &terms, |agent, conn, _| {
        agent.recv(conn, 100, &sge(&inbox, 0, LEN), 1, 0)
    })?;
    let Pair { ours, conn, .. } = pair;
    let region = ours.region(LEN, Access::LOCAL_WRITE)?;
    ours.qp
        .post_send(&SendWr::send_inline(1, &[1; 8]).solicited())?;
    ours.completion(1, WcOpcode::Send)?;
    // The response to this Read arrives after the Send.
    let to = [region.sge(0, 8)];
    ours.qp.post_send(&SendWr::read(
        2,
        &to,
        RemoteBuffer::at(inbox.addr, inbox.rkey),
    ))?;
    ours.completion(2, WcOpcode::RdmaRead)?;
    let mut came = [0; 8];
    region.read_at(0, &mut came)?;
    same("the bytes of the Send", &came, &[1; 8])?;
    rig.agent.query()?;
    same("reports of the guest", &rig.agent.unread(), &Vec::new())?;
    rig.agent.command(&json!({"cmd": "poll", "conn": conn.0}))?;
    rig.agent.completion(conn)?.expect(100, "recv")?;
    deviation("the completion is found by polling only (RFC 5040 section 5.3)")
}

/// Q20. siw reports the state of a connected QP as Reset.
fn query_qp(rig: &mut Rig) -> Result<Outcome> {
    let pair = connect(rig, Role::GuestConnects, &siw(), |_, _, _| Ok(()))?;
    let answer = rig
        .agent
        .command(&json!({"cmd": "query_qp", "conn": pair.conn.0}))?;
    same("the state", &answer["state"], &json!("reset"))?;
    deviation("a matter of its verbs, which no RFC specifies")
}

/// siw refuses a receive without elements, which would be useful for empty Sends.
fn receive_without_elements(rig: &mut Rig) -> Result<Outcome> {
    let pair = connect(rig, Role::GuestConnects, &siw(), |_, _, _| Ok(()))?;
    let answer = rig
        .agent
        .try_command(&json!({"cmd": "recv", "conn": pair.conn.0, "wr_id": 1}))?;
    same("errno", &answer["errno"], &json!(22))?;
    deviation("a matter of its verbs, which no RFC specifies")
}

/// Q8. siw does not wait for our first FPDU, which violates 5044-7.1.2-15. Our side accepts siw's
/// message.
fn responder_sends_first(rig: &mut Rig) -> Result<Outcome> {
    let source = rig.agent.reg(LEN, "lw")?;
    rig.agent.fill(&source, 0, LEN, 6)?;
    let mut inbox = None;
    let pair = connect(rig, Role::GuestServes, &siw(), |_, _, ours| {
        let region = ours.region(LEN, Access::LOCAL_WRITE)?;
        let place = [region.sge(0, u32::try_from(LEN)?)];
        ours.qp.post_recv(&RecvWr::new(200, &place))?;
        inbox = Some(region);
        Ok(())
    })?;
    let Some(inbox) = inbox else {
        return Err(Failure::new("no receive was posted"));
    };
    rig.agent
        .post(pair.conn, &Post::new("send", 1, sge(&source, 0, LEN)))?;
    pair.ours.completion(200, WcOpcode::Recv)?;
    let mut came = [0; LEN];
    inbox.read_at(0, &mut came)?;
    same("the received bytes", &came.to_vec(), &pattern(6, 0, LEN))?;
    rig.agent.completion(pair.conn)?.expect(1, "send")?;
    deviation("RFC 5044 section 7.1.2 requires it to wait")
}

/// Q7. After an accept, siw does not notice an FPDU that follows its Reply at once. The profile
/// delays the first FPDU, so that no connection hangs.
fn first_fpdu_at_once(rig: &mut Rig) -> Result<Outcome> {
    let inbox = rig.agent.reg(LEN, "lw")?;
    let terms = siw();
    for number in 0..20_u64 {
        let ours = Ours::new(rig, &terms)?;
        let port = rig.guest_port();
        let to = rig.wire.guest_addr(port);
        let agent = &mut rig.agent;
        let listener = agent.listen(port, &Listen::default())?;
        let conn = thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                ours.qp.connect(to, &ConnectOptions::default())?;
                ours.qp
                    .post_send(&SendWr::send_inline(number, &pattern(number, 0, LEN)))?;
                Ok::<_, Failure>(())
            });
            let accepted = (|| {
                let conn = agent.request(listener)?.conn;
                agent.recv(conn, 100, &sge(&inbox, 0, LEN), 1, 0)?;
                agent.accept(conn, &Answer::default())?;
                agent.event(conn, "established")?;
                Ok::<_, Failure>(conn)
            })();
            let connected = connecting
                .join()
                .unwrap_or_else(|_| Err(Failure::new("our connect panicked")));
            connected.and(accepted)
        })?;
        let during = |failure: Failure| failure.during(format!("connection {number} of 20"));
        agent
            .completion(conn)
            .map_err(during)?
            .expect(100, "recv")?;
        agent.check(&inbox, 0, LEN, number, 0).map_err(during)?;
        ours.completion(number, WcOpcode::Send).map_err(during)?;
        ours.qp.disconnect();
        agent.event(conn, "disconnected").map_err(during)?;
        if !ours.qp.wait_closed(PATIENCE) {
            return Err(during(Failure::new("our side does not close")));
        }
        agent.destroy(conn)?;
        agent.unlisten(listener)?;
    }
    deviation("without the delay it misses some of them until more bytes arrive")
}

/// Q5. `PD_Length` wraps (5044-7.1.1-15). With S, private data of fewer than 4 bytes is malformed
/// (6581-6-04), and the responder must close (5044-7.1.2-04).
fn private_data_252(rig: &mut Rig) -> Result<Outcome> {
    let device = rig.device(siw().settings)?;
    let listener = device.listen(SocketAddr::new(rig.wire.our_ip(), 0))?;
    let (ip, port) = (rig.wire.our_ip_for_guest(), listener.local_addr().port());
    for (len, wrapped) in [(252, 0), (255, 3)] {
        let conn = rig.agent.open_conn(ip, port, &QpParams::default())?;
        let answer = Answer {
            private_data: pattern(1, 0, len),
            ..Answer::default()
        };
        rig.agent.connect(conn, &answer)?;
        let event = rig.agent.event(conn, "rejected")?;
        same("status", &event.status, &-104)?;
        let deadline = Instant::now() + PATIENCE;
        let error = loop {
            if let Some((_, error)) = listener.poll_failure() {
                break error;
            }
            if Instant::now() > deadline {
                return Err(Failure::new("our listener has not refused the request"));
            }
            thread::sleep(Duration::from_millis(5));
        };
        same(
            "the reason for our refusal",
            &error,
            &StartupError::EnhancedDataMissing { len: wrapped },
        )?;
    }
    deviation("`PD_Length` is 0 to 3 (RFC 5044 section 7.1.1)")
}

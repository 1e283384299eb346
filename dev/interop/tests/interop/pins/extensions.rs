//! Messages of RFC 7306, which siw does not implement. It refuses each message, and our side
//! reports the reason.

use uwarp_interop::{Failure, Outcome, Result, Rig};
use uwarp_verbs::{Access, EndReason, Opcode, Peer, RemoteBuffer, SendWr, Settings, Sge, Status};

use super::case;
use crate::Case;
use crate::errors::{end, same, says};
use crate::pair::{Pair, Role, Terms, connect};

const LEN: usize = 64;

/// Creates a request with a message of RFC 7306, to an address and STag of the guest.
type Request = for<'a> fn(&'a [Sge], u64, u32) -> SendWr<'a>;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "extensions::atomics",
            "atomics: siw refuses them as unexpected opcode, and we report that it does not know RFC 7306",
            atomics,
        ),
        case(
            "extensions::immediate",
            "Immediate Data, alone and after a Write: siw refuses it, and we report that it does not know RFC 7306",
            immediate,
        ),
    ]
}

fn atomics(rig: &mut Rig) -> Result<Outcome> {
    let requests: [Request; 3] = [
        |sink, to, rkey| SendWr::fetch_add(1, sink, RemoteBuffer::at(to, rkey), 1),
        |sink, to, rkey| SendWr::compare_swap(1, sink, RemoteBuffer::at(to, rkey), 0, 1),
        |sink, to, rkey| SendWr::swap(1, sink, RemoteBuffer::at(to, rkey), 1),
    ];
    for peer in [Peer::Siw, Peer::Rfc] {
        for request in requests {
            let status = refused(rig, peer, request, Opcode::AtomicRequest)?;
            same(
                "our completion",
                &status,
                &Some(Status::RemoteInvalidRequest),
            )?;
        }
    }
    Ok(Outcome::Passed)
}

fn immediate(rig: &mut Rig) -> Result<Outcome> {
    let requests: [(Request, Opcode); 3] = [
        (|_, _, _| SendWr::immediate(1, [1; 8]), Opcode::Immediate),
        (
            |_, _, _| SendWr::immediate(1, [1; 8]).solicited(),
            Opcode::ImmediateSolicited,
        ),
        (
            |_, to, rkey| {
                SendWr::write_with_immediate_inline(1, &[7; 8], RemoteBuffer::at(to, rkey), [1; 8])
            },
            Opcode::Immediate,
        ),
    ];
    for peer in [Peer::Siw, Peer::Rfc] {
        for (request, message) in requests {
            // As for a Send, the request completes when TCP has accepted it. It fails if siw's
            // Terminate Message arrives earlier.
            match refused(rig, peer, request, message)? {
                Some(Status::Success | Status::RemoteInvalidRequest) => {}
                other => {
                    return Err(Failure::new(format!("our request ended with: {other:?}")));
                }
            }
        }
    }
    Ok(Outcome::Passed)
}

/// Posts the request on a new connection, which must end. Returns the status of its completion, if
/// it completed.
fn refused(rig: &mut Rig, peer: Peer, request: Request, message: Opcode) -> Result<Option<Status>> {
    let all = rig.agent.reg(LEN, "lw,rw,rr")?;
    let terms = Terms {
        settings: Settings::default()
            .peer(peer)
            .first_fpdu_delay(Some(std::time::Duration::from_millis(200))),
        ..Terms::default()
    };
    let Pair { ours, .. } = connect(rig, Role::GuestServes, &terms, |_, _, _| Ok(()))?;
    let region = ours.region(8, Access::LOCAL_WRITE)?;
    let sink = [region.sge(0, 8)];
    let to = all.addr.next_multiple_of(8);
    ours.qp.post_send(&request(&sink, to, all.rkey))?;
    let reason = end(&ours)?;
    let EndReason::PeerLacksRfc7306 {
        message: refused, ..
    } = &reason
    else {
        return Err(Failure::new(format!(
            "expected siw to refuse {message}, but the connection ended with: {reason:?}"
        )));
    };
    same("the message that was refused", refused, &message)?;
    says(
        &reason.to_string(),
        "remote operation error: the peer does not know RFC 7306",
        &["unexpected opcode"],
    )?;
    Ok(ours.cq.poll_one().map(|done| done.status))
}

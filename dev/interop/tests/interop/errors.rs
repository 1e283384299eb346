//! Errors. Checks how each side reports a fault of the other side: in a Terminate Message, and to
//! its own application.

mod raw;
mod siw_wrong;
mod startup;
mod we_wrong;

use uwarp_interop::{Agent, Completion, Conn, Failure, Outcome, PATIENCE, Result};
use uwarp_verbs::{Cause, CauseCode, Completion as OurCompletion, EndReason, Layer, Status, Who};

use crate::Case;
use crate::pair::Ours;
pub(crate) use raw::pinned;

pub(crate) fn cases(wire: &str) -> Vec<Case> {
    let mut cases = siw_wrong::cases();
    cases.extend(we_wrong::cases());
    // A raw peer works only with kernel TCP.
    if wire == "kernel_tcp" {
        cases.extend(raw::cases());
        cases.extend(startup::cases());
    }
    cases
}

/// Creates a case of the suite.
fn case(
    name: &str,
    title: String,
    run: impl Fn(&mut uwarp_interop::Rig) -> Result<Outcome> + Send + Sync + 'static,
) -> Case {
    Case {
        suite: "errors",
        name: name.to_owned(),
        title,
        run: Box::new(run),
    }
}

/// Checks that two values are equal. `what` names the first value in the message.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, want: &T) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what}: {got:02x?}, expected {want:02x?}"
    )))
}

/// Checks that a text begins with `start` and contains each of `parts`.
pub(crate) fn says(text: &str, start: &str, parts: &[&str]) -> Result<()> {
    if text.starts_with(start) && parts.iter().all(|part| text.contains(part)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the text is '{text}'; it should begin with '{start}' and contain {parts:?}"
    )))
}

/// Returns the layer of a Terminate Message with this code.
pub(crate) fn layer(code: (u8, u8, u8)) -> Layer {
    match code.0 {
        0 => Layer::Rdmap,
        1 => Layer::Ddp,
        _ => Layer::Mpa,
    }
}

/// Checks that the cause has this originator, this layer and this Terminate code.
pub(crate) fn blames(cause: &Cause, whose: (Who, Layer), code: (u8, u8, u8)) -> Result<()> {
    let said = (cause.who(), cause.layer());
    same("originator and layer in the cause", &said, &whose)?;
    let told = match cause.code() {
        Some(CauseCode::Terminate(told)) => Some((told.layer, told.etype, told.code)),
        Some(_) | None => None,
    };
    same("the code in the cause", &told, &Some(code))
}

/// Waits for `count` completions in the guest. Returns their numbers and statuses, sorted by
/// number, because the queues are flushed in either order.
pub(crate) fn theirs(agent: &mut Agent, conn: Conn, count: usize) -> Result<Vec<(u64, String)>> {
    let mut all: Vec<Completion> = (0..count)
        .map(|_| agent.completion(conn))
        .collect::<Result<_>>()?;
    all.sort_by_key(|completion| completion.wr_id);
    Ok(all
        .into_iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect())
}

/// Waits for `count` completions on our side. Returns their numbers and statuses.
pub(crate) fn ours(end: &Ours, count: usize) -> Result<Vec<(u64, Status)>> {
    let mut all: Vec<OurCompletion> = Vec::new();
    for _ in 0..count {
        let next = end.cq.wait(Some(PATIENCE));
        all.push(next.ok_or_else(|| {
            Failure::new(format!(
                "expected {count} completions on our side, got: {all:?}; end: {:?}",
                end.qp.end_reason()
            ))
        })?);
    }
    all.sort_by_key(|completion| completion.wr_id);
    Ok(all
        .into_iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect())
}

/// Waits for the end of our connection and returns its reason.
pub(crate) fn end(end: &Ours) -> Result<EndReason> {
    if !end.qp.wait_closed(PATIENCE) {
        return Err(Failure::new(format!(
            "our side does not close; its end: {:?}",
            end.qp.end_reason()
        )));
    }
    end.qp
        .end_reason()
        .ok_or_else(|| Failure::new("our side has closed without a reason"))
}

/// Checks that the connection has ended in the guest, and that the guest's device reported the
/// event `device`. If `device` is empty, checks that the guest reported nothing else.
pub(crate) fn over(agent: &mut Agent, conn: Conn, device: &str) -> Result<()> {
    agent.event(conn, "disconnected")?;
    if !device.is_empty() {
        return same(
            "the guest's device says",
            &agent.device_event(conn)?,
            &device.to_owned(),
        );
    }
    same("other reports of the guest", &agent.unread(), &Vec::new())
}

/// Checks that the connection has ended in the guest while siw may be sending. If our Terminate
/// Message arrives at that moment, siw reports its own request as failed and its QP as broken. This
/// is a race in the guest, so both outcomes are accepted.
pub(crate) fn over_or_caught_sending(agent: &mut Agent, conn: Conn) -> Result<()> {
    agent.event(conn, "disconnected")?;
    let said = agent.unread();
    if said.is_empty() || (said.len() == 1 && said[0].contains(FATAL)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "other reports of the guest: {said:?}, expected nothing or `{FATAL}`"
    )))
}

/// Event of the guest's device after siw has refused a received message.
pub(crate) const ACCESS: &str = "local access violation work queue error";
/// Event of the guest's device after siw has dropped a partly filled receive.
pub(crate) const FATAL: &str = "local work queue catastrophic error";

/// Event of the guest's device after siw has refused a Read while responding to it.
pub(crate) const INVALID: &str = "invalid request local work queue error";

/// Checks that `count` completions are already in the guest's CQ, without waiting for an event.
pub(crate) fn polled(agent: &mut Agent, conn: Conn, count: u64) -> Result<()> {
    let answer = agent.command(&serde_json::json!({"cmd": "poll", "conn": conn.0}))?;
    same(
        "completions in the guest",
        &answer["count"].as_u64(),
        &Some(count),
    )
}

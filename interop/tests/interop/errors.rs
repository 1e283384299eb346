//! Errors: what each side says of the other's, in a Terminate Message and to its own consumer.

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
    // A raw peer knows no network but the kernel's.
    if wire == "kernel_tcp" {
        cases.extend(raw::cases());
        cases.extend(startup::cases());
    }
    cases
}

/// A case under that name.
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

/// That two things are the same; `what` is a sentence about the first.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, want: &T) -> Result<()> {
    if got == want {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what}: {got:02x?}, where {want:02x?} was expected"
    )))
}

/// That a text begins with one and has others in it.
pub(crate) fn says(text: &str, start: &str, parts: &[&str]) -> Result<()> {
    if text.starts_with(start) && parts.iter().all(|part| text.contains(part)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "the words are '{text}', where they should begin with '{start}' and have {parts:?} in them"
    )))
}

/// The layer that a Terminate Message with this code speaks of.
pub(crate) fn layer(code: (u8, u8, u8)) -> Layer {
    match code.0 {
        0 => Layer::Rdmap,
        1 => Layer::Ddp,
        _ => Layer::Mpa,
    }
}

/// That the cause says whose doing it is, in which layer, and the code of this Terminate Message.
pub(crate) fn blames(cause: &Cause, whose: (Who, Layer), code: (u8, u8, u8)) -> Result<()> {
    let said = (cause.who(), cause.layer());
    same("who and layer in the cause", &said, &whose)?;
    let told = match cause.code() {
        Some(CauseCode::Terminate(told)) => Some((told.layer, told.etype, told.code)),
        Some(_) | None => None,
    };
    same("the code in the cause", &told, &Some(code))
}

/// Numbers and statuses of the next completions in the guest, in the order of the numbers: the flush of the
/// one queue may come before or behind that of the other.
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

/// The same on our side.
pub(crate) fn ours(end: &Ours, count: usize) -> Result<Vec<(u64, Status)>> {
    let mut all: Vec<OurCompletion> = Vec::new();
    for _ in 0..count {
        let next = end.cq.wait(Some(PATIENCE));
        all.push(next.ok_or_else(|| {
            Failure::new(format!(
                "{count} completions were awaited on our side, but these came: {all:?}; end: {:?}",
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

/// Why our connection ended, once it has.
pub(crate) fn end(end: &Ours) -> Result<EndReason> {
    if !end.qp.wait_closed(PATIENCE) {
        return Err(Failure::new(format!(
            "our side does not close; its end: {:?}",
            end.qp.end_reason()
        )));
    }
    end.qp
        .end_reason()
        .ok_or_else(|| Failure::new("our side is closed and has no reason for it"))
}

/// That the connection is over in the guest, and what its device says of it.
pub(crate) fn over(agent: &mut Agent, conn: Conn, device: &str) -> Result<()> {
    agent.event(conn, "disconnected")?;
    if !device.is_empty() {
        return same(
            "the guest's device says",
            &agent.device_event(conn)?,
            &device.to_owned(),
        );
    }
    same(
        "what the guest reports besides",
        &agent.unread(),
        &Vec::new(),
    )
}

/// That the connection is over in the guest, where siw may be in the middle of sending. When our Terminate
/// Message comes then, it takes its own request for failed and its device calls the QP broken: whether it
/// does is a race in the guest.
pub(crate) fn over_or_caught_sending(agent: &mut Agent, conn: Conn) -> Result<()> {
    agent.event(conn, "disconnected")?;
    let said = agent.unread();
    if said.is_empty() || (said.len() == 1 && said[0].contains(FATAL)) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "what the guest reports besides: {said:?}, where nothing or `{FATAL}` was expected"
    )))
}

/// siw refused something that had come.
pub(crate) const ACCESS: &str = "local access violation work queue error";
/// siw gave up a receive that a message had begun to fill.
pub(crate) const FATAL: &str = "local work queue catastrophic error";

/// siw refused a Read while it served it.
pub(crate) const INVALID: &str = "invalid request local work queue error";

/// That so many completions in the guest are there now, asked for without waiting for the CQ's event.
pub(crate) fn polled(agent: &mut Agent, conn: Conn, count: u64) -> Result<()> {
    let answer = agent.command(&serde_json::json!({"cmd": "poll", "conn": conn.0}))?;
    same(
        "completions in the guest",
        &answer["count"].as_u64(),
        &Some(count),
    )
}

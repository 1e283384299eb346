//! Faults that verbs cannot cause, sent to siw by a raw peer. The first bytes of siw's Terminate
//! Messages are pinned. siw swaps Layer and EType, and has M, D and R in the low bits of their
//! byte. This violates RFC 5040 section 4.8 (5040-4.8-02; Q11).

mod rows;

use uwarp_interop::{Failure, Outcome, Result, Rig};

use super::{case, polled, same, theirs};
use crate::Case;
use crate::raw_pair::{LEN, Terms, guest_serves};
use rows::{ROWS, Row, read};

pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = ROWS
        .iter()
        .map(|row| {
            let title = match row.bytes {
                Some(bytes) => format!(
                    "a raw peer sends {}; siw answers {}",
                    row.title,
                    hex(&bytes)
                ),
                None => format!("a raw peer sends {}; siw does not answer", row.title),
            };
            case(&format!("raw::{}", row.name), title, |rig| {
                refused(rig, row)
            })
        })
        .collect();
    cases.push(case(
        "raw::more_reads_than_ird",
        "a raw peer sends a Read although IRD is 0; siw answers 20 07 03".to_owned(),
        more_reads_than_ird,
    ));
    cases.push(case(
        "raw::qp_to_sqe",
        "the guest's consumer moves its QP to SQE; siw sends 00 ff 00".to_owned(),
        qp_to_sqe,
    ));
    cases
}

fn hex(bytes: &[u8]) -> String {
    let words: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    words.join(" ")
}

fn refused(rig: &mut Rig, row: &Row) -> Result<Outcome> {
    let terms = Terms {
        receives: row.receives.to_vec(),
        ..Terms::default()
    };
    let mut pair = guest_serves(rig, &terms)?;
    pair.peer.send(&(row.wrong)(&pair))?;
    if let Some(bytes) = row.bytes {
        pinned(&pair.peer.terminate()?, bytes)?;
    }
    pair.peer.closed()?;
    let received: Vec<_> = (100..)
        .zip(row.received)
        .map(|(wr_id, status)| (wr_id, (*status).to_owned()))
        .collect();
    let came = theirs(&mut rig.agent, pair.conn, received.len())?;
    same("completions in the guest", &came, &received)?;
    polled(&mut rig.agent, pair.conn, 0)?;
    rig.agent.event(pair.conn, "disconnected")?;
    rig.agent.check_zero(&pair.all, 0, LEN)?;
    rig.agent.check_zero(&pair.local, 0, LEN)?;
    let said = match row.besides {
        "" => format!("by the RFCs: {}", row.rfc),
        besides => format!("by the RFCs: {}; {besides}", row.rfc),
    };
    Ok(Outcome::Deviation(said))
}

/// Checks that a Terminate Header begins with these bytes and that its reserved byte is 0.
pub(crate) fn pinned(header: &[u8], bytes: [u8; 3]) -> Result<()> {
    if header.starts_with(&bytes) && header.get(3) == Some(&0) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "siw's Terminate Header is {header:02x?}, but it used to begin with {bytes:02x?}"
    )))
}

/// The number of buffers of queue 1 is the IRD (5040-5.2.2-02). So the error is DDP's "no buffer"
/// (5041-7.1-02; Q12).
fn more_reads_than_ird(rig: &mut Rig) -> Result<Outcome> {
    let mut terms = Terms {
        depths: (0, 0),
        ..Terms::default()
    };
    terms.answer.ird = 0;
    let mut pair = guest_serves(rig, &terms)?;
    let request = read(&pair, 1);
    pair.peer.send_ulpdu(&request)?;
    pinned(&pair.peer.terminate()?, [0x20, 0x07, 0x03])?;
    pair.peer.closed()?;
    Ok(Outcome::Deviation("by the RFCs: 12 02 c0".to_owned()))
}

fn qp_to_sqe(rig: &mut Rig) -> Result<Outcome> {
    let mut pair = guest_serves(rig, &Terms::default())?;
    let conn = pair.conn.0;
    rig.agent
        .command(&serde_json::json!({"cmd": "modify", "conn": conn, "state": "sqe"}))?;
    pinned(&pair.peer.terminate()?, [0x00, 0xff, 0x00])?;
    pair.peer.closed()?;
    Ok(Outcome::Passed)
}

//! Steps with the operations of RFC 7306: Immediate Data and atomics.

use std::time::Instant;

use uwarp_verbs::{Access, MemoryRegion, RemoteBuffer, SendWr};

use super::{COUNT, Initiator};
use crate::demo::endpoint::local;
use crate::demo::responder::Offer;
use crate::demo::shared::{
    ADDS, ATOMICS, COUNTER, HOLDER, IMMEDIATE, LOCK, NOTE, OTHER, STEP, TEXT, word,
};
use crate::demo::table::{Row, Verdict};
use crate::failure::Failure;

impl Initiator<'_> {
    pub(super) fn write_with_immediate(&mut self, offer: &Offer) -> Result<(), Failure> {
        let since = Instant::now();
        self.story.step(
            "5. Write with Immediate Data: a Write, followed by 8 bytes that complete a receive of B.",
        )?;
        let shared = &offer.shared;
        let place = shared.addr + NOTE as u64;
        let wr = SendWr::write_with_immediate_inline(
            u64::MAX,
            TEXT,
            RemoteBuffer::at(place, shared.rkey),
            IMMEDIATE,
        );
        let before = self.endpoint.sent.len();
        self.endpoint.qp.post_send(&wr).map_err(local)?;
        self.endpoint
            .wait(before + 1, COUNT + 1, "Write with Immediate Data")?;
        let at_b = self.await_b()?;
        self.story.row(at_b);
        let what = format!(
            "One request of A; B's completion carries \"{}\", and the {} bytes are in place.",
            IMMEDIATE.escape_ascii(),
            TEXT.len()
        );
        self.story.done(&what, 1, since)
    }

    pub(super) fn atomics(&mut self, offer: &Offer) -> Result<(), Failure> {
        let since = Instant::now();
        self.story.step(
            "6. Atomics: A changes words of B's memory indivisibly and gets their previous values.",
        )?;
        let results = self
            .endpoint
            .register(vec![0; 8 * ATOMICS], Access::LOCAL_WRITE)?;
        let (addr, rkey) = (offer.shared.addr, offer.shared.rkey);
        let (counter, lock) = (addr + COUNTER as u64, addr + LOCK as u64);
        let sinks: Vec<_> = (0..ATOMICS as u64)
            .map(|nth| [results.sge(8 * nth, 8)])
            .collect();
        let list: Vec<_> = (0..)
            .zip(&sinks)
            .map(|(nth, sink)| match nth {
                _ if nth < ADDS => {
                    SendWr::fetch_add(nth, sink, RemoteBuffer::at(counter, rkey), STEP)
                }
                _ if nth == ADDS => {
                    SendWr::compare_swap(nth, sink, RemoteBuffer::at(lock, rkey), 0, HOLDER)
                }
                _ if nth == ADDS + 1 => {
                    SendWr::compare_swap(nth, sink, RemoteBuffer::at(lock, rkey), 0, OTHER)
                }
                _ => SendWr::swap(nth, sink, RemoteBuffer::at(lock, rkey), 0),
            })
            .collect();
        let before = self.endpoint.sent.len();
        self.endpoint.qp.post_send_list(&list).map_err(local)?;
        self.endpoint.wait(before + ATOMICS, COUNT + 1, "Atomics")?;
        let at_a = found(&results);
        self.endpoint.signal()?;
        self.endpoint
            .wait(before + ATOMICS + 1, COUNT + 1, "Atomics")?;
        let at_b = self.await_b()?;
        // An error found by A takes precedence over B's verdict.
        let verdict = match at_a {
            Ok(()) => at_b.verdict.clone(),
            Err(what) => Verdict::Wrong(what),
        };
        self.story.row(Row { verdict, ..at_b });
        let what = format!(
            "{ADDS} times FetchAdd of {STEP}; a lock taken by CmpSwap, refused to another holder, released by a swap."
        );
        self.story.done(&what, 1, since)
    }
}

/// Checks that each atomic returned the value that the preceding atomics had stored.
fn found(results: &MemoryRegion) -> Result<(), String> {
    let counts = (0..ADDS).map(|nth| nth * STEP);
    for (nth, expected) in counts.chain([0, HOLDER, HOLDER]).enumerate() {
        let found = word(results, 8 * nth)?;
        if found != expected {
            return Err(format!("atomic {nth} found {found}, expected {expected}"));
        }
    }
    Ok(())
}

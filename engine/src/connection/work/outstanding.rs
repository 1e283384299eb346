//! Requests of this side that await a Response, and which Writes their Responses confirm.

use std::collections::VecDeque;

use super::wqe::{Progress, SendWqe};
use crate::wr::SendOp;

/// Read and Atomic Requests whose Response is not complete, oldest first. A Read into several
/// elements has one Request for each.
#[derive(Default)]
pub(super) struct Outstanding {
    requests: VecDeque<Request>,
    /// Number of bytes that complete Responses have placed for the oldest Read that is not
    /// answered.
    pub(super) answered: u32,
    /// Confirmation of Writes; `None` if a Write completes when the LLP has taken it.
    confirms: Option<Confirms>,
}

/// Knowledge about which Writes the peer has placed, as offsets in the stream that is sent.
///
/// The peer answers a Read or atomic after it has placed what came before (5040-5.5-03). So each
/// Response confirms all Writes before its Request. A *confirmation* is an empty Read that belongs
/// to no work request.
#[derive(Clone, Copy, Default)]
pub(super) struct Confirms {
    /// The last framed Write ends here.
    framed_to: u64,
    /// Writes that end here or before are placed.
    placed_to: u64,
    /// A confirmation is outstanding.
    asked: bool,
}

/// An outstanding Read or Atomic Request.
#[derive(Clone, Copy)]
struct Request {
    /// Sequence number of its work request, or [`CONFIRMATION`].
    sequence: u64,
    /// Writes that end here or before are placed when it is answered.
    confirms_to: u64,
}

/// Stands for the work request of a confirmation.
const CONFIRMATION: u64 = u64::MAX;

impl Outstanding {
    /// Returns true if no Request awaits its Response.
    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Number of Requests that await their Response.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Adds a Request that is framed now. `sequence`: its work request.
    pub(super) fn push(&mut self, sequence: u64) {
        self.requests.push_back(Request {
            sequence,
            confirms_to: self.confirms.map_or(0, |confirms| confirms.framed_to),
        });
    }

    /// Removes the oldest Request, which was answered. Returns its sequence number.
    pub(super) fn pop(&mut self) -> Option<u64> {
        let Request {
            sequence,
            confirms_to,
        } = self.requests.pop_front()?;
        self.placed(confirms_to);
        Some(sequence)
    }

    /// Removes all Requests, because no Response can arrive any more.
    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.answered = 0;
        if let Some(confirms) = &mut self.confirms {
            confirms.asked = false;
            confirms.framed_to = confirms.placed_to;
        }
    }

    /// Returns the sequence number of the Read or atomic with the oldest Request.
    pub(super) fn oldest(&self) -> Option<u64> {
        let mut requests = self.requests.iter().map(|request| request.sequence);
        requests.find(|sequence| *sequence != CONFIRMATION)
    }

    /// Returns the sequence number of the Read or atomic whose Request has `older` older ones
    /// before it.
    pub(super) fn after(&self, older: usize) -> Option<u64> {
        let request = self.requests.get(older)?;
        (request.sequence != CONFIRMATION).then_some(request.sequence)
    }

    /// Returns what is known about placed Writes; `None` if no Write waits for that.
    #[inline]
    pub(super) fn confirms(&self) -> Option<Confirms> {
        self.confirms
    }

    /// Sets whether Writes complete only when the peer has placed them, on a new stream.
    pub(super) fn confirm_writes(&mut self, confirms: bool) {
        self.confirms = confirms.then(Confirms::default);
    }

    /// Records that a Write is framed, which ends at this offset of the stream.
    #[inline]
    pub(super) fn write_framed(&mut self, ends_at: u64) {
        if let Some(confirms) = &mut self.confirms {
            confirms.framed_to = ends_at;
        }
    }

    /// Records that the peer has placed all Writes up to this offset of the stream.
    pub(super) fn placed(&mut self, to: u64) {
        if let Some(confirms) = &mut self.confirms {
            confirms.placed_to = confirms.placed_to.max(to);
        }
    }

    /// Returns the number of bytes of the stream with Writes that are framed and not confirmed, if
    /// a confirmation is to be sent: there are such bytes, and no confirmation is outstanding.
    #[inline]
    pub(super) fn unconfirmed(&self) -> Option<u64> {
        let confirms = self.confirms.as_ref()?;
        let is_due = !confirms.asked && confirms.framed_to > confirms.placed_to;
        is_due.then(|| confirms.framed_to - confirms.placed_to)
    }

    /// Records that a confirmation is framed.
    pub(super) fn confirmation_framed(&mut self) {
        if let Some(confirms) = &mut self.confirms {
            confirms.asked = true;
            self.push(CONFIRMATION);
        }
    }

    /// Returns true if the next Response belongs to a confirmation.
    #[inline]
    pub(super) fn is_confirmation_next(&self) -> bool {
        (self.requests.front()).is_some_and(|request| request.sequence == CONFIRMATION)
    }

    /// Records that the confirmation was answered.
    pub(super) fn confirmed(&mut self) {
        self.pop();
        if let Some(confirms) = &mut self.confirms {
            confirms.asked = false;
        }
    }
}

/// Returns true if a request is a Write that the peer has not confirmed.
#[inline]
pub(super) fn is_unconfirmed(confirms: Option<Confirms>, wqe: &SendWqe) -> bool {
    let (Some(confirms), SendOp::Write { .. }) = (confirms, &wqe.op) else {
        return false;
    };
    match wqe.progress {
        Progress::Sent { ends_at } => ends_at > confirms.placed_to,
        Progress::Queued | Progress::Sending => true,
        _ => false,
    }
}

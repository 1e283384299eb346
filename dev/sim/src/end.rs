//! One end of a connection: the requests of its program, and its memory.

use std::collections::VecDeque;

use uwarp_verbs::{Completion, Qp, Status, WcOpcode};

use crate::atomic::Atomic;
use crate::lent_region::LentRegion;
use crate::memory::Tracked;

/// Memory of one end.
pub(crate) struct Memory {
    /// Source of this end's Sends and Writes, and of the peer's Reads. Its content never changes.
    pub(crate) source: Tracked,
    /// Target of the peer's Writes.
    pub(crate) target: Tracked,
    /// Sink of this end's Reads and atomics.
    pub(crate) sink: Tracked,
    /// Buffers of the receives, unless the host uses an SRQ.
    pub(crate) receives: Option<Tracked>,
    /// Word for the peer's atomics, followed by another word that must stay untouched.
    pub(crate) word: Tracked,
    /// Regions whose STags become valid and invalid during the run.
    pub(crate) lent: Vec<LentRegion>,
}

impl Memory {
    /// Takes an aligned part of 8 bytes of the sink, for the response to an atomic.
    pub(crate) fn take_word(&mut self) -> Option<usize> {
        let skip = self.sink.free() % 8;
        self.sink.take(skip).and_then(|_| self.sink.take(8))
    }
}

/// Operation of a work request in the send queue.
#[derive(Clone)]
pub(crate) enum Op {
    Send,
    Write,
    Immediate,
    Read {
        sink: usize,
        content: Vec<u8>,
    },
    /// A Read into a region that is registered for this Read only. The Read invalidates it.
    ReadOnce {
        lent: usize,
        content: Vec<u8>,
    },
    /// An atomic on the peer's word, which holds `before` when the atomic executes.
    Atomic {
        sink: usize,
        what: Atomic,
        before: u64,
    },
    /// Makes an STag of this side valid.
    Lend {
        lent: usize,
    },
    /// Invalidates an STag of this side.
    TakeBack {
        lent: usize,
    },
    /// A Write or Send that the peer refuses. It may complete before the refusal arrives.
    Wrong,
    /// A request that the peer refuses instead of answering, so it never succeeds.
    WrongAsk,
}

/// Formats a short form for the log, without the content of a Read.
impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::Send => f.write_str("Send"),
            Op::Write => f.write_str("Write"),
            Op::Immediate => f.write_str("Immediate"),
            Op::Read { content, .. } => write!(f, "Read of {}", content.len()),
            Op::ReadOnce { lent, content } => {
                write!(f, "Read of {} into region {lent}, once", content.len())
            }
            Op::Atomic { what, before, .. } => write!(f, "{what:x?} on {before:x}"),
            Op::Lend { lent } => write!(f, "Lend {lent}"),
            Op::TakeBack { lent } => write!(f, "TakeBack {lent}"),
            Op::Wrong | Op::WrongAsk => f.write_str("Wrong"),
        }
    }
}

impl Op {
    /// Returns the opcodes that the completion of this operation may have.
    fn opcodes(&self) -> &'static [WcOpcode] {
        match self {
            Op::Send | Op::Immediate => &[WcOpcode::Send],
            Op::Write => &[WcOpcode::RdmaWrite],
            Op::Read { .. } | Op::ReadOnce { .. } => &[WcOpcode::RdmaRead],
            Op::Atomic { what, .. } => match what {
                Atomic::Add { .. } => &[WcOpcode::FetchAdd],
                Atomic::Swap { .. } => &[WcOpcode::CompareSwap],
            },
            Op::Lend { .. } => &[WcOpcode::BindWindow, WcOpcode::Register],
            Op::TakeBack { .. } => &[WcOpcode::BindWindow, WcOpcode::LocalInvalidate],
            Op::Wrong => &[WcOpcode::Send, WcOpcode::RdmaWrite],
            Op::WrongAsk => &[],
        }
    }

    /// Returns true if this operation completes only after a response from the peer.
    fn is_answered(&self) -> bool {
        matches!(
            self,
            Op::Read { .. } | Op::ReadOnce { .. } | Op::Atomic { .. } | Op::WrongAsk
        )
    }
}

/// A posted request that has not completed yet.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) op: Op,
    /// Number of Writes that this end posted before this request.
    pub(crate) writes: usize,
}

/// A message that consumes a receive of this end.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// `None` for Immediate Data.
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) immediate: Option<[u8; 8]>,
    pub(crate) solicited: bool,
    pub(crate) invalidates: Option<(u32, usize)>,
    /// True if the receiver must refuse this message.
    pub(crate) refused: bool,
    /// Index of a loaned region that the sender returns with this message. The receiver has to
    /// invalidate the region.
    pub(crate) returns: Option<usize>,
    /// Number of Writes that the sender posted before this message. These Writes are placed once
    /// the message is delivered.
    pub(crate) writes: usize,
}

impl Message {
    /// Creates a Send with this payload.
    pub(crate) fn plain(payload: Vec<u8>, writes: usize) -> Self {
        Message {
            payload: Some(payload),
            immediate: None,
            solicited: false,
            invalidates: None,
            refused: false,
            returns: None,
            writes,
        }
    }

    /// Creates a Send that the receiver must refuse.
    pub(crate) fn refused(payload: Vec<u8>, writes: usize) -> Self {
        Message {
            refused: true,
            ..Message::plain(payload, writes)
        }
    }

    /// Creates a message with Immediate Data.
    pub(crate) fn immediate(immediate: [u8; 8], solicited: bool, writes: usize) -> Self {
        Message {
            payload: None,
            immediate: Some(immediate),
            solicited,
            invalidates: None,
            refused: false,
            returns: None,
            writes,
        }
    }

    /// Checks that a completion of a receive matches this message.
    pub(crate) fn check_completion(&self, wc: &Completion) -> Result<(), String> {
        let payload = self.payload.as_deref().unwrap_or_default();
        let opcode = match self.payload {
            Some(_) => WcOpcode::Recv,
            None => WcOpcode::RecvImmediate,
        };
        let completed = (wc.opcode, wc.byte_len as usize, wc.immediate, wc.solicited);
        let sent = (opcode, payload.len(), self.immediate, self.solicited);
        let invalidated = self.invalidates.map(|(rkey, _)| rkey);
        if self.refused {
            return Err(format!("{wc:?}, but the message must be refused"));
        }
        if completed == sent && wc.invalidated == invalidated {
            return Ok(());
        }
        Err(format!("{wc:?} does not match the message {sent:?}"))
    }
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) host: usize,
    /// Index of this end's protection domain, as in
    /// [`Resources::domain`](crate::host::Resources::domain).
    pub(crate) domain: usize,
    pub(crate) qp: Option<Qp>,
    pub(crate) qp_num: u32,
    pub(crate) memory: Option<Memory>,
    pub(crate) sends: VecDeque<Sent>,
    pub(crate) receives: VecDeque<Posted>,
    /// Messages from the peer whose receives have not completed yet.
    pub(crate) expected: VecDeque<Message>,
    /// Offset and length of each of this end's Writes in the peer's target, in posting order.
    pub(crate) writes: Vec<(usize, usize)>,
    /// Number of `writes` that are known to be placed.
    pub(crate) placed: usize,
    pub(crate) operations: u32,
    /// Values of the peer's word: the initial one, then the one after each atomic of this end.
    pub(crate) words: Vec<u64>,
    /// Number of this end's atomics that have completed.
    pub(crate) atomics_done: usize,
    /// Loaned regions that the peer has returned, and that still have to be invalidated.
    pub(crate) to_take_back: Vec<usize>,
    /// True after a request of the send queue has failed. Later requests that need a response must
    /// fail too.
    pub(crate) failed: bool,
    /// Number of `Ended` events for this end's connection.
    pub(crate) end_events: u32,
    /// True if the last `Ended` event reported a graceful end.
    pub(crate) last_end_orderly: bool,
    /// True after the program has posted its first request.
    pub(crate) has_posted: bool,
    /// Pause of the program between two turns, in microseconds.
    pub(crate) pause: u64,
    /// True once the program may post: after `Established` at the initiator, after the accept at
    /// the responder.
    pub(crate) open: bool,
}

/// Effect of a completion in the send queue on the model of the peer's memory.
#[derive(Default)]
pub(crate) struct Effect {
    /// Number of this end's Writes that must be placed, counted from the first.
    pub(crate) placed: usize,
}

impl End {
    pub(crate) fn new(
        (host, domain): (usize, usize),
        qp: Qp,
        memory: Memory,
        operations: u32,
    ) -> Self {
        End {
            host,
            domain,
            qp_num: qp.qp_num(),
            qp: Some(qp),
            memory: Some(memory),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            expected: VecDeque::new(),
            writes: Vec::new(),
            placed: 0,
            operations,
            words: vec![0],
            atomics_done: 0,
            to_take_back: Vec::new(),
            failed: false,
            end_events: 0,
            last_end_orderly: false,
            has_posted: false,
            pause: 1000,
            open: false,
        }
    }

    /// Handles a completion of the send queue and checks it against the model. Requests may fail
    /// only if `lethal`.
    pub(crate) fn sent(&mut self, wc: &Completion, lethal: bool) -> Result<Effect, String> {
        let found = self.sends.iter().position(|sent| sent.wr_id == wc.wr_id);
        let Some(at) = found else {
            return Err(format!("{wc:?} completes twice, or was never posted"));
        };
        let mut effect = Effect::default();
        for _ in 0..at {
            let Some(before) = self.sends.pop_front() else {
                break;
            };
            if before.signaled {
                return Err(format!("{wc:?} completes before {before:?}"));
            }
            if wc.status == Status::Success {
                self.succeeded(&before, &mut effect)?;
            }
        }
        let Some(sent) = self.sends.pop_front() else {
            return Err("a posted request is missing from the model".to_owned());
        };
        if wc.status != Status::Success {
            self.failed = true;
            if !lethal {
                return Err(format!("{sent:?} fails without a cause: {wc:?}"));
            }
            return Ok(effect);
        }
        // A Send or Write may succeed here: it completes once TCP has accepted it.
        if self.failed && sent.op.is_answered() {
            return Err(format!("{sent:?} succeeds after a request that failed"));
        }
        if !sent.signaled {
            return Err(format!("{sent:?} is unsignaled but completes with success"));
        }
        if !sent.op.opcodes().contains(&wc.opcode) {
            return Err(format!("{sent:?} completes with success as {wc:?}"));
        }
        let invalidated = match (&sent.op, &self.memory) {
            (Op::ReadOnce { lent, .. }, Some(memory)) => Some(memory.lent[*lent].rkey),
            _ => None,
        };
        if wc.invalidated != invalidated {
            return Err(format!(
                "{sent:?} should report that it invalidated {invalidated:x?}: {wc:?}"
            ));
        }
        self.succeeded(&sent, &mut effect)?;
        Ok(effect)
    }

    fn succeeded(&mut self, sent: &Sent, effect: &mut Effect) -> Result<(), String> {
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        match &sent.op {
            Op::Read { sink, content } => {
                if memory.sink.read(*sink, content.len()) != *content {
                    return Err(format!("Read {} returned wrong bytes", sent.wr_id));
                }
                memory.sink.mark_placed(*sink, content.len());
                // The peer places a Write before it responds to a later Read (RFC 5040 section
                // 5.5).
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::ReadOnce { lent, content } => {
                let sink = &mut memory.lent[*lent];
                sink.memory.mark_placed(0, content.len());
                sink.memory.check("sink of one Read")?;
                sink.mark_dead()?;
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::Atomic { sink, before, .. } => {
                let found = memory.sink.read(*sink, 8);
                let found = u64::from_ne_bytes(found.try_into().unwrap_or_default());
                if found != *before {
                    return Err(format!("{sent:?} returned {found:x}"));
                }
                self.atomics_done += 1;
                memory.sink.mark_placed(*sink, 8);
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::Lend { lent } => {
                // If the connection has ended, the STag may already be invalid.
                let lives = self.qp.as_ref().is_some_and(|qp| qp.end_reason().is_none());
                memory.lent[*lent].mark_ready(lives)?;
            }
            Op::TakeBack { lent } => memory.lent[*lent].mark_dead()?,
            Op::Send | Op::Write | Op::Immediate | Op::Wrong | Op::WrongAsk => {}
        }
        Ok(())
    }

    /// If this message returns a loaned region, checks that the peer's Writes to the region are
    /// placed. Then the message has invalidated the region, or the program has to invalidate it.
    pub(crate) fn take_returned(&mut self, message: &Message) -> Result<(), String> {
        let ended = message.invalidates.map(|(_, index)| index);
        let Some(index) = ended.or(message.returns) else {
            return Ok(());
        };
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let lent = &mut memory.lent[index];
        lent.memory.mark_placed(lent.at, lent.len);
        lent.memory.check("returned loan")?;
        if ended.is_some() {
            return lent.mark_dead();
        }
        self.to_take_back.push(index);
        Ok(())
    }

    /// Returns true if the program of this end has nothing left to do and all its operations have
    /// completed.
    pub(crate) fn is_done(&self) -> bool {
        self.operations == 0
            && self.expected.is_empty()
            && self.to_take_back.is_empty()
            && self.sends.iter().all(|sent| !sent.signaled)
    }
}

/// Returns the given end, then the other one.
pub(crate) fn both(ends: &mut [End; 2], end: usize) -> (&mut End, &mut End) {
    let [first, second] = ends;
    if end == 0 {
        (first, second)
    } else {
        (second, first)
    }
}

//! One end of a connection: what its program has posted, and what it may see.

use std::collections::VecDeque;

use uwarp_verbs::{Completion, Qp, Status, WcOpcode};

use crate::atomic::Atomic;
use crate::lent_region::LentRegion;
use crate::memory::Tracked;

/// Memory of one end; what the peer writes into, and what is its own.
pub(crate) struct Memory {
    /// Never changes.
    pub(crate) source: Tracked,
    /// The peer's Writes.
    pub(crate) target: Tracked,
    /// Where Reads and atomics bring their results.
    pub(crate) sink: Tracked,
    /// Where Sends come, unless receives are shared.
    pub(crate) receives: Option<Tracked>,
    /// A word that the peer does atomics on, and another behind it that nobody uses.
    pub(crate) word: Tracked,
    /// With STags that come and go.
    pub(crate) lent: Vec<LentRegion>,
}

impl Memory {
    /// A part of the sink for the answer to an atomic.
    pub(crate) fn take_word(&mut self) -> Option<usize> {
        let skip = self.sink.free() % 8;
        self.sink.take(skip).and_then(|_| self.sink.take(8))
    }
}

/// What a work request of the send queue does.
#[derive(Clone)]
pub(crate) enum Op {
    Send,
    Write,
    Immediate,
    Read {
        sink: usize,
        content: Vec<u8>,
    },
    /// Into memory that was registered for it, and whose STag ends with it.
    ReadOnce {
        lent: usize,
        content: Vec<u8>,
    },
    /// On the peer's word, which holds this before.
    Atomic {
        sink: usize,
        what: Atomic,
        before: u64,
    },
    /// Makes an STag of this side valid.
    Lend {
        lent: usize,
    },
    /// Ends one.
    TakeBack {
        lent: usize,
    },
    /// The peer refuses it. So nothing comes of it, but a Write or Send may be out before this side hears that.
    Wrong,
    /// The same, of a request that waits for an answer: it never succeeds.
    WrongAsk,
}

/// In short: a log has no use for the content of a Read.
impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::Send => f.write_str("Send"),
            Op::Write => f.write_str("Write"),
            Op::Immediate => f.write_str("Immediate"),
            Op::Read { content, .. } => write!(f, "Read of {}", content.len()),
            Op::ReadOnce { lent, content } => {
                write!(f, "Read of {} into lent {lent}, once", content.len())
            }
            Op::Atomic { what, before, .. } => write!(f, "{what:x?} on {before:x}"),
            Op::Lend { lent } => write!(f, "Lend {lent}"),
            Op::TakeBack { lent } => write!(f, "TakeBack {lent}"),
            Op::Wrong | Op::WrongAsk => f.write_str("Wrong"),
        }
    }
}

impl Op {
    /// What its completion may call it.
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

    /// Whether it is done only when the peer has answered.
    fn is_answered(&self) -> bool {
        matches!(
            self,
            Op::Read { .. } | Op::ReadOnce { .. } | Op::Atomic { .. } | Op::WrongAsk
        )
    }
}

/// A request that has been posted and of which nothing is known yet.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) op: Op,
    /// How many Writes of this end were posted before it.
    pub(crate) writes: usize,
}

/// A message that takes a receive of this end.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// `None` for Immediate Data.
    pub(crate) payload: Option<Vec<u8>>,
    pub(crate) immediate: Option<[u8; 8]>,
    pub(crate) solicited: bool,
    pub(crate) invalidates: Option<(u32, usize)>,
    /// It has to be refused.
    pub(crate) refused: bool,
    /// What the peer has used and this side is to take back.
    pub(crate) returns: Option<usize>,
    /// How many Writes of the sender were posted before it: they are placed when it is delivered.
    pub(crate) writes: usize,
}

impl Message {
    /// A Send of this.
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

    /// A Send that has to be refused.
    pub(crate) fn refused(payload: Vec<u8>, writes: usize) -> Self {
        Message {
            refused: true,
            ..Message::plain(payload, writes)
        }
    }

    /// Immediate Data.
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

    /// Whether this completion is of this message.
    pub(crate) fn is_told_by(&self, wc: &Completion) -> Result<(), String> {
        let payload = self.payload.as_deref().unwrap_or_default();
        let opcode = match self.payload {
            Some(_) => WcOpcode::Recv,
            None => WcOpcode::RecvImmediate,
        };
        let told = (wc.opcode, wc.byte_len as usize, wc.immediate, wc.solicited);
        let sent = (opcode, payload.len(), self.immediate, self.solicited);
        let invalidated = self.invalidates.map(|(rkey, _)| rkey);
        if self.refused {
            return Err(format!("{wc:?}, and it has to be refused"));
        }
        if told == sent && wc.invalidated == invalidated {
            return Ok(());
        }
        Err(format!("{wc:?} tells of another message than {sent:?}"))
    }
}

/// A receive that was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// One end.
pub(crate) struct End {
    pub(crate) host: usize,
    /// The protection domain that it is of, as [`Things::domain`](crate::host::Things::domain) counts them.
    pub(crate) domain: usize,
    pub(crate) qp: Option<Qp>,
    pub(crate) qp_num: u32,
    pub(crate) memory: Option<Memory>,
    pub(crate) sends: VecDeque<Sent>,
    pub(crate) receives: VecDeque<Posted>,
    /// Messages of the peer that did not come yet.
    pub(crate) expected: VecDeque<Message>,
    /// Parts of the peer's target that this end has written, in order.
    pub(crate) writes: Vec<(usize, usize)>,
    /// How many of them are known to be placed.
    pub(crate) placed: usize,
    pub(crate) operations: u32,
    /// What the peer's word holds: at first, and after each atomic of this end.
    pub(crate) words: Vec<u64>,
    /// Of those, how many are done.
    pub(crate) atomics_done: usize,
    /// Lent memory that the peer has done with.
    pub(crate) to_take_back: Vec<usize>,
    /// A request of the send queue has failed: none after it that needs an answer succeeds.
    pub(crate) failed: bool,
    /// How often an event has told that its connection ends.
    pub(crate) told_end: u32,
    /// The last such event told of a graceful end.
    pub(crate) told_orderly: bool,
    /// It has begun to post.
    pub(crate) spoken: bool,
    /// How long its program pauses now.
    pub(crate) pause: u64,
    /// It may send: it connected, or the first message has come, or either side may begin.
    pub(crate) open: bool,
}

/// What a completion of the send queue means for the peer's memory.
#[derive(Default)]
pub(crate) struct Effect {
    /// So many Writes of this end are placed.
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
            told_end: 0,
            told_orderly: false,
            spoken: false,
            pause: 1000,
            open: false,
        }
    }

    /// A completion of the send queue.
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
            return Err("a request is gone".to_owned());
        };
        if wc.status != Status::Success {
            self.failed = true;
            if !lethal {
                return Err(format!("{sent:?} fails, and nothing is wrong: {wc:?}"));
            }
            return Ok(effect);
        }
        // What TCP has taken is done, also behind a Read that nobody answers any more.
        if self.failed && sent.op.is_answered() {
            return Err(format!("{sent:?} succeeds behind one that failed"));
        }
        if !sent.signaled {
            return Err(format!("{sent:?} is unsignaled and completes with success"));
        }
        if !sent.op.opcodes().contains(&wc.opcode) {
            return Err(format!("{sent:?} completes with success as {wc:?}"));
        }
        let invalidated = match (&sent.op, &self.memory) {
            (Op::ReadOnce { lent, .. }, Some(memory)) => Some(memory.lent[*lent].rkey),
            _ => None,
        };
        if wc.invalidated != invalidated {
            return Err(format!("{sent:?} invalidates {invalidated:x?}: {wc:?}"));
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
                    return Err(format!("the Read {} brings what is not there", sent.wr_id));
                }
                memory.sink.has_come(*sink, content.len());
                // RFC 5040 section 5.5: the peer places Writes before it answers a Read behind them.
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::ReadOnce { lent, content } => {
                let sink = &mut memory.lent[*lent];
                sink.memory.has_come(0, content.len());
                sink.memory.check("a sink")?;
                sink.ends()?;
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::Atomic { sink, before, .. } => {
                let found = memory.sink.read(*sink, 8);
                let found = u64::from_ne_bytes(found.try_into().unwrap_or_default());
                if found != *before {
                    return Err(format!("{sent:?} found {found:x}"));
                }
                self.atomics_done += 1;
                memory.sink.has_come(*sink, 8);
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::Lend { lent } => {
                // The STag may have ended with the connection before anybody looked.
                let lives = self.qp.as_ref().is_some_and(|qp| qp.end_reason().is_none());
                memory.lent[*lent].begins(lives)?;
            }
            Op::TakeBack { lent } => memory.lent[*lent].ends()?,
            Op::Send | Op::Write | Op::Immediate | Op::Wrong | Op::WrongAsk => {}
        }
        Ok(())
    }

    /// The peer gives back what it was lent, if it does in this message: what it wrote there is there.
    pub(crate) fn has_back(&mut self, message: &Message) -> Result<(), String> {
        let ended = message.invalidates.map(|(_, index)| index);
        let Some(index) = ended.or(message.returns) else {
            return Ok(());
        };
        let Some(memory) = &mut self.memory else {
            return Ok(());
        };
        let lent = &mut memory.lent[index];
        lent.memory.has_come(lent.at, lent.len);
        lent.memory.check("what was lent")?;
        if ended.is_some() {
            return lent.ends();
        }
        self.to_take_back.push(index);
        Ok(())
    }

    /// Whether its program has nothing more to do, and all that it did has come to something.
    pub(crate) fn is_done(&self) -> bool {
        self.operations == 0
            && self.expected.is_empty()
            && self.to_take_back.is_empty()
            && self.sends.iter().all(|sent| !sent.signaled)
    }
}

/// One end, and the other one.
pub(crate) fn both(ends: &mut [End; 2], end: usize) -> (&mut End, &mut End) {
    let [first, second] = ends;
    if end == 0 {
        (first, second)
    } else {
        (second, first)
    }
}

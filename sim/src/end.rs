//! One end of a connection: what its program has posted, and what it may see.

use std::collections::VecDeque;

use uwarp_verbs::{Completion, Qp, Status, WcOpcode};

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
    /// A counter that the peer adds to.
    pub(crate) word: Tracked,
    /// Lent to the peer for one Write, and then invalidated by it.
    pub(crate) lent: Vec<Tracked>,
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
    /// Adds 1 to the peer's word.
    Add {
        sink: usize,
    },
    /// Nobody knows what comes of it.
    Wrong,
}

/// In short: a log has no use for the content of a Read.
impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Op::Send => f.write_str("Send"),
            Op::Write => f.write_str("Write"),
            Op::Immediate => f.write_str("Immediate"),
            Op::Read { content, .. } => write!(f, "Read of {}", content.len()),
            Op::Add { .. } => f.write_str("Add"),
            Op::Wrong => f.write_str("Wrong"),
        }
    }
}

impl Op {
    fn opcode(&self) -> Option<WcOpcode> {
        match self {
            Op::Send | Op::Immediate => Some(WcOpcode::Send),
            Op::Write => Some(WcOpcode::RdmaWrite),
            Op::Read { .. } => Some(WcOpcode::RdmaRead),
            Op::Add { .. } => Some(WcOpcode::FetchAdd),
            Op::Wrong => None,
        }
    }
}

/// A request that has been posted and of which nothing is known yet.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) wr_id: u64,
    pub(crate) signaled: bool,
    pub(crate) op: Op,
    /// How many Writes of this end were posted before and with it.
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
    /// How many Writes of the sender were posted before it: they are placed when it is delivered.
    pub(crate) writes: usize,
}

impl Message {
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
    /// Additions to the peer's word: posted, and done.
    pub(crate) adds: [u64; 2],
    /// A request of the send queue has failed: none after it that needs an answer succeeds.
    pub(crate) failed: bool,
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
    pub(crate) fn new(host: usize, qp: Qp, memory: Memory, operations: u32) -> Self {
        End {
            host,
            qp_num: qp.qp_num(),
            qp: Some(qp),
            memory: Some(memory),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            expected: VecDeque::new(),
            writes: Vec::new(),
            placed: 0,
            operations,
            adds: [0; 2],
            failed: false,
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
        if self.failed && matches!(sent.op, Op::Read { .. } | Op::Add { .. }) {
            return Err(format!("{sent:?} succeeds behind one that failed"));
        }
        if !sent.signaled {
            return Err(format!("{sent:?} is unsignaled and completes with success"));
        }
        if sent.op.opcode().is_some_and(|opcode| opcode != wc.opcode) {
            return Err(format!("{sent:?} completes as another operation: {wc:?}"));
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
            Op::Add { sink } => {
                let before = memory.sink.read(*sink, 8);
                let before = u64::from_ne_bytes(before.try_into().unwrap_or_default());
                if before != self.adds[1] {
                    return Err(format!(
                        "an addition found {before}, and {} were done before",
                        self.adds[1]
                    ));
                }
                self.adds[1] += 1;
                memory.sink.may_come(*sink, &before.to_ne_bytes());
                memory.sink.has_come(*sink, 8);
                effect.placed = effect.placed.max(sent.writes);
            }
            Op::Send | Op::Write | Op::Immediate | Op::Wrong => {}
        }
        Ok(())
    }

    /// Whether its program has nothing more to do, and all that it did has come to something.
    pub(crate) fn is_done(&self) -> bool {
        self.operations == 0
            && self.expected.is_empty()
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

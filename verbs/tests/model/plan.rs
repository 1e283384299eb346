//! The model, which translates the operations of a side to requests, completions and memory
//! content.

use std::ops::Range;

use uwarp_verbs::{Access, Sge};

use crate::case::{Atomic, Data, Immediate, Lend, Op, Receive, Refused, Via, What};
use crate::common::FILL;
use crate::loan::SLOTS;
use crate::player::{Player, layout, pieces};
use crate::ready::{Payload, Ready, ReadyKind};

/// A Read whose sink has this offset or a larger one invalidates its sink. The choice uses an
/// existing random value, so that kept seeds keep their meaning.
const ENDING: usize = 52;

/// Reads and atomics of a phase for which no fence has waited yet. Contains their ranges in the
/// peer's inbox and their sinks (indices in `placed`).
#[derive(Default)]
struct Open {
    ranges: Vec<Range<usize>>,
    sinks: Vec<usize>,
}

impl Open {
    fn meets(&self, range: &Range<usize>) -> bool {
        let overlaps = |open: &Range<usize>| open.start < range.end && range.start < open.end;
        self.ranges.iter().any(overlaps)
    }
}

/// Translation of one side's operations of one phase.
struct Plan<'p, 'a> {
    phase: usize,
    me: &'p mut Player<'a>,
    peer: &'p mut Player<'a>,
    open: Open,
    /// Index in `placed`, offset and length of each Read's sink.
    read_sinks: Vec<(usize, usize, usize)>,
}

/// Applies one side's operations of one phase to the model. Returns the requests, which fit a send
/// queue of `send_queue` entries.
pub(crate) fn prepare<'a>(
    phase: usize,
    send_queue: u32,
    me: &mut Player<'a>,
    peer: &mut Player<'a>,
    ops: &[Op],
) -> Vec<Ready> {
    let mut plan = Plan {
        phase,
        me,
        peer,
        open: Open::default(),
        read_sinks: Vec::new(),
    };
    let mut ready: Vec<Ready> = ops.iter().map(|op| plan.request(op)).collect();
    ready.push(plan.last_read());
    // If all requests of a full queue were unsignaled, the queue would stay full.
    let mut unsignaled = 0;
    for request in &mut ready {
        unsignaled = match &request.kind {
            ReadyKind::Refused { .. } => continue,
            _ if request.signaled => 0,
            _ => unsignaled + 1,
        };
        if unsignaled == send_queue {
            (request.signaled, unsignaled) = (true, 0);
        }
    }
    for request in &ready {
        if let Some((opcode, byte_len)) = request.completes() {
            let completion = plan.me.expected(request.wr_id, opcode, byte_len);
            plan.me.sends.push_back({
                let mut completion = completion;
                completion.invalidated = request.invalidates();
                completion
            });
        }
    }
    ready
}

impl Plan<'_, '_> {
    fn request(&mut self, op: &Op) -> Ready {
        let wr_id = self.me.id();
        let mut fence = op.fence;
        let kind = match &op.what {
            What::Send {
                data,
                solicited,
                invalidate,
                receive,
            } => self.send(data, *solicited, *invalidate, receive, &mut fence),
            What::Write {
                data,
                at,
                via,
                immediate,
            } => self.write(data, *at, *via, immediate.as_ref(), &mut fence),
            What::Read {
                len,
                from_source,
                at,
                offset,
                via,
            } => {
                self.fence(fence);
                self.read(*len, *from_source, *at, *offset, *via)
            }
            What::Atomic {
                at,
                offset,
                via,
                what,
            } => {
                self.fence(fence);
                self.atomic(*at, *offset, *via, *what)
            }
            What::Immediate(immediate, receive) => {
                self.peer.expect_immediate(receive, *immediate);
                ReadyKind::Immediate(*immediate)
            }
            What::Lend(lend) => self.lend(lend),
            What::Recall(slot) => self.recall(*slot),
            What::EndSink => {
                fence = true;
                self.end_sink()
            }
            What::Refused(what) => self.refused(*what),
        };
        let waits = matches!(kind, ReadyKind::Read { .. } | ReadyKind::Atomic { .. });
        // A refused request does not run.
        let runs = !matches!(kind, ReadyKind::Refused { .. });
        self.fence(fence && !waits && runs);
        Ready {
            wr_id,
            kind,
            signaled: op.signaled,
            fence,
            poll: op.poll,
            resize: op.resize,
        }
    }

    /// If `fence` is set, records that all earlier Reads and atomics have completed.
    fn fence(&mut self, fence: bool) {
        if fence {
            self.open = Open::default();
        }
    }

    /// Returns address and STag for an access to `at` of the peer's inbox with this right.
    fn way(&mut self, via: Via, at: usize, right: Access) -> (u64, u32) {
        for slot in via..SLOTS {
            let loan = &mut self.peer.loans[slot];
            if let Some(addr) = loan.used(self.phase, at, right) {
                return (addr, loan.rkey);
            }
        }
        let lent = self.peer.lent();
        (lent.addr + at as u64, lent.rkey)
    }

    fn send(
        &mut self,
        data: &Data,
        solicited: bool,
        invalidate: Option<Via>,
        receive: &Receive,
        fence: &mut bool,
    ) -> ReadyKind {
        let (source, bytes, needs_fence) = self.payload(data);
        // A Read that is still open may use the STag that ends here.
        *fence |= needs_fence || invalidate.is_some();
        let phase = self.phase;
        let invalidate = invalidate.map(|via| {
            let mut loans = self.peer.loans[via..].iter_mut();
            let found = loans.find_map(|loan| loan.invalidated(phase));
            found.unwrap_or_else(|| self.peer.lend_once())
        });
        self.peer
            .expect_send(receive, &bytes, solicited, invalidate);
        ReadyKind::Send {
            source,
            solicited,
            invalidate,
        }
    }

    fn write(
        &mut self,
        data: &Data,
        at: usize,
        via: Via,
        immediate: Option<&(Immediate, Receive)>,
        fence: &mut bool,
    ) -> ReadyKind {
        let (source, bytes, needs_fence) = self.payload(data);
        let range = at..at + bytes.len();
        // A Write may overtake an earlier Read (RFC 5040 section 5.5), unless it has a fence.
        *fence |= needs_fence || self.open.meets(&range);
        self.peer.inbox_model[range].copy_from_slice(&bytes);
        self.peer.written = bytes.len() as u32;
        let (to, rkey) = self.way(via, at, Access::REMOTE_WRITE);
        if let Some((immediate, receive)) = immediate {
            self.peer.expect_immediate(receive, *immediate);
        }
        ReadyKind::Write {
            source,
            to,
            rkey,
            immediate: immediate.map(|(immediate, _)| *immediate),
        }
    }

    fn read(
        &mut self,
        len: usize,
        from_source: bool,
        at: usize,
        offset: usize,
        via: Via,
    ) -> ReadyKind {
        let (from, rkey, bytes) = if from_source {
            let remote = self.peer.source.remote();
            let bytes = self.peer.source_model[at..at + len].to_vec();
            (remote.addr + at as u64, remote.rkey, bytes)
        } else {
            let (from, rkey) = self.way(via, at, Access::REMOTE_READ);
            self.open.ranges.push(at..at + len);
            (from, rkey, self.peer.inbox_model[at..at + len].to_vec())
        };
        let (index, sge) = self.sink(offset, &bytes);
        // An odd offset makes four elements, some of them empty.
        let cuts = [offset, at, 7 * offset];
        let cuts = if offset % 2 == 1 { &cuts[..] } else { &[] };
        let pieces = pieces(len, cuts).into_iter();
        let sges = pieces.map(|(start, len)| Sge {
            addr: sge.addr + start as u64,
            len: len as u32,
            ..sge
        });
        let invalidate_sink = offset >= ENDING && len > 0;
        if !invalidate_sink {
            self.read_sinks.push((index, offset, len));
        }
        ReadyKind::Read {
            invalidate_sink,
            sges: if len == 0 { Vec::new() } else { sges.collect() },
            from,
            rkey,
        }
    }

    fn atomic(&mut self, at: usize, offset: usize, via: Via, mut what: Atomic) -> ReadyKind {
        let word = &mut self.peer.inbox_model[at..at + 8];
        let before: [u8; 8] = word.try_into().unwrap();
        let old = u64::from_ne_bytes(before);
        if let Atomic::Swap { compare, .. } = &mut what {
            compare.get_or_insert(old);
        }
        word.copy_from_slice(&what.apply(old).to_ne_bytes());
        let (to, rkey) = self.way(via, at, Access::REMOTE_ATOMIC);
        self.open.ranges.push(at..at + 8);
        let (_, sink) = self.sink(offset, &before);
        ReadyKind::Atomic {
            sink,
            to,
            rkey,
            what,
        }
    }

    /// Creates a sink for a response, which is expected to be `bytes`.
    fn sink(&mut self, offset: usize, bytes: &[u8]) -> (usize, Sge) {
        let sink = self.me.side.blank(bytes.len() + offset + 9);
        let sge = sink.sge(offset as u64, bytes.len() as u32);
        let mut model = vec![FILL; sink.len()];
        model[offset..offset + bytes.len()].copy_from_slice(bytes);
        let index = self.me.placed.len();
        self.me.placed.push((sink, model));
        self.open.sinks.push(index);
        (index, sge)
    }

    fn lend(&mut self, lend: &Lend) -> ReadyKind {
        let me = &mut *self.me;
        let memory = (&me.inbox, &me.buffer);
        let made = me.loans[lend.slot].lend(self.phase, lend, memory, &me.side.qp);
        made.flatten().unwrap_or_else(|| self.nothing())
    }

    fn recall(&mut self, slot: usize) -> ReadyKind {
        let me = &mut *self.me;
        let made = me.loans[slot].recall(self.phase, &me.inbox);
        made.flatten().unwrap_or_else(|| self.nothing())
    }

    /// Invalidates the sink of the last Read. The sink keeps its bytes, but no further request uses
    /// it.
    fn end_sink(&mut self) -> ReadyKind {
        match self.read_sinks.pop() {
            Some((index, ..)) => ReadyKind::Invalidate(self.me.placed[index].0.rkey()),
            None => self.nothing(),
        }
    }

    /// Returns an empty Write.
    fn nothing(&mut self) -> ReadyKind {
        self.peer.written = 0;
        let lent = self.peer.lent();
        ReadyKind::Write {
            source: Payload::Inline(Vec::new()),
            to: lent.addr,
            rkey: lent.rkey,
            immediate: None,
        }
    }

    fn refused(&self, what: Refused) -> ReadyKind {
        let source = &self.me.source;
        let mut sges = vec![source.sge(0, 8); 4];
        sges.push(source.sge(source.len() as u64 - 7, 8));
        ReadyKind::Refused { what, sges }
    }

    /// Returns a signaled Read for the end of the phase. When it completes, everything before it
    /// has been placed.
    fn last_read(&mut self) -> Ready {
        Ready {
            wr_id: self.me.id(),
            kind: self.read(1, true, 0, 0, 0),
            signaled: true,
            fence: false,
            poll: false,
            resize: None,
        }
    }

    /// Returns the payload of a Send or Write, its bytes, and true if it needs a fence.
    fn payload(&self, data: &Data) -> (Payload, Vec<u8>, bool) {
        let me = &*self.me;
        let from_read = if data.from_read && !data.inline && data.len > 0 {
            let mut sinks = self.read_sinks.iter().rev();
            sinks.find(|(_, _, len)| *len >= data.len)
        } else {
            None
        };
        let pieces = pieces(data.len, &data.cuts);
        if let Some((index, offset, _)) = from_read {
            let (region, model) = &me.placed[*index];
            let sges = pieces
                .iter()
                .map(|(start, len)| region.sge((offset + start) as u64, *len as u32))
                .collect();
            return (
                Payload::Sges(sges),
                model[*offset..offset + data.len].to_vec(),
                self.open.sinks.contains(index),
            );
        }
        let sges = layout(&me.source, data.at, &pieces);
        let bytes: Vec<u8> = sges
            .iter()
            .flat_map(|sge| {
                let at = (sge.addr - me.source.addr()) as usize;
                me.source_model[at..at + sge.len as usize].iter().copied()
            })
            .collect();
        if data.inline {
            return (Payload::Inline(bytes.clone()), bytes, false);
        }
        (Payload::Sges(sges), bytes, false)
    }
}

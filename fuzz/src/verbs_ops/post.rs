//! Posts work requests with arbitrary flags and elements, and checks the results.

use uwarp_verbs::{Access, PostErrorKind, QpState, RecvWr, RemoteBuffer, SendWr, Sge};

use super::work::Owner;
use super::world::{CAPS, Queue, World};
use crate::input::Input;

/// Properties of a request that decide whether it is accepted.
struct Form {
    sges: Vec<Sge>,
    inline: Option<usize>,
    read: bool,
    atomic: bool,
    write_or_immediate: bool,
    immediate: bool,
    invalidate_sink: bool,
}

impl Form {
    /// Checks that a request was accepted exactly if it is valid, and that the error is justified.
    /// `said` is `None` if it was accepted.
    fn judge(&self, ord: Option<u16>, said: Option<PostErrorKind>) {
        let bytes: u64 = self.sges.iter().map(|sge| u64::from(sge.len)).sum();
        let too_many = self.sges.len() > CAPS.max_send_sge as usize;
        let too_long = self
            .inline
            .is_some_and(|len| len > CAPS.max_inline_data as usize);
        let unfit = self.immediate && !self.write_or_immediate;
        let mut sinks = self.sges.iter().filter(|sge| sge.len > 0);
        let one_sink = sinks
            .next()
            .is_some_and(|first| sinks.all(|sge| sge.lkey == first.lkey));
        let no_sink = self.invalidate_sink && !(self.read && one_sink);
        let bad_sink = self.atomic && (self.sges.len() != 1 || bytes != 8);
        let asks = self.read || self.atomic;
        let no_depth = asks && ord == Some(0);
        let said = match said {
            None | Some(PostErrorKind::Memory(_)) => {
                let wrong = too_many || too_long || unfit || no_sink || bad_sink || no_depth;
                assert!(
                    !wrong && bytes <= u64::from(u32::MAX),
                    "accepted, and should be refused"
                );
                return;
            }
            Some(said) => said,
        };
        let so = match said {
            PostErrorKind::TooManySges { got, max } => {
                too_many && (got, max) == (self.sges.len(), CAPS.max_send_sge as usize)
            }
            PostErrorKind::InlineTooLong { got, .. } => too_long && Some(got) == self.inline,
            PostErrorKind::ImmediateUnfit { .. } => unfit,
            PostErrorKind::NoSendWithImmediate | PostErrorKind::LongImmediate => unfit && !asks,
            PostErrorKind::NoSinkToInvalidate { .. } => no_sink,
            PostErrorKind::AtomicSink {
                elements,
                bytes: said,
            } => bad_sink && (elements, said) == (self.sges.len(), bytes),
            PostErrorKind::NoReads => no_depth && self.read,
            PostErrorKind::NoAtomics => no_depth && self.atomic,
            PostErrorKind::MessageTooLong { got } => got == bytes && got > u64::from(u32::MAX),
            _ => false,
        };
        assert!(so, "the reason is not true: {said}");
    }
}

/// Creates a request of this kind, without flags.
fn request<'a>(
    kind: u8,
    id: u64,
    (sges, data): (&'a [Sge], &'a [u8]),
    (addr, rkey): (u64, u32),
) -> SendWr<'a> {
    match kind {
        0 | 1 => SendWr::send(id, sges),
        2 => SendWr::send_inline(id, data),
        3 => SendWr::write(id, sges, RemoteBuffer::at(addr, rkey)),
        4 => SendWr::write_inline(id, data, RemoteBuffer::at(addr, rkey)),
        5 | 8 => SendWr::read(id, sges, RemoteBuffer::at(addr, rkey)),
        6 => SendWr::fetch_add(id, sges, RemoteBuffer::at(addr, rkey), 3).mask(1 << 31),
        7 => SendWr::compare_swap(id, sges, RemoteBuffer::at(addr, rkey), 3, 4).swap_mask(0xFF),
        9 => SendWr::write_with_immediate(id, sges, RemoteBuffer::at(addr, rkey), [5; 8]),
        10 => SendWr::immediate(id, [6; 8]),
        _ => SendWr::local_invalidate(id, rkey),
    }
}

impl World {
    fn sges(&self, input: &mut Input<'_>) -> Vec<Sge> {
        // Three elements exceed every QP's limit.
        let count = [1, 1, 0, 1, 2, 1, 1, 3][input.choice(8)];
        (0..count).map(|_| self.memory.sge(input)).collect()
    }

    /// Posts a request to a send queue and checks the result.
    pub(super) fn send(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.queues.len());
        if self.queues.is_empty() {
            return;
        }
        let (kind, flags) = (input.u8() % 12, input.flags());
        let mut sges = self.sges(input);
        let (addr, rkey) = self.memory.remote(input);
        let data = &[0xEE; 64][..usize::from(input.u8() % 40)];
        let id = self.work.number();
        if matches!(kind, 6 | 7)
            && !flags(6)
            && let [sge, ..] = sges.as_mut_slice()
        {
            sge.len = sge.len.min(8);
        }
        let mut wr = request(kind, id, (&sges, data), (addr, rkey));
        let (signaled, immediate) = (!flags(0), flags(4) && flags(5));
        let takes_sges = matches!(kind, 0 | 1 | 3 | 5..=9);
        let form = Form {
            sges: if takes_sges { sges.clone() } else { Vec::new() },
            inline: matches!(kind, 2 | 4).then_some(data.len()),
            read: matches!(kind, 5 | 8),
            atomic: matches!(kind, 6 | 7),
            write_or_immediate: matches!(kind, 3 | 4 | 9 | 10),
            immediate: immediate || matches!(kind, 9 | 10),
            invalidate_sink: flags(3) && flags(6),
        };
        if !signaled {
            wr = wr.unsignaled();
        }
        if flags(1) {
            wr = wr.fence();
        }
        if flags(2) {
            wr = wr.solicited();
        }
        if form.invalidate_sink {
            wr = wr.invalidate_sink();
            sges.iter().for_each(|sge| self.memory.doubt(sge.lkey));
        }
        if immediate {
            wr = wr.with_immediate([8; 8]);
        }
        if kind == 1 {
            wr = wr.invalidate(rkey);
        }
        if matches!(kind, 1 | 11) {
            self.memory.doubt(rkey);
        }
        let end = self.other_end(at);
        let taken = self.judge_send(at, (id, signaled), &form, |qp| qp.post_send(&wr));
        match kind {
            3 | 4 | 9 if taken => self.memory.written_by_peer(rkey, Access::REMOTE_WRITE, end),
            6 | 7 if taken => self
                .memory
                .written_by_peer(rkey, Access::REMOTE_ATOMIC, end),
            _ => {}
        }
    }

    /// Returns the domain and the number of the QP at the other end, if that QP is known.
    fn other_end(&self, at: usize) -> Option<(u32, u32)> {
        let ours = self.queues[at].qp.connection()?;
        let faces = |queue: &&Queue| {
            let theirs = queue.qp.connection();
            theirs.is_some_and(|theirs| (theirs.local, theirs.peer) == (ours.peer, ours.local))
        };
        self.queues
            .iter()
            .find(faces)
            .map(|queue| (queue.pd, queue.num))
    }

    fn judge_send(
        &mut self,
        at: usize,
        (id, signaled): (u64, bool),
        form: &Form,
        post: impl FnOnce(&uwarp_verbs::Qp) -> Result<(), uwarp_verbs::PostError>,
    ) -> bool {
        let queue = &self.queues[at];
        let (owner, before) = (Owner::Send(queue.num), queue.qp.state());
        let ord = queue.qp.connection().map(|connection| connection.ord);
        let said = post(&queue.qp).map_err(|error| error.kind);
        match said {
            Err(PostErrorKind::NotConnected { state }) => {
                assert_eq!((state, before), (QpState::Idle, QpState::Idle));
            }
            Err(PostErrorKind::SendQueueFull { depth }) => {
                assert!(
                    self.work.count(owner) >= depth,
                    "refused by a queue that is not full"
                );
            }
            other => {
                assert_ne!(before, QpState::Idle);
                let fault = match other {
                    Err(PostErrorKind::Memory(fault)) => Some(fault),
                    _ => None,
                };
                form.judge(ord, other.err());
                if other.is_ok() || fault.is_some() {
                    let write = form.read || form.atomic;
                    let whose = (queue.pd, queue.num);
                    self.memory.judge(&form.sges, write, whose, fault);
                }
            }
        }
        if said.is_ok() {
            assert!(
                self.work.owed(owner) < CAPS.max_send_wr as usize,
                "accepted by a full queue"
            );
            self.work.posted(id, owner, signaled);
            if form.read || form.atomic {
                self.memory.placed_into(&form.sges);
            }
        }
        said.is_ok()
    }

    /// Posts a receive to a QP or to an SRQ, and checks the result.
    pub(super) fn receive(&mut self, input: &mut Input<'_>) {
        let (choice, sges) = (usize::from(input.u8()), self.sges(input));
        let id = self.work.number();
        let wr = RecvWr::new(id, &sges);
        let at = choice % (self.queues.len() + self.srqs.len()).max(1);
        let (owner, whose, said, depth) = if let Some(queue) = self.queues.get(at) {
            let said = queue.qp.post_recv(&wr);
            if let Some(srq) = queue.srq {
                let kind = said.expect_err("the QP has an SRQ").kind;
                assert_eq!(kind, PostErrorKind::HasSrq { srq_num: srq });
                return;
            }
            let depth = CAPS.max_recv_wr as usize;
            (Owner::Recv(queue.num), (queue.pd, queue.num), said, depth)
        } else if let Some((num, srq)) = self.srqs.get(at - self.queues.len()) {
            // A receive of an SRQ belongs to no QP. No QP has number 0.
            let pd = self.srq_pds[num];
            let depth = srq.query().max_wr as usize;
            (Owner::Srq(*num), (pd, 0), srq.post_recv(&wr), depth)
        } else {
            return;
        };
        let fault = match said.map_err(|error| error.kind) {
            Ok(()) => None,
            Err(PostErrorKind::Memory(fault)) => Some(fault),
            Err(PostErrorKind::TooManySges { got, max }) => {
                assert!(got == sges.len() && got > max);
                return;
            }
            Err(PostErrorKind::RecvQueueFull { depth } | PostErrorKind::SrqFull { depth }) => {
                assert!(
                    self.work.count(owner) >= depth,
                    "refused by a queue that is not full"
                );
                return;
            }
            Err(PostErrorKind::MessageTooLong { got }) => {
                assert!(got > u64::from(u32::MAX));
                return;
            }
            Err(other) => panic!("impossible for a receive: {other}"),
        };
        self.memory.judge(&sges, true, whose, fault);
        if fault.is_none() {
            assert!(sges.len() <= CAPS.max_recv_sge as usize);
            assert!(self.work.owed(owner) < depth, "accepted by a full queue");
            self.work.posted(id, owner, true);
            self.memory.placed_into(&sges);
        }
    }

    /// Binds a window of any kind, by a call or by a work request, and checks the result.
    pub(super) fn bind(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.queues.len());
        let by_call = input.u8() & 1 == 1;
        let Some((window, rkey, bind)) = self.memory.bind(input) else {
            return;
        };
        let Some(queue) = self.queues.get(at) else {
            return;
        };
        let id = self.work.number();
        let (kind, window) = &mut self.memory.windows[window];
        let said = if by_call {
            queue.qp.bind_mw(window, id, &bind).map(|_| ())
        } else {
            queue.qp.post_send(&SendWr::bind_window(id, rkey, &bind))
        };
        let owner = Owner::Send(queue.num);
        match said.map_err(|error| error.kind) {
            Ok(()) => self.work.posted(id, owner, true),
            Err(PostErrorKind::WindowKind { kind: said }) => {
                assert!(by_call && said == *kind && said != uwarp_verbs::WindowKind::Type1);
            }
            Err(PostErrorKind::NotConnected { state }) => assert_eq!(state, QpState::Idle),
            Err(PostErrorKind::SendQueueFull { depth }) => {
                assert!(
                    self.work.count(owner) >= depth,
                    "refused by a queue that is not full"
                );
            }
            Err(other) => panic!("impossible for a bind: {other}"),
        }
    }
}

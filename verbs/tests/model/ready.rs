//! Requests that are ready to be posted.

use std::sync::{Arc, Mutex};

use uwarp_verbs::{
    BindWr, FastRegister, MemoryWindow, PostError, PostErrorKind, Qp, RemoteBuffer, SendWr, Sge,
    WcOpcode, WindowBind,
};

use crate::case::{Atomic, Immediate, Refused};

pub(crate) struct Ready {
    pub(crate) wr_id: u64,
    pub(crate) kind: ReadyKind,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) poll: bool,
    pub(crate) resize: Option<u32>,
}

pub(crate) enum ReadyKind {
    Send {
        source: Payload,
        solicited: bool,
        invalidate: Option<u32>,
    },
    Write {
        source: Payload,
        to: u64,
        rkey: u32,
        immediate: Option<Immediate>,
    },
    Read {
        sges: Vec<Sge>,
        from: u64,
        rkey: u32,
        invalidate_sink: bool,
    },
    Atomic {
        sink: Sge,
        to: u64,
        rkey: u32,
        what: Atomic,
    },
    Immediate(Immediate),
    Bind {
        rkey: u32,
        bind: WindowBind,
    },
    /// Binds a window by `Qp::post_bind`, which must return this STag.
    ByCall {
        window: Arc<Mutex<MemoryWindow>>,
        rkey: u32,
        bind: WindowBind,
    },
    Register(FastRegister),
    Invalidate(u32),
    Refused {
        what: Refused,
        /// Five SGEs of a region with the right to local write.
        sges: Vec<Sge>,
    },
}

pub(crate) enum Payload {
    Sges(Vec<Sge>),
    Inline(Vec<u8>),
}

/// Payload that exceeds the maximum of inline data.
const LONG: [u8; 300] = [0; 300];

impl Ready {
    /// Returns true if the request is posted on its own, not in a list.
    pub(crate) fn is_alone(&self) -> bool {
        self.resize.is_some()
            || matches!(
                self.kind,
                ReadyKind::ByCall { .. } | ReadyKind::Refused { .. }
            )
    }

    /// Returns the opcode and length of the expected completion, if the request has one.
    pub(crate) fn completes(&self) -> Option<(WcOpcode, u32)> {
        let what = match &self.kind {
            ReadyKind::Send { .. } | ReadyKind::Immediate(_) => (WcOpcode::Send, 0),
            ReadyKind::Write { .. } => (WcOpcode::RdmaWrite, 0),
            ReadyKind::Read { sges, .. } => {
                (WcOpcode::RdmaRead, sges.iter().map(|sge| sge.len).sum())
            }
            ReadyKind::Atomic { what, .. } => match what {
                Atomic::Add { .. } => (WcOpcode::FetchAdd, 8),
                Atomic::Swap { .. } => (WcOpcode::CompareSwap, 8),
            },
            ReadyKind::ByCall { .. } | ReadyKind::Bind { .. } => (WcOpcode::BindWindow, 0),
            ReadyKind::Register(_) => (WcOpcode::Register, 0),
            ReadyKind::Invalidate(_) => (WcOpcode::LocalInvalidate, 0),
            ReadyKind::Refused { .. } => return None,
        };
        self.signaled.then_some(what)
    }

    /// Returns the STag that the completion reports as invalidated, if any.
    pub(crate) fn invalidates(&self) -> Option<u32> {
        match &self.kind {
            ReadyKind::Read {
                sges,
                invalidate_sink: true,
                ..
            } => sges.first().map(|sink| sink.lkey),
            _ => None,
        }
    }

    /// Posts a request that [is alone](Self::is_alone). Returns false if the send queue is full.
    pub(crate) fn post_alone(&self, qp: &Qp) -> bool {
        let result = match &self.kind {
            ReadyKind::ByCall { window, rkey, bind } => {
                let window = &mut window.lock().unwrap();
                let mut wr = BindWr::new(self.wr_id, bind);
                if !self.signaled {
                    wr = wr.unsignaled();
                }
                if self.fence {
                    wr = wr.fence();
                }
                qp.post_bind(window, &wr).map(|got| assert_eq!(got, *rkey))
            }
            ReadyKind::Refused { what, .. } => match qp.post_send(&self.wr()) {
                Ok(()) => panic!("{what:?} was taken"),
                Err(error) if is_full(&error) => Err(error),
                Err(error) => {
                    assert!(what.is_meant(&error.kind), "{what:?}: {error}");
                    Ok(())
                }
            },
            _ => qp.post_send(&self.wr()),
        };
        match result {
            Ok(()) => true,
            Err(error) => {
                assert!(is_full(&error), "{error}");
                false
            }
        }
    }

    pub(crate) fn wr(&self) -> SendWr<'_> {
        let id = self.wr_id;
        let mut wr = match &self.kind {
            ReadyKind::Send {
                source,
                solicited,
                invalidate,
            } => {
                let mut wr = match source {
                    Payload::Sges(sges) => SendWr::send(id, sges),
                    Payload::Inline(bytes) => SendWr::send_inline(id, bytes),
                };
                if *solicited {
                    wr = wr.solicited();
                }
                if let Some(rkey) = invalidate {
                    wr = wr.invalidate(*rkey);
                }
                wr
            }
            ReadyKind::Write {
                source,
                to,
                rkey,
                immediate,
            } => {
                let wr = match source {
                    Payload::Sges(sges) => SendWr::write(id, sges, RemoteBuffer::at(*to, *rkey)),
                    Payload::Inline(bytes) => {
                        SendWr::write_inline(id, bytes, RemoteBuffer::at(*to, *rkey))
                    }
                };
                match immediate {
                    Some(immediate) => solicit(wr.with_immediate(immediate.bytes), *immediate),
                    None => wr,
                }
            }
            ReadyKind::Read {
                sges,
                from,
                rkey,
                invalidate_sink,
            } => {
                let wr = SendWr::read(id, sges, RemoteBuffer::at(*from, *rkey));
                if *invalidate_sink {
                    wr.invalidate_sink()
                } else {
                    wr
                }
            }
            ReadyKind::Atomic {
                sink,
                to,
                rkey,
                what,
            } => what.wr(id, std::slice::from_ref(sink), *to, *rkey),
            ReadyKind::Immediate(immediate) => {
                solicit(SendWr::immediate(id, immediate.bytes), *immediate)
            }
            ReadyKind::Bind { rkey, bind } => SendWr::bind_window(id, *rkey, bind),
            ReadyKind::ByCall { .. } => unreachable!("it is a call"),
            ReadyKind::Register(register) => SendWr::register(id, register),
            ReadyKind::Invalidate(stag) => SendWr::local_invalidate(id, *stag),
            ReadyKind::Refused { what, sges } => what.wr(id, sges),
        };
        if !self.signaled {
            wr = wr.unsignaled();
        }
        if self.fence { wr.fence() } else { wr }
    }
}

fn solicit(wr: SendWr<'_>, immediate: Immediate) -> SendWr<'_> {
    if immediate.solicited {
        wr.solicited()
    } else {
        wr
    }
}

/// Returns true if the send queue is full. Any other refusal is unexpected.
pub(crate) fn is_full(error: &PostError) -> bool {
    matches!(error.kind, PostErrorKind::SendQueueFull { .. })
}

impl Atomic {
    fn wr(self, id: u64, sink: &[Sge], to: u64, rkey: u32) -> SendWr<'_> {
        match self {
            Atomic::Add { add, mask } => {
                SendWr::fetch_add(id, sink, RemoteBuffer::at(to, rkey), add).mask(mask)
            }
            Atomic::Swap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => SendWr::compare_swap(
                id,
                sink,
                RemoteBuffer::at(to, rkey),
                compare.unwrap_or(0),
                swap,
            )
            .compare_mask(compare_mask)
            .swap_mask(swap_mask),
        }
    }

    /// Returns the new value of the word (RFC 7306 sections 5.1.1, 5.1.2).
    pub(crate) fn apply(self, old: u64) -> u64 {
        match self {
            // Adds bit by bit. A carry goes to the next bit, unless a field ends here.
            Atomic::Add { add, mask } => {
                let (mut sum, mut carry) = (0, 0);
                for bit in 0..64 {
                    let total = (old >> bit & 1) + (add >> bit & 1) + carry;
                    sum |= (total & 1) << bit;
                    carry = if mask >> bit & 1 == 1 { 0 } else { total >> 1 };
                }
                sum
            }
            Atomic::Swap {
                compare,
                compare_mask,
                swap,
                swap_mask,
            } => {
                if (old ^ compare.unwrap_or(old)) & compare_mask == 0 {
                    old & !swap_mask | swap & swap_mask
                } else {
                    old
                }
            }
        }
    }
}

impl Refused {
    fn wr(self, id: u64, sges: &[Sge]) -> SendWr<'_> {
        match self {
            Refused::TooManySges => SendWr::send(id, sges),
            Refused::NoSink => SendWr::send(id, &sges[..2]).invalidate_sink(),
            Refused::InlineTooLong => SendWr::write_inline(id, &LONG, RemoteBuffer::at(0, 0)),
            Refused::ImmediateUnfit => {
                SendWr::read(id, &sges[..1], RemoteBuffer::at(0, 0)).with_immediate([1; 8])
            }
            // A QP that flushes would take one with 4 bytes.
            Refused::SendWithImmediate => SendWr::send(id, &sges[..1]).with_immediate([1; 8]),
            Refused::AtomicSink => SendWr::swap(id, &sges[..2], RemoteBuffer::at(0, 0), 1),
            // The fifth element exceeds its region.
            Refused::Memory => SendWr::send(id, &sges[4..]),
        }
    }

    fn is_meant(self, kind: &PostErrorKind) -> bool {
        use PostErrorKind as K;
        match self {
            Refused::TooManySges => matches!(kind, K::TooManySges { got: 5, max: 4 }),
            Refused::NoSink => matches!(kind, K::NoSinkToInvalidate { .. }),
            Refused::InlineTooLong => matches!(kind, K::InlineTooLong { got: 300, .. }),
            Refused::ImmediateUnfit => matches!(kind, K::ImmediateUnfit { .. }),
            Refused::SendWithImmediate => {
                matches!(kind, K::NoSendWithImmediate | K::LongImmediate)
            }
            Refused::AtomicSink => matches!(kind, K::AtomicSink { elements: 2, .. }),
            Refused::Memory => matches!(kind, K::Memory(_)),
        }
    }
}

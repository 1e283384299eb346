//! Messages that the stream of a [`Play`] sends: its own messages and the responses to the peer's
//! requests.

use uwarp_ddp::{STag, TaggedOffset};
use uwarp_rdmap::{
    AtomicFault, AtomicJob, AtomicOp, Job, ReadRequestHeader, SendKind, StreamError, Terminate,
};

use super::wire::{headed, nothing, tagged, untagged};
use super::{Play, buffer};
use crate::atomics::{compare_swap, fetch_add};
use crate::model::stream::{Asked, Waiting};

/// Exclusive upper limit in bytes for the messages that the stream itself begins.
const LONGEST: u32 = 10_000;

impl Play {
    /// Begins a message and compares its segments with the figures of the RFCs. `kind % 16` selects
    /// the message: 0 to 3 a Send, 4 to 7 a Write, 8 and 9 Immediate Data, 10 to 12 a Read, others
    /// an atomic.
    pub(crate) fn send(&mut self, kind: u8, stag: u32, to: u64, len: u32, mulpdu: usize) {
        let len = len % LONGEST;
        let invalidate = (kind & 1 != 0).then_some(STag(stag));
        let solicited = kind & 2 != 0;
        match kind % 16 {
            0..=3 => {
                let message = self.stream.begin_send(
                    SendKind {
                        solicited,
                        invalidate,
                    },
                    len,
                );
                let opcode = 3 + u8::from(solicited) * 2 + u8::from(invalidate.is_some());
                let word = invalidate.map_or(0, |stag| stag.0);
                if self.sends {
                    untagged(message, mulpdu, opcode, word, (0, self.send_msn), len);
                    self.send_msn = self.send_msn.wrapping_add(1);
                } else {
                    nothing(message);
                }
            }
            4..=7 => {
                let message = self.stream.begin_write(STag(stag), TaggedOffset(to), len);
                if self.sends {
                    tagged(message, mulpdu, 0, stag, to, len);
                } else {
                    nothing(message);
                }
            }
            8..=9 => {
                let message = self.stream.begin_immediate(to.to_be_bytes(), solicited);
                if self.sends {
                    let opcode = 8 + u8::from(solicited);
                    headed(message, opcode, 0, self.send_msn, &to.to_be_bytes());
                    self.send_msn = self.send_msn.wrapping_add(1);
                } else {
                    nothing(message);
                }
            }
            10..=12 => self.read(stag, to, len),
            _ => self.atomic(stag, to, u64::from(len) << 7, solicited),
        }
    }

    fn read(&mut self, stag: u32, to: u64, len: u32) {
        let len = len % 3000;
        let header = ReadRequestHeader {
            sink_stag: STag(stag ^ 0x55),
            sink_to: TaggedOffset(to.wrapping_mul(3)),
            len,
            source_stag: STag(stag),
            source_to: TaggedOffset(to),
        };
        let full = self.judge.waiting.len() >= usize::from(self.ord);
        match self.stream.begin_read(header) {
            Err(error) => assert!(self.sends && full && error.ord == self.ord),
            Ok(message) if !self.sends => nothing(message),
            Ok(message) => {
                assert!(!full);
                let mut bytes = (stag ^ 0x55).to_be_bytes().to_vec();
                bytes.extend_from_slice(&to.wrapping_mul(3).to_be_bytes());
                bytes.extend_from_slice(&len.to_be_bytes());
                bytes.extend_from_slice(&stag.to_be_bytes());
                bytes.extend_from_slice(&to.to_be_bytes());
                headed(message, 1, 1, self.request_msn, &bytes);
                self.asked();
                self.judge.waiting.push_back(Waiting::Read {
                    stag: stag ^ 0x55,
                    to: to.wrapping_mul(3),
                    len,
                    got: 0,
                });
                self.sinks.push_back(buffer(len as usize));
                self.model.sinks.push_back(buffer(len as usize));
            }
        }
    }

    fn atomic(&mut self, stag: u32, to: u64, data: u64, swap: bool) {
        let op = if swap {
            AtomicOp::CompareSwap {
                compare: data,
                compare_mask: !data,
                swap: to,
                swap_mask: data << 1,
            }
        } else {
            AtomicOp::FetchAdd {
                add: data,
                mask: to,
            }
        };
        let full = self.judge.waiting.len() >= usize::from(self.ord);
        match self.stream.begin_atomic(STag(stag), TaggedOffset(to), op) {
            Err(error) => assert!(self.sends && full && error.ord == self.ord),
            Ok(message) if !self.sends => nothing(message),
            Ok(message) => {
                assert!(!full);
                let mut bytes = vec![0, 0, 0, if swap { 2 } else { 0 }];
                bytes.extend_from_slice(&self.atomic_id.to_be_bytes());
                bytes.extend_from_slice(&stag.to_be_bytes());
                bytes.extend_from_slice(&to.to_be_bytes());
                let words = if swap {
                    [to, data << 1, data, !data]
                } else {
                    [data, to, 0, u64::MAX]
                };
                words
                    .iter()
                    .for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
                headed(message, 10, 1, self.request_msn, &bytes);
                self.asked();
                self.judge
                    .waiting
                    .push_back(Waiting::Atomic { id: self.atomic_id });
                self.atomic_id = self.atomic_id.wrapping_add(1);
            }
        }
    }

    /// Checks that `outstanding_before` returns the number of earlier requests for the MSN of a new
    /// request. Then counts the new request.
    fn asked(&mut self) {
        let before = self
            .stream
            .outstanding_before(uwarp_ddp::Msn(self.request_msn));
        assert_eq!(before, Some(self.judge.waiting.len()));
        self.request_msn = self.request_msn.wrapping_add(1);
        let next = self
            .stream
            .outstanding_before(uwarp_ddp::Msn(self.request_msn));
        assert_eq!(next, None);
    }

    /// Takes the peer's next request from the stream and compares it with the model's.
    pub(crate) fn take(&mut self) {
        let job = self.stream.next_request();
        if !self.sends {
            assert!(job.is_none());
            return;
        }
        let asked = self.judge.asked.pop_front();
        let found = job.as_ref().map(|job| match job {
            Job::Read(job) => {
                let header = job.header();
                Asked::Read {
                    sink_stag: header.sink_stag.0,
                    sink_to: header.sink_to.0,
                    len: header.len,
                    stag: header.source_stag.0,
                    to: header.source_to.0,
                }
            }
            Job::Atomic(job) => {
                let Some(Asked::Atomic { id, data, swap, .. }) = asked else {
                    panic!("the model has {asked:?}");
                };
                same_effect(job, data, swap);
                let (stag, to) = (job.stag().0, job.to().0);
                Asked::Atomic {
                    id,
                    stag,
                    to,
                    data,
                    swap,
                }
            }
        });
        assert_eq!(found, asked);
        if let (Some(job), Some(asked)) = (job, asked) {
            self.judge.answering += 1;
            self.jobs.push_back(job);
            self.taken.push_back(asked);
        }
        assert_eq!(self.stream.requests_pending(), !self.judge.asked.is_empty());
    }

    /// Responds to the oldest request that [`Play::take`] has taken.
    pub(crate) fn answer(&mut self, original: u64, mulpdu: usize) {
        let (Some(job), Some(asked)) = (self.jobs.pop_front(), self.taken.pop_front()) else {
            return;
        };
        let message = match job {
            Job::Read(job) => self.stream.begin_read_response(job),
            Job::Atomic(job) => {
                let code = StreamError::of_atomic(job.stag(), job.to(), AtomicFault::Misaligned);
                let told = Terminate::for_atomic(&code, &job);
                assert_eq!((told.layer(), told.etype(), told.code()), (0, 2, 7));
                assert!(told.rdma_header().is_none() && told.is_about_request());
                self.stream.begin_atomic_response(job, original)
            }
        };
        if !self.sends {
            return nothing(message);
        }
        match asked {
            Asked::Read {
                sink_stag,
                sink_to,
                len,
                ..
            } => {
                // Skips the segments of Reads of 1 MiB or more, which would take too long.
                if len < 1 << 20 {
                    let progress = message.read_response_progress();
                    assert!(
                        progress.is_some_and(|(request, sent)| request.len == len && sent == 0)
                    );
                    tagged(message, mulpdu, 2, sink_stag, sink_to, len);
                }
            }
            Asked::Atomic { id, .. } => {
                let mut bytes = id.to_be_bytes().to_vec();
                bytes.extend_from_slice(&original.to_be_bytes());
                headed(message, 11, 3, self.response_msn, &bytes);
                self.response_msn = self.response_msn.wrapping_add(1);
            }
        }
        self.stream.response_sent();
        self.judge.answering -= 1;
    }

    /// Closes the connection: the stream's half if `ours`, otherwise the peer's half.
    pub(crate) fn close(&mut self, ours: bool) {
        if ours {
            self.stream.close();
            // After its own close the stream sends nothing, in whatever state it was.
            self.sends = false;
        } else {
            self.stream.peer_closed();
            self.judge.ended.get_or_insert(None);
        }
    }
}

/// Checks the operation of a request by its effect on sample words. A parsed FetchAdd does not keep
/// the compare fields of its header, so the fields cannot be compared.
fn same_effect(job: &AtomicJob, data: [u64; 4], swap: bool) {
    let [add, mask, compare, compare_mask] = data;
    for word in [
        0,
        1,
        u64::MAX,
        add,
        compare,
        !compare,
        compare ^ compare_mask,
        compare ^ !compare_mask,
        0x8000_0000_8000_0000,
    ] {
        let wanted = if swap {
            compare_swap(word, data)
        } else {
            fetch_add(word, add, mask)
        };
        assert_eq!(job.op().apply(word), wanted, "{:?}", job.op());
    }
}

//! A stream of `uwarp-rdmap` and its memory, played beside the model: what the targets about messages have in common.

mod wire;

use std::collections::VecDeque;

use uwarp_ddp::{STag, TaggedFault, TaggedOffset, TaggedRange};
use uwarp_rdmap::{
    AtomicFault, AtomicOp, HEAD_LEN, Inbound, Job, Memory, ReadRequestHeader, SendKind, Stream,
    StreamConfig, StreamError, Terminate,
};

use crate::model::memory::{Region, Right, regions};
use crate::model::stream::{Asked, Code, Event, Judge, Waiting};
use crate::words::{added, swapped};
use wire::{headed, meaning, nothing, tagged, terminate, untagged};

/// What lies around every receive and every sink: nobody may touch it.
const GUARD: usize = 8;
/// Our own messages are shorter.
const LONGEST: u32 = 10_000;
/// What memory holds that nothing was placed into.
const UNTOUCHED: u8 = 0xC3;

/// The memory as its owner has it: the checks are made with the arithmetic of `uwarp-ddp`.
#[derive(Debug)]
struct Owner {
    regions: Vec<Region>,
    receives: VecDeque<Vec<u8>>,
}

impl Owner {
    fn check(
        &self,
        stag: STag,
        to: u64,
        len: u32,
        right: Right,
    ) -> Result<(usize, usize), TaggedFault> {
        let found = self.regions.iter().position(|region| region.stag == stag.0);
        let index = found.ok_or(TaggedFault::InvalidSTag)?;
        let region = &self.regions[index];
        if !region.associated {
            return Err(TaggedFault::NotAssociated);
        }
        if !region.rights.contains(&right) {
            return Err(TaggedFault::AccessRights);
        }
        let range = TaggedRange {
            base: TaggedOffset(region.base),
            len: region.octets.len() as u64,
        };
        let place = range.locate(TaggedOffset(to), len)?;
        assert_eq!(place.end - place.start, u64::from(len));
        Ok((
            index,
            usize::try_from(place.start).expect("regions are short"),
        ))
    }
}

impl Memory for Owner {
    type Target = (usize, usize);

    fn check_write(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        assert!(len > 0, "a length of 0 is not checked");
        self.check(stag, to, len, Right::Write)
    }

    fn check_read(&self, stag: STag, to: u64, len: u32) -> Result<Self::Target, TaggedFault> {
        assert!(len > 0, "a length of 0 is not checked");
        self.check(stag, to, len, Right::Read)
    }

    fn check_atomic(&self, stag: STag, to: u64) -> Result<Self::Target, AtomicFault> {
        let place = self.check(stag, to, 8, Right::Atomic)?;
        if place.1.is_multiple_of(8) {
            Ok(place)
        } else {
            Err(AtomicFault::Misaligned)
        }
    }

    fn check_invalidate(&self, stag: STag) -> Result<(), TaggedFault> {
        let found = self.regions.iter().find(|region| region.stag == stag.0);
        match found {
            None => Err(TaggedFault::InvalidSTag),
            Some(region) if !region.associated => Err(TaggedFault::NotAssociated),
            Some(region) if !region.rights.contains(&Right::Invalidate) => {
                Err(TaggedFault::AccessRights)
            }
            Some(_) => Ok(()),
        }
    }

    fn receive_buffer(&self) -> Option<u32> {
        self.receives
            .front()
            .map(|buffer| (buffer.len() - 2 * GUARD) as u32)
    }
}

/// The buffers that segments go to, twice: as the stream says, and as the model says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    regions: Vec<Vec<u8>>,
    receive: Option<Vec<u8>>,
    sinks: VecDeque<Vec<u8>>,
    /// Sends that were delivered, by their octets.
    delivered: Vec<Vec<u8>>,
}

/// A stream, its memory, and the model of both.
#[derive(Debug)]
pub(crate) struct Play {
    stream: Stream,
    owner: Owner,
    /// Sinks of our Reads, oldest first, with their guards.
    sinks: VecDeque<Vec<u8>>,
    delivered: Vec<Vec<u8>>,
    jobs: VecDeque<Job>,

    judge: Judge,
    model: Placed,
    ord: u16,
    /// Whether we may still send.
    sends: bool,
    send_msn: u32,
    request_msn: u32,
    response_msn: u32,
    atomic_id: u32,
    /// Requests of the peer that were taken, oldest first.
    taken: VecDeque<Asked>,
    error: Option<StreamError>,
}

fn buffer(len: usize) -> Vec<u8> {
    vec![UNTOUCHED; len + 2 * GUARD]
}

fn place(buffer: &mut [u8], at: usize, payload: &[u8]) {
    buffer[at..at + payload.len()].copy_from_slice(payload);
}

/// Whether nothing was ever placed into a buffer. Compared as a whole: octet by octet it would take most of the time.
fn untouched(buffer: &[u8]) -> bool {
    const PIECE: [u8; 1024] = [UNTOUCHED; 1024];
    buffer
        .chunks(PIECE.len())
        .all(|chunk| chunk == &PIECE[..chunk.len()])
}

impl Play {
    /// A stream with these depths. Nothing was received yet, and two receives are posted.
    pub(crate) fn new(ird: u16, ord: u16) -> Self {
        let regions = regions();
        let model = Placed {
            regions: regions.iter().map(|region| region.octets.clone()).collect(),
            receive: None,
            sinks: VecDeque::new(),
            delivered: Vec::new(),
        };
        let mut play = Self {
            stream: Stream::new(StreamConfig { ird, ord }),
            owner: Owner {
                regions,
                receives: VecDeque::new(),
            },
            sinks: VecDeque::new(),
            delivered: Vec::new(),
            jobs: VecDeque::new(),
            judge: Judge::new(ird),
            model,
            ord,
            sends: true,
            send_msn: 1,
            request_msn: 1,
            response_msn: 1,
            atomic_id: 1,
            taken: VecDeque::new(),
            error: None,
        };
        play.post(2000);
        play.post(64);
        play
    }

    /// What the model knows of the receiving half: for inputs that want to be nearly right.
    pub(crate) const fn judge(&self) -> &Judge {
        &self.judge
    }

    /// Posts a receive.
    pub(crate) fn post(&mut self, len: u16) {
        self.owner.receives.push_back(buffer(len.into()));
    }

    /// A ULPDU arrives.
    pub(crate) fn receive(&mut self, ulpdu: &[u8]) {
        let head = &ulpdu[..ulpdu.len().min(HEAD_LEN)];
        let takes = self.stream.takes_receive(head);
        let posted = self.owner.receive_buffer();
        let first = self.judge.under_way.is_none();
        let wanted = self.judge.receive(&self.owner.regions, posted, ulpdu);
        let got = self.stream.receive(&self.owner, head, ulpdu.len());
        match (got, wanted) {
            (Ok(inbound), Ok(event)) => {
                let begins = first && matches!(event, Event::Send { .. } | Event::Immediate { .. });
                assert_eq!(takes, begins, "{inbound:?}");
                assert_eq!(meaning(&inbound), event);
                if event == Event::Terminate {
                    self.sends = false;
                }
                self.place_by_stream(&inbound, ulpdu);
                self.place_by_model(&event, ulpdu, posted);
            }
            (Err(error), Err(code)) => self.refused(error, code, ulpdu),
            (got, wanted) => panic!("the stream says {got:?}, the model {wanted:?}"),
        }
    }

    /// The stream has ended, now or before.
    fn refused(&mut self, error: StreamError, code: Option<Code>, ulpdu: &[u8]) {
        assert!(!error.to_string().is_empty());
        if let Some(first) = self.error {
            assert_eq!(error, first, "the first error stays");
            return;
        }
        let found = error
            .terminate_code()
            .map(|code| (code.layer, code.etype, code.code));
        assert_eq!(found, code, "{error}");
        if error != StreamError::Ended {
            assert_eq!(self.stream.error(), Some(error));
            self.error = Some(error);
            self.sends = false;
        }
        let _ = error.requirement();
        terminate(&error, ulpdu, code);
    }

    fn place_by_stream(&mut self, inbound: &Inbound<(usize, usize)>, ulpdu: &[u8]) {
        match *inbound {
            Inbound::Write {
                target,
                payload_at,
                len,
                ..
            } => {
                if let Some((region, at)) = target {
                    let payload = &ulpdu[payload_at..payload_at + len as usize];
                    self.owner.regions[region].octets[at..at + payload.len()]
                        .copy_from_slice(payload);
                }
            }
            Inbound::Send {
                payload_at,
                offset,
                len,
                delivered,
            } => {
                let payload = &ulpdu[payload_at..payload_at + len as usize];
                let receive = self
                    .owner
                    .receives
                    .front_mut()
                    .expect("there was a receive");
                let at = GUARD + offset as usize;
                receive[at..at + payload.len()].copy_from_slice(payload);
                if delivered.is_some() {
                    self.delivered.extend(self.owner.receives.pop_front());
                }
            }
            Inbound::Immediate { .. } => self.delivered.extend(self.owner.receives.pop_front()),
            Inbound::ReadResponse {
                payload_at,
                offset,
                len,
                complete,
            } => {
                let payload = &ulpdu[payload_at..payload_at + len as usize];
                let sink = self.sinks.front_mut().expect("there was a Read");
                let at = GUARD + offset as usize;
                sink[at..at + payload.len()].copy_from_slice(payload);
                if complete {
                    self.delivered.extend(self.sinks.pop_front());
                }
            }
            Inbound::ReadRequest | Inbound::AtomicRequest => {
                assert!(self.stream.requests_pending());
            }
            Inbound::AtomicResponse { .. } => {}
            Inbound::Terminate(terminate) => assert!(!terminate.to_string().is_empty()),
        }
    }

    fn place_by_model(&mut self, event: &Event, ulpdu: &[u8], posted: Option<u32>) {
        match *event {
            Event::Write {
                place: Some((region, at)),
                payload_at,
                ..
            } => {
                place(&mut self.model.regions[region], at, &ulpdu[payload_at..]);
            }
            Event::Send {
                payload_at,
                offset,
                delivered,
                ..
            } => {
                let len = posted.expect("a Send needs a receive") as usize;
                let receive = self.model.receive.get_or_insert_with(|| buffer(len));
                place(receive, GUARD + offset as usize, &ulpdu[payload_at..]);
                if delivered.is_some() {
                    self.model.delivered.extend(self.model.receive.take());
                }
            }
            Event::Immediate { .. } => {
                let len = posted.expect("Immediate Data needs a receive") as usize;
                self.model.delivered.push(buffer(len));
            }
            Event::ReadResponse {
                payload_at,
                offset,
                complete,
                ..
            } => {
                let sink = self.model.sinks.front_mut().expect("there was a Read");
                place(sink, GUARD + offset as usize, &ulpdu[payload_at..]);
                if complete {
                    self.model.delivered.extend(self.model.sinks.pop_front());
                }
            }
            Event::Write { place: None, .. }
            | Event::ReadRequest
            | Event::AtomicRequest
            | Event::AtomicResponse { .. }
            | Event::Terminate => {}
        }
    }

    /// No octet of any memory differs from the model's.
    pub(crate) fn check(&mut self) {
        for (region, model) in self.owner.regions.iter().zip(&self.model.regions) {
            assert!(&region.octets == model, "region {:#x}", region.stag);
        }
        assert_eq!(self.sinks, self.model.sinks);
        // What was delivered is the application's, and nothing of the stream any more.
        assert_eq!(self.delivered, self.model.delivered);
        self.delivered.clear();
        self.model.delivered.clear();
        for (index, receive) in self.owner.receives.iter().enumerate() {
            match &self.model.receive {
                Some(model) if index == 0 => assert_eq!(receive, model),
                _ => assert!(untouched(receive), "a receive that is not under way"),
            }
        }
        assert_eq!(self.stream.requests_outstanding(), self.judge.waiting.len());
        assert_eq!(self.stream.state().receives(), self.judge.ended.is_none());
        assert_eq!(self.stream.state().sends(), self.sends);
    }

    /// We send a message of each kind; its segments have the octets that the figures of the RFCs show.
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
                let mut octets = (stag ^ 0x55).to_be_bytes().to_vec();
                octets.extend_from_slice(&to.wrapping_mul(3).to_be_bytes());
                octets.extend_from_slice(&len.to_be_bytes());
                octets.extend_from_slice(&stag.to_be_bytes());
                octets.extend_from_slice(&to.to_be_bytes());
                headed(message, 1, 1, self.request_msn, &octets);
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
                let mut octets = vec![0, 0, 0, if swap { 2 } else { 0 }];
                octets.extend_from_slice(&self.atomic_id.to_be_bytes());
                octets.extend_from_slice(&stag.to_be_bytes());
                octets.extend_from_slice(&to.to_be_bytes());
                let words = if swap {
                    [to, data << 1, data, !data]
                } else {
                    [data, to, 0, u64::MAX]
                };
                words
                    .iter()
                    .for_each(|word| octets.extend_from_slice(&word.to_be_bytes()));
                headed(message, 10, 1, self.request_msn, &octets);
                self.asked();
                self.judge
                    .waiting
                    .push_back(Waiting::Atomic { id: self.atomic_id });
                self.atomic_id = self.atomic_id.wrapping_add(1);
            }
        }
    }

    /// A request of ours is outstanding; the ones before it can be told by their MSN.
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

    /// Takes the peer's next request.
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
                // What the operation does to a word is compared; its mask of a FetchAdd is not sent twice.
                let Some(Asked::Atomic {
                    id,
                    data: [data, mask, compare, compare_mask],
                    swap,
                    ..
                }) = asked
                else {
                    panic!("the model has {asked:?}");
                };
                for word in [
                    0,
                    1,
                    u64::MAX,
                    data,
                    compare,
                    !compare,
                    compare ^ compare_mask,
                    compare ^ !compare_mask,
                    0x8000_0000_8000_0000,
                ] {
                    let wanted = if swap {
                        swapped(word, [data, mask, compare, compare_mask])
                    } else {
                        added(word, data, mask)
                    };
                    assert_eq!(job.op().apply(word), wanted, "{:?}", job.op());
                }
                let (stag, to) = (job.stag().0, job.to().0);
                Asked::Atomic {
                    id,
                    stag,
                    to,
                    data: [data, mask, compare, compare_mask],
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

    /// Answers the request that was taken first.
    pub(crate) fn answer(&mut self, original: u64, mulpdu: usize) {
        let (Some(job), Some(asked)) = (self.jobs.pop_front(), self.taken.pop_front()) else {
            return;
        };
        let message = match job {
            Job::Read(job) => self.stream.begin_read_response(job),
            Job::Atomic(job) => {
                let code = StreamError::Atomic(AtomicFault::Misaligned);
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
                // A Read of 4 GiB takes long to answer.
                if len < 1 << 20 {
                    let progress = message.read_response_progress();
                    assert!(
                        progress.is_some_and(|(request, sent)| request.len == len && sent == 0)
                    );
                    tagged(message, mulpdu, 2, sink_stag, sink_to, len);
                }
            }
            Asked::Atomic { id, .. } => {
                let mut octets = id.to_be_bytes().to_vec();
                octets.extend_from_slice(&original.to_be_bytes());
                headed(message, 11, 3, self.response_msn, &octets);
                self.response_msn = self.response_msn.wrapping_add(1);
            }
        }
        self.stream.response_sent();
        self.judge.answering -= 1;
    }

    /// One end closes its half: ours, or the peer's.
    pub(crate) fn close(&mut self, ours: bool) {
        if ours {
            self.stream.close();
            // A close after the peer's, or after an error, is the end.
            self.sends = false;
        } else {
            self.stream.peer_closed();
            self.judge.ended.get_or_insert(None);
        }
    }
}

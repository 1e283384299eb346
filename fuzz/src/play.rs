//! Runs a stream of `uwarp-rdmap` and its memory in parallel with the model. Shared by the targets
//! that test messages.

mod owner;
mod sending;
mod wire;

use std::collections::VecDeque;

use uwarp_rdmap::{Blame, HEAD_LEN, Inbound, Job, Memory, Stream, StreamConfig, StreamError};

use crate::model::memory::regions;
use crate::model::stream::{Asked, Code, Event, Judge};
use owner::Owner;
use wire::{meaning, terminate};

/// Guard bytes before and after every receive buffer and every sink. They must not change.
const GUARD: usize = 8;
/// Initial value of all memory. Bytes into which no segment was placed keep this value.
const UNTOUCHED: u8 = 0xC3;

/// Model's copy of the buffers into which segments are placed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Placed {
    regions: Vec<Vec<u8>>,
    receive: Option<Vec<u8>>,
    sinks: VecDeque<Vec<u8>>,
    /// Receive buffers and sinks whose message is complete.
    delivered: Vec<Vec<u8>>,
}

/// A stream and its memory, and the model of both.
#[derive(Debug)]
pub(crate) struct Play {
    stream: Stream,
    owner: Owner,
    /// Read sinks with their guards, oldest first.
    sinks: VecDeque<Vec<u8>>,
    delivered: Vec<Vec<u8>>,
    jobs: VecDeque<Job>,

    judge: Judge,
    model: Placed,
    ord: u16,
    /// True while the stream may send.
    sends: bool,
    send_msn: u32,
    request_msn: u32,
    response_msn: u32,
    atomic_id: u32,
    /// Requests from the peer that [`Play::take`] has taken and that are not answered yet, oldest
    /// first.
    taken: VecDeque<Asked>,
    error: Option<StreamError>,
}

fn buffer(len: usize) -> Vec<u8> {
    vec![UNTOUCHED; len + 2 * GUARD]
}

fn place(buffer: &mut [u8], at: usize, payload: &[u8]) {
    buffer[at..at + payload.len()].copy_from_slice(payload);
}

/// Returns true if no segment was placed into the buffer. Compares chunks, because a comparison
/// byte by byte would dominate the run time.
fn untouched(buffer: &[u8]) -> bool {
    const PIECE: [u8; 1024] = [UNTOUCHED; 1024];
    buffer
        .chunks(PIECE.len())
        .all(|chunk| chunk == &PIECE[..chunk.len()])
}

impl Play {
    /// Creates a stream with these queue depths and posts two receives.
    pub(crate) fn new(ird: u16, ord: u16) -> Self {
        let regions = regions();
        let model = Placed {
            regions: regions.iter().map(|region| region.bytes.clone()).collect(),
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

    /// Returns the model of the receiving half, which `craft` needs to build nearly valid ULPDUs.
    pub(crate) const fn judge(&self) -> &Judge {
        &self.judge
    }

    /// Posts a receive.
    pub(crate) fn post(&mut self, len: u16) {
        self.owner.receives.push_back(buffer(len.into()));
    }

    /// Delivers a ULPDU to the stream and to the model, and compares their results.
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

    /// Compares an error of the stream, and its Terminate Message, with the model's code.
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
        if let Some(requirement) = error.requirement() {
            assert!(requirement.to_string().contains(requirement.section()));
            assert!(
                !requirement.text().is_empty() && requirement.id().starts_with(requirement.rfc())
            );
        }
        let ours = error == StreamError::Ended;
        assert_eq!(error.blame(), if ours { Blame::Local } else { Blame::Peer });
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
                    self.owner.regions[region].bytes[at..at + payload.len()]
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

    /// Checks that all memory and the state of the stream equal the model's.
    pub(crate) fn check(&mut self) {
        for (region, model) in self.owner.regions.iter().zip(&self.model.regions) {
            assert!(&region.bytes == model, "region {:#x}", region.stag);
        }
        assert_eq!(self.sinks, self.model.sinks);
        // Delivered buffers belong to the application, so they are compared once and then dropped.
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
}

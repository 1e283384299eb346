//! Random operations between two streams, compared with a model that knows only their effects, and
//! no segments or queues.

use super::*;
use alloc::collections::VecDeque;
use proptest::prelude::*;

/// Size in bytes of the target and source regions. Every message is shorter. Small for Miri, which
/// is slow.
const SIZE: usize = if cfg!(miri) { 300 } else { 3000 };
/// Upper bound of the segment sizes in bytes. Longer messages have several segments.
const MULPDU: usize = if cfg!(miri) { 250 } else { 2500 };
/// A side has fewer operations than this.
const OPS: usize = if cfg!(miri) { 8 } else { 14 };
/// A schedule has fewer steps than this.
const STEPS: usize = if cfg!(miri) { 20 } else { 60 };
const TARGET: STag = STag(0xA0);
const SOURCE: STag = STag(0xB0);
const SINK: STag = STag(0xC0);
const WORDS: STag = STag(0xD0);

#[derive(Clone, Debug)]
enum Op {
    Send {
        solicited: bool,
        invalidate: bool,
        len: usize,
    },
    Write {
        at: usize,
        len: usize,
    },
    Read {
        at: usize,
        len: usize,
    },
    Immediate {
        data: [u8; 8],
        solicited: bool,
    },
    Atomic {
        word: usize,
        op: AtomicOp,
    },
}

fn ops() -> impl Strategy<Value = Op> {
    let range = || (0..SIZE, 0..SIZE).prop_map(|(a, b)| (a.min(b), a.max(b) - a.min(b)));
    prop_oneof![
        any::<(bool, bool)>().prop_flat_map(|(solicited, invalidate)| {
            (0..SIZE).prop_map(move |len| Op::Send {
                solicited,
                invalidate,
                len,
            })
        }),
        range().prop_map(|(at, len)| Op::Write { at, len }),
        range().prop_map(|(at, len)| Op::Read { at, len }),
        Just(Op::Read { at: 0, len: 0 }),
        any::<([u8; 8], bool)>().prop_map(|(data, solicited)| Op::Immediate { data, solicited }),
        (0..4usize, crate::atomic::tests::ops()).prop_map(|(word, op)| Op::Atomic { word, op }),
    ]
}

/// Message in progress, with its payload.
struct Current {
    message: OutMessage,
    payload: Vec<u8>,
    response: bool,
}

/// A message that consumed a receive.
#[derive(PartialEq, Eq, Debug)]
struct Delivered {
    bytes: Vec<u8>,
    solicited: bool,
    invalidated: Option<STag>,
    immediate: bool,
}

struct Side {
    stream: Stream,
    memory: ModelMemory,
    todo: VecDeque<Op>,
    current: Option<Current>,
    /// ULPDUs for the peer.
    wire: VecDeque<Vec<u8>>,
    receive: Vec<u8>,
    /// Sinks of outstanding Reads: the bytes that the model expects, and the bytes that arrived.
    sinks: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// For each outstanding Atomic, the value of its word before the operation.
    originals: VecDeque<u64>,
    delivered: Vec<Delivered>,
    fill: u8,
}

impl Side {
    fn new(fill: u8, ird: u16, ord: u16, todo: Vec<Op>) -> Self {
        let region = |stag, bytes, remote_write, remote_atomic| Region {
            stag,
            base: 7,
            bytes,
            remote_write,
            remote_read: !remote_write,
            remote_atomic,
            associated: true,
        };
        let source = (0..SIZE)
            .map(|index| index.wrapping_mul(31) as u8 ^ fill)
            .collect();
        Side {
            stream: Stream::new(StreamConfig { ird, ord }),
            memory: ModelMemory {
                regions: vec![
                    region(TARGET, vec![0; SIZE], true, false),
                    region(SOURCE, source, false, false),
                    Region {
                        base: 64,
                        ..region(WORDS, vec![fill; 32], false, true)
                    },
                ],
                receive: Some(SIZE as u32),
            },
            todo: todo.into(),
            current: None,
            wire: VecDeque::new(),
            receive: vec![0; SIZE],
            sinks: VecDeque::new(),
            originals: VecDeque::new(),
            delivered: Vec::new(),
            fill,
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.fill = self.fill.wrapping_add(17);
        (0..len)
            .map(|index| (index as u8).wrapping_mul(3) ^ self.fill)
            .collect()
    }

    fn answer(&mut self, job: Job) {
        let (message, payload) = match job {
            Job::Read(job) => {
                let request = *job.header();
                let at = (request.source_to.0 as usize).saturating_sub(7);
                let payload = self.memory.regions[1].bytes[at..at + request.len as usize].to_vec();
                (self.stream.begin_read_response(job), payload)
            }
            Job::Atomic(job) => {
                let (_, at) = self.memory.check_atomic(job.stag(), job.to().0).unwrap();
                let word = self.memory.regions[2].bytes[at..]
                    .first_chunk_mut()
                    .unwrap();
                let original = u64::from_ne_bytes(*word);
                *word = job.op().apply(original).to_ne_bytes();
                (self.stream.begin_atomic_response(job, original), vec![])
            }
        };
        self.current = Some(Current {
            message,
            payload,
            response: true,
        });
    }

    /// Begins the next message. The answer to a request of the peer comes first.
    fn begin(&mut self, model: &mut Model) {
        if let Some(job) = self.stream.next_request() {
            return self.answer(job);
        }
        if matches!(self.todo.front(), Some(Op::Read { .. } | Op::Atomic { .. }))
            && !self.stream.ord_available()
        {
            return;
        }
        let Some(op) = self.todo.pop_front() else {
            return;
        };
        let (message, payload) = match op {
            Op::Send {
                solicited,
                invalidate,
                len,
            } => {
                let payload = self.bytes(len);
                let invalidate = invalidate.then_some(TARGET);
                model.sent.push(Delivered {
                    bytes: payload.clone(),
                    solicited,
                    invalidated: invalidate,
                    immediate: false,
                });
                let kind = SendKind {
                    solicited,
                    invalidate,
                };
                (self.stream.begin_send(kind, len as u32), payload)
            }
            Op::Write { at, len } => {
                let payload = self.bytes(len);
                model.written[at..at + len].copy_from_slice(&payload);
                let to = TaggedOffset(7 + at as u64);
                (self.stream.begin_write(TARGET, to, len as u32), payload)
            }
            Op::Read { at, len } => {
                self.sinks
                    .push_back((model.source[at..at + len].to_vec(), vec![0; len]));
                let header = ReadRequestHeader {
                    sink_stag: SINK,
                    sink_to: TaggedOffset(u64::MAX - 5),
                    len: len as u32,
                    source_stag: SOURCE,
                    source_to: TaggedOffset(7 + at as u64),
                };
                (self.stream.begin_read(header).unwrap(), Vec::new())
            }
            Op::Immediate { data, solicited } => {
                model.sent.push(Delivered {
                    bytes: data.to_vec(),
                    solicited,
                    invalidated: None,
                    immediate: true,
                });
                (self.stream.begin_immediate(data, solicited), Vec::new())
            }
            Op::Atomic { word, op } => {
                let original = model.words[word];
                self.originals.push_back(original);
                model.words[word] = op.apply(original);
                let to = TaggedOffset(64 + 8 * word as u64);
                let message = self.stream.begin_atomic(WORDS, to, op).unwrap();
                (message, Vec::new())
            }
        };
        self.current = Some(Current {
            message,
            payload,
            response: false,
        });
    }

    /// Puts one segment on the wire. Returns false if there is nothing to send.
    fn send(&mut self, mulpdu: usize, model: &mut Model) -> bool {
        if self.current.is_none() {
            self.begin(model);
        }
        let Some(current) = &mut self.current else {
            return false;
        };
        let mut header = [0; MAX_HEADER];
        let segment = current.message.next_segment(mulpdu, &mut header).unwrap();
        let mut ulpdu = header[..segment.header_len].to_vec();
        ulpdu.extend_from_slice(&current.payload[segment.range()]);
        assert!(ulpdu.len() <= mulpdu);
        self.wire.push_back(ulpdu);
        if segment.last {
            if current.response {
                self.stream.response_sent();
            }
            self.current = None;
        }
        true
    }

    fn take(&mut self, ulpdu: &[u8]) {
        match receive(&mut self.stream, &self.memory, ulpdu).unwrap() {
            Inbound::Write {
                target,
                payload_at,
                len,
                ..
            } => {
                assert_eq!(target.is_none(), len == 0);
                if let Some(place) = target {
                    self.memory.place(place, &ulpdu[payload_at..]);
                }
            }
            Inbound::Send {
                payload_at,
                offset,
                len,
                delivered,
            } => {
                let (at, len) = (offset as usize, len as usize);
                self.receive[at..at + len].copy_from_slice(&ulpdu[payload_at..]);
                if let Some(SendDelivered {
                    len,
                    solicited,
                    invalidated,
                }) = delivered
                {
                    let bytes = self.receive[..len as usize].to_vec();
                    self.delivered.push(Delivered {
                        bytes,
                        solicited,
                        invalidated,
                        immediate: false,
                    });
                    self.receive.fill(0xEE);
                }
            }
            Inbound::ReadRequest | Inbound::AtomicRequest => {}
            Inbound::Immediate { data, solicited } => self.delivered.push(Delivered {
                bytes: data.to_vec(),
                solicited,
                invalidated: None,
                immediate: true,
            }),
            Inbound::AtomicResponse { original } => {
                assert_eq!(self.originals.pop_front(), Some(original));
            }
            Inbound::ReadResponse {
                payload_at,
                offset,
                len,
                complete,
            } => {
                let (expected, sink) = self.sinks.front_mut().unwrap();
                let (at, len) = (offset as usize, len as usize);
                sink[at..at + len].copy_from_slice(&ulpdu[payload_at..]);
                if complete {
                    assert_eq!(expected, sink);
                    self.sinks.pop_front();
                }
            }
            Inbound::Terminate(terminate) => panic!("{terminate}"),
        }
    }
}

/// Effects that one side's operations must have at the other side.
struct Model {
    written: Vec<u8>,
    source: Vec<u8>,
    words: [u64; 4],
    sent: Vec<Delivered>,
}

fn model_of(peer: &Side) -> Model {
    Model {
        written: vec![0; SIZE],
        source: peer.memory.regions[1].bytes.clone(),
        words: [u64::from_ne_bytes([peer.fill; 8]); 4],
        sent: vec![],
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 96 }))]

    #[test]
    fn two_streams_do_what_the_model_does(
        left in proptest::collection::vec(ops(), 0..OPS),
        right in proptest::collection::vec(ops(), 0..OPS),
        reads in (1u16..4, 1u16..4),
        schedule in proptest::collection::vec((0u8..4, 128usize..MULPDU), 1..STEPS),
    ) {
        let mut sides = [
            Side::new(0x55, reads.0, reads.1, left),
            Side::new(0xAA, reads.1, reads.0, right),
        ];
        let mut models = [model_of(&sides[1]), model_of(&sides[0])];
        let mut quiet = 0;
        for (what, mulpdu) in schedule.iter().cycle() {
            let side = usize::from(what & 1);
            let progress = if what & 2 == 0 {
                sides[side].send(*mulpdu, &mut models[side])
            } else {
                let ulpdu = sides[side ^ 1].wire.pop_front();
                ulpdu.as_ref().map(|ulpdu| sides[side].take(ulpdu)).is_some()
            };
            quiet = if progress { 0 } else { quiet + 1 };
            if quiet > schedule.len() {
                // The schedule may leave actions undone, so each action is tried here until none is
                // left.
                let mut any = false;
                for side in 0..2 {
                    any |= sides[side].send(*mulpdu, &mut models[side]);
                    while let Some(ulpdu) = sides[side].wire.pop_front() {
                        sides[side ^ 1].take(&ulpdu);
                        any = true;
                    }
                }
                if !any {
                    break;
                }
                quiet = 0;
            }
        }
        for side in 0..2 {
            let (ours, theirs, model) = (&sides[side], &sides[side ^ 1], &models[side]);
            prop_assert!(ours.todo.is_empty() && ours.sinks.is_empty() && ours.originals.is_empty());
            let words: Vec<u8> = model.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            prop_assert_eq!(&theirs.memory.regions[2].bytes, &words);
            prop_assert_eq!(ours.stream.requests_outstanding(), 0);
            prop_assert!(ours.stream.ord_available());
            prop_assert_eq!(&theirs.memory.regions[0].bytes, &model.written);
            prop_assert_eq!(&theirs.delivered, &model.sent);
            prop_assert_eq!(ours.stream.state(), StreamState::Operational);
        }
    }
}

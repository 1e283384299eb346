//! Model of the device: expected memory, completions and responses.

use std::collections::VecDeque;

use uwarp_verbs::WcOpcode;

use super::{IRD, SLOT, SLOTS, UNTOUCHED};
use crate::atomics::{compare_swap, fetch_add};
use crate::model::fpdu::{End, open};
use crate::model::memory::Region;
use crate::model::stream::{Asked, Event, Judge, Waiting};

/// A response that the device must send.
#[derive(Debug)]
pub(super) enum Due {
    Read { stag: u32, to: u64, bytes: Vec<u8> },
    Atomic { id: u32, original: u64 },
}

/// Received message: length in bytes, invalidated STag, Immediate Data, and whether it was
/// solicited.
pub(super) type Received = (u32, Option<u32>, Option<[u8; 8]>, bool);

/// A successful completion that is due on a queue.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) wr_id: u64,
    /// Set for receives only.
    pub(super) recv: Option<Received>,
    pub(super) opcode: WcOpcode,
}

/// Model of the device and the stream.
pub(super) struct Model {
    pub(super) judge: Judge,
    /// Regions, with the STags that the device assigned. Invalidation clears `valid`.
    pub(super) regions: Vec<Region>,
    pub(super) receives: Vec<u8>,
    pub(super) sinks: Vec<u8>,
    /// Posted receives: slot and length.
    pub(super) posted: VecDeque<(u64, u32)>,
    pub(super) next_receive: u64,
    /// Slots of the device's outstanding Reads and atomics.
    pub(super) asking: VecDeque<u64>,
    pub(super) next_request: u64,
    pub(super) due: VecDeque<Due>,
    pub(super) done_send: VecDeque<Done>,
    pub(super) done_recv: VecDeque<Done>,
    /// Number of ULPDUs from the peer that the model has processed.
    pub(super) taken: usize,
    /// All bytes that the device has sent.
    pub(super) sent: Vec<u8>,
    /// Number of ULPDUs from the device that were checked.
    pub(super) seen: usize,
    pub(super) response_msn: u32,
    pub(super) request_msn: u32,
    pub(super) terminated: bool,
    /// Number of failed completions on the send queue and on the receive queue.
    pub(super) flushed: [usize; 2],
}

fn number(bytes: &[u8], at: usize, len: usize) -> u64 {
    bytes[at..at + len]
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

impl Model {
    pub(super) fn new(regions: Vec<Region>) -> Self {
        Self {
            judge: Judge::new(IRD),
            regions,
            receives: vec![UNTOUCHED; SLOT * SLOTS],
            sinks: vec![UNTOUCHED; SLOT * SLOTS],
            posted: VecDeque::new(),
            next_receive: 0,
            asking: VecDeque::new(),
            next_request: 0,
            due: VecDeque::new(),
            done_send: VecDeque::new(),
            done_recv: VecDeque::new(),
            taken: 0,
            sent: Vec::new(),
            seen: 0,
            response_msn: 1,
            request_msn: 1,
            terminated: false,
            flushed: [0; 2],
        }
    }

    /// Takes the whole stream of the peer so far. Processes its new ULPDUs, and records the error
    /// if the stream is invalid.
    pub(super) fn arrive(&mut self, stream: &[u8], crc: bool, markers: bool) {
        let (ulpdus, end) = open(stream, crc, markers);
        for opened in ulpdus.iter().skip(self.taken) {
            self.receive(&opened.ulpdu);
        }
        self.taken = ulpdus.len();
        let code = match end {
            End::More => return,
            End::Crc(_) => 2,
            End::Marker(_) | End::Length(..) => 3,
        };
        self.judge.ended.get_or_insert(Some((2, 0, code)));
    }

    fn receive(&mut self, ulpdu: &[u8]) {
        let posted = self.posted.front().map(|(_, len)| *len);
        let Ok(event) = self.judge.receive(&self.regions, posted, ulpdu) else {
            return;
        };
        match event {
            Event::Write {
                place: Some((region, at)),
                payload_at,
                ..
            } => {
                let payload = &ulpdu[payload_at..];
                self.regions[region].bytes[at..at + payload.len()].copy_from_slice(payload);
            }
            Event::Send {
                payload_at,
                offset,
                delivered,
                ..
            } => {
                let (slot, _) = self.posted[0];
                let at = slot as usize * SLOT + offset as usize;
                let payload = &ulpdu[payload_at..];
                self.receives[at..at + payload.len()].copy_from_slice(payload);
                if let Some((len, solicited, invalidated)) = delivered {
                    let gone = self
                        .regions
                        .iter_mut()
                        .find(|region| Some(region.stag) == invalidated);
                    if let Some(region) = gone {
                        region.valid = false;
                    }
                    self.received(WcOpcode::Recv, (len, invalidated, None, solicited));
                }
            }
            Event::Immediate { data, solicited } => {
                self.received(WcOpcode::RecvImmediate, (0, None, Some(data), solicited));
            }
            Event::ReadResponse {
                payload_at,
                offset,
                complete,
                ..
            } => {
                let at = self.asking[0] as usize * SLOT + offset as usize;
                let payload = &ulpdu[payload_at..];
                self.sinks[at..at + payload.len()].copy_from_slice(payload);
                if complete {
                    self.answered(WcOpcode::RdmaRead);
                }
            }
            Event::AtomicResponse { original } => {
                let at = self.asking[0] as usize * SLOT;
                self.sinks[at..at + 8].copy_from_slice(&original.to_ne_bytes());
                self.answered(WcOpcode::FetchAdd);
            }
            Event::ReadRequest | Event::AtomicRequest => self.asked(),
            Event::Write { place: None, .. } | Event::Terminate => {}
        }
    }

    fn received(&mut self, opcode: WcOpcode, recv: Received) {
        let (wr_id, _) = self.posted.pop_front().expect("it took a receive");
        self.done_recv.push_back(Done {
            wr_id,
            recv: Some(recv),
            opcode,
        });
    }

    fn answered(&mut self, opcode: WcOpcode) {
        let wr_id = self.asking.pop_front().expect("it was asked for");
        self.done_send.push_back(Done {
            wr_id,
            recv: None,
            opcode,
        });
    }

    /// Executes a request from the peer and queues the response that is due.
    fn asked(&mut self) {
        let place = |regions: &[Region], stag: u32| {
            regions
                .iter()
                .position(|region| region.valid && region.stag == stag)
        };
        match self.judge.asked.pop_front().expect("it was just taken") {
            Asked::Read {
                sink_stag,
                sink_to,
                len,
                stag,
                to,
            } => {
                let mut bytes = Vec::new();
                if len > 0 {
                    let region = &self.regions[place(&self.regions, stag).expect("it was checked")];
                    let at = (to - region.base) as usize;
                    bytes.extend_from_slice(&region.bytes[at..at + len as usize]);
                }
                self.due.push_back(Due::Read {
                    stag: sink_stag,
                    to: sink_to,
                    bytes,
                });
            }
            Asked::Atomic {
                id,
                stag,
                to,
                data: [data, mask, compare, compare_mask],
                swap,
            } => {
                let index = place(&self.regions, stag).expect("it was checked");
                let region = &mut self.regions[index];
                let at = (to - region.base) as usize;
                let word: [u8; 8] = region.bytes[at..at + 8].try_into().expect("8 bytes");
                let original = u64::from_ne_bytes(word);
                let after = if swap {
                    compare_swap(original, [data, mask, compare, compare_mask])
                } else {
                    fetch_add(original, data, mask)
                };
                region.bytes[at..at + 8].copy_from_slice(&after.to_ne_bytes());
                self.due.push_back(Due::Atomic { id, original });
            }
        }
    }

    /// Checks a ULPDU that the device sent. For a request, records the expected response.
    pub(super) fn sent(&mut self, ulpdu: &[u8]) {
        assert!(!self.terminated, "nothing follows a Terminate Message");
        let (control, opcode) = (ulpdu[0], ulpdu[1] & 15);
        assert_eq!(
            (control & 0x3F, ulpdu[1] >> 4),
            (1, 4),
            "versions, and reserved bits"
        );
        let last = control & 0x40 != 0;
        let numbers = (number(ulpdu, 6, 4), number(ulpdu, 10, 4));
        match opcode {
            2 => self.response(ulpdu, last),
            11 => {
                assert_eq!(numbers, (3, u64::from(self.response_msn)));
                self.response_msn += 1;
                let due = self.due.pop_front();
                let Some(Due::Atomic { id, original }) = due else {
                    panic!("an Atomic Response was sent, due was {due:?}");
                };
                assert_eq!(
                    (number(ulpdu, 18, 4), number(ulpdu, 22, 8)),
                    (id.into(), original)
                );
            }
            1 | 10 => {
                assert_eq!((numbers, last), ((1, u64::from(self.request_msn)), true));
                self.request_msn += 1;
                self.judge.waiting.push_back(if opcode == 1 {
                    Waiting::Read {
                        stag: number(ulpdu, 18, 4) as u32,
                        to: number(ulpdu, 22, 8),
                        len: number(ulpdu, 30, 4) as u32,
                        got: 0,
                    }
                } else {
                    Waiting::Atomic {
                        id: number(ulpdu, 22, 4) as u32,
                    }
                });
            }
            7 => {
                let code = (ulpdu[18] >> 4, ulpdu[18] & 15, ulpdu[19]);
                assert_eq!((numbers, last), ((2, 1), true));
                assert_eq!(self.judge.ended, Some(Some(code)), "the Terminate Message");
                self.terminated = true;
            }
            other => panic!("a message with opcode {other} was sent"),
        }
    }

    fn response(&mut self, ulpdu: &[u8], last: bool) {
        let Some(Due::Read { stag, to, bytes }) = self.due.front_mut() else {
            panic!("a Read Response was sent, due was {:?}", self.due.front());
        };
        assert_eq!(
            (number(ulpdu, 2, 4), number(ulpdu, 6, 8)),
            (u64::from(*stag), *to)
        );
        let payload = &ulpdu[14..];
        assert!(
            bytes.starts_with(payload),
            "a Read Response has other bytes than memory"
        );
        bytes.drain(..payload.len());
        *to = to.wrapping_add(payload.len() as u64);
        assert_eq!(last, bytes.is_empty());
        if last {
            self.due.pop_front();
        }
    }
}

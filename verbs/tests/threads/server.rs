//! The server: an SRQ, two CQs on one channel, threads that accept, and threads that receive.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use uwarp_verbs::{
    AcceptOptions, Access, Completion, CompletionChannel, Cq, Listener, MemoryRegion, Notify,
    OnNoReceive, Qp, RecvWr, RemoteBuffer, Srq, SrqAttr, Status, WcOpcode,
};

use crate::common::{LIMIT, Side, pattern, slice};
use crate::ledger::Life;
use crate::{CLIENTS, LIVES, ROUNDS};

/// Length of a Send in bytes.
pub(crate) const MESSAGE: usize = 96;
/// Length in bytes of the memory that is lent to a connection.
pub(crate) const LENT: usize = 3000;
/// Number of receives in the SRQ.
const SLOTS: u64 = 64;

/// Identity of one message of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Word {
    pub(crate) life: Life,
    pub(crate) round: u32,
}

impl Word {
    pub(crate) fn immediate(self) -> [u8; 8] {
        let Life { client, number } = self.life;
        (u64::from(client) << 40 | u64::from(number) << 20 | u64::from(self.round)).to_be_bytes()
    }

    fn from_immediate(bytes: [u8; 8]) -> Self {
        let all = u64::from_be_bytes(bytes);
        let field = |shift: u32| (all >> shift & 0xF_FFFF) as u32;
        Word {
            life: Life {
                client: field(40),
                number: field(20),
            },
            round: field(0),
        }
    }
}

/// Returns the payload of the Send for `word`: the 8 bytes that identify `word`, and a pattern
/// derived from them.
pub(crate) fn message(word: Word) -> Vec<u8> {
    let name = word.immediate();
    let mut bytes = name.to_vec();
    bytes.extend(pattern(u64::from_be_bytes(name), MESSAGE - 8));
    bytes
}

/// Memory that is lent to a connection. Its addresses start at 0.
#[derive(Clone, Copy)]
pub(crate) struct PeerRegions {
    pub(crate) rkey: u32,
}

impl PeerRegions {
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        PeerRegions {
            rkey: u32::from_be_bytes(bytes.try_into().unwrap()),
        }
    }
}

/// A connection that the server has accepted.
struct Accepted {
    life: Life,
    qp: Qp,
    lent: MemoryRegion,
}

pub(crate) struct Server<'a> {
    side: &'a Side,
    srq: Srq,
    channel: CompletionChannel,
    cqs: [Cq; 2],
    slots: MemoryRegion,
    counter: MemoryRegion,
    /// Number of connections that were accepted, or are being accepted.
    begun: AtomicU32,
    accepted: Mutex<Vec<Accepted>>,
    seen: Mutex<HashSet<Word>>,
    /// STag that a client has invalidated, for each QP.
    invalidated: Mutex<HashMap<u32, u32>>,
    counted: Mutex<HashSet<u64>>,
}

impl<'a> Server<'a> {
    pub(crate) fn new(side: &'a Side) -> Self {
        let channel = side.device.create_channel().unwrap();
        let cqs = [0, 1].map(|number| side.device.create_cq_on(4096, &channel, number).unwrap());
        let max_wr = SLOTS as u32;
        let srq = side
            .pd
            .create_srq(SrqAttr::default().max_wr(max_wr))
            .unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
        let server = Server {
            side,
            srq,
            channel,
            cqs,
            slots: side.blank(SLOTS as usize * MESSAGE),
            counter: side.pd.register(vec![0; 8], rights).unwrap(),
            begun: AtomicU32::new(0),
            accepted: Mutex::default(),
            seen: Mutex::default(),
            invalidated: Mutex::default(),
            counted: Mutex::default(),
        };
        (0..SLOTS).for_each(|slot| server.post(slot));
        server
    }

    pub(crate) fn cq(&self, index: usize) -> &Cq {
        &self.cqs[index]
    }

    pub(crate) fn counter(&self) -> RemoteBuffer {
        self.counter.remote()
    }

    fn post(&self, slot: u64) {
        let sges = [self.slots.sge(slot * MESSAGE as u64, MESSAGE as u32)];
        self.srq.post_recv(&RecvWr::new(slot, &sges)).unwrap();
    }

    /// Records the original value that an addition returned. Each value may occur only once.
    pub(crate) fn counted(&self, before: u64) {
        let new = self.counted.lock().unwrap().insert(before);
        assert!(new, "two additions found {before}");
    }

    /// Accepts connections until all acceptors together have accepted `total`.
    pub(crate) fn accept(&self, listener: &Listener, total: u32) {
        while self.begun.fetch_add(1, Ordering::AcqRel) < total {
            let request = listener.wait_request(Some(LIMIT)).unwrap();
            let said = |at: usize| {
                let bytes = request.private_data()[at..at + 4].try_into().unwrap();
                u32::from_be_bytes(bytes)
            };
            let life = Life {
                client: said(0),
                number: said(4),
            };
            let cq = &self.cqs[life.client as usize % 2];
            let builder = self.side.pd.qp().srq(&self.srq);
            let qp = builder
                .on_no_receive(OnNoReceive::Hold(LIMIT))
                .build(cq, cq)
                .unwrap();
            let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let builder = self.side.pd.region().access(rights).zero_based();
            let lent = builder.for_qp(&qp).vec(vec![0; LENT]).unwrap();
            let options = AcceptOptions::default().private_data(lent.rkey().to_be_bytes().to_vec());
            request.accept(&qp, &options).unwrap();
            let accepted = Accepted { life, qp, lent };
            self.accepted.lock().unwrap().push(accepted);
        }
    }

    /// Handles completions until `stop` is set and no completion is left.
    pub(crate) fn receive(&self, stop: &AtomicBool) {
        loop {
            let last = stop.load(Ordering::Acquire);
            for cq in &self.cqs {
                cq.req_notify(Notify::Any);
                while let Some(completion) = cq.poll_one() {
                    self.take(&completion);
                }
            }
            if last {
                return;
            }
            // Sleeps until an event arrives, or until it is time to check `stop` again.
            let _ = self.channel.get_event(Some(Duration::from_millis(20)));
        }
    }

    fn take(&self, completion: &Completion) {
        match completion.status {
            Status::Success => self.arrived(completion),
            // A connection was aborted in the middle of this message.
            Status::WrFlush => {}
            _ => panic!("{completion:?}"),
        }
        self.post(completion.wr_id);
    }

    fn arrived(&self, completion: &Completion) {
        let word = if let Some(immediate) = completion.immediate {
            assert_eq!(completion.opcode, WcOpcode::RecvImmediate);
            assert!(completion.solicited);
            Word::from_immediate(immediate)
        } else if let Some(rkey) = completion.invalidated {
            let mut invalidated = self.invalidated.lock().unwrap();
            assert_eq!(invalidated.insert(completion.qp_num, rkey), None);
            return;
        } else {
            assert_eq!(completion.byte_len, MESSAGE as u32);
            let bytes = slice(&self.slots, completion.wr_id as usize * MESSAGE, MESSAGE);
            let word = Word::from_immediate(bytes[..8].try_into().unwrap());
            assert_eq!(bytes, message(word), "torn");
            word
        };
        let new = self.seen.lock().unwrap().insert(word);
        assert!(new, "{word:?} came twice");
    }

    /// Waits until every connection has ended.
    pub(crate) fn wait_ended(&self) {
        for Accepted { life, qp, .. } in &*self.accepted.lock().unwrap() {
            assert!(qp.wait_closed(LIMIT), "{life:?}: {:?}", qp.end_reason());
        }
    }

    /// Checks that every message has arrived exactly once, and that nothing is left over.
    pub(crate) fn check(self, lives: impl Iterator<Item = Life>) {
        let accepted = self.accepted.into_inner().unwrap();
        assert_eq!(accepted.len(), (CLIENTS * LIVES) as usize);
        let words: HashSet<Word> = lives
            .flat_map(|life| (0..ROUNDS).map(move |round| Word { life, round }))
            .collect();
        let seen = self.seen.into_inner().unwrap();
        assert!(seen.is_subset(&words), "a message that was never sent");
        for word in &words {
            assert!(
                word.life.is_rough() || seen.contains(word),
                "{word:?} is lost"
            );
        }
        let invalidated = self.invalidated.into_inner().unwrap();
        for Accepted { life, qp, lent } in accepted {
            let expected = (!life.is_rough()).then(|| lent.rkey());
            assert_eq!(invalidated.get(&qp.qp_num()).copied(), expected, "{life:?}");
        }
        let additions = u64::from(CLIENTS * LIVES * ROUNDS);
        let counted = self.counted.into_inner().unwrap();
        assert_eq!(counted, (0..additions).collect());
        let counter = slice(&self.counter, 0, 8).try_into().unwrap();
        assert_eq!(u64::from_ne_bytes(counter), additions);
        assert_eq!(self.srq.posted(), SLOTS as usize);
        for cq in self.cqs {
            assert_eq!(cq.poll_one(), None);
            assert!(!cq.has_overflowed());
            cq.destroy(Some(LIMIT)).unwrap();
        }
        self.srq.destroy(Some(LIMIT)).unwrap();
    }
}

//! One end of a connection that obeys the protocol, with its part of the model. Its completions and
//! its memory must equal the model's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use uwarp_verbs::llp::smol::ManualClock;
use uwarp_verbs::{
    Access, Cq, Device, MemoryRegion, Qp, QpCaps, QpState, RecvWr, RemoteBuffer, SendWr, Status,
};

use super::settle;
use crate::input::Input;

/// Maximum number of work requests of one end.
const SLOTS: u64 = 40;
/// Size of a slot in bytes. A slot is the source, the receive buffer or the sink of one work
/// request.
const SLOT: u64 = 2048;
/// Size of the area at the start of the shared region that the peer writes.
const WRITTEN: usize = 4096;
/// Size of the next area, which the peer reads.
const READ: usize = 2048;
/// Offset of the word for atomic operations, after both areas.
const WORD: usize = WRITTEN + READ;

/// One end, with its part of the model.
pub(crate) struct End {
    device: Device,
    clock: Arc<ManualClock>,
    pub(crate) qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    own: MemoryRegion,
    shared: MemoryRegion,

    /// Expected bytes of the `own` region. A receive or a sink changes when it completes.
    slots: Vec<u8>,
    /// Initial bytes of the area that the peer writes.
    before: Vec<u8>,
    /// Expected bytes of that area after all Writes.
    written: Vec<u8>,
    /// All Writes of the peer: offset and bytes.
    writes: Vec<(usize, Vec<u8>)>,
    word: u64,
    used: u64,
    /// Slots of receives that no posted Send of the peer uses yet.
    receives: VecDeque<u64>,
    /// Completions due on the send queue: slot, and the expected bytes at its start.
    sends_due: VecDeque<(u64, Vec<u8>)>,
    /// Completions due on the receive queue, in the same form.
    receives_due: VecDeque<(u64, Vec<u8>)>,
    posted: usize,
    completed: usize,
}

/// Creates `len` bytes that repeat every 256. `byte` returns the byte for an index.
fn pattern(len: usize, byte: impl Fn(u64) -> u8) -> Vec<u8> {
    let mut period: Vec<u8> = (0..256).map(byte).collect();
    period = period.repeat(len.div_ceil(256));
    period.truncate(len);
    period
}

impl End {
    /// Creates an end on a device. The seed selects the initial bytes of its memory.
    pub(crate) fn new(device: Device, clock: Arc<ManualClock>, seed: u64) -> Self {
        let pd = device.alloc_pd().expect("there is room");
        let cq = || device.create_cq(256).expect("there is room");
        let (send_cq, recv_cq) = (cq(), cq());
        let qp = pd
            .create_qp(&send_cq, &recv_cq, QpCaps::default())
            .expect("there is room");
        let slots = pattern((SLOTS * SLOT) as usize, |at| (at * 7 + seed) as u8);
        let shared = pattern(WORD + 8, |at| (at * 3) as u8 ^ seed as u8);
        let written = shared[..WRITTEN].to_vec();
        let word = u64::from_ne_bytes(shared[WORD..].try_into().expect("8 bytes"));
        let own = pd
            .register(slots.clone(), Access::LOCAL_WRITE)
            .expect("there is room");
        let all = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let shared = pd
            .region()
            .access(all)
            .zero_based()
            .vec(shared)
            .expect("there is room");
        Self {
            device,
            clock,
            qp,
            send_cq,
            recv_cq,
            own,
            shared,
            slots,
            before: written.clone(),
            written,
            writes: Vec::new(),
            word,
            used: 0,
            receives: VecDeque::new(),
            sends_due: VecDeque::new(),
            receives_due: VecDeque::new(),
            posted: 0,
            completed: 0,
        }
    }

    /// Returns the next unused slot, or `None` if all are used or the connection is not in RTS.
    fn slot(&mut self) -> Option<u64> {
        if self.used == SLOTS || self.qp.state() != QpState::Rts {
            return None;
        }
        self.used += 1;
        Some(self.used - 1)
    }

    fn source(&self, slot: u64, len: usize) -> Vec<u8> {
        let at = (slot * SLOT) as usize;
        self.slots[at..at + len].to_vec()
    }

    /// Posts a receive.
    pub(crate) fn receive(&mut self) {
        let Some(slot) = self.slot() else {
            return;
        };
        let sges = [self.own.sge(slot * SLOT, SLOT as u32)];
        self.qp
            .post_recv(&RecvWr::new(slot, &sges))
            .expect("there is room");
        self.receives.push_back(slot);
        self.posted += 1;
    }

    /// Posts a work request that `theirs` can execute. `kind` is 4 for a Send, 5 for a Write, 6 for
    /// a Read and 7 for a FetchAdd. Does nothing for a Send if `theirs` has no receive for it.
    pub(crate) fn post(&mut self, theirs: &mut End, kind: u8, input: &mut Input<'_>) {
        if kind == 4 && theirs.receives.is_empty() {
            return;
        }
        let Some(slot) = self.slot() else {
            return;
        };
        let (len, at) = (
            usize::from(input.u16()) % SLOT as usize,
            usize::from(input.u16()),
        );
        let (at, rkey) = (at % (WRITTEN - SLOT as usize), theirs.shared.rkey());
        let sges = [self
            .own
            .sge(slot * SLOT, if kind == 7 { 8 } else { len as u32 })];
        let bytes = self.source(slot, len);
        let wr = match kind {
            4 => {
                let receive = theirs.receives.pop_front().expect("there is one");
                theirs.receives_due.push_back((receive, bytes));
                SendWr::send(slot, &sges)
            }
            5 => {
                theirs.written[at..at + len].copy_from_slice(&bytes);
                theirs.writes.push((at, bytes));
                SendWr::write(slot, &sges, RemoteBuffer::at(at as u64, rkey))
            }
            6 => SendWr::read(slot, &sges, RemoteBuffer::at(WRITTEN as u64, rkey)),
            _ => SendWr::fetch_add(
                slot,
                &sges,
                RemoteBuffer::at(WORD as u64, rkey),
                len as u64 | 1 << 63,
            ),
        };
        self.qp.post_send(&wr).expect("there is room");
        let result = match kind {
            6 => theirs.read_only(len),
            7 => {
                let before = theirs.word;
                theirs.word = before.wrapping_add(len as u64 | 1 << 63);
                before.to_ne_bytes().to_vec()
            }
            _ => Vec::new(),
        };
        self.sends_due.push_back((slot, result));
        self.posted += 1;
    }

    /// Returns the first `len` bytes of the area that the peer only reads.
    fn read_only(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.shared
            .read_at(WRITTEN, &mut bytes)
            .expect("it is in bounds");
        bytes
    }

    /// Returns true if all work requests with an expected result have completed.
    pub(crate) fn is_done(&self) -> bool {
        self.sends_due.is_empty() && self.receives_due.is_empty()
    }

    /// Returns true if the connection has ended.
    ///
    /// # Panics
    /// If the connection has ended without a reason.
    pub(crate) fn has_ended(&self) -> bool {
        let ended = self.qp.state() == QpState::Error;
        if ended {
            let reason = self
                .qp
                .end_reason()
                .expect("an ended connection has a reason");
            assert!(!reason.cause().to_string().is_empty());
        }
        ended
    }

    /// Checks that every posted work request completed once. Call it after the connection has
    /// ended.
    pub(crate) fn completed_all(&self) {
        assert_eq!(self.completed, self.posted, "everything completes once");
    }

    /// Drives the device and checks its completions, which may fail only if `damaged`. Returns the
    /// time of the next timer.
    pub(crate) fn look(&mut self, damaged: bool) -> Option<Instant> {
        let next = settle(&self.device, &self.clock);
        for (cq, due) in [
            (&self.send_cq, &mut self.sends_due),
            (&self.recv_cq, &mut self.receives_due),
        ] {
            while let Some(completion) = cq.poll_one() {
                self.completed += 1;
                let success = completion.status == Status::Success;
                assert!(success || damaged, "{completion:?}");
                // The list has no entry for a receive that no Send used; such a receive is flushed.
                if due
                    .front()
                    .is_none_or(|(slot, _)| *slot != completion.wr_id)
                {
                    assert!(!success && completion.opcode.is_recv(), "{completion:?}");
                    continue;
                }
                let (slot, bytes) = due.pop_front().expect("it was looked at");
                if !success {
                    continue;
                }
                let at = (slot * SLOT) as usize;
                self.slots[at..at + bytes.len()].copy_from_slice(&bytes);
                let mut found = vec![0; bytes.len()];
                self.own.read_at(at, &mut found).expect("it is in bounds");
                assert!(found == bytes, "work request {slot} has other bytes");
                if completion.opcode.is_recv() {
                    assert_eq!(completion.byte_len as usize, bytes.len());
                }
            }
        }
        next
    }

    /// Returns true if `byte` is the initial byte at `at`, or the byte that one of the Writes
    /// stores there.
    fn may_be(&self, at: usize, byte: u8) -> bool {
        let wrote = |(start, bytes): &(usize, Vec<u8>)| {
            at.checked_sub(*start).and_then(|at| bytes.get(at)) == Some(&byte)
        };
        self.before[at] == byte || self.writes.iter().any(wrote)
    }

    /// Checks that memory holds the bytes of all Writes. If `damaged`, checks only that each byte
    /// is an initial byte or was written.
    pub(crate) fn memory(&self, damaged: bool) {
        let mut shared = vec![0; WORD + 8];
        self.shared
            .read_at(0, &mut shared)
            .expect("it is in bounds");
        let found = &shared[..WRITTEN];
        if damaged {
            for (at, byte) in found.iter().enumerate() {
                assert!(self.may_be(at, *byte), "byte {at} is {byte}");
            }
        } else {
            assert!(
                found == self.written,
                "bytes that the peer wrote are missing"
            );
            assert_eq!(shared[WORD..], self.word.to_ne_bytes());
            let mut slots = vec![0; self.slots.len()];
            self.own.read_at(0, &mut slots).expect("it is in bounds");
            assert!(
                slots == self.slots,
                "a buffer without a completion has changed"
            );
        }
    }
}

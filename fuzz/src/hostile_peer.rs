//! Runs a live device, including its region table and engine, against a peer scripted by the input.
//! The peer sends valid, nearly valid and arbitrary messages. Their FPDUs may be damaged and arrive
//! in pieces.
//!
//! After each message the following must equal the model:
//!
//! * the bytes that the device has sent: Read Responses and Atomic Responses with their payload,
//!   and the Terminate Message with its code
//! * the completions, with their order and numbers
//! * the memory of every region

mod model;

use std::collections::VecDeque;
use std::sync::Arc;

use uwarp_verbs::llp::Llp;
use uwarp_verbs::llp::smol::ManualClock;
use uwarp_verbs::{
    Access, Completion, Cq, Device, MemoryRegion, Pd, Qp, QpCaps, QpState, RecvWr, RemoteBuffer,
    SendWr, Status, StreamOptions,
};

use crate::craft;
use crate::input::Input;
use crate::live::{self, Line, Side};
use crate::model::fpdu::{End, Sealer, open};
use crate::model::memory::{Region, Right, regions};
use model::{Done, Model};

/// Maximum number of steps in one input.
const MAX_STEPS: usize = 48;
/// Size in bytes of a receive buffer, and of a Read sink.
const SLOT: usize = 512;
const SLOTS: usize = 16;
const IRD: u16 = 3;
const UNTOUCHED: u8 = 0xC3;

struct Victim {
    device: Device,
    clock: Arc<ManualClock>,
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    line: Line,
    regions: Vec<MemoryRegion>,
    receives: MemoryRegion,
    sinks: MemoryRegion,
    crc: bool,
    markers: bool,
    /// Other end of the line. Dropping it would reset the line.
    _peer: Box<dyn Llp>,
    _pds: [Pd; 2],
}

/// Runs one input: flags (bit 0: CRC, bit 1: Markers of the peer, bit 2: Markers of the device),
/// then steps.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.flags();
    let (mut victim, mut model) = connected(flags(0), flags(1), flags(2));
    let mut sealer = Sealer::new(flags(0), flags(1));
    let mut stream = Vec::new();
    for _ in 0..MAX_STEPS {
        if input.is_empty() || model.judge.ended.is_some() {
            break;
        }
        match input.u8() % 16 {
            0..=2 => victim.post(&mut model, input.u16() % (SLOT as u16 + 1)),
            3 | 4 => victim.ask(&mut model, &mut input),
            step => {
                let ulpdu = if step == 5 {
                    input.slice(2000).to_vec()
                } else {
                    craft::ulpdu(&mut input, &model.judge, &model.regions)
                };
                let start = sealer.stream().len();
                sealer.seal(&ulpdu);
                stream.extend_from_slice(&sealer.stream()[start..]);
                if step == 6 {
                    // Without a CRC, the first 8 bytes of the FPDU stay intact, because a damaged
                    // length field has no predictable effect.
                    let safe = if flags(0) { start } else { start + 8 };
                    let at = safe + usize::from(input.u16()) % (stream.len() - start);
                    let by = input.u8();
                    if let Some(byte) = stream.get_mut(at) {
                        *byte ^= by;
                    }
                }
                let cut = usize::from(input.u16()) % (stream.len() - start);
                victim.arrive(&stream[start..start + cut]);
                victim.arrive(&stream[start + cut..]);
                model.arrive(&stream, flags(0), flags(1));
            }
        }
        victim.compare(&mut model);
    }
    victim.end(&mut model);
}

fn connected(crc: bool, rx_markers: bool, tx_markers: bool) -> (Victim, Model) {
    let clock = Arc::new(ManualClock::new());
    let device = live::device(&clock, 11);
    let pds = [device.alloc_pd(), device.alloc_pd()].map(|pd| pd.expect("there is room"));
    let cq = || device.create_cq(256).expect("there is room");
    let (send_cq, recv_cq) = (cq(), cq());
    let qp = pds[0]
        .create_qp(&send_cq, &recv_cq, QpCaps::default())
        .expect("there is room");
    let mut model = Model::new(regions());
    let regions = model
        .regions
        .iter_mut()
        .map(|region| register(region, &pds, &qp))
        .collect();
    let own = |len: usize| {
        let region = pds[0].register(vec![UNTOUCHED; len], Access::LOCAL_WRITE);
        region.expect("there is room")
    };
    let (line, [end, peer]) = Line::new();
    let options = StreamOptions::default()
        .initiator(true)
        .crc(crc)
        .tx_markers(tx_markers)
        .rx_markers(rx_markers)
        .ird(IRD)
        .ord(4);
    qp.attach_stream(end, &[], &options)
        .expect("the stream is connected");
    let victim = Victim {
        regions,
        receives: own(SLOT * SLOTS),
        sinks: own(SLOT * SLOTS),
        device,
        clock,
        qp,
        send_cq,
        recv_cq,
        line,
        crc,
        markers: tx_markers,
        _peer: peer,
        _pds: pds,
    };
    (victim, model)
}

/// Registers a region of the model with a device, which chooses the STag.
fn register(region: &mut Region, pds: &[Pd; 2], qp: &Qp) -> MemoryRegion {
    let access = region
        .rights
        .iter()
        .fold(Access::NONE, |access, right| match right {
            Right::Write => access | Access::REMOTE_WRITE | Access::LOCAL_WRITE,
            Right::Read => access | Access::REMOTE_READ,
            Right::Atomic => access | Access::REMOTE_ATOMIC | Access::LOCAL_WRITE,
            Right::Invalidate => access,
        });
    let pd = &pds[usize::from(!region.associated)];
    let mut builder = pd.region().access(access).iova(region.base);
    if region.associated && region.rights.contains(&Right::Invalidate) {
        builder = builder.for_qp(qp);
    }
    let made = builder
        .vec(region.bytes.clone())
        .expect("it can be registered");
    region.stag = made.rkey();
    made
}

impl Victim {
    /// Posts a receive in the next slot.
    fn post(&mut self, model: &mut Model, len: u16) {
        if model.next_receive as usize >= SLOTS {
            return;
        }
        let (slot, len) = (model.next_receive, u32::from(len));
        let sges = [self.receives.sge(slot * SLOT as u64, len)];
        self.qp
            .post_recv(&RecvWr::new(slot, &sges))
            .expect("there is room");
        model.posted.push_back((slot, len));
        model.next_receive += 1;
    }

    /// Posts a Read or a FetchAdd. The responses that the peer sends later may be valid or not.
    fn ask(&mut self, model: &mut Model, input: &mut Input<'_>) {
        let slot = model.next_request;
        if slot as usize >= SLOTS || model.asking.len() >= 4 {
            return;
        }
        let len = u32::from(input.u16()) % (SLOT as u32 + 1);
        let atomic = input.flags()(0);
        let at = slot * SLOT as u64;
        let sges = [self.sinks.sge(at, if atomic { 8 } else { len })];
        let wr = if atomic {
            SendWr::fetch_add(slot, &sges, RemoteBuffer::at(64, 7), u64::from(len))
        } else {
            SendWr::read(slot, &sges, RemoteBuffer::at(4096, 7))
        };
        self.qp.post_send(&wr).expect("there is room");
        model.next_request += 1;
        model.asking.push_back(slot);
    }

    /// Delivers bytes from the peer and runs the device.
    fn arrive(&mut self, bytes: &[u8]) {
        self.line.put(Side::Second, bytes);
        self.line.carry(Side::Second, usize::MAX);
        live::settle(&self.device, &self.clock);
    }

    /// Checks that the bytes sent by the device, its completions and its memory equal the model's.
    fn compare(&mut self, model: &mut Model) {
        live::settle(&self.device, &self.clock);
        model.sent.extend(self.line.take(Side::First));
        let (ulpdus, end) = open(&model.sent, self.crc, self.markers);
        assert_eq!(end, End::More, "the device sends valid FPDUs");
        for opened in ulpdus.iter().skip(model.seen) {
            model.sent(&opened.ulpdu);
        }
        model.seen = ulpdus.len();
        if model.judge.ended.is_none() {
            assert!(model.due.is_empty(), "not sent: {:?}", model.due);
            assert_eq!(self.qp.state(), QpState::Rts);
        }
        let ended = model.judge.ended.is_some();
        model.flushed[0] += completed(&self.send_cq, &mut model.done_send, ended);
        model.flushed[1] += completed(&self.recv_cq, &mut model.done_recv, ended);
        self.memory(model);
    }

    fn memory(&self, model: &Model) {
        for (region, wanted) in self.regions.iter().zip(&model.regions) {
            same(region, &wanted.bytes);
        }
        same(&self.receives, &model.receives);
        same(&self.sinks, &model.sinks);
    }

    /// Checks how the connection ends. If no error has ended the connection, the peer closes or
    /// resets it.
    fn end(&mut self, model: &mut Model) {
        let ended = model.judge.ended;
        if let Some(Some(code)) = ended {
            assert!(model.terminated, "no Terminate with {code:?} was sent");
        }
        if ended.is_none() && model.taken.is_multiple_of(2) {
            // The device closes its half after the peer has closed (5041-6.2.1, 5044-9.3).
            self.line.fin(Side::Second);
            live::settle(&self.device, &self.clock);
        }
        if ended.is_some() || model.taken.is_multiple_of(2) {
            assert!(
                self.line.ended(Side::First),
                "the device closes an ended connection"
            );
        }
        self.line.cut();
        live::settle(&self.device, &self.clock);
        assert_eq!(self.qp.state(), QpState::Error);
        let reason = self.qp.end_reason().expect("it has ended");
        assert!(!reason.to_string().is_empty());
        // Every posted work request completes once.
        model.flushed[0] += completed(&self.send_cq, &mut model.done_send, true);
        model.flushed[1] += completed(&self.recv_cq, &mut model.done_recv, true);
        assert_eq!(model.flushed, [model.asking.len(), model.posted.len()]);
        self.memory(model);
    }
}

fn same(region: &MemoryRegion, wanted: &[u8]) {
    let mut bytes = vec![0; region.len()];
    region.read_at(0, &mut bytes).expect("it is in bounds");
    assert!(bytes == wanted, "memory differs");
}

/// Polls a queue and checks that the successful completions are the model's, in the same order.
/// Returns the number of failed completions.
fn completed(cq: &Cq, done: &mut VecDeque<Done>, ended: bool) -> usize {
    let mut flushed = 0;
    while let Some(completion) = cq.poll_one() {
        if completion.status != Status::Success {
            assert!(ended, "{completion:?}");
            flushed += 1;
            continue;
        }
        assert_eq!(flushed, 0, "a success after a failure");
        let wanted = done.pop_front();
        let Some(wanted) = wanted else {
            panic!("not due: {completion:?}");
        };
        assert_eq!(
            (completion.wr_id, completion.opcode),
            (wanted.wr_id, wanted.opcode)
        );
        if let Some(recv) = wanted.recv {
            let Completion {
                byte_len,
                invalidated,
                immediate,
                solicited,
                ..
            } = completion;
            assert_eq!((byte_len, invalidated, immediate, solicited), recv);
        }
    }
    assert!(done.is_empty(), "not completed: {done:?}");
    flushed
}

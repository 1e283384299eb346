//! One side of the model: its memory with the expected content, and its expected completions.

use std::collections::VecDeque;
use std::sync::Arc;

use uwarp_verbs::{
    Access, Buffer, Completion, MemoryRegion, RecvWr, RemoteBuffer, Sge, Srq, Status, WcOpcode,
};

use crate::case::{INBOX, Immediate, Receive, SGES, SOURCE};
use crate::common::{FILL, Side, content, same};
use crate::loan::{Loan, loans};

/// Cuts `len` bytes into pieces, each with its offset and length. Some pieces may be empty.
pub(crate) fn pieces(len: usize, cuts: &[usize]) -> Vec<(usize, usize)> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).collect();
    at.extend([0, len]);
    at.sort_unstable();
    at.windows(2)
        .map(|ends| (ends[0], ends[1] - ends[0]))
        .collect()
}

/// Returns SGEs in a region, one for each piece, with gaps of a few bytes between them.
pub(crate) fn layout(region: &MemoryRegion, at: usize, pieces: &[(usize, usize)]) -> Vec<Sge> {
    let gaps = (0..).map(|index| index * 7);
    pieces
        .iter()
        .zip(gaps)
        .map(|((start, len), gap)| region.sge((at + start + gap) as u64, *len as u32))
        .collect()
}

/// One side of the model.
pub(crate) struct Player<'a> {
    pub(crate) side: &'a Side,
    srq: Option<Srq>,
    pub(crate) source: MemoryRegion,
    pub(crate) source_model: Vec<u8>,
    pub(crate) inbox: MemoryRegion,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) inbox_model: Vec<u8>,
    pub(crate) loans: Vec<Loan>,
    /// Sinks of Reads, atomics and Sends, each with its expected content.
    pub(crate) placed: Vec<(MemoryRegion, Vec<u8>)>,
    pub(crate) sends: VecDeque<Completion>,
    pub(crate) receives: VecDeque<Completion>,
    next_id: u64,
    /// Length in bytes of the other player's last Write. A later message that consumes a receive
    /// resets it.
    pub(crate) written: u32,
}

impl<'a> Player<'a> {
    pub(crate) fn new(side: &'a Side, seed: u64) -> Self {
        let source = side.filled(seed, SOURCE);
        let buffer = Arc::new(Buffer::from(vec![FILL; INBOX]));
        let builder = side.pd.region().access(Access::ALL);
        let inbox = builder.buffer(Arc::clone(&buffer)).unwrap();
        Player {
            side,
            srq: side.qp.srq().cloned(),
            source_model: content(&source),
            source,
            inbox,
            loans: loans(&side.pd, &buffer),
            buffer,
            inbox_model: vec![FILL; INBOX],
            placed: Vec::new(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            written: 0,
            next_id: 0,
        }
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Returns the inbox as the peer sees it.
    pub(crate) fn lent(&self) -> RemoteBuffer {
        self.inbox.remote()
    }

    pub(crate) fn has_srq(&self) -> bool {
        self.srq.is_some()
    }

    pub(crate) fn post_recv(&self, wr: &RecvWr<'_>) {
        match &self.srq {
            Some(srq) => srq.post_recv(wr).unwrap(),
            None => self.side.qp.post_recv(wr).unwrap(),
        }
    }

    /// Checks that memory and STags match the model.
    pub(crate) fn check(&self, who: &str) {
        same(
            &content(&self.inbox),
            &self.inbox_model,
            &format!("{who}: inbox"),
        );
        same(
            &content(&self.source),
            &self.source_model,
            &format!("{who}: source"),
        );
        for (index, (region, model)) in self.placed.iter().enumerate() {
            same(&content(region), model, &format!("{who}: sink {index}"));
        }
        for (slot, loan) in self.loans.iter().enumerate() {
            loan.check(&format!("{who}: slot {slot}"));
        }
    }

    /// Registers a small region that the peer's Send may invalidate.
    pub(crate) fn lend_once(&mut self) -> u32 {
        let Side { pd, qp, .. } = self.side;
        let region = pd
            .register_for(qp, vec![FILL; 8], Access::REMOTE_READ)
            .unwrap();
        let rkey = region.rkey();
        self.placed.push((region, vec![FILL; 8]));
        rkey
    }

    /// Posts a receive for a message of `bytes` bytes. Returns its work request id, its region and
    /// its SGEs.
    fn receive(&mut self, receive: &Receive, bytes: usize) -> (u64, MemoryRegion, Vec<Sge>) {
        let room = bytes + receive.slack;
        let region = self.side.blank(room + 7 * SGES + 5);
        let sges = layout(&region, 3, &pieces(room, &receive.cuts));
        let wr_id = self.id();
        self.post_recv(&RecvWr::new(wr_id, &sges));
        (wr_id, region, sges)
    }

    /// Posts the receive for a Send, and records its expected content.
    pub(crate) fn expect_send(
        &mut self,
        receive: &Receive,
        bytes: &[u8],
        solicited: bool,
        invalidated: Option<u32>,
    ) {
        let (wr_id, region, sges) = self.receive(receive, bytes.len());
        let mut model = vec![FILL; region.len()];
        let mut rest = bytes;
        for sge in &sges {
            let at = (sge.addr - region.addr()) as usize;
            let (now, later) = rest.split_at(rest.len().min(sge.len as usize));
            model[at..at + now.len()].copy_from_slice(now);
            rest = later;
        }
        self.placed.push((region, model));
        let completion = self.expected(wr_id, WcOpcode::Recv, bytes.len() as u32);
        self.written = 0;
        self.receives.push_back({
            let mut completion = completion;
            completion.solicited = solicited;
            completion.invalidated = invalidated;
            completion
        });
    }

    /// Posts the receive for Immediate Data. Its memory must stay unchanged.
    pub(crate) fn expect_immediate(&mut self, receive: &Receive, immediate: Immediate) {
        let (wr_id, region, _) = self.receive(receive, 0);
        let model = vec![FILL; region.len()];
        self.placed.push((region, model));
        let completion = self.expected(wr_id, WcOpcode::RecvImmediate, 0);
        self.receives.push_back({
            let mut completion = completion;
            completion.solicited = immediate.solicited;
            completion.immediate = Some(immediate.bytes);
            completion.written = std::mem::take(&mut self.written);
            completion
        });
    }

    pub(crate) fn expected(&self, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> Completion {
        let mut completion = Completion::default();
        completion.wr_id = wr_id;
        completion.status = Status::Success;
        completion.opcode = opcode;
        completion.byte_len = byte_len;
        completion.qp_num = self.side.qp.qp_num();
        completion
    }
}

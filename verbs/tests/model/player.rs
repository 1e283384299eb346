//! The model: what the operations of a side come to, in requests, completions and memory.

use std::collections::VecDeque;

use uwarp_verbs::{
    Access, Completion, MemoryRegion, RecvWr, RemoteBuffer, SendWr, Sge, Status, WcOpcode,
};

use crate::case::{Data, INBOX, Op, Receive, SGES, SOURCE, What};
use crate::common::{FILL, Side, content, same};

/// The pieces of `len` octets that lie between the cuts; some may be empty.
pub(crate) fn pieces(len: usize, cuts: &[usize]) -> Vec<(usize, usize)> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut % (len + 1)).collect();
    at.extend([0, len]);
    at.sort_unstable();
    at.windows(2)
        .map(|ends| (ends[0], ends[1] - ends[0]))
        .collect()
}

/// Places in a region, one piece after the other, with a gap of a few octets between pieces.
pub(crate) fn layout(region: &MemoryRegion, at: usize, pieces: &[(usize, usize)]) -> Vec<Sge> {
    let gaps = (0..).map(|index| index * 7);
    pieces
        .iter()
        .zip(gaps)
        .map(|((start, len), gap)| region.sge((at + start + gap) as u64, *len as u32))
        .collect()
}

/// One side: its regions, and what they must hold.
pub(crate) struct Player<'a> {
    pub(crate) side: &'a Side,
    pub(crate) source: MemoryRegion,
    pub(crate) source_model: Vec<u8>,
    pub(crate) inbox: MemoryRegion,
    pub(crate) inbox_model: Vec<u8>,
    pub(crate) lent: Lent,
    /// Regions that Reads or Sends were placed in, with what they must hold.
    pub(crate) placed: Vec<(MemoryRegion, Vec<u8>)>,
    pub(crate) sends: VecDeque<Completion>,
    pub(crate) receives: VecDeque<Completion>,
    pub(crate) next_id: u64,
}

/// What a side has told its peer.
#[derive(Clone, Copy)]
pub(crate) struct Lent {
    pub(crate) source: RemoteBuffer,
    pub(crate) inbox: RemoteBuffer,
}

impl<'a> Player<'a> {
    pub(crate) fn new(side: &'a Side, seed: u64) -> Self {
        let source = side.filled(seed, SOURCE);
        let inbox = side.blank(INBOX);
        let lent = Lent {
            source: source.remote(),
            inbox: inbox.remote(),
        };
        Player {
            side,
            source_model: content(&source),
            source,
            inbox,
            inbox_model: vec![FILL; INBOX],
            lent,
            placed: Vec::new(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            next_id: 0,
        }
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Memory and completions are what the model says.
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
    }
}

/// A request that is ready to be posted.
pub(crate) struct Ready {
    pub(crate) wr_id: u64,
    pub(crate) kind: ReadyKind,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) poll: bool,
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
    },
    Read {
        sges: Vec<Sge>,
        from: u64,
        rkey: u32,
    },
}

pub(crate) enum Payload {
    Sges(Vec<Sge>),
    Inline(Vec<u8>),
}

impl Ready {
    pub(crate) fn wr(&self) -> SendWr<'_> {
        let mut wr = match &self.kind {
            ReadyKind::Send {
                source,
                solicited,
                invalidate,
            } => {
                let mut wr = match source {
                    Payload::Sges(sges) => SendWr::send(self.wr_id, sges),
                    Payload::Inline(octets) => SendWr::send_inline(self.wr_id, octets),
                };
                if *solicited {
                    wr = wr.solicited();
                }
                if let Some(rkey) = invalidate {
                    wr = wr.invalidate(*rkey);
                }
                wr
            }
            ReadyKind::Write { source, to, rkey } => match source {
                Payload::Sges(sges) => SendWr::write(self.wr_id, sges, *to, *rkey),
                Payload::Inline(octets) => SendWr::write_inline(self.wr_id, octets, *to, *rkey),
            },
            ReadyKind::Read { sges, from, rkey } => SendWr::read(self.wr_id, sges, *from, *rkey),
        };
        if !self.signaled {
            wr = wr.unsignaled();
        }
        if self.fence { wr.fence() } else { wr }
    }
}

/// The Reads of a phase that no fence has waited for: what they take from the peer's inbox, and
/// where (in `placed`) they put it.
#[derive(Default)]
pub(crate) struct OpenReads {
    pub(crate) ranges: Vec<(usize, usize)>,
    pub(crate) sinks: Vec<usize>,
}

/// Plays the model of one side's operations of one phase, and makes the requests.
pub(crate) fn prepare(me: &mut Player<'_>, peer: &mut Player<'_>, ops: &[Op]) -> Vec<Ready> {
    let mut open = OpenReads::default();
    let mut read_sinks: Vec<(usize, usize, usize)> = Vec::new();
    let mut ready: Vec<Ready> = ops
        .iter()
        .map(|op| {
            let wr_id = me.id();
            let mut fence = op.fence;
            let kind = match &op.what {
                What::Send {
                    data,
                    solicited,
                    invalidate,
                    receive,
                } => {
                    let (source, octets, needs_fence) = payload(me, data, &read_sinks, &open);
                    fence |= needs_fence;
                    let invalidate = invalidate.then(|| lend_once(peer));
                    expect_receive(peer, receive, &octets, *solicited, invalidate);
                    ReadyKind::Send {
                        source,
                        solicited: *solicited,
                        invalidate,
                    }
                }
                What::Write { data, at } => {
                    let (source, octets, needs_fence) = payload(me, data, &read_sinks, &open);
                    // A Write may overtake a Read before it (RFC 5040 section 5.5), unless it is fenced.
                    fence |= needs_fence
                        || open
                            .ranges
                            .iter()
                            .any(|(start, end)| at < end && *start < at + octets.len());
                    peer.inbox_model[*at..at + octets.len()].copy_from_slice(&octets);
                    ReadyKind::Write {
                        source,
                        to: peer.lent.inbox.addr + *at as u64,
                        rkey: peer.lent.inbox.rkey,
                    }
                }
                What::Read {
                    len,
                    from_source,
                    at,
                    offset,
                } => {
                    let (remote, octets) = if *from_source {
                        (peer.lent.source, peer.source_model[*at..at + len].to_vec())
                    } else {
                        (peer.lent.inbox, peer.inbox_model[*at..at + len].to_vec())
                    };
                    if fence {
                        open = OpenReads::default();
                    }
                    let sink = me.side.blank(len + offset + 9);
                    let sges = if *len == 0 {
                        Vec::new()
                    } else {
                        vec![sink.sge(*offset as u64, *len as u32)]
                    };
                    let mut model = vec![FILL; sink.len()];
                    model[*offset..offset + len].copy_from_slice(&octets);
                    me.placed.push((sink, model));
                    let index = me.placed.len() - 1;
                    if !from_source {
                        open.ranges.push((*at, at + len));
                    }
                    open.sinks.push(index);
                    read_sinks.push((index, *offset, *len));
                    ReadyKind::Read {
                        sges,
                        from: remote.addr + *at as u64,
                        rkey: remote.rkey,
                    }
                }
            };
            if fence && !matches!(kind, ReadyKind::Read { .. }) {
                open = OpenReads::default();
            }
            Ready {
                wr_id,
                kind,
                signaled: op.signaled,
                fence,
                poll: op.poll,
            }
        })
        .collect();
    ready.push(last_read(me, peer));
    for request in &ready {
        if request.signaled {
            let (opcode, byte_len) = match &request.kind {
                ReadyKind::Send { .. } => (WcOpcode::Send, 0),
                ReadyKind::Write { .. } => (WcOpcode::RdmaWrite, 0),
                ReadyKind::Read { sges, .. } => {
                    (WcOpcode::RdmaRead, sges.iter().map(|sge| sge.len).sum())
                }
            };
            me.sends
                .push_back(expected(me.side, request.wr_id, opcode, byte_len));
        }
    }
    ready
}

/// A signaled Read at the end: when it is complete, everything before it has been placed.
pub(crate) fn last_read(me: &mut Player<'_>, peer: &Player<'_>) -> Ready {
    let sink = me.side.blank(1);
    let kind = ReadyKind::Read {
        sges: vec![sink.sge(0, 1)],
        from: peer.lent.source.addr,
        rkey: peer.lent.source.rkey,
    };
    me.placed.push((sink, peer.source_model[..1].to_vec()));
    Ready {
        wr_id: me.id(),
        kind,
        signaled: true,
        fence: false,
        poll: false,
    }
}

/// The payload of a Send or Write, its octets, and whether a fence must come before it.
pub(crate) fn payload(
    me: &Player<'_>,
    data: &Data,
    read_sinks: &[(usize, usize, usize)],
    open: &OpenReads,
) -> (Payload, Vec<u8>, bool) {
    let from_read = if data.from_read && !data.inline && data.len > 0 {
        read_sinks.iter().rev().find(|(_, _, len)| *len >= data.len)
    } else {
        None
    };
    if let Some((index, offset, _)) = from_read {
        let (region, model) = &me.placed[*index];
        let sges = pieces(data.len, &data.cuts)
            .iter()
            .map(|(start, len)| region.sge((offset + start) as u64, *len as u32))
            .collect();
        return (
            Payload::Sges(sges),
            model[*offset..offset + data.len].to_vec(),
            open.sinks.contains(index),
        );
    }
    let pieces = pieces(data.len, &data.cuts);
    let sges = layout(&me.source, data.at, &pieces);
    let octets: Vec<u8> = sges
        .iter()
        .flat_map(|sge| {
            let at = (sge.addr - me.source.addr()) as usize;
            me.source_model[at..at + sge.len as usize].iter().copied()
        })
        .collect();
    if data.inline {
        return (Payload::Inline(octets.clone()), octets, false);
    }
    (Payload::Sges(sges), octets, false)
}

/// A small region that the peer's Send may invalidate.
pub(crate) fn lend_once(owner: &mut Player<'_>) -> u32 {
    let region = owner
        .side
        .pd
        .register_for(&owner.side.qp, vec![FILL; 8], Access::REMOTE_READ)
        .unwrap();
    let rkey = region.rkey();
    owner.placed.push((region, vec![FILL; 8]));
    rkey
}

/// Posts the receive for a Send, and notes what it will hold.
pub(crate) fn expect_receive(
    owner: &mut Player<'_>,
    receive: &Receive,
    octets: &[u8],
    solicited: bool,
    invalidated: Option<u32>,
) {
    let room = octets.len() + receive.slack;
    let region = owner.side.blank(room + 7 * SGES + 5);
    let sges = layout(&region, 3, &pieces(room, &receive.cuts));
    let wr_id = owner.id();
    owner.side.qp.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
    let mut model = vec![FILL; region.len()];
    let mut rest = octets;
    for sge in &sges {
        let at = (sge.addr - region.addr()) as usize;
        let (now, later) = rest.split_at(rest.len().min(sge.len as usize));
        model[at..at + now.len()].copy_from_slice(now);
        rest = later;
    }
    owner.placed.push((region, model));
    let completion = expected(owner.side, wr_id, WcOpcode::Recv, octets.len() as u32);
    owner.receives.push_back(Completion {
        solicited,
        invalidated,
        ..completion
    });
}

pub(crate) fn expected(side: &Side, wr_id: u64, opcode: WcOpcode, byte_len: u32) -> Completion {
    let qp_num = side.qp.qp_num();
    Completion {
        wr_id,
        status: Status::Success,
        opcode,
        byte_len,
        qp_num,
        ..Completion::default()
    }
}

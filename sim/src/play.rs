//! What programs do: posting, good and bad.

use uwarp_verbs::{Access, QpState, RecvWr, SendWr};

use crate::end::{End, Message, Op, Posted, Sent};
use crate::memory::Tracked;
use crate::scenario::Misdeed;
use crate::world::{RECEIVE, World};

/// Requests of one send queue that are under way at most.
const QUEUE: usize = 32;
/// Receives that a program keeps posted.
const RECEIVES: usize = 8;
/// The longest payload that is posted inline.
const INLINE: usize = 256;

/// One end, and the other one.
pub(crate) fn both(ends: &mut [End; 2], end: usize) -> (&mut End, &mut End) {
    let [first, second] = ends;
    if end == 0 {
        (first, second)
    } else {
        (second, first)
    }
}

impl World {
    fn next_wr_id(&mut self) -> u64 {
        self.wr_ids += 1;
        self.wr_ids
    }

    /// Keeps receives posted.
    pub(crate) fn refill(&mut self, connection: usize, end: usize) -> Result<(), String> {
        let host = self.connections[connection].ends[end].host;
        loop {
            let wr_id = self.next_wr_id() | RECEIVE;
            let now = self.clock.elapsed();
            let Some(alive) = &mut self.hosts[host] else {
                return Ok(());
            };
            let len = alive.plan.receive;
            let Some(things) = &mut alive.things else {
                return Ok(());
            };
            if let Some(shared) = &mut things.shared {
                if shared.posted.len() >= 2 * RECEIVES {
                    return Ok(());
                }
                let Some(at) = shared.memory.take(len) else {
                    return Ok(());
                };
                let sges = [shared.memory.sge(at, len)];
                let sges = if len == 0 { &[][..] } else { &sges };
                (shared.srq.post_recv(&RecvWr::new(wr_id, sges)))
                    .map_err(|error| format!("a shared receive is refused: {error}"))?;
                shared.posted.push_back(Posted { wr_id, at, len });
                continue;
            }
            let me = &mut self.connections[connection].ends[end];
            let (Some(qp), Some(memory)) = (&me.qp, &mut me.memory) else {
                return Ok(());
            };
            let Some(receives) = &mut memory.receives else {
                return Ok(());
            };
            if me.receives.len() >= RECEIVES || qp.state() == QpState::Error {
                return Ok(());
            }
            let Some(at) = receives.take(len) else {
                return Ok(());
            };
            let sges = [receives.sge(at, len)];
            let sges = if len == 0 { &[][..] } else { &sges };
            qp.post_recv(&RecvWr::new(wr_id, sges))
                .map_err(|error| format!("a receive is refused: {error}"))?;
            self.log.event(now, || {
                format!(
                    "connection {connection} end {end}: receive {} of {len}",
                    wr_id & !RECEIVE
                )
            });
            me.receives.push_back(Posted { wr_id, at, len });
        }
    }

    /// Whether a Send to this end finds a receive.
    fn has_receive(&self, connection: usize, end: usize) -> bool {
        let to = &self.connections[connection].ends[end];
        let Some(host) = &self.hosts[to.host] else {
            return false;
        };
        if host.plan.hold {
            return true;
        }
        let Some(things) = &host.things else {
            return false;
        };
        match &things.shared {
            None => to.receives.len() > to.expected.len(),
            Some(shared) => {
                let ends = self
                    .connections
                    .iter()
                    .flat_map(|connection| &connection.ends);
                let ends = ends.filter(|end| end.host == to.host);
                let coming: usize = ends.map(|end| end.expected.len()).sum();
                shared.srq.posted() > coming
            }
        }
    }

    /// Posts one operation; false when nothing can be posted now.
    pub(crate) fn post_one(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let credit = self.has_receive(connection, 1 - end);
        let receive = self.receive_len(connection, 1 - end);
        let longest = self.connections[connection].plan.longest;
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        if me.sends.len() >= QUEUE || me.qp.is_none() || peer.memory.is_none() {
            return Ok(false);
        }
        let kind = self.random.u8(0..14);
        let len = self.some_len(longest);
        match kind {
            0..=2 if credit => self.post_send(connection, end, len.min(receive), None),
            3 if credit => self.post_immediate(connection, end),
            4 if credit => self.post_write(connection, end, len, true),
            5 if credit => self.post_with_invalidate(connection, end, len.max(1), receive),
            6 | 7 => self.post_read(connection, end, len),
            8 => self.post_read_back(connection, end),
            9 => self.post_add(connection, end),
            _ => self.post_write(connection, end, len, false),
        }
    }

    fn receive_len(&self, connection: usize, end: usize) -> usize {
        let host = self.connections[connection].ends[end].host;
        self.hosts[host]
            .as_ref()
            .map_or(0, |host| host.plan.receive)
    }

    fn some_len(&mut self, longest: usize) -> usize {
        match self.random.u8(0..6) {
            0 => 0,
            1 => self.random.usize(1..9),
            2 => longest.min(1440 + self.random.usize(0..32)),
            3 => longest,
            _ => self.random.usize(0..=longest),
        }
    }

    /// Posts `wr` and notes it, with the message that it is to the peer.
    fn posted(
        &mut self,
        connection: usize,
        end: usize,
        wr: SendWr<'_>,
        op: Op,
        message: Option<Message>,
    ) -> Result<bool, String> {
        // The last one tells when all are done.
        let last = self.connections[connection].ends[end].operations <= 1;
        let signaled = self.random.u8(0..4) > 0 || last;
        let wr = if signaled { wr } else { wr.unsignaled() };
        let wr = if self.random.u8(0..6) == 0 {
            wr.fence()
        } else {
            wr
        };
        let (now, log) = (self.clock.elapsed(), self.log);
        let lethal = self.connections[connection].plan.lethal;
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let Some(qp) = &me.qp else {
            return Ok(false);
        };
        let wr_id = wr.wr_id();
        let sent = Sent {
            wr_id,
            signaled,
            op,
            writes: me.writes.len(),
        };
        log.event(now, || {
            let signaled = if signaled { "" } else { ", unsignaled" };
            format!(
                "connection {connection} end {end}: {wr_id} {:?}{signaled}",
                sent.op
            )
        });
        me.sends.push_back(sent);
        let is_message = message.is_some();
        peer.expected.extend(message);
        if let Err(error) = qp.post_send(&wr) {
            log.event(now, || {
                format!("connection {connection} end {end}: {wr_id} refused: {error}")
            });
            me.sends.pop_back();
            if is_message {
                peer.expected.pop_back();
            }
            // What it may have brought stays possible in the model, which says less than it could.
            if !lethal {
                return Err(format!("request {wr_id} is refused: {error}"));
            }
            return Ok(false);
        }
        Ok(true)
    }

    fn post_send(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        invalidates: Option<(u32, usize)>,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let (solicited, inline) = (self.random.bool(), self.random.bool());
        let start = self.random.usize(0..1024);
        let (me, _) = both(&mut self.connections[connection].ends, end);
        let Some(memory) = &me.memory else {
            return Ok(false);
        };
        let payload = memory.source.expected(start, len).to_vec();
        // In two pieces, to be gathered.
        let half = len / 2;
        let sges = [
            memory.source.sge(start, half),
            memory.source.sge(start + half, len - half),
        ];
        let mut wr = if inline && len <= INLINE {
            SendWr::send_inline(wr_id, &payload)
        } else {
            SendWr::send(wr_id, &sges)
        };
        if solicited {
            wr = wr.solicited();
        }
        if let Some((rkey, _)) = invalidates {
            wr = wr.invalidate(rkey);
        }
        let message = Message {
            payload: Some(payload.clone()),
            immediate: None,
            solicited,
            invalidates,
            writes: me.writes.len(),
        };
        self.posted(connection, end, wr, Op::Send, Some(message))
    }

    fn post_immediate(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let immediate = self.random.u64(..).to_be_bytes();
        let message = Message {
            payload: None,
            immediate: Some(immediate),
            solicited: false,
            invalidates: None,
            writes: self.connections[connection].ends[end].writes.len(),
        };
        let wr = SendWr::immediate(wr_id, immediate);
        self.posted(connection, end, wr, Op::Immediate, Some(message))
    }

    fn post_write(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        with_imm: bool,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let immediate = self.random.u64(..).to_be_bytes();
        let (start, inline) = (self.random.usize(0..1024), self.random.bool());
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let len = len.min(theirs.target.free());
        let at = theirs.target.take(len).unwrap_or(0);
        let payload = memory.source.expected(start, len).to_vec();
        theirs.target.may_come(at, &payload);
        let (sges, rkey) = ([memory.source.sge(start, len)], theirs.target.rkey());
        let mut wr = if inline && len <= INLINE {
            SendWr::write_inline(wr_id, &payload, at as u64, rkey)
        } else {
            SendWr::write(wr_id, &sges, at as u64, rkey)
        };
        me.writes.push((at, len));
        let mut message = None;
        if with_imm {
            wr = wr.with_imm(immediate);
            message = Some(Message {
                payload: None,
                immediate: Some(immediate),
                solicited: false,
                invalidates: None,
                writes: me.writes.len(),
            });
        }
        self.posted(connection, end, wr, Op::Write, message)
    }

    /// A Write into memory that is lent for it, and a Send that gives it back.
    fn post_with_invalidate(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        receive: usize,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let peer_host = self.connections[connection].ends[1 - end].host;
        let Some(things) = self.hosts[peer_host]
            .as_ref()
            .and_then(|host| host.things.as_ref())
        else {
            return Ok(false);
        };
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs), Some(qp)) = (&me.memory, &mut peer.memory, &peer.qp)
        else {
            return Ok(false);
        };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mut lent = Tracked::blank(&things.pd, "lent memory", len, access, Some(qp))?;
        let payload = memory.source.expected(0, len).to_vec();
        lent.may_come(0, &payload);
        let rkey = lent.rkey();
        theirs.lent.push(lent);
        let index = theirs.lent.len() - 1;
        let sges = [memory.source.sge(0, len)];
        let wr = SendWr::write(wr_id, &sges, 0, rkey);
        if !self.posted(connection, end, wr, Op::Write, None)? {
            return Ok(false);
        }
        let short = self.random.usize(0..=receive);
        self.post_send(connection, end, short, Some((rkey, index)))
    }

    fn post_read(&mut self, connection: usize, end: usize, len: usize) -> Result<bool, String> {
        let start = self.random.usize(0..1024);
        let peer = &self.connections[connection].ends[1 - end];
        let Some(theirs) = &peer.memory else {
            return Ok(false);
        };
        let (content, rkey) = (
            theirs.source.expected(start, len).to_vec(),
            theirs.source.rkey(),
        );
        self.read_into_sink(connection, end, (start, rkey), content)
    }

    /// Reads what an earlier Write has brought: it has to be there (RFC 5040 section 5.5).
    fn post_read_back(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let count = self.connections[connection].ends[end].writes.len();
        if count == 0 {
            return self.post_read(connection, end, 8);
        }
        let (at, len) = self.connections[connection].ends[end].writes[self.random.usize(0..count)];
        let Some(theirs) = &self.connections[connection].ends[1 - end].memory else {
            return Ok(false);
        };
        let (content, rkey) = (
            theirs.target.expected(at, len).to_vec(),
            theirs.target.rkey(),
        );
        self.read_into_sink(connection, end, (at, rkey), content)
    }

    fn read_into_sink(
        &mut self,
        connection: usize,
        end: usize,
        (from, rkey): (usize, u32),
        content: Vec<u8>,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let Some(memory) = &mut self.connections[connection].ends[end].memory else {
            return Ok(false);
        };
        let Some(at) = memory.sink.take(content.len()) else {
            return Ok(false);
        };
        memory.sink.may_come(at, &content);
        let sges = [memory.sink.sge(at, content.len())];
        let wr = SendWr::read(wr_id, &sges, from as u64, rkey);
        self.posted(connection, end, wr, Op::Read { sink: at, content }, None)
    }

    fn post_add(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&mut me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let skip = memory.sink.free() % 8;
        let Some(at) = memory.sink.take(skip).and_then(|_| memory.sink.take(8)) else {
            return Ok(false);
        };
        memory.sink.may_come(at, &me.adds[0].to_ne_bytes());
        me.adds[0] += 1;
        let (sges, rkey) = ([memory.sink.sge(at, 8)], theirs.word.rkey());
        let wr = SendWr::fetch_add(wr_id, &sges, 0, rkey, 1);
        self.posted(connection, end, wr, Op::Add { sink: at }, None)
    }

    /// What a program should not do.
    pub(crate) fn misdeed(
        &mut self,
        connection: usize,
        end: usize,
        what: Misdeed,
    ) -> Result<(), String> {
        let now = self.clock.elapsed();
        self.log.event(now, || {
            format!("connection {connection} end {end}: misdeed {what:?}")
        });
        let receive = self.receive_len(connection, 1 - end);
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(qp), Some(memory)) = (&me.qp, &mut me.memory) else {
            return Ok(());
        };
        let Some(theirs) = &peer.memory else {
            return Ok(());
        };
        match what {
            Misdeed::Abort => qp.abort(),
            Misdeed::Disconnect => qp.disconnect(),
            Misdeed::Drop => me.qp = None,
            Misdeed::Deregister => {
                if let Some(region) = memory.target.region.take()
                    && let Err((region, _)) = region.deregister()
                {
                    memory.target.region = Some(region);
                }
            }
            Misdeed::BadKey => {
                let rkey = theirs.target.rkey() ^ 0x0050_0A00;
                let wr = SendWr::write_inline(wr_id, b"nowhere", 0, rkey);
                self.posted(connection, end, wr, Op::Wrong, None)?;
            }
            Misdeed::OutOfBounds => {
                let (rkey, at) = (theirs.target.rkey(), theirs.target.len() as u64 - 1);
                let wr = SendWr::write_inline(wr_id, b"ab", at, rkey);
                self.posted(connection, end, wr, Op::Wrong, None)?;
            }
            Misdeed::TooLong => {
                let len = receive + 1;
                let payload = memory.source.expected(0, len).to_vec();
                let sges = [memory.source.sge(0, len)];
                let message = Message {
                    payload: Some(payload),
                    immediate: None,
                    solicited: false,
                    invalidates: None,
                    writes: me.writes.len(),
                };
                let wr = SendWr::send(wr_id, &sges);
                self.posted(connection, end, wr, Op::Wrong, Some(message))?;
            }
            Misdeed::TooManySends => {
                for _ in 0..2 * RECEIVES + 2 {
                    self.post_send(connection, end, 0, None)?;
                }
            }
        }
        Ok(())
    }
}

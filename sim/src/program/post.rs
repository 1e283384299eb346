//! Good requests: what they bring, as the model has it.

use uwarp_verbs::{Access, SendWr};

use super::INLINE;
use crate::end::{Message, Op, both};
use crate::memory::Tracked;
use crate::world::World;

impl World {
    pub(crate) fn post_send(
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

    pub(crate) fn post_immediate(&mut self, connection: usize, end: usize) -> Result<bool, String> {
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

    pub(crate) fn post_write(
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
    pub(crate) fn post_with_invalidate(
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

    pub(crate) fn post_read(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
    ) -> Result<bool, String> {
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
    pub(crate) fn post_read_back(&mut self, connection: usize, end: usize) -> Result<bool, String> {
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

    pub(crate) fn read_into_sink(
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

    pub(crate) fn post_add(&mut self, connection: usize, end: usize) -> Result<bool, String> {
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
}

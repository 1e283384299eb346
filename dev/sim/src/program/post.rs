//! Valid requests, and their effects in the model.

use uwarp_verbs::{RemoteBuffer, SendWr};

use super::INLINE;
use crate::atomic::Atomic;
use crate::end::{Message, Op, both};
use crate::memory::divide;
use crate::world::World;

/// Way in which a Send returns loaned memory.
#[derive(Clone, Copy)]
pub(crate) enum Back {
    /// The Send invalidates the STag.
    Invalidated { rkey: u32, lent: usize },
    /// The message only identifies the region, and the receiver invalidates it.
    Told { lent: usize },
}

impl World {
    /// Posts a Send. `back` is the loan that the Send returns, and whether the Send has a fence.
    pub(crate) fn post_send(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        back: Option<(Back, bool)>,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let (solicited, inline) = (self.random.bool(), self.random.bool());
        let start = self.random.usize(0..1024);
        let (me, _) = both(&mut self.connections[connection].ends, end);
        let Some(memory) = &me.memory else {
            return Ok(false);
        };
        let payload = memory.source.expected(start, len).to_vec();
        // Two SGEs, so that the payload has to be gathered.
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
        let mut message = Message::plain(payload.clone(), me.writes.len());
        message.solicited = solicited;
        match back {
            None => {}
            Some((Back::Invalidated { rkey, lent }, _)) => {
                wr = wr.invalidate(rkey);
                message.invalidates = Some((rkey, lent));
            }
            Some((Back::Told { lent }, _)) => message.returns = Some(lent),
        }
        if back.is_some_and(|(_, fenced)| fenced) {
            wr = wr.fence();
        }
        self.post_recorded(connection, end, wr, Op::Send, Some(message))
    }

    pub(crate) fn post_immediate(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let immediate = self.random.u64(..).to_be_bytes();
        let solicited = self.random.bool();
        let writes = self.connections[connection].ends[end].writes.len();
        let message = Message::immediate(immediate, solicited, writes);
        let mut wr = SendWr::immediate(wr_id, immediate);
        if solicited {
            wr = wr.solicited();
        }
        self.post_recorded(connection, end, wr, Op::Immediate, Some(message))
    }

    pub(crate) fn post_write(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        with_immediate: bool,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let immediate = self.random.u64(..).to_be_bytes();
        let (start, inline) = (self.random.usize(0..1024), self.random.bool());
        let solicited = self.random.bool();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let len = len.min(theirs.target.free());
        let at = theirs.target.take(len).unwrap_or(0);
        let payload = memory.source.expected(start, len).to_vec();
        theirs.target.mark_expected(at, &payload);
        let (sges, rkey) = ([memory.source.sge(start, len)], theirs.target.rkey());
        let to = theirs.target.to(at);
        let mut wr = if inline && len <= INLINE {
            SendWr::write_inline(wr_id, &payload, RemoteBuffer::at(to, rkey))
        } else {
            SendWr::write(wr_id, &sges, RemoteBuffer::at(to, rkey))
        };
        let mut message = None;
        if with_immediate {
            wr = wr.with_immediate(immediate);
            if solicited {
                wr = wr.solicited();
            }
            let writes = me.writes.len() + 1;
            message = Some(Message::immediate(immediate, solicited, writes));
        }
        self.post_write_to(connection, end, wr, (at, len), message)
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
        let content = theirs.source.expected(start, len).to_vec();
        let from = (theirs.source.to(start), theirs.source.rkey());
        self.read_into_sink(connection, end, from, content)
    }

    /// Posts a Read of the target of an earlier Write, which the peer must place first (RFC 5040
    /// section 5.5).
    pub(crate) fn post_read_back(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let count = self.connections[connection].ends[end].writes.len();
        if count == 0 {
            return self.post_read(connection, end, 8);
        }
        let (at, len) = self.connections[connection].ends[end].writes[self.random.usize(0..count)];
        let Some(theirs) = &self.connections[connection].ends[1 - end].memory else {
            return Ok(false);
        };
        let content = theirs.target.expected(at, len).to_vec();
        let from = (theirs.target.to(at), theirs.target.rkey());
        self.read_into_sink(connection, end, from, content)
    }

    pub(crate) fn read_into_sink(
        &mut self,
        connection: usize,
        end: usize,
        (from, rkey): (u64, u32),
        content: Vec<u8>,
    ) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let Some(memory) = &mut self.connections[connection].ends[end].memory else {
            return Ok(false);
        };
        let Some(at) = memory.sink.take(content.len()) else {
            return Ok(false);
        };
        memory.sink.mark_expected(at, &content);
        let sges = divide(&mut self.random, memory.sink.sge(at, content.len()));
        if sges.iter().filter(|sge| sge.len > 0).count() > 1 {
            self.tally.add("Reads into several elements");
        }
        // The STag of an empty Read is not checked (RFC 5040 section 5.2.1).
        let rkey = if content.is_empty() { !rkey } else { rkey };
        let wr = SendWr::read(wr_id, &sges, RemoteBuffer::at(from, rkey));
        self.post_recorded(connection, end, wr, Op::Read { sink: at, content }, None)
    }

    pub(crate) fn post_atomic(&mut self, connection: usize, end: usize) -> Result<bool, String> {
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&mut me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let Some(sink) = memory.take_word() else {
            return Ok(false);
        };
        let before = me.words.last().copied().unwrap_or_default();
        let what = Atomic::draw(&mut self.random, before);
        memory.sink.mark_expected(sink, &before.to_ne_bytes());
        let sges = [memory.sink.sge(sink, 8)];
        let wr = what.request(wr_id, &sges, theirs.word.to(0), theirs.word.rkey());
        let posted =
            self.post_recorded(connection, end, wr, Op::Atomic { sink, what, before }, None)?;
        if posted {
            let me = &mut self.connections[connection].ends[end];
            me.words.push(what.on(before));
        }
        Ok(posted)
    }

    /// Posts a Write to a part of the peer's target, and records the part if the post is accepted.
    pub(crate) fn post_write_to(
        &mut self,
        connection: usize,
        end: usize,
        wr: SendWr<'_>,
        part: (usize, usize),
        message: Option<Message>,
    ) -> Result<bool, String> {
        let posted = self.post_recorded(connection, end, wr, Op::Write, message)?;
        if posted {
            self.connections[connection].ends[end].writes.push(part);
        }
        Ok(posted)
    }

    /// Posts a Read, and a fenced Send or Write of the bytes that the Read returns.
    pub(crate) fn post_fenced(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        send: bool,
    ) -> Result<bool, String> {
        let start = self.random.usize(0..1024);
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let len = if send {
            len
        } else {
            len.min(theirs.target.free())
        };
        // Offset that `read_into_sink` will take in the sink.
        let sink = memory.sink.len() - memory.sink.free();
        let content = theirs.source.expected(start, len).to_vec();
        let from = (theirs.source.to(start), theirs.source.rkey());
        if !self.read_into_sink(connection, end, from, content.clone())? {
            return Ok(false);
        }
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let sges = [memory.sink.sge(sink, len)];
        if send {
            let message = Message::plain(content, me.writes.len());
            let wr = SendWr::send(wr_id, &sges).fence();
            return self.post_recorded(connection, end, wr, Op::Send, Some(message));
        }
        let at = theirs.target.take(len).unwrap_or(0);
        theirs.target.mark_expected(at, &content);
        let (to, rkey) = (theirs.target.to(at), theirs.target.rkey());
        let wr = SendWr::write(wr_id, &sges, RemoteBuffer::at(to, rkey)).fence();
        self.post_write_to(connection, end, wr, (at, len), None)
    }
}

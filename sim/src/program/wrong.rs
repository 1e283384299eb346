//! Requests that the peer has to refuse.

use uwarp_verbs::{QpState, SendWr, Sge};

use crate::end::{End, Message, Op, both};
use crate::lent::{self, Kind};
use crate::world::{Connection, Fate, Stage, World};
use crate::wrong::Wrong;

/// What of the peer's memory a request may name, though it should not.
struct Names {
    target: u32,
    /// Behind the last octet of the target.
    end: u64,
    source: u32,
    sink: u32,
    word: u32,
    /// An STag that was given back.
    dead: Option<u32>,
    /// An STag for another connection alone.
    foreign: Option<u32>,
}

impl Names {
    /// The request; `None` where nothing has such a name now.
    fn request<'a>(
        &self,
        wrong: Wrong,
        wr_id: u64,
        sink: &'a [Sge],
        too_long: &'a [Sge],
    ) -> Option<SendWr<'a>> {
        let write = |rkey, at| SendWr::write_inline(wr_id, b"nowhere", at, rkey);
        let read = |rkey, at| SendWr::read(wr_id, sink, at, rkey);
        let atomic = |rkey, at| SendWr::fetch_add(wr_id, sink, at, rkey, 1);
        // Another index, and another key.
        let (none, key) = (self.target ^ 0x0050_0A00, self.target ^ 5);
        Some(match wrong {
            Wrong::TooLong => SendWr::send(wr_id, too_long),
            Wrong::NoStag => write(none, 0),
            Wrong::Key => write(key, 0),
            Wrong::Dead => write(self.dead?, 0),
            Wrong::Foreign => write(self.foreign?, 0),
            // One octet too many, and no more.
            Wrong::Bounds => SendWr::write_inline(wr_id, b"ab", self.end - 1, self.target),
            Wrong::WriteRight => write(self.source, 0),
            Wrong::ReadNoStag => read(none, 0),
            Wrong::ReadDead => read(self.dead?, 0),
            Wrong::ReadForeign => read(self.foreign?, 0),
            Wrong::ReadBounds => read(self.target, self.end - 1),
            Wrong::ReadRight => read(self.sink, 0),
            Wrong::AtomicRight => atomic(self.target, 0),
            Wrong::AtomicAligned => atomic(self.word, 4),
            Wrong::Invalidate => SendWr::send(wr_id, &[]).invalidate(self.target),
        })
    }
}

impl World {
    /// Posts one, if both ends are at work; gives whether it did.
    pub(crate) fn refused(
        &mut self,
        connection: usize,
        end: usize,
        wrong: Wrong,
    ) -> Result<bool, String> {
        let works = |end: &End| (end.qp.as_ref()).is_some_and(|qp| qp.state() == QpState::Rts);
        let Connection { stage, ends, .. } = &self.connections[connection];
        let open = *stage == Stage::Open && ends.iter().all(works) && ends[end].open;
        let is_send = matches!(wrong, Wrong::TooLong | Wrong::Invalidate);
        if !open || is_send && !self.has_receive(connection, 1 - end) {
            return Ok(false);
        }
        let receive = self.receive_len(connection, 1 - end);
        let foreign = self.foreign(connection, 1 - end);
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&mut me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let dead = |lent: &&lent::Lent| lent.stage == lent::Stage::Dead;
        let names = Names {
            target: theirs.target.rkey(),
            end: theirs.target.len() as u64,
            source: theirs.source.rkey(),
            sink: theirs.sink.rkey(),
            word: theirs.word.rkey(),
            dead: theirs.lent.iter().find(dead).map(|lent| lent.rkey),
            foreign,
        };
        let Some(sink) = memory.take_word() else {
            return Ok(false);
        };
        let sink = [memory.sink.sge(sink, 8)];
        let payload = match wrong {
            Wrong::TooLong => memory.source.expected(0, receive + 1),
            _ => &[],
        };
        let too_long = [memory.source.sge(0, payload.len())];
        let message = is_send.then(|| Message::refused(payload.to_vec(), me.writes.len()));
        let Some(wr) = names.request(wrong, wr_id, &sink, &too_long) else {
            return Ok(false);
        };
        let op = if wrong.is_answered() {
            Op::WrongAsk
        } else {
            Op::Wrong
        };
        self.log.event(self.clock.elapsed(), || {
            format!("connection {connection} end {end}: {wr_id} has to be refused: {wrong:?}")
        });
        self.connections[connection].refusals.push((end, wrong));
        self.befalls(connection, Fate::Refusal);
        if wrong == Wrong::TooLong {
            self.robs(connection, 1 - end);
        }
        self.posted(connection, end, wr, op, message)
    }

    /// The STag of memory of this end's host that is for another connection alone.
    fn foreign(&self, connection: usize, end: usize) -> Option<u32> {
        let host = self.connections[connection].ends[end].host;
        let others = self.connections.iter().enumerate();
        let ends = others
            .filter(|(number, _)| *number != connection)
            .flat_map(|(_, other)| &other.ends);
        let memories = ends.filter(|end| end.host == host && end.qp.is_some());
        let mut lent = memories
            .filter_map(|end| end.memory.as_ref())
            .flat_map(|memory| &memory.lent);
        let found =
            lent.find(|lent| lent.kind != Kind::Window1 && lent.stage == lent::Stage::Ready);
        found.map(|lent| lent.rkey)
    }
}

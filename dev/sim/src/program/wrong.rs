//! Requests that the peer must refuse.

use uwarp_verbs::{QpState, RemoteBuffer, SendWr, Sge};

use crate::end::{End, Message, Op, both};
use crate::lent_region::{self, Kind};
use crate::memory::{Tracked, divide};
use crate::world::{Connection, EndCause, Stage, World};
use crate::wrong::Wrong;

/// TO and STag of each place that an invalid request may name.
struct Names {
    target: (u64, u32),
    /// TO after the last byte of the target.
    end: u64,
    source: (u64, u32),
    sink: (u64, u32),
    word: (u64, u32),
    /// A returned region, whose STag is no longer valid.
    dead: Option<(u64, u32)>,
    /// A region that only another connection may use.
    foreign: Option<(u64, u32)>,
    /// The target of another connection in another protection domain.
    other: Option<(u64, u32)>,
}

impl Names {
    /// Builds the request, or returns `None` if there is no such place at present. `word` is the
    /// sink of an atomic, and `sink` that of a Read.
    fn request<'a>(
        &self,
        wrong: Wrong,
        wr_id: u64,
        (word, sink): (&'a [Sge], &'a [Sge]),
        too_long: &'a [Sge],
    ) -> Option<SendWr<'a>> {
        let write =
            |(to, rkey)| SendWr::write_inline(wr_id, b"nowhere", RemoteBuffer::at(to, rkey));
        let read = |(to, rkey)| SendWr::read(wr_id, sink, RemoteBuffer::at(to, rkey));
        let atomic = |(to, rkey)| SendWr::fetch_add(wr_id, word, RemoteBuffer::at(to, rkey), 1);
        let (begin, target) = self.target;
        // Two invalid STags: one with another index, one with another key.
        let (none, key) = ((begin, target ^ 0x0050_0A00), (begin, target ^ 5));
        // Writes two bytes, exactly one of which is out of bounds.
        let edge = |to| SendWr::write_inline(wr_id, b"ab", RemoteBuffer::at(to, target));
        let below = begin.checked_sub(1);
        Some(match wrong {
            Wrong::TooLong => SendWr::send(wr_id, too_long),
            Wrong::NoStag => write(none),
            Wrong::Key => write(key),
            Wrong::Dead => write(self.dead?),
            Wrong::Foreign => write(self.foreign?),
            Wrong::Domain => write(self.other?),
            Wrong::Bounds => edge(self.end - 1),
            Wrong::Below => edge(below?),
            Wrong::Wrap => edge(u64::MAX),
            // Both STags forbid remote Writes; the second one has local write access.
            Wrong::WriteRight => {
                write([self.source, self.word][usize::from(wr_id.is_multiple_of(2))])
            }
            Wrong::ReadNoStag => read(none),
            Wrong::ReadDead => read(self.dead?),
            Wrong::ReadForeign => read(self.foreign?),
            Wrong::ReadDomain => read(self.other?),
            Wrong::ReadBounds => read((self.end - 1, target)),
            Wrong::ReadBelow => read((below?, target)),
            Wrong::ReadWrap => read((u64::MAX, target)),
            Wrong::ReadRight => read(self.sink),
            Wrong::AtomicRight => atomic(self.target),
            Wrong::AtomicAligned => atomic((self.word.0 + 4, self.word.1)),
            Wrong::Invalidate => SendWr::send(wr_id, &[]).invalidate(target),
        })
    }
}

impl World {
    /// Posts an invalid request if both ends are in RTS. Returns true if it was posted.
    pub(crate) fn post_refused(
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
        let other = self.other(connection, 1 - end);
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&mut me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let dead = |lent: &&lent_region::LentRegion| lent.stage == lent_region::Stage::Dead;
        let of = |memory: &Tracked| (memory.to(0), memory.rkey());
        let dead = theirs.lent.iter().find(dead);
        let names = Names {
            target: of(&theirs.target),
            end: theirs.target.to(theirs.target.len()),
            source: of(&theirs.source),
            sink: of(&theirs.sink),
            word: of(&theirs.word),
            dead: dead.map(|lent| (lent.to, lent.rkey)),
            foreign,
            other,
        };
        let Some(sink) = memory.take_word() else {
            return Ok(false);
        };
        if wrong == Wrong::ReadBounds {
            // The first byte is in bounds, and may have an element of its own.
            let last = theirs.target.len() - 1;
            let byte = theirs.target.expected(last, 1);
            memory.sink.mark_expected(sink, byte);
        }
        let word = [memory.sink.sge(sink, 8)];
        let sink = match wrong {
            // An element of one byte would not wrap.
            Wrong::ReadWrap => word.to_vec(),
            _ => divide(&mut self.random, word[0]),
        };
        let payload = match wrong {
            Wrong::TooLong => memory.source.expected(0, receive + 1),
            _ => &[],
        };
        let too_long = [memory.source.sge(0, payload.len())];
        let message = is_send.then(|| Message::refused(payload.to_vec(), me.writes.len()));
        let Some(wr) = names.request(wrong, wr_id, (&word, &sink), &too_long) else {
            return Ok(false);
        };
        let op = if wrong.is_answered() {
            Op::WrongAsk
        } else {
            Op::Wrong
        };
        self.log.event(self.clock.elapsed(), || {
            format!("connection {connection} end {end}: {wr_id} is invalid: {wrong:?}")
        });
        // The post itself may refuse the request, for example a Read after a damaged Reply that set
        // ORD to 0. The peer never receives such a request.
        if !self.post_recorded(connection, end, wr, op, message)? {
            return Ok(false);
        }
        self.connections[connection].refusals.push((end, wrong));
        self.record_cause(connection, EndCause::Refusal);
        if wrong == Wrong::TooLong {
            self.record_taken_receives(connection, 1 - end);
        }
        Ok(true)
    }

    /// Returns the TO and STag of a region at this end's host that is valid for another connection
    /// only.
    fn foreign(&self, connection: usize, end: usize) -> Option<(u64, u32)> {
        let mut lent = (self.neighbours(connection, end))
            .filter_map(|end| end.memory.as_ref())
            .flat_map(|memory| &memory.lent);
        let found =
            lent.find(|lent| lent.kind != Kind::Window1 && lent.stage == lent_region::Stage::Ready);
        found.map(|lent| (lent.to, lent.rkey))
    }

    /// Returns the target of another connection at this end's host, in another protection domain.
    fn other(&self, connection: usize, end: usize) -> Option<(u64, u32)> {
        let domain = self.connections[connection].ends[end].domain;
        let mut others = (self.neighbours(connection, end)).filter(|end| end.domain != domain);
        let target = &others.find_map(|end| end.memory.as_ref())?.target;
        target.region.as_ref()?;
        Some((target.to(0), target.rkey()))
    }

    /// Returns the ends of other connections at the host of this end.
    fn neighbours(&self, connection: usize, end: usize) -> impl Iterator<Item = &End> {
        let host = self.connections[connection].ends[end].host;
        let others = self.connections.iter().enumerate();
        let ends = others
            .filter(move |(number, _)| *number != connection)
            .flat_map(|(_, other)| &other.ends);
        ends.filter(move |end| end.host == host && end.qp.is_some())
    }
}

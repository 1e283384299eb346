//! Requests about STags: loans to the peer and their return, and memory registered for one request.

use uwarp_verbs::{BindWr, RemoteBuffer, SendWr, Sge, WindowBind};

use super::post::Back;
use crate::end::{Message, Op, both};
use crate::lent_region::{Ask, Kind, LentRegion, Stage};
use crate::memory;
use crate::world::World;

/// Maximum length of a loaned part, in bytes.
const LONGEST: usize = 20_000;

impl World {
    /// Loans memory to the peer: sets it up and makes its STag valid.
    pub(crate) fn post_lend(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
    ) -> Result<bool, String> {
        let kinds = [Kind::Region, Kind::Window1, Kind::Window2, Kind::Fast];
        // The last operation must post a request, because its completion shows that all are done.
        let last = self.connections[connection].ends[end].operations <= 1;
        let kind = kinds[self.random.usize(usize::from(last)..kinds.len())];
        let (at, wr_id) = (self.random.usize(0..40), self.next_wr_id());
        let part = (at, len.clamp(1, LONGEST));
        let begin = (
            memory::base(&mut self.random, at + LONGEST),
            self.random.bool(),
        );
        let me = &mut self.connections[connection].ends[end];
        let resources = (self.hosts[me.host].as_ref()).and_then(|host| host.resources.as_ref());
        let (Some(resources), Some(memory), Some(qp)) = (resources, &mut me.memory, &me.qp) else {
            return Ok(false);
        };
        let lent = LentRegion::new(resources.domain(me.domain), qp, kind, part, begin)?;
        let (ask, op) = (
            lent.ask(wr_id),
            Op::Lend {
                lent: memory.lent.len(),
            },
        );
        memory.lent.push(lent);
        match ask {
            Ask::Nothing => Ok(true),
            Ask::Request(wr) => self.post_recorded(connection, end, wr, op, None),
            Ask::Bind(bind) => self.post_bind(connection, end, (wr_id, &bind), op),
        }
    }

    /// Binds a type 1 window, or unbinds it.
    fn post_bind(
        &mut self,
        connection: usize,
        end: usize,
        (wr_id, bind): (u64, &WindowBind),
        op: Op,
    ) -> Result<bool, String> {
        let (Op::Lend { lent } | Op::TakeBack { lent }) = op else {
            return Ok(false);
        };
        self.record_post(connection, end, (wr_id, true), op, None);
        let me = &mut self.connections[connection].ends[end];
        let (Some(memory), Some(qp)) = (&mut me.memory, &me.qp) else {
            return Ok(false);
        };
        let Some(window) = memory.lent[lent].window_mut() else {
            return Ok(false);
        };
        let result = qp.post_bind(window, &BindWr::new(wr_id, bind)).map(|_| ());
        self.post_result(connection, end, wr_id, result, false)
    }

    /// Posts a Write into memory that the peer has loaned, perhaps a Read from it, and a Send that
    /// returns it.
    pub(crate) fn post_into_lent(
        &mut self,
        connection: usize,
        end: usize,
        receive: usize,
    ) -> Result<bool, String> {
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let ready = |lent: &LentRegion| lent.stage == Stage::Ready;
        let Some(index) = theirs.lent.iter().position(ready) else {
            return self.post_write(connection, end, receive, false);
        };
        let lent = &mut theirs.lent[index];
        lent.stage = Stage::Used;
        let (kind, to, rkey) = (lent.kind, lent.to, lent.rkey);
        let payload = memory.source.expected(0, lent.len).to_vec();
        lent.memory.mark_expected(lent.at, &payload);
        let sges = [memory.source.sge(0, payload.len())];
        let wr_id = self.next_wr_id();
        let wr = SendWr::write(wr_id, &sges, RemoteBuffer::at(to, rkey));
        if !self.post_recorded(connection, end, wr, Op::Write, None)? {
            return Ok(false);
        }
        // The Send may arrive before the peer has responded to the Read. Invalidating an STag that
        // is being read is an error, so the Send needs a fence.
        let reads = self.random.bool();
        if reads && !self.read_into_sink(connection, end, (to, rkey), payload)? {
            return Ok(false);
        }
        let back = if kind == Kind::Window1 || self.random.bool() {
            Back::Told { lent: index }
        } else {
            Back::Invalidated { rkey, lent: index }
        };
        let short = self.random.usize(0..=receive);
        self.post_send(connection, end, short, Some((back, reads)))
    }

    /// Invalidates the STags of regions that the peer has returned.
    pub(crate) fn take_back(&mut self, connection: usize, end: usize) -> Result<(), String> {
        while let Some(index) = self.connections[connection].ends[end].to_take_back.pop() {
            let wr_id = self.next_wr_id();
            let me = &mut self.connections[connection].ends[end];
            let Some(memory) = &me.memory else {
                return Ok(());
            };
            let (lent, op) = (&memory.lent[index], Op::TakeBack { lent: index });
            if lent.kind == Kind::Window1 {
                let nothing = lent.window(0);
                self.post_bind(connection, end, (wr_id, &nothing), op)?;
            } else {
                let wr = SendWr::local_invalidate(wr_id, lent.rkey);
                self.post_recorded(connection, end, wr, op, None)?;
            }
        }
        Ok(())
    }

    /// Registers memory of this side for one request, and posts the request. A Read uses this
    /// memory as its sink and also invalidates it. After a Send or Write from this memory, a
    /// further request invalidates it.
    pub(crate) fn post_once(
        &mut self,
        connection: usize,
        end: usize,
        len: usize,
        receive: Option<usize>,
    ) -> Result<bool, String> {
        let (len, reads) = (len.max(1), self.random.bool());
        let base = memory::base(&mut self.random, len);
        let me = &mut self.connections[connection].ends[end];
        let resources = (self.hosts[me.host].as_ref()).and_then(|host| host.resources.as_ref());
        let (Some(resources), Some(memory)) = (resources, &mut me.memory) else {
            return Ok(false);
        };
        let content = memory.source.expected(7, len).to_vec();
        let pd = resources.domain(me.domain);
        let own = if reads {
            LentRegion::own(pd, &vec![0xA5; len], base)?
        } else {
            LentRegion::own(pd, &content, base)?
        };
        let (part, lent) = (own.part(), memory.lent.len());
        memory.lent.push(own);
        let wr_id = self.next_wr_id();
        let wr = SendWr::register(wr_id, &part);
        if !self.post_recorded(connection, end, wr, Op::Lend { lent }, None)? {
            return Ok(false);
        }
        let sge = part.sge(0, u32::try_from(len).unwrap_or(u32::MAX));
        let wr_id = self.next_wr_id();
        let (me, peer) = both(&mut self.connections[connection].ends, end);
        let (Some(memory), Some(theirs)) = (&mut me.memory, &mut peer.memory) else {
            return Ok(false);
        };
        let sges = [sge];
        if reads {
            let content = theirs.source.expected(7, len).to_vec();
            memory.lent[lent].memory.mark_expected(0, &content);
            let (from, rkey) = (theirs.source.to(7), theirs.source.rkey());
            let sges = memory::divide(&mut self.random, sge);
            let wr = SendWr::read(wr_id, &sges, RemoteBuffer::at(from, rkey)).invalidate_sink();
            return self.post_recorded(connection, end, wr, Op::ReadOnce { lent, content }, None);
        }
        let posted = match receive {
            Some(receive) if len <= receive => {
                let message = Message::plain(content, me.writes.len());
                let wr = SendWr::send(wr_id, &sges);
                self.post_recorded(connection, end, wr, Op::Send, Some(message))?
            }
            _ => self.write_to_target(connection, end, wr_id, &sges, &content)?,
        };
        if !posted {
            return Ok(false);
        }
        let wr = SendWr::local_invalidate(self.next_wr_id(), part.stag);
        self.post_recorded(connection, end, wr, Op::TakeBack { lent }, None)
    }

    /// Posts a Write of `content`, described by `sges`, to the peer's target.
    fn write_to_target(
        &mut self,
        connection: usize,
        end: usize,
        wr_id: u64,
        sges: &[Sge],
        content: &[u8],
    ) -> Result<bool, String> {
        let (_, peer) = both(&mut self.connections[connection].ends, end);
        let Some(target) = peer.memory.as_mut().map(|theirs| &mut theirs.target) else {
            return Ok(false);
        };
        let Some(at) = target.take(content.len()) else {
            return Ok(false);
        };
        target.mark_expected(at, content);
        let wr = SendWr::write(wr_id, sges, RemoteBuffer::at(target.to(at), target.rkey()));
        self.post_write_to(connection, end, wr, (at, content.len()), None)
    }
}

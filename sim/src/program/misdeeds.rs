//! What a program should not do, or may do at any time.

use uwarp_verbs::SendWr;

use super::RECEIVES;
use crate::end::{Message, Op, both};
use crate::scenario::Misdeed;
use crate::world::World;

impl World {
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
            Misdeed::TooLong => self.post_too_long(connection, end, wr_id, receive)?,
            Misdeed::TooManySends => {
                for _ in 0..2 * RECEIVES + 2 {
                    self.post_send(connection, end, 0, None)?;
                }
            }
        }
        Ok(())
    }

    /// A Send of one octet more than the receive has.
    fn post_too_long(
        &mut self,
        connection: usize,
        end: usize,
        wr_id: u64,
        receive: usize,
    ) -> Result<(), String> {
        let me = &self.connections[connection].ends[end];
        let Some(memory) = &me.memory else {
            return Ok(());
        };
        let len = receive + 1;
        let message = Message {
            payload: Some(memory.source.expected(0, len).to_vec()),
            immediate: None,
            solicited: false,
            invalidates: None,
            writes: me.writes.len(),
        };
        let sges = [memory.source.sge(0, len)];
        let wr = SendWr::send(wr_id, &sges);
        self.posted(connection, end, wr, Op::Wrong, Some(message))
            .map(|_| ())
    }
}

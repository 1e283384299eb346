//! What a program should not do, or may do at any time.

use super::RECEIVES;
use crate::end::both;
use crate::scenario::Misdeed;
use crate::world::{EndCause, World};

impl World {
    /// What a program should not do.
    pub(crate) fn invalid_operation(
        &mut self,
        connection: usize,
        end: usize,
        what: Misdeed,
    ) -> Result<(), String> {
        let now = self.clock.elapsed();
        self.log.event(now, || {
            format!("connection {connection} end {end}: misdeed {what:?}")
        });
        let (me, _) = both(&mut self.connections[connection].ends, end);
        if me.qp.is_none() {
            return Ok(());
        }
        let cause = match what {
            Misdeed::Abort | Misdeed::Drop => Some(EndCause::Aborted),
            Misdeed::Disconnect => Some(EndCause::Disconnected),
            Misdeed::Deregister => Some(EndCause::Deregistered),
            // Noted when they are posted.
            Misdeed::Request(_) | Misdeed::TooManySends => None,
        };
        if let Some(cause) = cause {
            self.record_cause(connection, cause);
        }
        let (me, _) = both(&mut self.connections[connection].ends, end);
        let (Some(qp), Some(memory)) = (&me.qp, &mut me.memory) else {
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
            Misdeed::Request(wrong) => {
                self.refused(connection, end, wrong)?;
            }
            Misdeed::TooManySends => {
                self.record_cause(connection, EndCause::Robbed);
                self.robs(connection, 1 - end);
                for _ in 0..2 * RECEIVES + 2 {
                    self.post_send(connection, end, 0, None)?;
                }
            }
        }
        Ok(())
    }
}

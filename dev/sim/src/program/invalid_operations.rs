//! Operations that end a connection: invalid operations, and operations that a program may do at
//! any time.

use super::RECEIVES;
use crate::end::both;
use crate::scenario::InvalidOperation;
use crate::world::{EndCause, World};

impl World {
    /// Performs one of these operations at one end, and records it as a cause for which the
    /// connection may end.
    pub(crate) fn invalid_operation(
        &mut self,
        connection: usize,
        end: usize,
        what: InvalidOperation,
    ) -> Result<(), String> {
        let now = self.clock.elapsed();
        self.log.event(now, || {
            format!("connection {connection} end {end}: invalid operation {what:?}")
        });
        let (me, _) = both(&mut self.connections[connection].ends, end);
        if me.qp.is_none() {
            return Ok(());
        }
        let cause = match what {
            InvalidOperation::Abort | InvalidOperation::Drop => Some(EndCause::Aborted),
            InvalidOperation::Disconnect => Some(EndCause::Disconnected),
            InvalidOperation::Deregister => Some(EndCause::Deregistered),
            // The cause is recorded when the requests are posted.
            InvalidOperation::Request(_) | InvalidOperation::TooManySends => None,
        };
        if let Some(cause) = cause {
            self.record_cause(connection, cause);
        }
        let (me, _) = both(&mut self.connections[connection].ends, end);
        let (Some(qp), Some(memory)) = (&me.qp, &mut me.memory) else {
            return Ok(());
        };
        match what {
            InvalidOperation::Abort => qp.abort(),
            InvalidOperation::Disconnect => qp.disconnect(),
            InvalidOperation::Drop => me.qp = None,
            InvalidOperation::Deregister => {
                if let Some(region) = memory.target.region.take()
                    && let Err((region, _)) = region.deregister()
                {
                    memory.target.region = Some(region);
                }
            }
            InvalidOperation::Request(wrong) => {
                self.post_refused(connection, end, wrong)?;
            }
            InvalidOperation::TooManySends => {
                self.record_cause(connection, EndCause::ReceivesTaken);
                self.record_taken_receives(connection, 1 - end);
                for _ in 0..2 * RECEIVES + 2 {
                    self.post_send(connection, end, 0, None)?;
                }
            }
        }
        Ok(())
    }
}

//! What the thread of the link does about an interface that is down, or takes shorter packets now.

use super::link::Shared;

impl Shared {
    /// Has the thread look at the wire when that is troubled.
    pub(super) fn mind(&self) {
        if self.wire.is_troubled() {
            self.wake.raise();
        }
    }

    /// Looks at the wire when it is troubled. `true`: it is to be looked at again in a while.
    pub(super) fn look_at_wire(&self) -> bool {
        if !self.wire.is_troubled() {
            return false;
        }
        match self.wire.look() {
            Ok(lasts) => {
                self.fit_mtu();
                lasts
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// Has all connections send what the interface takes by now.
    fn fit_mtu(&self) {
        let mtu = self.wire.mtu();
        if mtu >= self.mtu {
            return;
        }
        if self.stack().is_some_and(|stack| stack.limit_mtu(mtu)) {
            let (link, before) = (self.wire.describe(), self.mtu);
            tracing::warn!(link, mtu, before, "the interface has a smaller MTU now");
        }
    }
}

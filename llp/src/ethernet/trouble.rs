//! Handling of an interface that is down, or whose MTU became smaller.

use super::link::Shared;

impl Shared {
    /// Wakes the link's thread if the wire has a problem.
    pub(super) fn wake_if_problem(&self) {
        if self.wire.has_problem() {
            self.wake.raise();
        }
    }

    /// Checks a wire that has a problem. Returns true if it has to be checked again later.
    pub(super) fn check_wire(&self) -> bool {
        if !self.wire.has_problem() {
            return false;
        }
        match self.wire.check() {
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

    /// Limits all connections to the interface's current MTU if it has become smaller.
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

//! Whether the target can be reached at all. A dead target is found once, and not by each case.

use std::io::{Error, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::player::Stop;
use crate::transport::Network;

/// Why a case is not tried after the target was found dead.
const UNREACHABLE: &str = "the target cannot be reached";
/// Time between two attempts to reach a target that was there before.
const BETWEEN: Duration = Duration::from_millis(50);

/// State of the target, for all cases and workers of a run.
///
/// ```text
/// Unknown ── connection ──► Reached ── no connection, for as long as is waited ──► Gone
///    └───── no connection ────────────────────────────────────────────────────────► Gone
/// ```
#[derive(Debug, Default)]
pub(super) struct Contact(Mutex<State>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Unknown,
    Reached,
    Gone,
}

/// Why there is no connection.
pub(super) enum NoContact {
    /// The target was reached before, and may be again.
    Now(Error),
    /// It cannot be reached. For the case that found it so.
    Never(Error),
    /// Another case found that before.
    Known,
}

impl Contact {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why no further case should be tried, if the target was found dead.
    pub(super) fn unreachable(&self) -> Option<&'static str> {
        (*self.state() == State::Gone).then_some(UNREACHABLE)
    }

    /// Records that the target is dead.
    pub(super) fn lose(&self) {
        *self.state() = State::Gone;
    }

    /// Makes a connection by `attempt`. The first one of a run decides whether the target is there;
    /// other workers wait for it.
    ///
    /// `first`: how long to go on trying before there was any connection. `patience`: the same if the
    /// target was there before and is not now, as a server that is started again for each connection.
    /// After that it is dead. Without `patience`, the failure is one of this case alone.
    pub(super) fn make<T>(
        &self,
        network: &dyn Network,
        first: Duration,
        patience: Option<Duration>,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> Result<T, NoContact> {
        let mut state = self.state();
        if *state == State::Reached {
            drop(state);
            match attempt() {
                Err(error) if patience.is_none() || !says_gone(&error) => {
                    return Err(NoContact::Now(error));
                }
                Err(_) => state = self.state(),
                Ok(connection) => return Ok(connection),
            }
        }
        if *state == State::Gone {
            return Err(NoContact::Known);
        }
        let patience = match *state {
            State::Reached => patience.unwrap_or_default(),
            _ => first,
        };
        let until = network.now() + patience;
        loop {
            match attempt() {
                Ok(connection) => {
                    *state = State::Reached;
                    return Ok(connection);
                }
                Err(error) if !says_gone(&error) => return Err(NoContact::Now(error)),
                Err(error) if network.now() >= until => {
                    *state = State::Gone;
                    return Err(NoContact::Never(error));
                }
                Err(_) => network.pause(BETWEEN),
            }
        }
    }
}

/// Returns true if an error says that nothing answers. A reset comes from something that does, and
/// what the network cannot do says nothing about the target.
fn says_gone(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::ConnectionReset
    )
}

impl NoContact {
    /// The verdict: `words` makes that of a case that has tried.
    pub(super) fn stop(self, words: impl FnOnce(Error) -> Stop) -> Stop {
        match self {
            NoContact::Now(error) | NoContact::Never(error) => words(error),
            NoContact::Known => Stop::Skip(UNREACHABLE.into()),
        }
    }
}

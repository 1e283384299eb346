//! Tracks whether the target can be reached, so that a dead target costs one timeout and not one
//! for each case.

use std::io::{Error, ErrorKind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::player::Stop;
use crate::transport::Network;

/// Reason for skipping cases after the target was found dead.
const UNREACHABLE: &str = "the target cannot be reached";
/// Pause between two attempts to connect to a target.
const BETWEEN: Duration = Duration::from_millis(50);
/// Number of unreachable listeners after which the target counts as dead. The agent creates each
/// listener for one case, and a single listener may fail alone. If a firewall drops everything,
/// only this many cases wait for a timeout, and the others are skipped.
const LISTENERS: u32 = 4;

/// Reachability of the target, shared by all cases and workers of a run.
///
/// ```text
/// Unknown ── connection ──► Reached ── no connection within `patience` ──► Gone
///    └───── no connection ───────────────────────────────────────────────► Gone
/// ```
/// With an agent, each case has its own listener. One unreachable listener does not prove that the
/// target is dead, but [`LISTENERS`] of them do.
#[derive(Debug, Default)]
pub(super) struct Contact {
    state: Mutex<State>,
    /// Id of the case that killed the target.
    ended_by: OnceLock<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection has been established yet. Contains the number of the agent's listeners that
    /// could not be reached.
    Unknown(u32),
    Reached,
    Gone,
}

impl Default for State {
    fn default() -> Self {
        State::Unknown(0)
    }
}

/// Reason why there is no connection.
pub(super) enum NoContact {
    /// This attempt failed. It does not prove that the target is dead.
    Now(Error),
    /// No connection has ever been established, and the target now counts as dead. Only the case
    /// that found this out gets this reason.
    Never(Error),
    /// The target was reached before, and now counts as dead. Only the case that found this out
    /// gets this reason.
    Lost(Error),
    /// Another case had already found the target dead. The text is the reason for skipping this
    /// case.
    Known(String),
}

impl Contact {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason for skipping further cases if the target was found dead.
    pub(super) fn unreachable(&self) -> Option<String> {
        (*self.state() == State::Gone).then(|| self.why())
    }

    /// Returns true if a connection was established and the target still counts as alive.
    pub(super) fn is_reached(&self) -> bool {
        *self.state() == State::Reached
    }

    /// Records the case that killed the target. Later calls have no effect.
    pub(super) fn ended_by(&self, id: &str) {
        let _ = self.ended_by.set(id.to_owned());
    }

    /// Returns true if a case has killed the target.
    pub(super) fn has_died(&self) -> bool {
        self.ended_by.get().is_some()
    }

    /// Returns the reason for skipping a case.
    fn why(&self) -> String {
        match self.ended_by.get() {
            Some(id) => format!("the target is gone since case {id}"),
            None => UNREACHABLE.into(),
        }
    }

    /// Records that the target is dead.
    pub(super) fn lose(&self) {
        *self.state() = State::Gone;
    }

    /// Establishes a connection by calling `attempt`. The first call of a run decides whether the
    /// target can be reached, and other workers wait for it.
    ///
    /// `first`: time to retry if the run has not established any connection yet. `patience`: time
    /// to retry if the target was reached before but does not answer now, such as a server that
    /// restarts after each connection. After this time the target counts as dead. Without
    /// `patience`, a failure affects only this case.
    ///
    /// For a listener that the agent created for one case, use
    /// [`connect_once`](Self::connect_once).
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
            drop(state);
            return Err(NoContact::Known(self.why()));
        }
        let was_reached = *state == State::Reached;
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
                    return Err(if was_reached {
                        NoContact::Lost(error)
                    } else {
                        NoContact::Never(error)
                    });
                }
                Err(_) => network.pause(BETWEEN),
            }
        }
    }

    /// Establishes a connection, by one `attempt`, to a listener that was created for one case.
    pub(super) fn connect_once<T>(
        &self,
        attempt: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, NoContact> {
        let made = attempt();
        let mut state = self.state();
        match (made, *state) {
            (Ok(connection), _) => {
                *state = State::Reached;
                Ok(connection)
            }
            (Err(error), State::Unknown(failed)) if says_gone(&error) => {
                if failed + 1 < LISTENERS {
                    *state = State::Unknown(failed + 1);
                    return Err(NoContact::Now(error));
                }
                *state = State::Gone;
                Err(NoContact::Never(error))
            }
            (Err(error), _) => Err(NoContact::Now(error)),
        }
    }
}

/// Returns true if the error means that nothing answers. A reset shows that something answers, and
/// an unsupported call says nothing about the target.
fn says_gone(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::ConnectionReset
    )
}

impl NoContact {
    /// Converts the reason into the end of a case. `words` converts the error of an attempt that
    /// this case made.
    pub(super) fn stop(self, words: impl FnOnce(Error) -> Stop) -> Stop {
        match self {
            NoContact::Now(error) | NoContact::Never(error) | NoContact::Lost(error) => {
                words(error)
            }
            NoContact::Known(why) => Stop::Skip(why),
        }
    }
}

//! Whether the target can be reached at all. A dead target is found once, and not by each case.

use std::io::{Error, ErrorKind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::player::Stop;
use crate::transport::Network;

/// Why a case is not tried after the target was found dead.
const UNREACHABLE: &str = "the target cannot be reached";
/// Time between two attempts to reach a target that was there before.
const BETWEEN: Duration = Duration::from_millis(50);
/// Cases with a listener of their own that fail before the target is dead: one listener may fail
/// alone, but a firewall that drops everything must not cost a timeout in each case.
const LISTENERS: u32 = 4;

/// State of the target, for all cases and workers of a run.
///
/// ```text
/// Unknown ── connection ──► Reached ── no connection, for as long as is waited ──► Gone
///    └───── no connection ────────────────────────────────────────────────────────► Gone
/// ```
///
/// Beside an agent, one listener without a connection is no sign of a dead target, and
/// [`LISTENERS`] of them are.
#[derive(Debug, Default)]
pub(super) struct Contact {
    state: Mutex<State>,
    /// The case that the target did not survive.
    ended_by: OnceLock<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection yet. Number of listeners that failed beside an agent.
    Unknown(u32),
    Reached,
    Gone,
}

impl Default for State {
    fn default() -> Self {
        State::Unknown(0)
    }
}

/// Why there is no connection.
pub(super) enum NoContact {
    /// The target was reached before, and may be again.
    Now(Error),
    /// It could never be reached. For the case that found it so.
    Never(Error),
    /// It was reached before, and cannot be any more. For the case that found it so.
    Lost(Error),
    /// Another case found that before. Why this one is not tried.
    Known(String),
}

impl Contact {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why no further case should be tried, if the target was found dead.
    pub(super) fn unreachable(&self) -> Option<String> {
        (*self.state() == State::Gone).then(|| self.why())
    }

    /// Records the case that the target did not survive. The first one counts.
    pub(super) fn ended_by(&self, id: &str) {
        let _ = self.ended_by.set(id.to_owned());
    }

    /// Returns true if a case is known that the target did not survive.
    pub(super) fn has_died(&self) -> bool {
        self.ended_by.get().is_some()
    }

    /// Why a case is not tried.
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

    /// Makes a connection by `attempt`. The first one of a run decides whether the target is there;
    /// other workers wait for it.
    ///
    /// `first`: how long to go on trying before there was any connection. `patience`: the same if the
    /// target was there before and is not now, as a server that is started again for each connection.
    /// After that it is dead. Without `patience`, the failure is one of this case alone.
    ///
    /// For a listener that the agent makes for one case: [`make_alone`](Self::make_alone).
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

    /// Makes a connection by `attempt` to a listener that is of one case alone.
    pub(super) fn make_alone<T>(
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
            NoContact::Now(error) | NoContact::Never(error) | NoContact::Lost(error) => {
                words(error)
            }
            NoContact::Known(why) => Stop::Skip(why),
        }
    }
}

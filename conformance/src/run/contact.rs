//! Tracks whether the target can be reached. A dead target is found once, not by each case.

use std::io::{Error, ErrorKind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use super::player::Stop;
use crate::transport::Network;

/// Reason to skip cases after the target was found dead.
const UNREACHABLE: &str = "the target cannot be reached";
/// Time between two attempts to reach a target that was there before.
const BETWEEN: Duration = Duration::from_millis(50);
/// Failures of listeners made for one case each, after which the target counts as dead. A single
/// listener may fail alone, but a firewall that drops everything must not cost a timeout in each
/// case.
const LISTENERS: u32 = 4;

/// State of the target, for all cases and workers of a run.
///
/// ```text
/// Unknown ── connection ──► Reached ── no connection within `patience` ──► Gone
///    └───── no connection ───────────────────────────────────────────────► Gone
/// ```
///
/// With an agent, one listener without a connection does not mean a dead target, but [`LISTENERS`]
/// of them do.
#[derive(Debug, Default)]
pub(super) struct Contact {
    state: Mutex<State>,
    /// Case that the target did not survive.
    ended_by: OnceLock<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No connection yet. The number counts failed listeners of an agent.
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
    /// The target was reached before, and may be reached again.
    Now(Error),
    /// The target could never be reached. Returned to the case that found this out.
    Never(Error),
    /// The target was reached before, and cannot be reached any more. Returned to the case that
    /// found this out.
    Lost(Error),
    /// Another case found the target dead. The text is the reason to skip this one.
    Known(String),
}

impl Contact {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason to skip further cases, if the target was found dead.
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

    /// Reason to skip a case.
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

    /// Makes a connection by `attempt`. The first connection of a run decides whether the target is
    /// there, and other workers wait for it.
    ///
    /// `first`: how long to retry before there was any connection. `patience`: how long to retry if
    /// the target was there before and is not now, like a server that is restarted for each
    /// connection. After that time the target is dead. Without `patience`, the failure concerns
    /// only this case.
    ///
    /// For a listener that the agent makes for one case, use [`make_alone`](Self::make_alone).
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

    /// Makes a connection by `attempt` to a listener that was made for one case.
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

/// Returns true if an error means that nothing answers. A reset comes from something that does, and
/// an unsupported call says nothing about the target.
fn says_gone(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::ConnectionReset
    )
}

impl NoContact {
    /// Turns the reason into the end of a case. `words` makes that of a case that tried to connect.
    pub(super) fn stop(self, words: impl FnOnce(Error) -> Stop) -> Stop {
        match self {
            NoContact::Now(error) | NoContact::Never(error) | NoContact::Lost(error) => {
                words(error)
            }
            NoContact::Known(why) => Stop::Skip(why),
        }
    }
}

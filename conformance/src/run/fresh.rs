//! Runs in which the suite starts the target itself. A target that no longer answers is replaced.

use std::io;

use super::config::Config;
use super::contact::Contact;
use super::outcome::{Ending, Outcome, Verdict};
use super::suite::{Progress, RunError, Selection, choose, known, play, sorted, unplayed};
use crate::agent::{Agent, AgentError, Channel};
use crate::script::{Action, Case, Setup, must};

/// Maximum number of connections made to a new target before its first case.
const WARM_UP: usize = 3;

/// Starts the targets of a run.
pub trait Targets {
    /// Ends the previous target, if any, and starts another one. Returns a channel to its agent.
    ///
    /// # Errors
    /// If no target can be started.
    fn start(&mut self) -> io::Result<Box<dyn Channel>>;
}

/// Plays the cases one after the other, like [`run`](super::run), against targets that the suite
/// starts.
///
/// If a case leaves its target dead or unresponsive, it is played again on a new target. If that
/// target dies as well, the case fails. A dangerous case always gets a new target.
///
/// # Errors
/// If no case can be played.
pub fn run_with_targets(
    config: &Config,
    targets: &mut dyn Targets,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>, RunError> {
    let deviations = known(config)?;
    let chosen = choose(config, selection)?;
    let mut fresh = Fresh {
        config,
        targets,
        agent: None,
    };
    if !chosen.is_empty() {
        fresh.start()?;
    }
    progress.begins(chosen.len());
    let mut outcomes = Vec::new();
    for case in chosen {
        if progress.stops() {
            break;
        }
        let mut outcome = fresh.play(case);
        deviations.apply(&mut outcome, config.target_initiates);
        progress.played(&outcome);
        outcomes.push(outcome);
    }
    Ok(sorted(outcomes))
}

struct Fresh<'a> {
    config: &'a Config,
    targets: &'a mut dyn Targets,
    agent: Option<Agent>,
}

impl Fresh<'_> {
    fn start(&mut self) -> Result<(), AgentError> {
        self.agent = None;
        let channel = self.targets.start()?;
        self.agent = Some(Agent::open(
            channel,
            self.config.agent_token.as_deref(),
            self.config.timeout,
        )?);
        // The first connection to a new target may take longer than later ones.
        for _ in 0..WARM_UP {
            if self.lives() {
                break;
            }
        }
        Ok(())
    }

    fn play(&mut self, case: &Case) -> Outcome {
        if case.dangerous && self.config.dangerous {
            self.agent = None;
        }
        let fresh = self.agent.is_none();
        let first = self.once(case);
        if self.agent.is_some() {
            return first;
        }
        // On a new target, no earlier case can have caused the failure.
        if case.dangerous || fresh {
            return first.or_death();
        }
        let again = self.once(case);
        if self.agent.is_some() {
            return again;
        }
        again.or_death()
    }

    /// Plays the case once. Afterwards `agent` is `None` if the target died or could not be
    /// started.
    fn once(&mut self, case: &Case) -> Outcome {
        if self.agent.is_none()
            && let Err(error) = self.start()
        {
            return unplayed(
                self.config,
                case,
                Verdict::Infrastructure(error.to_string()),
            );
        }
        let mut outcome = self.on_target(case);
        if outcome.ending == Some(Ending::Died) {
            self.agent = None;
        } else if suspicious(&outcome) && !self.lives() {
            outcome.ending = Some(Ending::Died);
            self.agent = None;
        }
        outcome
    }

    /// Plays the case on the current target. Results of earlier cases about its reachability do not
    /// apply.
    fn on_target(&mut self, case: &Case) -> Outcome {
        let contact = Contact::default();
        play(self.config, &contact, &mut self.agent, &mut None, case)
    }

    /// Returns true if the target accepts a new connection and answers a Read on it.
    fn lives(&mut self) -> bool {
        let case = must("mpa/probe", &[], "The target takes connections.")
            .steps([Action::Establish(Setup::default()), Action::Ping]);
        let outcome = self.on_target(&case);
        outcome.verdict == Verdict::Pass && outcome.ending.is_none()
    }
}

/// Returns true if the target may have died. A target that sent a Terminate is alive.
fn suspicious(outcome: &Outcome) -> bool {
    match outcome.verdict {
        Verdict::Infrastructure(_) => true,
        Verdict::Fail(_) => !matches!(
            outcome.ending,
            Some(Ending::RightTerminate | Ending::WrongTerminate | Ending::SwappedTerminate)
        ),
        _ => false,
    }
}

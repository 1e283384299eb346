//! Runs with targets that a case may kill. The suite starts each target, and replaces it once it no
//! longer answers.

use std::io;

use super::config::Config;
use super::contact::Contact;
use super::outcome::{Ending, Outcome, Verdict};
use super::suite::{Progress, RunError, Selection, choose, known, play, sorted, unplayed};
use crate::agent::{Agent, AgentError, Channel};
use crate::script::{Action, Case, Setup, must};

/// Attempts to make a working connection before the first case.
const WARM_UP: usize = 3;

/// Starts targets.
pub trait Targets {
    /// Ends the previous target, if any, and starts another one. Returns the channel to its agent.
    ///
    /// # Errors
    /// If no target can be started.
    fn start(&mut self) -> io::Result<Box<dyn Channel>>;
}

/// Like [`run`](super::run), with targets that the suite starts, and one case after the other.
///
/// A case that leaves its target dead or unresponsive is played again on another one. If that dies
/// too, it is the verdict of the case. A dangerous case gets its own target.
///
/// # Errors
/// If nothing can be played.
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
        self.agent = Some(Agent::open(channel, self.config.timeout)?);
        // The first connection may take longer than the others.
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
        // On a fresh target, no other case can be to blame.
        if case.dangerous || fresh {
            return first.or_death();
        }
        let again = self.once(case);
        if self.agent.is_some() {
            return again;
        }
        again.or_death()
    }

    /// Plays the case once. If there is no agent afterwards, the target died or could not be
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

    /// Plays the case on the current target. Whether it can be reached is determined anew each
    /// time.
    fn on_target(&mut self, case: &Case) -> Outcome {
        let contact = Contact::default();
        play(self.config, &contact, &mut self.agent, &mut None, case)
    }

    /// Returns true if a connection can be made and used.
    fn lives(&mut self) -> bool {
        let case = must("mpa/probe", &[], "The target takes connections.")
            .steps([Action::Establish(Setup::default()), Action::Ping]);
        let outcome = self.on_target(&case);
        outcome.verdict == Verdict::Pass && outcome.ending.is_none()
    }
}

/// Returns true if the target may have died. A target that sends a Terminate has not.
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

//! Selects cases, sorts them, and plays them with several workers.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use super::config::{Config, Target};
use super::contact::Contact;
use super::outcome::{Ending, Outcome, Verdict};
use super::player::{Player, plays};
use crate::agent::{Agent, AgentError, Channel};
use crate::cases;
use crate::deviations::Deviations;
use crate::script::{Case, Level};
use crate::transport::Listener;

/// Selection of cases by patterns. It contains the cases whose id matches at least one pattern, or
/// all cases if there are no patterns. A pattern is an id, or the beginning of an id up to a `/`,
/// or a text in which `*` stands for any characters.
#[derive(Clone, Debug, Default)]
pub struct Selection(pub Vec<String>);

impl Selection {
    /// Returns true if the selection contains this case id.
    #[must_use]
    pub fn takes(&self, id: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| matches(pattern, id))
    }
}

/// Returns true if the id matches the pattern.
pub(crate) fn matches(pattern: &str, id: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else {
        let rest = id.strip_prefix(pattern.trim_end_matches('/'));
        return rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    };
    let Some(rest) = id.strip_prefix(before) else {
        return false;
    };
    after.is_empty()
        || (0..=rest.len())
            .filter(|at| rest.is_char_boundary(*at))
            .any(|at| glob(after, &rest[at..]))
}

/// Like [`matches`], but a pattern without `*` must equal the whole id.
fn glob(pattern: &str, id: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == id,
        Some(_) => matches(pattern, id),
    }
}

/// Reason why no case was played.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// There is no agent, or it does not work.
    #[error(
        "{0}; start an agent for the target (`uwarp agent`), name its port with --agent, or run with --no-agent"
    )]
    Agent(#[from] AgentError),
    /// The suite cannot listen at this address.
    #[error("the suite cannot listen at {0}: {1}")]
    Listen(std::net::SocketAddr, std::io::Error),
    /// No case matches a pattern.
    #[error("no case has an id like {0}; --list shows them all")]
    NoCase(String),
    /// The file of deviations cannot be read or parsed.
    #[error("{0}")]
    Deviations(String),
}

/// Receives the progress of a run.
pub trait Progress: Sync {
    /// Called once with the number of cases to play.
    fn begins(&self, cases: usize);
    /// Called with the outcome of each case.
    fn played(&self, outcome: &Outcome);
    /// Returns true to stop the run. It is called before each case.
    fn stops(&self) -> bool {
        false
    }
}

impl Progress for () {
    fn begins(&self, _cases: usize) {}
    fn played(&self, _outcome: &Outcome) {}
}

/// Plays the selected cases against the target. Returns the outcomes, sorted by id.
///
/// # Errors
/// If no case can be played.
pub fn run(
    config: &Config,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>, RunError> {
    let deviations = known(config)?;
    let chosen = choose(config, selection)?;
    let mut agents = agents(config)?;
    let mut listener = own_listener(config)?;
    progress.begins(chosen.len());
    let contact = Contact::default();
    let outcomes = Mutex::new(Vec::new());
    // A case that may kill the target is played alone, so that no other case can have caused the
    // failure.
    let (alone, together): (Vec<_>, Vec<_>) = chosen
        .into_iter()
        .partition(|case| case.dangerous && config.dangerous);
    for (cases, most) in [(together, agents.len()), (alone, 1)] {
        let workers = most.min(cases.len());
        let queue = Mutex::new(VecDeque::from(cases));
        let work = |agent: &mut Option<Agent>, listener: Option<&mut dyn Listener>| {
            let next = || next(&queue, progress);
            let played = |mut outcome: Outcome| {
                if workers > 1 {
                    doubt(&mut outcome);
                }
                deviations.apply(&mut outcome, config.target_initiates);
                progress.played(&outcome);
                if let Ok(mut outcomes) = outcomes.lock() {
                    outcomes.push(outcome);
                }
            };
            worker(config, &contact, agent, listener, &next, &played);
        };
        if let Some(listener) = &mut listener {
            work(&mut None, Some(&mut **listener));
        } else {
            std::thread::scope(|scope| {
                for agent in agents.iter_mut().take(workers) {
                    let work = &work;
                    scope.spawn(move || work(agent, None));
                }
            });
        }
    }
    Ok(sorted(outcomes.into_inner().unwrap_or_default()))
}

/// Adds a note to a failure: another case may have killed the target.
fn doubt(outcome: &mut Outcome) {
    if let Verdict::Fail(failure) = &mut outcome.verdict
        && failure.ending == Some(Ending::Died)
    {
        let other =
            "; a case that was played at the same time may be the reason: play one at a time";
        failure.received.push_str(other);
    }
}

/// Plays cases one after the other, like [`run`], with an agent that is reached through `channel`.
///
/// # Errors
/// If no case can be played.
pub fn run_with_agent(
    config: &Config,
    channel: Box<dyn Channel>,
    selection: &Selection,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>, RunError> {
    let deviations = known(config)?;
    let chosen = choose(config, selection)?;
    let mut agent = Some(Agent::open(
        channel,
        config.agent_token.as_deref(),
        config.timeout,
    )?);
    progress.begins(chosen.len());
    let contact = Contact::default();
    let mut outcomes = Vec::new();
    for case in chosen {
        if progress.stops() {
            break;
        }
        let mut outcome = match contact.unreachable() {
            Some(why) => unplayed(config, case, Verdict::Skipped(why)),
            None => play(config, &contact, &mut agent, &mut None, case).or_death(),
        };
        if outcome.ending == Some(Ending::Died) {
            // There is no second channel, so the agent cannot be reached again.
            contact.ended_by(&outcome.id);
            contact.lose();
        }
        deviations.apply(&mut outcome, config.target_initiates);
        progress.played(&outcome);
        outcomes.push(outcome);
    }
    Ok(sorted(outcomes))
}

pub(super) fn known(config: &Config) -> Result<Deviations, RunError> {
    let Some(path) = &config.deviations else {
        return Ok(Deviations::default());
    };
    let deviations = Deviations::read(path).map_err(RunError::Deviations)?;
    let named = deviations.deviation.iter().flat_map(|one| &one.cases);
    for pattern in named {
        if !cases::all().iter().any(|case| matches(pattern, &case.id)) {
            return Err(RunError::NoCase(pattern.clone()));
        }
    }
    Ok(deviations)
}

/// Sorts outcomes by id.
pub(super) fn sorted(mut outcomes: Vec<Outcome>) -> Vec<Outcome> {
    outcomes.sort_by(|one, other| order(&one.id).cmp(&order(&other.id)));
    outcomes
}

/// Returns the sort key of an id. Its numbers are compared as numbers.
pub(crate) fn order(id: &str) -> Vec<(u64, &str)> {
    id.split(|c: char| !c.is_ascii_alphanumeric())
        .map(|part| (part.parse().unwrap_or(u64::MAX), part))
        .collect()
}

pub(super) fn choose(
    config: &Config,
    selection: &Selection,
) -> Result<Vec<&'static Case>, RunError> {
    let all = cases::all();
    for pattern in &selection.0 {
        if !all.iter().any(|case| matches(pattern, &case.id)) {
            return Err(RunError::NoCase(pattern.clone()));
        }
    }
    let mut chosen: Vec<&'static Case> = all
        .iter()
        .filter(|case| selection.takes(&case.id))
        .filter(|case| config.strict || case.level == Level::Must)
        .collect();
    // Slow cases begin first. Cases that may kill the target come last.
    chosen.sort_by_key(|case| (case.dangerous, !case.slow));
    Ok(chosen)
}

/// Connects to the agent once for each worker. An agent that accepts only one controller gets one
/// worker. Without an agent, each worker gets `None`.
fn agents(config: &Config) -> Result<Vec<Option<Agent>>, RunError> {
    let Some(at) = config.agent else {
        return Ok((0..config.jobs.max(1)).map(|_| None).collect());
    };
    let first = Agent::connect(at, config.agent_token.as_deref(), config.timeout)?;
    let takes_one = first.query.get("scoped_regions").is_none();
    let mut agents = vec![Some(first)];
    while agents.len() < config.jobs && !takes_one {
        match Agent::connect(at, config.agent_token.as_deref(), Duration::from_secs(2)) {
            Ok(agent) => agents.push(Some(agent)),
            Err(_) => break,
        }
    }
    Ok(agents)
}

fn own_listener(config: &Config) -> Result<Option<Box<dyn Listener>>, RunError> {
    let at = match &config.target {
        Target::At(_) => return Ok(None),
        Target::Dials(at) => *at,
        Target::Command(_) => (config.network.own_ip(), 0).into(),
    };
    if config.agent.is_some() {
        return Ok(None);
    }
    let listener = config.network.listen(Some(at), None, None);
    listener
        .map(Some)
        .map_err(|error| RunError::Listen(at, error))
}

/// Removes and returns the next case of the queue. Returns `None` if the queue is empty or the run
/// stops.
fn next(queue: &Mutex<VecDeque<&'static Case>>, progress: &dyn Progress) -> Option<&'static Case> {
    if progress.stops() {
        return None;
    }
    queue.lock().ok()?.pop_front()
}

fn worker(
    config: &Config,
    contact: &Contact,
    agent: &mut Option<Agent>,
    mut listener: Option<&mut dyn Listener>,
    next: &dyn Fn() -> Option<&'static Case>,
    played: &dyn Fn(Outcome),
) {
    while let Some(case) = next() {
        if let Some(why) = contact.unreachable() {
            played(unplayed(config, case, Verdict::Skipped(why)));
            continue;
        }
        if let (Some(at), None) = (config.agent, &agent) {
            match Agent::connect(at, config.agent_token.as_deref(), config.timeout) {
                Ok(new) => *agent = Some(new),
                Err(error) => {
                    contact.lose();
                    let gone = contact.unreachable().filter(|_| contact.has_died());
                    let verdict = gone.map_or_else(
                        || Verdict::Infrastructure(format!("the agent is gone: {error}")),
                        Verdict::Skipped,
                    );
                    played(unplayed(config, case, verdict));
                    continue;
                }
            }
        }
        let outcome = play(config, contact, agent, &mut listener, case).or_death();
        let has_died = outcome.ending == Some(Ending::Died);
        if has_died {
            contact.ended_by(&outcome.id);
        }
        if has_died || matches!(outcome.verdict, Verdict::Infrastructure(_)) {
            // The state of the connection to the agent is unknown now, so the next case needs a new
            // one.
            *agent = None;
        }
        played(outcome);
    }
}

/// Returns the outcome of a case that was not started, with this verdict.
pub(super) fn unplayed(config: &Config, case: &Case, verdict: Verdict) -> Outcome {
    let contact = Contact::default();
    let nothing = Case {
        steps: Vec::new(),
        ..case.clone()
    };
    let mut outcome = Player::new(config, &contact, None, None, true).play(&nothing);
    outcome.verdict = verdict;
    outcome
}

pub(super) fn play(
    config: &Config,
    contact: &Contact,
    agent: &mut Option<Agent>,
    listener: &mut Option<&mut dyn Listener>,
    case: &Case,
) -> Outcome {
    let dialled = !matches!(config.target, Target::At(_));
    let target_responds = match case.role {
        crate::script::Role::Responder => true,
        crate::script::Role::Initiator => false,
        crate::script::Role::Either => !dialled && !config.target_initiates,
    };
    debug_assert!(plays(case, target_responds));
    let listener = listener
        .as_mut()
        .map(|listener| &mut **listener as &mut dyn Listener);
    Player::new(config, contact, agent.as_mut(), listener, target_responds).play(case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_an_id_or_its_beginning_or_has_stars() {
        let id = "mpa/5044-7.1.2/3";
        for takes in [
            "mpa",
            "mpa/",
            "mpa/5044-7.1.2",
            "mpa/5044-7.1.2/3",
            "*/3",
            "mpa/*",
            "*7.1*",
            "mpa/5044-*/3",
        ] {
            assert!(matches(takes, id), "{takes}");
        }
        for not in [
            "mp",
            "mpa/5044-7.1",
            "mpa/5044-7.1.2/33",
            "*/4",
            "ddp/*",
            "*7.2*",
        ] {
            assert!(!matches(not, id), "{not}");
        }
    }

    #[test]
    fn ids_sort_by_their_numbers() {
        let mut ids = [
            "mpa/5044-7.1.2/10",
            "mpa/5044-7.1.2/9",
            "mpa/5044-4.10/1",
            "mpa/5044-4.9/1",
        ];
        ids.sort_by(|one, other| order(one).cmp(&order(other)));
        assert_eq!(
            ids,
            [
                "mpa/5044-4.9/1",
                "mpa/5044-4.10/1",
                "mpa/5044-7.1.2/9",
                "mpa/5044-7.1.2/10"
            ]
        );
    }
}

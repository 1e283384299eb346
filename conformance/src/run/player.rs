//! Plays one case step by step and logs all sent and received data.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::application::PostedReceives;
use super::config::Config;
use super::connection::Connection;
use super::contact::Contact;
use super::ends::Before;
use super::log::Log;
use super::outcome::{Ending, Failure, LogEntry, Outcome, Verdict, Who};
use super::target_process::TargetProcess;
use crate::agent::{Agent, AgentError, Registered};
use crate::script::{Action, Case, Condition, Name, Role};
use crate::transport::Listener;

/// Time limit of a step, as a multiple of the timeout for its first event.
const PATIENCE: u32 = 4;

/// Reason why a case ends before its last step.
pub(super) enum Stop {
    /// The target broke the rule. Describes the expected and the received event.
    Fail {
        expected: String,
        received: String,
    },
    Skip(String),
    Infrastructure(String),
}

impl From<AgentError> for Stop {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Cannot { .. } => Stop::Skip(error.to_string()),
            _ => Stop::Infrastructure(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::Unsupported => Stop::Skip(error.to_string()),
            std::io::ErrorKind::QuotaExceeded => Stop::Fail {
                expected: "the bytes that the case asks for, and the end of the connection".into(),
                received: "more and more bytes, with no end".into(),
            },
            _ => Stop::Infrastructure(format!("the connection to the target: {error}")),
        }
    }
}

pub(super) type Step = Result<(), Stop>;

/// State of a case while it is played.
pub(super) struct Player<'a> {
    pub(super) config: &'a Config,
    pub(super) contact: &'a Contact,
    pub(super) agent: Option<&'a mut Agent>,
    /// True if the target is the MPA Responder.
    pub(super) target_responds: bool,
    /// Accepts connections from the target if there is no agent that makes the target connect.
    pub(super) listener: Option<&'a mut dyn Listener>,
    /// Commands that the case started as targets. Dropping them ends them.
    pub(super) target_processes: Vec<TargetProcess>,
    pub(super) connections: Vec<Connection>,
    pub(super) current: usize,
    pub(super) regions: HashMap<Name, Registered>,
    /// Last connection whose request the application has not answered yet: its setup, and the
    /// agent's number for its listener or connection.
    pub(super) unanswered: Option<(crate::script::Setup, u64)>,
    pub(super) ending: Option<Ending>,
    pub(super) next_wr: u64,
    /// Receives that the application has posted.
    pub(super) receives: Vec<PostedReceives>,
    /// Protection domains of the application's connections.
    pub(super) pds: HashMap<u64, u32>,
    /// Private Data that reached the application, in hexadecimal.
    pub(super) private_data: Option<String>,
    /// True if the target stores words in big-endian order. `None` until a step has learned the
    /// order.
    pub(super) big_endian: Option<bool>,
    watched: Vec<crate::check::Rule>,
    log: Log,
    began: Instant,
    sent: String,
}

impl<'a> Player<'a> {
    pub(super) fn new(
        config: &'a Config,
        contact: &'a Contact,
        agent: Option<&'a mut Agent>,
        listener: Option<&'a mut dyn Listener>,
        target_responds: bool,
    ) -> Self {
        Player {
            config,
            contact,
            agent,
            target_responds,
            listener,
            target_processes: Vec::new(),
            connections: Vec::new(),
            current: 0,
            regions: HashMap::new(),
            unanswered: None,
            ending: None,
            next_wr: 1,
            receives: Vec::new(),
            pds: HashMap::new(),
            private_data: None,
            big_endian: None,
            watched: Vec::new(),
            log: Log::default(),
            began: config.network.now(),
            sent: String::new(),
        }
    }

    /// Plays all steps and returns the outcome.
    pub(super) fn play(mut self, case: &Case) -> Outcome {
        if self.agent.is_none() && case.needs_agent() {
            let why = "the case needs an agent for the target".to_owned();
            return self.finish(case, Verdict::Skipped(why));
        }
        if case.dangerous && !self.config.dangerous {
            let why = "the case may crash or block the target; --dangerous plays it".to_owned();
            return self.finish(case, Verdict::Skipped(why));
        }
        let mut verdict = Verdict::Pass;
        for (index, action) in case.steps.iter().enumerate() {
            self.set_step_limit(action);
            let stopped = self.act(action).and_then(|()| self.breaches(action));
            if let Err(stop) = stopped {
                verdict = self.verdict(index + 1, stop);
                break;
            }
        }
        self.finish(case, verdict)
    }

    fn finish(mut self, case: &Case, mut verdict: Verdict) -> Outcome {
        let addresses = self.connections.iter().map(Connection::addresses).collect();
        for number in 0..self.connections.len() {
            self.leave(number);
        }
        if let Some(agent) = self.agent.as_deref_mut()
            && let Err(error) = agent.reset()
        {
            // A failure of the agent replaces only a pass. Any other verdict is kept.
            if verdict == Verdict::Pass {
                verdict = Verdict::Infrastructure(error.to_string());
            }
            self.ending = Some(Ending::Died);
        }
        Outcome {
            id: case.id.clone(),
            level: case.level,
            rule: case.rule.clone(),
            requirements: case
                .requirements
                .iter()
                .map(|id| (*id).to_owned())
                .collect(),
            verdict,
            ending: self.ending,
            millis: u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX),
            log: self.log.into_entries(),
            addresses,
        }
    }

    fn verdict(&mut self, step: usize, stop: Stop) -> Verdict {
        match stop {
            Stop::Skip(reason) => Verdict::Skipped(reason),
            Stop::Infrastructure(what) => Verdict::Infrastructure(what),
            Stop::Fail { expected, received } => {
                self.note(format!("FAILED: expected {expected}; received {received}"));
                Verdict::Fail(Failure {
                    step,
                    sent: std::mem::take(&mut self.sent),
                    expected,
                    received,
                    ending: self.ending,
                })
            }
        }
    }

    /// Returns a failure if the target has broken a rule that this case watches.
    fn breaches(&mut self, action: &Action) -> Step {
        if let Action::Watch(rules) = action {
            self.watched.extend_from_slice(rules);
        }
        for connection in &self.connections {
            for breach in &connection.breaches {
                if self.watched.contains(&breach.rule) {
                    return Err(Stop::Fail {
                        expected: breach.rule.to_string(),
                        received: breach.detail.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Sets the time limit of a step. Messages that keep arriving do not extend the limit.
    fn set_step_limit(&mut self, action: &Action) {
        let timeout = match action {
            Action::EndWithin(_, seconds) => Duration::from_secs(*seconds),
            _ => self.config.timeout,
        };
        let until = self.config.network.now() + timeout.max(self.config.timeout) * PATIENCE;
        for connection in &mut self.connections {
            connection.until = Some(until);
        }
    }

    fn act(&mut self, action: &Action) -> Step {
        match action {
            Action::Begin(setup) => self.begin(setup),
            Action::Establish(setup) => self.establish(setup),
            Action::Use(number) => {
                self.current = *number;
                Ok(())
            }
            Action::Propose(setup) => self.propose(setup),
            Action::SendStartup(frame) => self.send_startup(frame),
            Action::ExpectStartup => self.expect_startup(),
            Action::ExpectStartupOrEnd => self.expect_startup_or_end(),
            Action::ExpectEnhanced => self.expect_enhanced(),
            Action::ExpectEnhancedOrClose => self.expect_enhanced_or_close(),
            Action::ReplyOtherRtr => self.reply_other_rtr(),
            Action::CheckStartup(check) => self.check_startup(*check),
            Action::Operate => {
                self.connection()?.operate();
                Ok(())
            }
            Action::Region(region) => self.register(region),
            Action::Deregister(name) => self.deregister(name),
            Action::Receives(count, len) => self.post_receives(*count, *len),
            Action::Post(post) => self.post(post),
            Action::Completion { op, success } => self.completion(op, *success),
            Action::Received(bytes) => self.received(*bytes),
            Action::ReceivesPrivateData(data) => self.receives_private_data(data),
            Action::Delivered(data) => self.delivered(data),
            Action::Event(name) => self.event(name),
            Action::Holds {
                region,
                offset,
                data,
            } => self.holds(region, *offset, data),
            Action::ReceivesImmediate(bytes) => self.receives_immediate(bytes),
            Action::LearnByteOrder(name) => self.learn_byte_order(name),
            Action::Disconnect => self.disconnect(),
            Action::Send(segments) => self.send(segments),
            Action::SendInPieces(segment, cuts) => {
                self.send_in_pieces(std::slice::from_ref(segment), cuts)
            }
            Action::SendAcross(segments, cuts) => self.send_in_pieces(segments, cuts),
            Action::SendPart(segment, bytes) => self.send_part(segment, *bytes),
            Action::Fin => {
                self.record(Who::Suite, "FIN", &[]);
                // Ignores an error: if the connection is lost, the next step reports it.
                let _ = self.connection()?.stream.fin();
                Ok(())
            }
            Action::Reset => {
                self.record(Who::Suite, "reset", &[]);
                self.connection()?.stream.reset();
                Ok(())
            }
            Action::Expect(want) => self.expect(want),
            Action::ExpectRtr => self.expect_rtr(),
            Action::AnswerAtomics { values, most } => self.answer_atomics(values, *most),
            Action::Ping => self.ping(),
            Action::Quiet => self.quiet(false),
            Action::QuietOrEnd => self.quiet(true),
            Action::End(ends) => self.end(ends),
            Action::EndWithin(ends, seconds) => {
                self.end_or(ends, Duration::from_secs(*seconds), Before::Anything)
            }
            Action::EndOr(ends, want) => {
                self.end_or(ends, self.config.timeout, Before::Instead(want))
            }
            Action::EndNow(ends) => self.end_or(ends, self.config.timeout, Before::Nothing),
            Action::EndOrHeld(ends, len, data) => self.end_or_held(ends, *len, data),
            Action::Closed { graceful } => self.closed_by_target(*graceful),
            Action::ReadOrTerminate {
                size,
                src_to,
                meanwhile,
            } => self.read_or_terminate((*size, *src_to), meanwhile),
            Action::Watch(_) => Ok(()),
            Action::Require(condition) => self.require(*condition),
        }
    }

    fn require(&mut self, condition: Condition) -> Step {
        let enhanced = |connection: &Connection| {
            let theirs = connection.theirs.as_ref()?;
            theirs.enhanced_data()
        };
        let holds = match condition {
            Condition::Rfc7306 => self.agent()?.has("rfc7306"),
            Condition::NotRfc7306 => !self.agent()?.has("rfc7306"),
            Condition::ScopedRegions => self.agent()?.has("scoped_regions"),
            Condition::TargetReceivesMarkers => self.connection()?.tx.markers,
            Condition::DefaultCrc => self.config.crc,
            Condition::EmssKnown => self.connection()?.emss().is_some(),
            Condition::PrivateDataOf(bytes) => {
                let most = self.agent()?.query["private_data_max"].as_u64();
                // The default is the limit of librdmacm.
                bytes as u64 <= most.unwrap_or(251)
            }
            Condition::CrcInUse => self.connection()?.tx.crc,
            Condition::CrcNotInUse => !self.connection()?.tx.crc,
            Condition::TargetIrdIsAtLeast(ird) => {
                enhanced(self.connection()?).is_none_or(|data| data.ird >= ird)
            }
            Condition::TargetOrdIsAtLeast(ord) => {
                enhanced(self.connection()?).is_some_and(|data| data.ord >= ord)
            }
            Condition::TargetAccepts => self.accepts()?,
            Condition::TargetOffersRtr(rtr) => self.offers(rtr)?,
            Condition::TargetIsUnenhanced => self.agent()?.query["mpa"] == 1,
            Condition::TargetLacksIrd(ird) => {
                let most = self.agent()?.query["max_ird"].as_u64();
                most.is_some_and(|most| most < u64::from(ird))
            }
            Condition::TargetIrdIsAtMost(ird) => {
                enhanced(self.connection()?).is_none_or(|data| data.ird <= ird)
            }
        };
        if holds {
            return Ok(());
        }
        Err(Stop::Skip(condition.to_string()))
    }

    /// Returns the connection that the steps currently use.
    pub(super) fn connection(&mut self) -> Result<&mut Connection, Stop> {
        let current = self.current;
        self.connections
            .get_mut(current)
            .ok_or_else(|| Stop::Infrastructure(format!("the case has no connection {current}")))
    }

    pub(super) fn agent(&mut self) -> Result<&mut Agent, Stop> {
        match &mut self.agent {
            Some(agent) => Ok(agent),
            None => Err(Stop::Skip("the case needs an agent for the target".into())),
        }
    }

    /// Adds an entry to the log.
    pub(super) fn record(&mut self, who: Who, text: impl Into<String>, bytes: &[u8]) {
        let text = text.into();
        if who == Who::Suite {
            self.sent.clone_from(&text);
        }
        self.log.push(LogEntry {
            who,
            connection: self.current,
            at: u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX),
            text,
            bytes: bytes.to_vec(),
            markers: self.markers(who, bytes.len()),
        });
    }

    /// Returns the offset of the last `len` bytes that were sent or received, if their direction
    /// uses Markers.
    fn markers(&self, who: Who, len: usize) -> Option<u64> {
        let connection = self.connections.get(self.current)?;
        let framing = match who {
            Who::Suite => connection.tx,
            Who::Target => connection.rx,
            Who::Note => return None,
        };
        framing
            .markers
            .then(|| framing.position.checked_sub(len as u64))
            .flatten()
    }

    /// Returns the time since the case began.
    fn elapsed(&self) -> Duration {
        let now = self.config.network.now();
        now.saturating_duration_since(self.began)
    }

    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.record(Who::Note, text, &[]);
    }
}

/// Returns true if the case can be played with the target in this role.
pub(super) fn plays(case: &Case, target_responds: bool) -> bool {
    match case.role {
        Role::Responder => target_responds,
        Role::Initiator => !target_responds,
        Role::Either => true,
    }
}

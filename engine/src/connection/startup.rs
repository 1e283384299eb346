//! MPA startup of a connection, in both roles.

use std::time::{Duration, Instant};

use crate::hello;
use crate::llp::LlpError;
use crate::state::QpEvent;
use crate::timers::Timer;
use crate::times::after;
use uwarp_ddp::{STag, TaggedOffset};
use uwarp_mpa::{
    ConfigError, Initiator, InitiatorConfig, MpaErrorCode, Negotiated, Outcome, Revision, Role,
    Rtr, StartupError,
};
use uwarp_rdmap::{ReadRequestHeader, SendKind, StreamError};

use super::LOG_TARGET;
use super::outbound::Current;
use super::receive_buffer::ReceiveBuffer;
use super::{Connection, FinState, OpenStream, Stage};
use crate::cause::{Cause, EndFacts, LocalProblem};
use crate::completion::CompletionQueue;
use crate::event::{AsyncEvent, ConnectionEvent, EndReason};
use crate::mutants::mutate;
use crate::peer::first_fpdu_delay;

/// STag of the frames that serve as RTR indication.
///
/// The frames are empty, so a peer has no reason to check the STag. Some RNICs refuse STag 0
/// nevertheless.
pub(super) const RTR_STAG: STag = STag(1);
/// Delay before TCP is connected again after a refusal (`Timeouts::refused`).
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Phase in which an initiator sets up its stream: the attempt to connect to one address.
///
/// ```text
///                      tcp_connected
///   ┌───► TcpConnect ────────────────► AwaitReply
///   │      │     │                        │
///   │      │     └─ refused ─► Redial ◄───┘ closed: revision 1
///   │      │                     │
///   │      ▼                     │
///   │    Failed                  │ redialed
///   └────────────────────────────┘
/// ```
pub(crate) struct Startup {
    initiator: Initiator,
    step: Step,
    /// Configuration of the MPA Request, for the retry with revision 1. `None`: the driver cannot
    /// open another LLP stream.
    config: Option<InitiatorConfig>,
    /// End of the time in which a connect is retried after the peer's TCP has refused it.
    retry_until: Option<Instant>,
    /// Other addresses remain to be tried if TCP does not connect to this one.
    more_addresses: bool,
}

/// Step of [`Startup`].
enum Step {
    /// TCP is being connected. The MPA Request is sent as soon as TCP is connected.
    TcpConnect,
    /// The driver has to open a new LLP stream to the same address, at this time or at once. Until
    /// then there is no LLP stream.
    Redial { at: Option<Instant> },
    /// The MPA Request was sent.
    AwaitReply,
    /// TCP did not connect. The driver tries the next address, and posted work stays queued.
    Failed(EndReason),
}

impl Startup {
    /// Returns true while TCP itself is being connected, or is to be connected anew.
    pub(super) fn is_connecting_tcp(&self) -> bool {
        matches!(self.step, Step::TcpConnect | Step::Redial { .. })
    }

    /// Returns true if the MPA Request was sent.
    pub(super) fn awaits_reply(&self) -> bool {
        matches!(self.step, Step::AwaitReply)
    }

    /// Returns true if the driver has to open a new LLP stream to the same address.
    pub(super) fn redials(&self) -> bool {
        matches!(self.step, Step::Redial { .. })
    }

    /// Returns the reason why TCP did not connect, if the next address is to be tried.
    pub(super) fn failure(&self) -> Option<&EndReason> {
        match &self.step {
            Step::Failed(reason) => Some(reason),
            _ => None,
        }
    }

    /// Schedules another connect after the peer's TCP refused one. Returns false if the time for
    /// retries is over.
    fn refused(&mut self, now: Instant) -> bool {
        let next = after(now, ASK_AGAIN);
        let asks = self.retry_until.is_some_and(|until| next <= until);
        if asks {
            self.step = Step::Redial { at: Some(next) };
        }
        asks
    }

    /// Begins a retry with revision 1 after this error of the MPA startup, if such a retry may
    /// succeed and is possible (6581-10-05).
    fn retry_with_revision_1(&mut self, error: StartupError) -> bool {
        if error.may_retry_with_revision_1()
            && let Some(config) = &mut self.config
            && config.revision != Revision::One
        {
            config.revision = Revision::One;
            if let Ok(initiator) = Initiator::new(config.clone()) {
                self.initiator = initiator;
                self.step = Step::Redial { at: None };
                return true;
            }
        }
        false
    }
}

impl<Q: CompletionQueue> Connection<Q> {
    /// Starts an initiator: the MPA Request is sent once TCP is connected.
    ///
    /// `again`: the driver can open another LLP stream, for a retry after a refusal or with
    /// revision 1. Returns false if the QP is already in use.
    pub fn start_initiator(
        &mut self,
        config: InitiatorConfig,
        again: bool,
    ) -> Result<bool, ConfigError> {
        let initiator = Initiator::new(config.clone())?;
        if self.failed_attempt().is_some() {
            // The next address of the same connect call.
            self.fin = FinState::default();
        } else if !self.begin_startup() {
            return Ok(false);
        }
        let timeouts = &self.ctx.settings.timeouts;
        let asks = again && !timeouts.refused.is_zero();
        self.stage = Stage::Startup(Box::new(Startup {
            initiator,
            step: Step::TcpConnect,
            config: again.then_some(config),
            retry_until: asks.then(|| after(self.now, timeouts.refused)),
            more_addresses: false,
        }));
        self.start_connect_timer();
        Ok(true)
    }

    fn start_connect_timer(&mut self) {
        let limit = self.ctx.settings.timeouts.connect;
        self.timers.set(Timer::Stage, after(self.now, limit));
    }

    /// Handles a refusal by the peer's TCP. Returns false if the time for retries is over.
    pub(super) fn refused(&mut self) -> bool {
        let now = self.now;
        let asks = (self.stage.startup_mut()).is_some_and(|startup| startup.refused(now));
        if asks {
            self.timers.clear(Timer::Stage);
        }
        asks
    }

    /// Sets whether other addresses remain to be tried if TCP does not connect to this one.
    pub fn set_more_addresses(&mut self, more: bool) {
        if let Some(startup) = self.stage.startup_mut() {
            startup.more_addresses = more;
        }
    }

    /// Ends the attempt to connect to one address, which has failed.
    ///
    /// Returns true if other addresses remain. Posted work then stays queued.
    pub(super) fn attempt_failed(&mut self, reason: &EndReason) -> bool {
        let Some(startup) = self.stage.startup_mut() else {
            return false;
        };
        if !std::mem::take(&mut startup.more_addresses) {
            return false;
        }
        startup.step = Step::Failed(reason.clone());
        self.timers.clear(Timer::Stage);
        true
    }

    /// Returns the reason why TCP did not connect to the last address, until the next one is tried.
    pub fn failed_attempt(&self) -> Option<&EndReason> {
        self.stage.startup()?.failure()
    }

    /// Stops trying addresses. Ends the connection if the last attempt failed.
    pub fn no_more_attempts(&mut self) {
        self.set_more_addresses(false);
        if let Some(reason) = self.failed_attempt().cloned() {
            self.end(reason);
            self.detach(QpEvent::LlpLost);
        }
    }

    /// Returns the time of the next connect after a refusal. There is no LLP stream until then.
    pub fn redials_at(&self) -> Option<Instant> {
        match self.stage.startup()?.step {
            Step::Redial { at } => at,
            _ => None,
        }
    }

    /// Starts a retry after a refusal, because its time has come. The driver then opens the LLP
    /// stream.
    pub fn redial_due(&mut self) {
        if let Some(startup) = self.stage.startup_mut()
            && startup.redials()
        {
            startup.step = Step::Redial { at: None };
            self.start_connect_timer();
        }
    }

    /// Records that the driver opens a new LLP stream to the same address.
    pub fn redialed(&mut self) {
        if let Some(startup) = self.stage.startup_mut()
            && startup.redials()
        {
            startup.step = Step::TcpConnect;
        }
    }

    /// Ends the connection, because no LLP stream can be opened. A refusal is not retried.
    pub fn not_connected(&mut self, error: LlpError) {
        if let Some(startup) = self.stage.startup_mut() {
            startup.retry_until = None;
        }
        self.lost(error);
    }

    /// Sends the MPA Request, because TCP is connected.
    pub fn tcp_connected(&mut self) {
        let Some(startup) = self.stage.startup_mut() else {
            return;
        };
        if !matches!(startup.step, Step::TcpConnect) {
            return;
        }
        startup.step = Step::AwaitReply;
        let request = startup.initiator.request();
        self.tx.stage(|staged| staged.extend_from_slice(request));
        self.tx.end_of_startup();
        let end = self.tx.framed_to();
        self.recorder.startup_sent(self.now, request, end);
        tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, "TCP is connected; the MPA Request follows");
        let limit = self.ctx.settings.timeouts.reply;
        self.timers.set(Timer::Stage, after(self.now, limit));
    }

    /// Starts a responder: the consumer has accepted the peer's `request`.
    ///
    /// Sends `reply`; from then on FPDUs may arrive. Returns false if the QP is already in use.
    pub fn start_responder(
        &mut self,
        request: &[u8],
        reply: &[u8],
        negotiated: Negotiated,
        emss: usize,
    ) -> bool {
        if !self.begin_startup() {
            return false;
        }
        self.recorder.startup_received(self.now, request);
        self.tx.stage(|staged| staged.extend_from_slice(reply));
        self.tx.end_of_startup();
        let end = self.tx.framed_to();
        self.recorder.startup_sent(self.now, reply, end);
        let timeouts = &self.ctx.settings.timeouts;
        let limit = if negotiated.rtr_offered.is_empty() {
            timeouts.first_fpdu
        } else {
            // RFC 6581 section 9.2: the RTR indication does not depend on the ULP, so its time
            // limit starts now.
            Some(timeouts.rtr)
        };
        let due = limit.map(|limit| after(self.now, limit));
        self.timers.set_or_clear(Timer::Stage, due);
        let client_server = negotiated.rtr_offered.is_empty();
        self.open(negotiated, emss);
        if self.ctx.settings.send_first && client_server {
            // The gate opens when the initiator's first FPDU arrives, and at this time at the
            // latest.
            let until = after(self.now, first_fpdu_delay(&self.ctx.settings));
            self.timers.set(Timer::Hold, until);
        }
        // `AsyncEvent::Established` is raised when the first FPDU arrives.
        self.events.push(ConnectionEvent::StartupDone);
        self.event(QpEvent::Established)
    }

    /// Starts a connection whose MPA startup was done by the program. Returns false if the QP is
    /// already in use.
    pub fn start_open(&mut self, negotiated: Negotiated, emss: usize) -> bool {
        if !self.begin_startup() {
            return false;
        }
        let initiator = negotiated.role == Role::Initiator;
        let limit = self.ctx.settings.timeouts.first_fpdu;
        let due = limit.map(|limit| after(self.now, limit));
        self.timers.set_or_clear(Timer::Stage, due);
        self.emss = emss;
        self.open(negotiated, emss);
        if initiator {
            self.arm_wake_up();
            self.accepted_by_peer();
        }
        self.events.push(ConnectionEvent::StartupDone);
        self.event(QpEvent::Established)
    }

    /// Handles bytes received while the MPA Reply is awaited. Bytes after the Reply stay in `rx`.
    pub(super) fn receive_reply(&mut self, rx: &mut ReceiveBuffer) {
        let Some(startup) = self.stage.startup_mut() else {
            return;
        };
        match startup.initiator.receive(rx.filled()) {
            Ok((consumed, outcome)) => {
                if outcome.is_some()
                    && let Some(reply) = rx.filled().get(..consumed)
                {
                    self.recorder.startup_received(self.now, reply);
                }
                rx.discard(consumed);
                match outcome {
                    None => {}
                    Some(Outcome::Accepted(reply) | Outcome::Impossible(reply, _))
                        if self.is_no_rendezvous(&reply) =>
                    {
                        // The port belongs to another program now.
                        self.pair_lost(&EndReason::PeerGone { last: None });
                    }
                    Some(Outcome::Accepted(negotiated)) => {
                        let rtr = mutate!(negotiated.rtr, RtrNotSent => None);
                        self.open(negotiated, self.emss);
                        let delay = first_fpdu_delay(&self.ctx.settings);
                        let until = (!delay.is_zero()).then(|| after(self.now, delay));
                        self.timers.set_or_clear(Timer::Hold, until);
                        self.arm_wake_up();
                        self.event(QpEvent::Established);
                        self.accepted_by_peer();
                        self.events.push(ConnectionEvent::StartupDone);
                        if let Some(rtr) = rtr {
                            self.begin_rtr(rtr);
                        }
                    }
                    Some(Outcome::Rejected(rejection)) => {
                        let reason = EndReason::Rejected {
                            private_data: rejection.private_data,
                            peer_ird: rejection.peer_ird,
                            peer_ord: rejection.peer_ord,
                            ord_needed: rejection.ord_needed,
                        };
                        if !self.pair_lost(&reason) {
                            self.end(reason);
                            self.detach(QpEvent::StartupFailed);
                        }
                    }
                    Some(Outcome::Impossible(negotiated, code)) => {
                        self.open(negotiated, self.emss);
                        self.refuse_reply(code);
                    }
                }
            }
            Err(error) => {
                self.recorder.startup_received(self.now, rx.filled());
                self.startup_failed(error);
            }
        }
    }

    /// Records that the connection of an initiator is open in both directions.
    fn accepted_by_peer(&mut self) {
        self.established = true;
        self.pair_opened();
        self.events
            .push(ConnectionEvent::Async(AsyncEvent::Established {
                qp_num: self.ctx.qp_num,
            }));
    }

    /// Refuses a well-formed Reply that cannot be accepted (RFC 6581 sections 9.1 and 9.2).
    fn refuse_reply(&mut self, code: MpaErrorCode) {
        let cause = Cause::end(EndFacts::ReplyRefused(code));
        self.end_in_violation(StreamError::Mpa(code.code()), cause, None);
    }

    /// Enters Full Operation: DDP and RDMAP begin here (5044-7.1-04).
    fn open(&mut self, mut negotiated: Negotiated, emss: usize) {
        let role = negotiated.role;
        tracing::debug!(
            target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, revision = ?negotiated.revision, crc = negotiated.crc,
            ird = negotiated.ird, ord = negotiated.ord, "MPA startup is done"
        );
        // The local limits apply even if IRD and ORD were not negotiated: 0x3FFF leaves them to the
        // ULPs, and revision 1 does not have them.
        let limits = &self.ctx.settings;
        // The RTR indication may be a Read. IRD and ORD must then be at least 1.
        let rtr_ird = u16::from(negotiated.rtr_offered.read && role == Role::Responder);
        let rtr_ord = u16::from(negotiated.rtr == Some(Rtr::Read) && role == Role::Initiator);
        negotiated.ird = negotiated.ird.min(limits.max_ird).max(rtr_ird);
        negotiated.ord = negotiated.ord.min(limits.max_ord).max(rtr_ord);
        if role == Role::Initiator {
            self.timers.clear(Timer::Stage);
        }
        // Without ORD no Read can confirm Writes.
        self.sq
            .confirm_writes(self.attr.placed_writes && negotiated.ord > 0);
        let send_immediate =
            self.pair.is_some() && hello::takes_send_immediate(&negotiated.private_data);
        self.negotiated = Some(negotiated.clone());
        let (peer, segments) = (limits.peer, limits.fpdu_segments);
        let stream = OpenStream::new(negotiated, peer, segments, emss, send_immediate);
        self.stage = Stage::Open(Box::new(stream));
    }

    /// Begins an RTR indication (6581-5-01), which belongs to no work request.
    ///
    /// It is the first message of the connection, or a later empty Write that only wakes the peer
    /// ([`wake_up`](super::wake_up)).
    pub(super) fn begin_rtr(&mut self, rtr: Rtr) {
        let Some(stream) = self.stage.open_mut() else {
            return;
        };
        let message = match rtr {
            Rtr::Send => stream.rdmap.begin_send(SendKind::default(), 0),
            Rtr::Write => stream.rdmap.begin_write(RTR_STAG, TaggedOffset(0), 0),
            Rtr::Read => {
                let header = ReadRequestHeader {
                    sink_stag: RTR_STAG,
                    sink_to: TaggedOffset(0),
                    len: 0,
                    source_stag: RTR_STAG,
                    source_to: TaggedOffset(0),
                };
                match stream.rdmap.begin_read(header) {
                    Ok(message) => {
                        stream.inbound.rtr_read = true;
                        message
                    }
                    Err(_) => {
                        // 6581-9.3-01: any other local error of enhanced setup has code 5. This is
                        // the only such error: nothing else happens locally between the Reply and
                        // the RTR indication, and a responder may send no FPDU in that time.
                        let code = MpaErrorCode::LocalCatastrophic.code();
                        let cause = Cause::local(LocalProblem::RtrRead);
                        return self.end_in_violation(StreamError::Mpa(code), cause, None);
                    }
                }
            }
        };
        stream.outbound.begin(message, Current::Rtr);
    }

    /// Handles the end of the stream during startup.
    pub(super) fn startup_closed(&mut self, reset: bool) {
        match self.stage.startup_mut() {
            Some(startup) if startup.awaits_reply() => {
                let error = startup.initiator.closed(reset);
                self.startup_failed(error);
            }
            _ => self.detach(QpEvent::StartupFailed),
        }
    }

    pub(super) fn startup_timed_out(&mut self) {
        if let Some(startup) = self.stage.startup_mut() {
            let error = startup.initiator.timed_out();
            self.startup_failed(error);
        }
    }

    pub(super) fn first_fpdu_timed_out(&mut self) {
        self.startup_failed(StartupError::RtrMissing);
    }

    fn startup_failed(&mut self, error: StartupError) {
        // 6581-10-05: tries once more with revision 1, if the settings allow it.
        if self.ctx.settings.retry_with_revision_1
            && let Some(startup) = self.stage.startup_mut()
            && startup.retry_with_revision_1(error)
        {
            tracing::debug!(target: LOG_TARGET, parent: &self.span, qp = self.ctx.qp_num, "retry with MPA revision 1");
            self.recorder.stream_over(self.tx.taken_to());
            self.tx = super::transmit::TxBatch::default();
            self.fin = FinState::default();
            self.start_connect_timer();
            return;
        }
        // 5044-8-09: an invalid startup frame closes TCP at once.
        let reason = EndReason::StartupFailed { error };
        if self.pair_lost(&reason) {
            return;
        }
        self.end(reason);
        self.detach(QpEvent::LlpLost);
    }

    /// Sets the current time, and ends a hold that has expired.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
        if self.timers.take_due(Timer::Hold, now) {
            // The gate is closed only on a responder with `Settings::send_first`.
            if let Some(stream) = self.stage.open_mut()
                && !stream.gate.may_send()
            {
                stream.gate = uwarp_mpa::SendGate::Open;
                // The initiator may have nothing to send until it has received, so its first FPDU
                // is not due any more. Once a close has begun, the timer belongs to the close.
                if !self.fin.wanted {
                    self.timers.clear(Timer::Stage);
                }
            }
        }
    }
}

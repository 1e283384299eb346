//! A connection: one smoltcp interface with one socket.

mod keepalive;
mod nagle;
mod recovery;
mod sending;
mod stage;
mod standstill;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use smoltcp::iface::{Interface, PollIngressSingleResult, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, CongestionControl, State};

use super::align::Aligner;
use super::challenge::Expected;
use super::device::Device;
use super::handshakes::Handshake;
use super::mailbox::{Bounds, Mailbox, Notice};
use super::segment::FlowKey;
use super::settings::{Congestion, KEEPALIVE_PROBES};
use super::stack::{Route, Stack};
use super::syn_ack::{listen_endpoint, new_interface, new_socket};
use super::user::User;
use super::window::after;
use crate::{Keepalive, Llp, LlpError, Piece, Recv, SendHints};
use keepalive::KeepaliveState;
use nagle::Nagle;
use recovery::Recovery;
use stage::{Cause, Event, Stage};
use standstill::FinAgain;

#[cfg(test)]
pub(crate) use sending::tests::Scene;

/// A TCP connection of a stack in user space.
pub(crate) struct SmolConnection {
    stack: User,
    mailbox: Arc<Mailbox>,
    key: FlowKey,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    device: Device,
    stage: Stage,
    /// True after `shutdown` was called.
    closing: bool,
    /// True after `shutdown` until smoltcp's socket is closed.
    close_later: bool,
    /// True while the connection is in the stack's table.
    registered: bool,
    /// Earliest time at which a timer of smoltcp or of this connection is due, computed after the
    /// last poll.
    poll_at: Option<smoltcp::time::Instant>,
    aligner: Aligner,
    /// Number of stream bytes ever put into smoltcp's send buffer.
    handed: u64,
    /// State of Nagle's algorithm, used only with a congestion window.
    nagle: Option<Box<Nagle>>,
    keepalive: Option<Keepalive>,
    keepalive_state: KeepaliveState,
    fin_again: Option<FinAgain>,
    recovery: Recovery,
    /// Number of stream bytes that the owner has read.
    read: u64,
}

impl SmolConnection {
    /// Starts a connection attempt and sends the SYN.
    pub(crate) fn connect(
        stack: &Arc<Stack>,
        local: SocketAddr,
        to: SocketAddr,
    ) -> Result<Self, LlpError> {
        let misuse = |why| LlpError::Misuse { op: "connect", why };
        if to.port() == 0 {
            return Err(misuse("the destination port is 0"));
        }
        let mailbox = new_mailbox(stack)?;
        let key = stack.register(local, to, &mailbox)?;
        let mut this = Self::new(stack, mailbox, key, stack.random());
        let timeout = this.stack.settings.connect_timeout.into();
        let socket = this.sockets.get_mut::<tcp::Socket<'_>>(this.handle);
        socket.set_timeout(Some(timeout));
        socket
            .connect(this.interface.context(), key.remote, key.local)
            .map_err(|_| misuse("no connection is possible between these addresses"))?;
        this.pump();
        Ok(this)
    }

    /// Creates the connection of a handshake that the peer has completed. Repeats the handshake
    /// without sending. The peer's segments that follow its SYN are not processed yet. If another
    /// connection has this pair of addresses, returns that connection's inbox.
    pub(crate) fn accept(
        stack: &Arc<Stack>,
        key: FlowKey,
        handshake: &Handshake,
    ) -> Result<Result<Self, Arc<Mailbox>>, LlpError> {
        let mailbox = new_mailbox(stack)?;
        if let Err(other) = stack.register_passive(key, &mailbox) {
            return Ok(Err(other));
        }
        let mut this = Self::new(stack, mailbox, key, handshake.seed);
        this.socket_mut()
            .listen(listen_endpoint(&key))
            .map_err(|_| LlpError::Misuse {
                op: "accept a connection",
                why: "the destination port is 0",
            })?;
        let mut syn = stack.pool.take_for(handshake.syn.len());
        syn.resize(handshake.syn.len())
            .copy_from_slice(&handshake.syn);
        this.device.inbox.push_back(syn);
        this.device.mute(true);
        let now = this.now();
        this.show(now);
        this.send_out(now);
        this.device.mute(false);
        Ok(Ok(this))
    }

    fn new(stack: &Arc<Stack>, mailbox: Arc<Mailbox>, key: FlowKey, seed: u64) -> Self {
        let settings = &stack.settings;
        let mut socket = new_socket(settings);
        // The engine batches by itself, so its bytes are sent at once. The module [`nagle`] enables
        // Nagle's algorithm when it needs it.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(settings.ack_delay.map(Into::into));
        socket.set_congestion_control(match settings.congestion {
            Congestion::None => CongestionControl::None,
            Congestion::Reno => CongestionControl::Reno,
            Congestion::Cubic => CongestionControl::Cubic,
        });
        let mut device = Device::new(
            Arc::clone(stack),
            Arc::clone(&mailbox),
            stack.route(key.remote.ip(), &mailbox),
        );
        let now = stack.epoch.to_smol(stack.clock.now());
        let interface = new_interface(&mut device, key.local.ip(), now, seed);
        let congested = settings.congestion != Congestion::None;
        let nagle = congested.then(Box::default);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        Self {
            stack: User::of(stack),
            mailbox,
            key,
            interface,
            sockets,
            handle,
            device,
            stage: Stage::Handshake,
            closing: false,
            close_later: false,
            registered: true,
            poll_at: None,
            aligner: Aligner::default(),
            handed: 0,
            nagle,
            keepalive: settings.keepalive.map(|every| Keepalive {
                idle: every,
                interval: every,
                probes: KEEPALIVE_PROBES,
            }),
            keepalive_state: KeepaliveState::none(now),
            fin_again: None,
            recovery: Recovery::new(now),
            read: 0,
        }
    }

    fn socket(&self) -> &tcp::Socket<'static> {
        self.sockets.get(self.handle)
    }

    fn socket_mut(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Number of stream bytes received in order. The FIN counts as one byte.
    fn received(&self) -> u64 {
        let socket = self.socket();
        self.read + socket.recv_queue() as u64 + u64::from(has_fin(socket.state()))
    }

    /// Returns the numbers that the peer's next segment can have, or `None` if no SYN of the peer
    /// has arrived.
    pub(crate) fn expected(&self) -> Option<Expected> {
        let (socket, peer) = (self.socket(), &self.device.peer);
        let acks = match socket.state() {
            State::Closed | State::Listen | State::SynSent => return None,
            State::SynReceived => None,
            _ => self
                .device
                .acceptable_acks(self.handed, socket.send_queue()),
        };
        let room = socket.recv_capacity() - socket.recv_queue();
        Some(Expected {
            receive_next: after(peer.syn?, self.received()),
            receive_window: if peer.scales {
                room
            } else {
                room.min(usize::from(u16::MAX))
            },
            acks,
        })
    }

    /// The connection's inbox, for the listener.
    pub(crate) fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Returns true if the handshake has succeeded and the connection has not ended since.
    pub(crate) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    fn now(&self) -> smoltcp::time::Instant {
        self.stack.epoch.to_smol(self.stack.clock.now())
    }

    /// Processes packets and timers if there are packets, held-back output or a timer that is due.
    pub(crate) fn pump_if_due(&mut self) {
        // The last operand reads the clock only if a timer runs.
        let reason = self.mailbox.has_news()
            || self.device.held_back
            || self.wake_at().is_some_and(|at| at <= self.now());
        if reason {
            self.pump();
        }
    }

    /// Time of the earliest timer: of smoltcp, of this connection or of its aligner.
    fn wake_at(&self) -> Option<smoltcp::time::Instant> {
        match (self.poll_at, self.aligner.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Processes received packets, sends, and runs the timers.
    fn pump(&mut self) {
        self.stack.poll();
        let now = self.now();
        self.aligner.tick(now);
        self.follow_path_mtu(now);
        self.take_in(now);
        self.send_out(now);
    }

    /// Passes received packets to smoltcp. The caller has to call [`Self::send_out`] afterwards.
    fn take_in(&mut self, now: smoltcp::time::Instant) {
        if !self.mailbox.has_news() {
            return;
        }
        self.apply_notice();
        self.mailbox.take(&mut self.device.inbox);
        if !self.device.inbox.is_empty() {
            self.record_arrival(now);
            self.show(now);
            self.recover(now);
        }
    }

    /// Passes replayed packets to smoltcp. The peer did not send them now, so they must not count
    /// as a sign of life.
    fn show_replayed(&mut self, now: smoltcp::time::Instant) {
        self.show(now);
        self.keep_silence_limit(now);
    }

    /// Passes the packets of the inbox to smoltcp and records their effects.
    fn show(&mut self, now: smoltcp::time::Instant) {
        loop {
            let socket = self.socket();
            let (before, queued) = (socket.state(), socket.send_queue());
            // With an empty send queue, only the FIN is unacknowledged in these states.
            let closing = matches!(before, State::FinWait1 | State::Closing | State::LastAck);
            self.device.expected = self.expected();
            self.device.skip_repeats = (closing && queued == 0).then_some(self.handed);
            let (device, sockets) = (&mut self.device, &mut self.sockets);
            match self.interface.poll_ingress_single(now, device, sockets) {
                PollIngressSingleResult::None => {
                    break self.device.answer_challenge(&self.key, now);
                }
                _ => {
                    let socket = self.sockets.get::<tcp::Socket<'_>>(self.handle);
                    let states = (before, socket.state());
                    self.device
                        .arrived(states, self.handed, socket.send_queue());
                    if self.device.peer.repeated && queued > 0 {
                        self.recovery.repeated();
                    }
                    self.note_repetition(queued);
                    self.observe(before, Cause::Arrival, now);
                }
            }
        }
    }

    /// Ends the connection if a notice from the link requires it.
    fn apply_notice(&mut self) {
        let error = match self.mailbox.take_notice() {
            Some(Notice::End(error)) => error,
            Some(Notice::EndHandshake(error)) if self.stage == Stage::Handshake => error,
            _ => return,
        };
        self.lose(error);
    }

    /// Resets the connection and records this error, if the connection has not ended yet.
    fn lose(&mut self, error: LlpError) {
        let next = self.stage.next(Event::Lost(error));
        if self.stage != next {
            self.stage = next;
            self.device.urgent = true;
            self.socket_mut().abort();
        }
    }

    /// Lets smoltcp send and run its timers, then computes the next deadline.
    fn send_out(&mut self, now: smoltcp::time::Instant) {
        self.device.held_back = false;
        self.give_up_if_stuck(now);
        self.probe_if_due(now);
        loop {
            self.close_when_ready();
            while self.may_transmit(now) {
                let before = self.socket().state();
                let sent = self.egress(now);
                self.observe(before, Cause::Timer, now);
                if sent == PollResult::None {
                    break;
                }
                self.keepalive_state.sent(now);
            }
            if !self.push(now) && !self.restart(now) {
                break;
            }
        }
        self.send_keepalive_if_due(now);
        self.device.recycle();
        let timer = self.interface.poll_at(now, &self.sockets);
        let fin_again = self.fin_again.map(|again| again.at);
        let (asks, gives_up) = (self.keepalive_at(), self.gives_up_at());
        self.poll_at = [timer, asks, gives_up, fin_again, self.schedule_probe(now)]
            .into_iter()
            .flatten()
            .min();
        // While packets are held back, no timer is needed, because a signal will follow. No timer
        // is needed either while TIME-WAIT cannot end because the owner still has to read bytes.
        if self.device.held_back || !self.may_transmit(now) {
            self.poll_at = None;
        }
        if matches!(self.stage, Stage::Finished | Stage::Failed(_)) {
            self.leave(false);
        }
    }

    /// Sends a window update after the owner has read, if smoltcp wants to send one.
    fn update_window(&mut self, now: smoltcp::time::Instant) {
        let at_once = Some(smoltcp::time::Instant::ZERO);
        if self.registered && self.interface.poll_at(now, &self.sockets) == at_once {
            self.send_out(now);
        }
    }

    /// Closes smoltcp's socket after a shutdown, when the FIN can be sent. In LAST-ACK, smoltcp
    /// 0.14 ignores a window update because it looks like a duplicate. Bytes that wait for the
    /// peer's window would then wait for a timer. So after the peer's FIN, this side's FIN is sent
    /// only after all bytes were acknowledged.
    fn close_when_ready(&mut self) {
        if self.close_later && !self.fin_waits() {
            let socket = self.socket_mut();
            if socket.state() != State::CloseWait || socket.send_queue() == 0 {
                socket.close();
                self.close_later = false;
            }
        }
    }

    /// Returns true if smoltcp may run its timers. At the end of TIME-WAIT it would discard bytes
    /// that the owner has not read yet, so that timer has to wait.
    fn may_transmit(&mut self, now: smoltcp::time::Instant) -> bool {
        let socket = self.socket();
        if socket.state() != State::TimeWait || !socket.can_recv() {
            return true;
        }
        // smoltcp returns time zero for "at once". In that case an acknowledgement is due, and not
        // the timer of TIME-WAIT.
        self.interface.poll_at(now, &self.sockets) == Some(smoltcp::time::Instant::ZERO)
    }

    /// Updates the stage and the timeouts after smoltcp's state may have changed from `before`.
    fn observe(&mut self, before: State, cause: Cause, now: smoltcp::time::Instant) {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        let (change, all_sent) = ((before, socket.state()), socket.send_queue() == 0);
        let Some(event) = Event::of(change, cause, all_sent, self.key.remote) else {
            return;
        };
        let next = self.stage.next(event);
        if socket.state() == State::TimeWait {
            // The peer sends nothing more.
            socket.set_timeout(None);
        }
        if (self.stage, next) == (Stage::Handshake, Stage::Open) {
            socket.set_timeout(None);
            self.recovery.established(now);
            self.watch_over(now);
        }
        self.stage = next;
    }

    /// Removes the connection from the stack's table, and passes unprocessed packets back to the
    /// stack. With `linger`, the stack remembers the address pair for TIME-WAIT.
    fn leave(&mut self, linger: bool) {
        if !self.registered {
            return;
        }
        self.registered = false;
        self.stack.unregister(&self.key, &self.mailbox, linger);
        for packet in self.mailbox.close() {
            self.stack.receive(packet, &mut Route::default());
        }
        self.device.release();
    }

    fn broken(&self) -> LlpError {
        LlpError::Broken {
            addr: self.key.remote,
        }
    }
}

/// Creates an inbox for one connection of the stack.
fn new_mailbox(stack: &Stack) -> Result<Arc<Mailbox>, LlpError> {
    let bounds = Bounds {
        packets: stack.settings.inbox,
        bytes: stack.settings.inbox_bytes,
    };
    Mailbox::new(bounds, Arc::clone(&stack.pool)).map(Arc::new)
}

/// Returns true if the peer's FIN has arrived in order.
fn has_fin(state: State) -> bool {
    matches!(
        state,
        State::CloseWait | State::LastAck | State::Closing | State::TimeWait
    )
}

impl Llp for SmolConnection {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        if self.stage == Stage::Failed(self.broken()) {
            return Err(self.broken());
        }
        if buf.is_empty() {
            return Ok(Recv::WouldBlock);
        }
        // Bytes are read before anything is sent, so that one acknowledgement covers both the bytes
        // and the new room in the window.
        let empty = !self.socket().can_recv();
        if empty && self.stack.link().takes_in() {
            // The caller gets the bytes from this call, so no signal has to be raised for them.
            self.mailbox.attend(|| self.stack.poll());
        }
        let arrived = empty && self.mailbox.has_news();
        let now = self.now();
        if arrived {
            self.take_in(now);
        }
        let result = self.socket_mut().recv_slice(buf);
        self.read += result.map_or(0, |count| count as u64);
        let due = self.device.held_back || self.poll_at.is_some_and(|at| at <= now);
        if arrived || due {
            self.send_out(now);
        } else if result.is_ok_and(|count| count > 0) {
            self.update_window(now);
        }
        let is_all = result.is_ok_and(|count| count > 0) && !self.socket().can_recv();
        if arrived && !is_all {
            // The signal was suppressed above, but more can be done now: reading more bytes, or
            // sending.
            self.mailbox.signal.raise();
        }
        match result {
            Ok(0) => Ok(Recv::WouldBlock),
            Ok(count) => Ok(Recv::Data(count)),
            Err(tcp::RecvError::Finished) => Ok(Recv::Closed),
            Err(tcp::RecvError::InvalidState) => match self.stage {
                Stage::Finished => Ok(Recv::Closed),
                Stage::Failed(error) => Err(error),
                Stage::Handshake | Stage::Open => Err(self.broken()),
            },
        }
    }

    fn try_send(&mut self, pieces: &[Piece<'_>], hints: SendHints<'_>) -> Result<usize, LlpError> {
        let now = self.now();
        self.aligner.tick(now);
        self.follow_path_mtu(now);
        let due = self.device.held_back || self.poll_at.is_some_and(|at| at <= now);
        if self.mailbox.has_news() || due {
            self.take_in(now);
            self.send_out(now);
        }
        match self.stage {
            Stage::Open if !self.closing => {}
            Stage::Failed(error) => return Err(error),
            _ => return Err(self.broken()),
        }
        Ok(if hints.ends().is_empty() {
            self.send_run(pieces, now)
        } else {
            self.send_fpdus(pieces, hints, now)
        })
    }

    fn emss(&self) -> usize {
        self.segment_bytes()
    }

    fn shutdown(&mut self) -> Result<(), LlpError> {
        match self.stage {
            Stage::Open | Stage::Finished => {}
            Stage::Failed(error) => return Err(error),
            Stage::Handshake => return Err(self.broken()),
        }
        if !self.closing {
            self.closing = true;
            self.close_later = true;
            self.pump();
        }
        Ok(())
    }

    fn abort(&mut self) {
        let over = matches!(self.stage, Stage::Finished | Stage::Failed(_));
        self.stage = self.stage.next(Event::Aborted(self.broken()));
        if !over {
            self.socket_mut().abort();
            self.device.urgent = true;
            // Sends the reset and leaves the stack.
            self.pump();
        }
    }

    fn lost(&mut self) -> Option<LlpError> {
        self.stack.poll();
        self.pump_if_due();
        match self.stage {
            Stage::Failed(error) => Some(error),
            Stage::Handshake | Stage::Open | Stage::Finished => None,
        }
    }

    fn peer_closed(&mut self) -> bool {
        self.stack.poll();
        self.pump_if_due();
        match self.stage {
            Stage::Handshake | Stage::Failed(_) => false,
            Stage::Open => has_fin(self.socket().state()),
            Stage::Finished => true,
        }
    }

    fn flushed(&mut self) -> bool {
        self.stack.poll();
        self.pump_if_due();
        if self.device.held_back {
            // The peer may still wait for an acknowledgement that is held back.
            return false;
        }
        let socket = self.socket();
        match self.stage {
            Stage::Open if self.closing => {
                matches!(socket.state(), State::FinWait2 | State::TimeWait)
            }
            Stage::Open => socket.send_queue() == 0,
            Stage::Finished => true,
            Stage::Handshake | Stage::Failed(_) => false,
        }
    }

    fn unacknowledged(&mut self) -> usize {
        self.stack.poll();
        self.pump_if_due();
        self.socket().send_queue()
    }

    fn local_addr(&self) -> SocketAddr {
        self.key.local
    }

    fn peer_addr(&self) -> SocketAddr {
        self.key.remote
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.mailbox.signal.as_fd()
    }

    fn congestion_control(&self) -> Option<String> {
        let name = match self.socket().congestion_control() {
            CongestionControl::None => "none",
            CongestionControl::Reno => "reno",
            CongestionControl::Cubic => "cubic",
        };
        Some(name.to_owned())
    }

    fn wants_write_event(&self) -> bool {
        false
    }

    fn clear_readiness(&mut self) {
        self.mailbox.signal.clear();
    }

    fn deadline(&self) -> Option<Instant> {
        self.wake_at().map(|at| self.stack.epoch.to_std(at))
    }

    fn drive(&mut self) {
        self.pump();
    }

    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError> {
        keepalive.check()?;
        self.keepalive = Some(keepalive);
        if self.stage == Stage::Open {
            self.watch_over(self.now());
            // smoltcp computes its timers when it is polled.
            self.pump();
        }
        Ok(())
    }

    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        self.stack.poll();
        self.pump_if_due();
        match self.stage {
            Stage::Handshake => Ok(false),
            Stage::Open | Stage::Finished => Ok(true),
            Stage::Failed(error) => Err(error),
        }
    }
}

impl Drop for SmolConnection {
    fn drop(&mut self) {
        if !self.registered {
            return;
        }
        self.device.urgent = true;
        self.pump();
        let socket = self.socket();
        match socket.state() {
            State::TimeWait => self.leave(true),
            // The peer has acknowledged all bytes and the FIN; only its own FIN is missing.
            State::FinWait2 if !socket.can_recv() => self.leave(true),
            _ => self.abort(),
        }
        // No state may leave the connection in the stack's table.
        self.leave(false);
    }
}

/// Returns the local address for a connection to `to`, which is based on `local`. A missing or
/// unspecified IP address is replaced by the stack's address for `to`. The port is 0 if `local` is
/// missing.
pub(crate) fn local_for(
    stack: &Stack,
    local: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<SocketAddr, LlpError> {
    let source: IpAddr = stack.source_for(to)?;
    if let Some(local) = local {
        LlpError::check_families(local, to)?;
    }
    match local {
        None => Ok(SocketAddr::new(source, 0)),
        Some(local) if local.ip().is_unspecified() => Ok(SocketAddr::new(source, local.port())),
        Some(local) if stack.has(local.ip()) => Ok(local),
        Some(local) => Err(LlpError::AddressUnavailable { addr: local }),
    }
}

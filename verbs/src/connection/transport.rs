//! Attaching, reconnecting and releasing the LLP of a QP.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use uwarp_llp::{Llp, LlpError};

use crate::connection::inner::{Driver, Locked, PeerCharges, QpInner};
use crate::progress::background::Interest;
use crate::progress::linger::linger;
use uwarp_engine::connection::ReceiveBuffer;
use uwarp_engine::limits::Charge;

impl QpInner {
    /// Attaches a connected or connecting LLP. The caller has brought the connection into the right
    /// state.
    pub(crate) fn attach(
        self: &Arc<Self>,
        locked: &mut Locked,
        mut llp: Box<dyn Llp>,
        held: PeerCharges,
        target: Option<(Option<SocketAddr>, SocketAddr)>,
    ) -> Result<(), LlpError> {
        self.enable_keepalive(&mut *llp)?;
        let weak: Weak<QpInner> = Arc::downgrade(self);
        self.device
            .background
            .register(locked.registration.token, weak, llp.fd())
            .map_err(|errno| LlpError::Io {
                op: "watch the connection",
                errno: errno.raw_os_error(),
            })?;
        locked.set_addrs(&*llp);
        locked.target = target;
        locked.driven.peer = Some(Arc::clone(&held.peer));
        locked.held = Some(held);
        locked.driven.llp = Some(llp);
        // On the passive side, reports the establishment before the peer can act on the Reply.
        self.publish(locked);
        // Sends a Reply before handling bytes that the peer may have sent too early.
        locked.driven.push(&self.device.pool);
        let outcome = locked.driven.turn(&self.device.pool, self.device.now());
        self.settle(locked, outcome, Driver::Background);
        Ok(())
    }

    /// Enables TCP keep-alive if the program wants it.
    fn enable_keepalive(&self, llp: &mut dyn Llp) -> Result<(), LlpError> {
        (self.ctx.keepalive).map_or(Ok(()), |keepalive| llp.set_keepalive(keepalive))
    }

    /// Releases the LLP after its connection has ended.
    pub(crate) fn release(&self, locked: &mut Locked) {
        let place = locked.held.take().and_then(|held| held.place);
        self.retire(locked, place);
        locked.driven.peer = None;
        locked.driven.rx = ReceiveBuffer::default();
        locked.driven.conn.timers.clear_driver();
        locked.driven.confirmations.reset();
        locked.registration.gone();
        self.device.background.forget(locked.registration.token);
        locked.driven.conn.llp_released();
        self.publish(locked);
        self.changed();
    }

    /// Ends the connection, because its LLP could not be opened or [attached](Self::attach).
    pub(crate) fn not_attached(&self, locked: &mut Locked, error: LlpError) {
        locked.driven.conn.not_connected(error);
        locked.driven.conn.llp_released();
        self.publish(locked);
    }

    /// Detaches the LLP and closes it. If threads wait on its descriptor, the LLP is closed after
    /// these threads have left.
    fn retire(&self, locked: &mut Locked, place: Option<Charge>) {
        let Some(llp) = locked.driven.llp.take() else {
            return;
        };
        self.device.background.forget_fd(llp.fd());
        locked.registration.leave_group(self.member(), llp.fd());
        if locked.registration.owner.is_waited() {
            locked.retired.push((llp, place));
            self.ctx.send_cq.wake_waiters();
            self.ctx.recv_cq.wake_waiters();
        } else {
            self.close(llp, place);
        }
    }

    pub(crate) fn close(&self, llp: Box<dyn Llp>, place: Option<Charge>) {
        linger(
            &self.device.background,
            llp,
            place,
            Vec::new(),
            self.device.settings.timeouts.close,
        );
    }

    /// Starts another attempt to connect: a retry with MPA revision 1 (6581-10-05), or a retry
    /// after TCP refused. If the retry is not due yet, only sets a timer for it.
    pub(super) fn reconnect(&self, locked: &mut Locked) {
        self.retire(locked, None);
        locked.driven.rx = ReceiveBuffer::default();
        if let Some(when) = locked.driven.conn.redials_at() {
            locked
                .registration
                .set_timer(&self.device.background, Some(when));
            return;
        }
        locked.driven.conn.redialed();
        let Some((local, to)) = locked.target else {
            return;
        };
        // Uses the same local port if it is free. In a retry with MPA revision 1 the first
        // connection may still occupy it.
        let connect = |local| self.device.network.connect(local, to);
        let connected = connect(local).or_else(|error| match (error, local) {
            (
                LlpError::AddressInUse { .. } | LlpError::AddressUnavailable { .. },
                Some(mut local),
            ) => {
                local.set_port(0);
                connect(Some(local))
            }
            (error, _) => Err(error),
        });
        match connected.and_then(|mut llp| self.enable_keepalive(&mut *llp).map(|()| llp)) {
            Ok(llp) => {
                let token = locked.registration.token;
                locked.set_addrs(&*llp);
                let background = &self.device.background;
                if let Err(errno) = background.add_fd(token, llp.fd()) {
                    let errno = errno.raw_os_error();
                    let op = "watch the connection";
                    locked.driven.conn.not_connected(LlpError::Io { op, errno });
                    self.release(locked);
                    return;
                }
                locked
                    .registration
                    .arm(background, llp.fd(), Interest::ReadWrite);
                locked.driven.llp = Some(llp);
                locked.registration.timer = None;
                let deadline = locked.driven.deadline();
                locked.registration.set_timer(background, deadline);
            }
            Err(error) => {
                locked.driven.conn.not_connected(error);
                self.release(locked);
            }
        }
    }

    /// Starts the next attempt to connect if it is due.
    pub(super) fn retry_connect(&self, locked: &mut Locked, now: Instant) {
        let Some(when) = locked.driven.conn.redials_at() else {
            return;
        };
        if when <= now {
            locked.driven.conn.set_now(now);
            locked.driven.conn.redial_due();
            self.reconnect(locked);
        } else {
            locked
                .registration
                .set_timer(&self.device.background, Some(when));
        }
    }
}

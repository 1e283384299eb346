//! Events between two phases: a reregistration, or the end of the connection in any way and a new
//! connection.

use uwarp_verbs::{
    Access, EndReason, QpModify, RecvWr, RemoteBuffer, SendWr, Sge, Status, WindowBind, inc_rkey,
};

use crate::case::{End, INBOX, Then, Wrong, WrongLocal};
use crate::common::{CqHandle, Ends, FILL, slice};
use crate::loan::{Loan, Object};
use crate::player::Player;
use crate::ready::is_full;

/// Length in bytes of one Write of a side that aborts.
const WRITE: usize = 200;

/// Requests that must complete: work request id and allowed statuses of each.
type Fates = Vec<(u64, &'static [Status])>;

const FLUSHED: &[Status] = &[Status::WrFlush];
const REFUSED: &[Status] = &[Status::RemoteAccess];
/// Statuses of a refused Write. It completes when TCP has taken it, before or after the peer
/// refuses it.
const WRITE_REFUSED: &[Status] = &[Status::Success, Status::RemoteAccess, Status::WrFlush];
/// Statuses of a refused Send, which completes like a Write.
const SEND_REFUSED: &[Status] = &[Status::Success, Status::RemoteOperation, Status::WrFlush];

/// Performs the event and checks its effects. `me` is the side that acts.
pub(crate) fn between<'a>(ends: &Ends, me: &mut Player<'a>, peer: &mut Player<'a>, then: Then) {
    match then {
        Then::GoOn => {}
        Then::Reregister { base, .. } => reregister(me, base),
        Then::Anew { how, more, .. } => {
            let mut scene = Scene {
                me,
                peer,
                fates: Default::default(),
                receives: Default::default(),
            };
            scene.end(how, more);
            (scene.me.written, scene.peer.written) = (0, 0);
            scene.settle();
            ends.join();
        }
    }
}

fn reregister(me: &mut Player<'_>, base: u64) {
    let held = me.loans.iter().any(Loan::holds_inbox);
    let old = me.inbox.remote();
    let anew = me.inbox.reregister().access(Access::ALL).iova(base);
    match anew.apply() {
        Ok(()) => {
            assert!(!held, "a window is bound to the inbox");
            assert_eq!(me.inbox.addr(), base);
            assert_ne!(me.inbox.rkey(), old.rkey);
        }
        Err(error) => {
            assert!(held, "{error}");
            assert_eq!(me.inbox.remote(), old);
        }
    }
}

/// The end of a connection. `me` acts, and the peer only waits.
struct Scene<'p, 'a> {
    me: &'p mut Player<'a>,
    peer: &'p mut Player<'a>,
    /// Requests in the send queue of `me`, which must complete.
    fates: Fates,
    /// Receives of `me` and of `peer`, which must complete.
    receives: [Fates; 2],
}

impl Scene<'_, '_> {
    fn end(&mut self, how: End, more: usize) {
        match how {
            End::Disconnect => {
                self.idle_receives(more);
                self.me.side.qp.disconnect();
            }
            End::Abort => {
                self.idle_receives(more);
                self.me.side.qp.abort();
                let reason = self.me.side.wait_end();
                assert!(matches!(reason, EndReason::Aborted), "{reason}");
            }
            End::AbortBusy => self.abort_busy(more),
            End::Refused(wrong) => {
                self.wrong(wrong);
                self.reads_behind(more);
                self.idle_receives(more);
                let reason = self.me.side.wait_end();
                let terminated = matches!(reason, EndReason::TerminateReceived { .. });
                assert!(terminated, "{wrong:?}: {reason}");
                let reason = self.peer.side.wait_end();
                let is_sent = matches!(reason, EndReason::TerminateSent { .. });
                assert!(is_sent, "{wrong:?}: {reason}");
            }
            End::Failed(wrong) => {
                self.idle_receives(more);
                self.wrong_local(wrong);
                self.reads_behind(more);
            }
        }
    }

    fn post(&mut self, fate: &'static [Status], wr: impl Fn(u64) -> SendWr<'static>) {
        self.post_with(fate, &[], |wr_id, _| wr(wr_id));
    }

    /// Posts a request, or skips it if the send queue is full.
    fn post_with(
        &mut self,
        fate: &'static [Status],
        sges: &[Sge],
        wr: impl for<'s> Fn(u64, &'s [Sge]) -> SendWr<'s>,
    ) {
        let wr_id = self.me.id();
        match self.me.side.qp.post_send(&wr(wr_id, sges)) {
            Ok(()) => self.fates.push((wr_id, fate)),
            Err(error) => assert!(is_full(&error), "{error}"),
        }
    }

    /// Posts receives for which no message arrives. Receives in an SRQ would outlive the
    /// connection, so they are not posted.
    fn idle_receives(&mut self, count: usize) {
        for (player, fates) in [&mut *self.me, &mut *self.peer]
            .into_iter()
            .zip(&mut self.receives)
        {
            for _ in 0..count * usize::from(!player.has_srq()) {
                let wr_id = player.id();
                player.post_recv(&RecvWr::new(wr_id, &[]));
                fates.push((wr_id, FLUSHED));
            }
        }
    }

    /// Posts Reads that are never answered, after a request that ends the connection.
    fn reads_behind(&mut self, count: usize) {
        let remote = self.peer.source.remote();
        for _ in 0..count {
            let sink = self.sink();
            self.post_with(FLUSHED, &sink, |wr_id, sges| {
                SendWr::read(wr_id, sges, RemoteBuffer::at(remote.addr, remote.rkey)).unsignaled()
            });
        }
    }

    /// Aborts with Writes in flight. Each byte of the peer's inbox must then have its old or its
    /// new value.
    fn abort_busy(&mut self, more: usize) {
        const EITHER: &[Status] = &[Status::Success, Status::WrFlush];
        let lent = self.peer.lent();
        let bytes = |index: usize| [0x10 + index as u8; WRITE];
        for index in 0..=more {
            let wr_id = self.me.id();
            let to = lent.addr + (index * WRITE) as u64;
            let data = bytes(index);
            let wr = SendWr::write_inline(wr_id, &data, RemoteBuffer::at(to, lent.rkey));
            match self.me.side.qp.post_send(&wr) {
                Ok(()) => self.fates.push((wr_id, EITHER)),
                Err(error) => assert!(is_full(&error), "{error}"),
            }
        }
        self.me.side.qp.abort();
        self.peer.side.wait_end();
        for index in 0..self.fates.len() {
            let at = index * WRITE;
            let now = slice(&self.peer.inbox, at, WRITE);
            let old = &mut self.peer.inbox_model[at..at + WRITE];
            for (now, old) in now.into_iter().zip(old) {
                assert!(now == *old || now == bytes(index)[0], "torn");
                *old = now;
            }
        }
    }

    /// Returns an invalid STag: the last one of a slot, or one that never existed.
    fn dead(&self, slot: usize) -> u32 {
        const NEVER: u32 = 0x77;
        match self.peer.loans.get(slot) {
            Some(loan) if !loan.valid && loan.rkey != 0 => loan.rkey,
            Some(_) | None => NEVER,
        }
    }

    /// Gives the peer's QP only these rights.
    fn without(&self, rights: Access) {
        let modify = QpModify::new().access(rights);
        self.peer.side.qp.modify(&modify).unwrap();
    }

    fn wrong(&mut self, wrong: Wrong) {
        let (lent, source) = (self.peer.lent(), self.peer.source.remote());
        let (write, read) = (Access::REMOTE_WRITE, Access::REMOTE_READ);
        let atomic = Access::REMOTE_ATOMIC;
        let local = Access::LOCAL_WRITE;
        let end = lent.addr + INBOX as u64 - 4;
        match wrong {
            Wrong::ReadKey(slot) => self.read(lent.addr, self.dead(slot)),
            Wrong::WriteKey(slot) => self.write(lent.addr, self.dead(slot)),
            Wrong::AtomicKey(slot) => self.atomic(lent.addr, self.dead(slot)),
            Wrong::ReadBounds => self.read(end, lent.rkey),
            Wrong::WriteBounds => self.write(end, lent.rkey),
            Wrong::AtomicRight => self.atomic(source.addr, source.rkey),
            Wrong::ReadQpRight => {
                self.without(local | write | atomic);
                self.read(lent.addr, lent.rkey);
            }
            Wrong::WriteQpRight => {
                self.without(local | read | atomic);
                self.write(lent.addr, lent.rkey);
            }
            Wrong::AtomicQpRight => {
                self.without(local | read | write);
                self.atomic(lent.addr, lent.rkey);
            }
            Wrong::LongSend => {
                self.receive_fails(&[Status::LocalLength]);
                self.post(SEND_REFUSED, |wr_id| SendWr::send_inline(wr_id, &[1; 5]));
            }
            Wrong::Invalidate => {
                self.receive_fails(&[Status::RemoteInvalidRequest]);
                self.post(SEND_REFUSED, |wr_id| {
                    SendWr::send_inline(wr_id, &[]).invalidate(lent.rkey)
                });
            }
        }
    }

    /// Posts a receive of the peer for 4 bytes, which must stay unchanged.
    fn receive_fails(&mut self, fate: &'static [Status]) {
        let wr_id = self.peer.id();
        let region = self.peer.side.blank(4);
        let sges = [region.sge(0, 4)];
        self.peer.post_recv(&RecvWr::new(wr_id, &sges));
        self.receives[1].push((wr_id, fate));
        let model = vec![FILL; 4];
        self.peer.placed.push((region, model));
    }

    /// Registers a sink of 8 bytes that must stay unchanged.
    fn sink(&mut self) -> [Sge; 1] {
        let sink = self.me.side.blank(8);
        let sges = [sink.sge(0, 8)];
        self.me.placed.push((sink, vec![FILL; 8]));
        sges
    }

    fn read(&mut self, addr: u64, rkey: u32) {
        let sink = self.sink();
        self.post_with(REFUSED, &sink, |wr_id, sges| {
            SendWr::read(wr_id, sges, RemoteBuffer::at(addr, rkey))
        });
    }

    fn atomic(&mut self, addr: u64, rkey: u32) {
        let sink = self.sink();
        self.post_with(REFUSED, &sink, |wr_id, sges| {
            SendWr::fetch_add(wr_id, sges, RemoteBuffer::at(addr, rkey), 1)
        });
    }

    fn write(&mut self, addr: u64, rkey: u32) {
        self.post(WRITE_REFUSED, |wr_id| {
            SendWr::write_inline(wr_id, &[1; 8], RemoteBuffer::at(addr, rkey))
        });
    }

    fn wrong_local(&mut self, wrong: WrongLocal) {
        match wrong {
            WrongLocal::Bind => {
                let rkey = inc_rkey(self.me.loans[1].rkey);
                let bind = WindowBind {
                    lkey: 1,
                    ..self.me.inbox.window(0, 8, Access::REMOTE_READ)
                };
                self.post(&[Status::WindowBind], |wr_id| {
                    SendWr::bind_window(wr_id, rkey, &bind)
                });
            }
            WrongLocal::Register => {
                let loan = &self.me.loans[3];
                let Object::Fast(fast) = &loan.object else {
                    unreachable!("slot 3 has the fast region");
                };
                // The registration is out of bounds, or the region is still valid.
                let part = fast.register(inc_rkey(loan.rkey), 8, INBOX as u64, Access::NONE);
                let fate: &[Status] = if loan.valid {
                    &[Status::LocalQpOperation]
                } else {
                    &[Status::LocalProtection]
                };
                self.post(fate, |wr_id| SendWr::register(wr_id, &part));
            }
            WrongLocal::Invalidate => {
                self.post(&[Status::LocalQpOperation], |wr_id| {
                    SendWr::local_invalidate(wr_id, 0x77)
                });
            }
        }
    }

    /// Checks that both sides have ended and that every request has completed. Resets both QPs.
    fn settle(self) {
        let [mine, theirs] = self.receives;
        for (player, sends, receives) in [
            (self.me, self.fates, mine),
            (self.peer, Fates::new(), theirs),
        ] {
            let side = player.side;
            side.wait_end();
            for (cq, fates) in [(&side.send_cq, sends), (&side.recv_cq, receives)] {
                settle(cq, &fates);
            }
            assert!(side.qp.reset());
            let all = QpModify::new().access(Access::ALL);
            side.qp.modify(&all).unwrap();
            for loan in &mut player.loans {
                loan.life_ended();
            }
        }
    }
}

/// Checks that the CQ holds exactly these completions, and that none succeeds after a flush.
fn settle(cq: &CqHandle, fates: &Fates) {
    let mut flushed = false;
    for (wr_id, fate) in fates {
        let got = cq.next();
        assert_eq!(got.wr_id, *wr_id, "{got:?}");
        assert!(fate.contains(&got.status), "{got:?}, not {fate:?}");
        assert!(!(flushed && got.status == Status::Success), "{got:?}");
        flushed |= got.status != Status::Success;
    }
    cq.assert_empty();
}

//! A program that calls the verbs in any order, from any state, with any arguments, on a device that reaches itself over TCP
//! in memory. What is refused is refused for the reason that is given; a work request that was taken completes once, in
//! order, in the queue and with the number that it has to; what is in use is not destroyed; octets outside of registered
//! memory, and of memory that nobody may write, stay as they are; and in the end nothing is left.

mod cm;
mod memory;
mod post;
mod work;
mod world;

use std::time::Duration;

use uwarp_verbs::{
    DestroyCqError, DestroyQpError, DestroySrqError, IbvQpState, ModifyError, Notify, QpModify,
    QpState, SrqAttr, SrqModify, WindowKind,
};

use crate::input::Input;
use work::Owner;
use world::{CAPS, MAX_CQ, MAX_MR, MAX_QP, MAX_SRQ, Queue, World};

/// At most so many calls in one input.
const MAX_STEPS: usize = 160;

/// Calls: which, whether everything that it leads to happens before the next one (bit 5), and its arguments. In the end
/// the order in which everything is dropped.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        world.step(step & 31, &mut input);
        if step & 0x20 != 0 {
            world.progress(false);
        }
    }
    world.end(&mut input);
}

impl World {
    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        match step {
            0 => self.alloc_pd(),
            1 => self.create_cq(input),
            2 => self.create_qp(input),
            3 => self.create_srq(input),
            4 | 31 => self.register(input),
            5 => self.alloc_window(input),
            6 => {
                let at = input.choice(self.memory.regions.len());
                if at < self.memory.regions.len() {
                    let sends = self
                        .queues
                        .iter()
                        .any(|queue| queue.qp.state() != QpState::Idle);
                    self.memory.deregister(at, input.u8() & 3 == 0, sends);
                }
            }
            7 => {
                let at = input.choice(self.memory.windows.len());
                if at < self.memory.windows.len() {
                    self.memory.windows.swap_remove(at);
                }
            }
            8 => self.destroy_qp(input),
            9 => self.destroy_cq(input),
            10 => self.destroy_srq(input),
            11 => {
                let at = input.choice(self.pds.len());
                if at < self.pds.len() {
                    self.pds.swap_remove(at);
                }
            }
            12..=14 => self.receive(input),
            15..=19 => self.send(input),
            20 => self.bind(input),
            21 | 22 => {
                let at = input.choice(self.cqs.len());
                self.poll(at);
            }
            23 => {
                self.progress(true);
            }
            24 => self.modify(input),
            25 => self.query(input),
            26 | 27 => self.cm(input),
            28 => {
                self.told(input.u8() & 7 == 0);
            }
            29 => self.event(input.u8() & 7 == 0),
            _ => self.more(input),
        }
    }

    fn create_cq(&mut self, input: &mut Input<'_>) {
        let depth = [64, 64, 2, 0][input.choice(4)];
        match self.device.create_cq(depth) {
            Ok(cq) => {
                assert!(depth > 0 && self.cqs.len() < MAX_CQ);
                self.cqs.push(cq);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    fn create_qp(&mut self, input: &mut Input<'_>) {
        let (pd, send, recv) = (
            input.choice(self.pds.len()),
            input.choice(self.cqs.len()),
            input.choice(self.cqs.len()),
        );
        let shared = usize::from(input.u8());
        let (Some((number, pd)), Some(send), Some(recv)) =
            (self.pds.get(pd), self.cqs.get(send), self.cqs.get(recv))
        else {
            return;
        };
        let srq = self
            .srqs
            .get(shared % 4)
            .filter(|(num, _)| self.srq_pds[num] == *number);
        let mut builder = pd.qp().caps(CAPS);
        if let Some((_, srq)) = srq {
            builder = builder.srq(srq);
        }
        match builder.build(send, recv) {
            Ok(qp) => {
                assert!(self.queues.len() < MAX_QP);
                self.queues.push(Queue {
                    num: qp.qp_num(),
                    qp,
                    pd: *number,
                    send_cq: send.cq_num(),
                    recv_cq: recv.cq_num(),
                    srq: srq.map(|(num, _)| *num),
                });
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    fn create_srq(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.pds.len());
        let attr = SrqAttr {
            max_wr: u32::from(input.u8() % 12),
            max_sge: 2,
            ..SrqAttr::default()
        };
        let Some((number, pd)) = self.pds.get(at) else {
            return;
        };
        match pd.create_srq(attr) {
            Ok(srq) => {
                assert!(attr.max_wr > 0 && self.srqs.len() < MAX_SRQ);
                self.srq_pds.insert(srq.srq_num(), *number);
                self.srqs.push((srq.srq_num(), srq));
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    fn register(&mut self, input: &mut Input<'_>) {
        let (at, qp) = (input.choice(self.pds.len()), usize::from(input.u8()));
        let Some((number, pd)) = self.pds.get(at) else {
            return;
        };
        let qp = self.queues.get(qp % 16).map(|queue| &queue.qp);
        if self.memory.register(input, (pd, *number), qp) {
            assert!(self.memory.regions.len() <= MAX_MR);
        }
    }

    fn alloc_window(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.pds.len());
        let kind = [WindowKind::Type1, WindowKind::Type2A, WindowKind::Type2B][input.choice(3)];
        let Some((_, pd)) = self.pds.get(at) else {
            return;
        };
        match pd.alloc_window(kind) {
            Ok(window) => self.memory.windows.push((kind, window)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    /// Destroys a QP by a call, or drops it: then nobody knows what becomes of its work.
    fn destroy_qp(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.queues.len());
        if at >= self.queues.len() {
            return;
        }
        let queue = self.queues.swap_remove(at);
        let (num, srq) = (queue.num, queue.srq);
        if input.u8() & 1 == 0 {
            drop(queue);
        } else if let Err((qp, error)) = queue.qp.destroy(Some(Duration::ZERO)) {
            match error {
                DestroyQpError::Unacknowledged { events } => {
                    assert!(events > 0 && events <= self.held.len() as u64, "{error}");
                }
                other => panic!("not documented: {other}"),
            }
            self.queues.push(Queue { qp, ..queue });
            return;
        }
        self.work.give_up(Owner::Send(num));
        self.work.give_up(Owner::Recv(num));
        srq.into_iter()
            .for_each(|srq| self.work.give_up(Owner::Srq(srq)));
    }

    fn destroy_cq(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.cqs.len());
        if at >= self.cqs.len() {
            return;
        }
        let cq = self.cqs.swap_remove(at);
        let num = cq.cq_num();
        let users = |queue: &&Queue| queue.send_cq == num || queue.recv_cq == num;
        let users = self.queues.iter().filter(users).count();
        if input.u8() & 3 == 0 {
            self.lose(num);
            return;
        }
        match cq.destroy(Some(Duration::ZERO)) {
            Ok(()) => {
                assert_eq!(users, 0, "QPs complete to it");
                self.lose(num);
            }
            Err((cq, error)) => {
                match error {
                    DestroyCqError::InUse { qps } => assert!(qps >= users && qps > 0, "{error}"),
                    DestroyCqError::UnacknowledgedAsync { events } => {
                        assert!(users == 0 && events <= self.held.len() as u64, "{error}");
                    }
                    other => panic!("not of a CQ without a channel: {other}"),
                }
                self.cqs.push(cq);
            }
        }
    }

    fn destroy_srq(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.srqs.len());
        if at >= self.srqs.len() {
            return;
        }
        let (num, srq) = self.srqs.swap_remove(at);
        let users = self
            .queues
            .iter()
            .filter(|queue| queue.srq == Some(num))
            .count();
        if input.u8() & 3 == 0 {
            self.work.give_up(Owner::Srq(num));
            return;
        }
        match srq.destroy(Some(Duration::ZERO)) {
            Ok(()) => {
                assert_eq!(users, 0, "QPs take from it");
                self.work.give_up(Owner::Srq(num));
            }
            Err((srq, error)) => {
                match error {
                    DestroySrqError::InUse { qps } => assert!(qps as usize >= users && qps > 0),
                    DestroySrqError::Unacknowledged { events } => {
                        assert!(users == 0 && events <= self.held.len() as u64, "{error}");
                    }
                    other => panic!("not documented: {other}"),
                }
                self.srqs.push((num, srq));
            }
        }
    }

    /// Modify QP, and the calls that are short for it.
    fn modify(&mut self, input: &mut Input<'_>) {
        let (at, how, to) = (input.choice(self.queues.len()), input.u8(), input.choice(7));
        let Some(Queue { qp, .. }) = self.queues.get(at) else {
            return;
        };
        let from = qp.state();
        match how % 8 {
            0 => qp.disconnect(),
            1 => qp.abort(),
            2 => assert!(!qp.reset() || qp.state() == QpState::Idle),
            3 | 4 => {
                let to = QpState::ALL[to % 6];
                let said = qp.modify(&QpModify::new().state(to));
                let legal = from == to
                    || to == QpState::Error
                    || matches!(
                        (from, to),
                        (QpState::Rts, QpState::Closing | QpState::Terminate)
                            | (QpState::Error, QpState::Idle)
                    );
                match said {
                    Ok(()) => assert!(legal, "{from} to {to}"),
                    Err(ModifyError::Illegal { from: is, .. }) => {
                        assert!(is == from && (!legal || from == QpState::Error));
                    }
                    Err(other) => panic!("{from} to {to}: {other}"),
                }
            }
            5 => {
                let to = IbvQpState::ALL[to];
                match qp.modify(&QpModify::new().ibv_state(to)) {
                    Ok(()) => {}
                    Err(ModifyError::Illegal { from: is, .. }) => {
                        assert!(is == from && qp.state() == from);
                    }
                    Err(other) => panic!("{from} to {to}: {other}"),
                }
            }
            _ => {
                let named = QpState::ALL[to % 6];
                let said = qp.modify(&QpModify::new().current(named));
                assert_eq!(said.is_ok(), named == from);
            }
        }
    }

    fn query(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.u8());
        if let Some(Queue { qp, srq, num, .. }) = self.queues.get(at % 8) {
            let attr = qp.query();
            assert_eq!(
                (attr.state, attr.caps.max_send_wr),
                (qp.state(), CAPS.max_send_wr)
            );
            assert_eq!(qp.init_attr().caps.max_inline, CAPS.max_inline);
            assert_eq!(qp.srq().map(uwarp_verbs::Srq::srq_num), *srq);
            assert_eq!(qp.qp_num(), *num);
            if let Some(reason) = qp.end_reason() {
                assert!(!reason.cause().to_string().is_empty());
            }
            let _ = (qp.connection(), qp.flight_record());
        }
        if let Some((_, srq)) = self.srqs.get(at % 4) {
            assert!(srq.posted() <= srq.query().max_wr as usize);
        }
        self.memory.check();
    }

    /// What is left: SRQs and CQs of other sizes, acknowledgements, and two QPs that are connected at once.
    fn more(&mut self, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => {
                if let Some((_, srq)) = self.srqs.get(usize::from(input.u8() % 2)) {
                    let before = srq.query();
                    let change = SrqModify {
                        max_wr: Some(input.u8().into()).filter(|max| *max > 0),
                        limit: Some(u32::from(input.u8() % 16)),
                    };
                    if srq.modify(change).is_err() {
                        assert_eq!(srq.query().max_wr, before.max_wr, "all or nothing");
                    }
                }
            }
            1 => {
                let at = input.choice(self.cqs.len());
                if let Some(cq) = self.cqs.get(at) {
                    let (before, depth) = (cq.capacity(), u32::from(input.u8()));
                    match cq.resize(depth) {
                        Ok(()) => assert!(cq.capacity() >= depth as usize),
                        Err(error) => assert_eq!(cq.capacity(), before, "{error}"),
                    }
                    let _ = cq.req_notify(Notify::Any);
                }
            }
            2 => {
                self.held.pop();
            }
            3 => self.acknowledge(),
            _ => self.begin(input),
        }
    }

    /// A domain, a CQ, two QPs and a connection of them; a region of all rights.
    fn begin(&mut self, input: &mut Input<'_>) {
        if self.pds.is_empty() {
            self.alloc_pd();
        }
        if self.cqs.is_empty() {
            self.create_cq(&mut Input::new(&[]));
        }
        let before = self.queues.len();
        // With the SRQ, if there is one.
        let choices = [0, 0, 0, input.u8()];
        self.create_qp(&mut Input::new(&choices));
        self.create_qp(&mut Input::new(&choices));
        // All rights, at its own address.
        self.register(&mut Input::new(&[0, 15, 2, 0, 31, 0]));
        if self.queues.len() == before + 2 {
            self.join(before, before + 1);
        }
    }
}

//! Destroys and drops objects. Destroying an object in use must fail.

use std::time::Duration;

use uwarp_verbs::{DestroyCqError, DestroyQpError, DestroySrqError};

use super::work::Owner;
use super::world::{Queue, World};
use crate::input::Input;

impl World {
    /// Destroys a QP by a call, or drops it. Afterwards its work requests need not complete.
    pub(super) fn destroy_qp(&mut self, input: &mut Input<'_>) {
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

    pub(super) fn destroy_cq(&mut self, input: &mut Input<'_>) {
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
                assert_eq!(users, 0, "destroyed while QPs use it");
                self.lose(num);
            }
            Err((cq, error)) => {
                match error {
                    DestroyCqError::InUse { qps } => assert!(qps >= users && qps > 0, "{error}"),
                    DestroyCqError::UnacknowledgedAsync { events } => {
                        assert!(users == 0 && events <= self.held.len() as u64, "{error}");
                    }
                    other => panic!("impossible for a CQ without a channel: {other}"),
                }
                self.cqs.push(cq);
            }
        }
    }

    pub(super) fn destroy_srq(&mut self, input: &mut Input<'_>) {
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
                assert_eq!(users, 0, "destroyed while QPs use it");
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
}

//! Creates objects, and checks the error when a call is refused.
//!
//! Each kind of object has a limit. `World` knows only a lower bound of the number of objects,
//! because a dropped object can still be in use. Examples are a QP whose connection is closing and
//! the objects that this QP uses.

use std::time::Duration;

use uwarp_verbs::llp::smol::Clock;
use uwarp_verbs::{DeviceError, RegisterError, SrqAttr, WindowKind};

use super::world::{CAPS, MAX_CQ, MAX_MR, MAX_PD, MAX_QP, MAX_SRQ, Queue, World};
use crate::input::Input;

/// Virtual time after which every dropped object is gone. All timeouts of a connection are shorter.
const GONE_AFTER: Duration = Duration::from_secs(300);
/// Maximum number of calls of `progress` within this time.
const ROUNDS: usize = 5_000;

/// Returns the number of distinct numbers.
fn count(numbers: impl Iterator<Item = u32>) -> usize {
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len()
}

/// Returns true if the error reports that the limit `name` of `max` objects was reached.
fn limit_of(error: &DeviceError, name: &str, max: usize) -> bool {
    match error {
        DeviceError::Limit { what, limit } => (*what, *limit as usize) == (name, max),
        _ => false,
    }
}

impl World {
    /// Returns the number of domains that certainly exist: those with a handle, and those that
    /// contain an object.
    fn certain_pds(&self) -> usize {
        let held = self.pds.iter().map(|(number, _)| *number);
        let queues = self.queues.iter().map(|queue| queue.pd);
        let srqs = self.srqs.iter().map(|(num, _)| self.srq_pds[num]);
        let regions = self.memory.regions.iter().map(|region| region.pd);
        count(held.chain(queues).chain(srqs).chain(regions))
    }

    fn certain_cqs(&self) -> usize {
        let held = self.cqs.iter().map(uwarp_verbs::Cq::cq_num);
        let used = (self.queues.iter()).flat_map(|queue| [queue.send_cq, queue.recv_cq]);
        count(held.chain(used))
    }

    fn certain_srqs(&self) -> usize {
        let held = self.srqs.iter().map(|(num, _)| *num);
        let used = self.queues.iter().filter_map(|queue| queue.srq);
        count(held.chain(used))
    }

    /// Checks an error that reports a limit. If fewer than `max` objects certainly exist, dropped
    /// objects must still be in use. Then advances the clock until they are gone, and calls
    /// `again`, which must succeed.
    fn limited(&mut self, certain: usize, max: usize, again: impl FnOnce(&Self) -> bool) {
        assert!(certain <= max, "{certain} of {max}");
        // Unacknowledged events keep objects alive that `certain` does not count.
        if certain == max || self.holds_events() {
            return;
        }
        assert!(self.dropped, "{certain} of {max}, and nothing was dropped");
        let until = self.clock.now() + GONE_AFTER;
        let mut rounds = 0;
        while self.clock.now() < until && self.progress(true) {
            rounds += 1;
            if rounds > ROUNDS {
                // A device may always have work, for example because a peer accepts no bytes.
                return;
            }
        }
        assert!(again(self), "{certain} of {max}, and no more can be made");
    }

    /// Allocates a protection domain.
    pub(super) fn alloc_pd(&mut self) {
        let certain = self.certain_pds();
        match self.device.alloc_pd() {
            Ok(pd) => {
                assert!(certain < MAX_PD);
                self.pd_numbers += 1;
                self.pds.push((self.pd_numbers, pd));
            }
            Err(error) => {
                assert!(limit_of(&error, "protection domains", MAX_PD), "{error}");
                // Windows keep their domain alive.
                if self.memory.windows.is_empty() {
                    self.limited(certain, MAX_PD, |world| world.device.alloc_pd().is_ok());
                }
            }
        }
    }

    pub(super) fn create_cq(&mut self, input: &mut Input<'_>) {
        let depth = [64, 64, 2, 0][input.choice(4)];
        let certain = self.certain_cqs();
        match self.device.create_cq(depth) {
            Ok(cq) => {
                assert!(depth > 0 && certain < MAX_CQ);
                assert_eq!(cq.capacity(), depth as usize);
                self.cqs.push(cq);
            }
            Err(DeviceError::Size { got: 0, min: 1, .. }) => assert_eq!(depth, 0),
            Err(error) => {
                assert!(depth > 0 && limit_of(&error, "CQs", MAX_CQ), "{error}");
                self.limited(certain, MAX_CQ, |world| {
                    world.device.create_cq(depth).is_ok()
                });
            }
        }
    }

    pub(super) fn create_qp(&mut self, input: &mut Input<'_>) {
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
        let srq = self.srqs.get(shared % 4);
        let mut builder = pd.qp().caps(CAPS);
        if let Some((_, srq)) = srq {
            builder = builder.srq(srq);
        }
        let certain = self.queues.len();
        match builder.build(send, recv) {
            Ok(qp) => {
                assert!(certain < MAX_QP);
                self.queues.push(Queue {
                    num: qp.qp_num(),
                    qp,
                    pd: *number,
                    send_cq: send.cq_num(),
                    recv_cq: recv.cq_num(),
                    srq: srq.map(|(num, _)| *num),
                });
            }
            Err(error) => {
                assert!(limit_of(&error, "QPs", MAX_QP), "{error}");
                let (pd, send, recv) = (pd.clone(), send.clone(), recv.clone());
                self.limited(certain, MAX_QP, |_| {
                    pd.create_qp(&send, &recv, CAPS).is_ok()
                });
            }
        }
    }

    pub(super) fn create_srq(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.pds.len());
        let attr = SrqAttr::default()
            .max_wr(u32::from(input.u8() % 12))
            .max_sge(2);
        let Some((number, pd)) = self.pds.get(at).cloned() else {
            return;
        };
        let certain = self.certain_srqs();
        match pd.create_srq(attr) {
            Ok(srq) => {
                assert!(attr.max_wr > 0 && certain < MAX_SRQ);
                self.srq_pds.insert(srq.srq_num(), number);
                self.srqs.push((srq.srq_num(), srq));
            }
            Err(DeviceError::Size { got: 0, min: 1, .. }) => assert_eq!(attr.max_wr, 0),
            Err(error) => {
                assert!(limit_of(&error, "SRQs", MAX_SRQ), "{error}");
                self.limited(certain, MAX_SRQ, |_| pd.create_srq(attr).is_ok());
            }
        }
    }

    pub(super) fn register(&mut self, input: &mut Input<'_>) {
        let (at, qp) = (input.choice(self.pds.len()), usize::from(input.u8()));
        let Some((number, pd)) = self.pds.get(at).cloned() else {
            return;
        };
        let qp = self.queues.get(qp % 16).map(|queue| (&queue.qp, queue.pd));
        let full = self.memory.register(input, (&pd, number), qp);
        if full {
            self.no_more_stags(|| pd.register(vec![0; 8], uwarp_verbs::Access::NONE).is_ok());
        }
        assert!(self.memory.stags() <= MAX_MR);
    }

    pub(super) fn alloc_window(&mut self, input: &mut Input<'_>) {
        let at = input.choice(self.pds.len());
        let kind = [WindowKind::Type1, WindowKind::Type2A, WindowKind::Type2B][input.choice(3)];
        let Some((_, pd)) = self.pds.get(at).cloned() else {
            return;
        };
        match pd.alloc_window(kind) {
            Ok(window) => {
                assert!(self.memory.stags() < MAX_MR);
                self.memory.windows.push((kind, window));
            }
            Err(RegisterError::TooMany { limit: MAX_MR }) => {
                self.no_more_stags(|| pd.alloc_window(kind).is_ok());
            }
            Err(error) => panic!("impossible for a window: {error}"),
        }
    }

    /// Checks an error that reports too many STags. Regions and windows share one limit.
    fn no_more_stags(&mut self, again: impl FnOnce() -> bool) {
        let certain = self.memory.stags();
        // If all regions and windows together reach the limit, the doubtful regions may still have
        // their STags, so the error is justified.
        if self.memory.regions.len() + self.memory.windows.len() < MAX_MR {
            self.limited(certain, MAX_MR, |_| again());
        }
    }
}

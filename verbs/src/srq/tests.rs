use uwarp_engine::mem::{Access, LocalFaultKind};

use super::*;
use crate::{Device, QpCaps, Settings};
use std::fmt::Write;
use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, Weak};
use uwarp_engine::connection::{PostErrorKind, ReceiveWaiter};

fn srq(max_wr: u32) -> (Device, Pd, Srq) {
    let device = Device::tcp().unwrap();
    let pd = device.alloc_pd().unwrap();
    let attr = SrqAttr {
        max_wr,
        ..SrqAttr::default()
    };
    let srq = pd.create_srq(attr).unwrap();
    (device, pd, srq)
}

fn post(srq: &Srq, count: u64) {
    for wr_id in 0..count {
        srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
    }
}

fn arm(srq: &Srq, limit: u32) -> Result<(), ModifySrqError> {
    srq.modify(SrqModify {
        limit: Some(limit),
        ..SrqModify::default()
    })
}

fn resize(srq: &Srq, max_wr: u32) -> Result<(), ModifySrqError> {
    srq.modify(SrqModify {
        max_wr: Some(max_wr),
        ..SrqModify::default()
    })
}

/// Takes receives as a QP does. Each result has the `wr_id` and whether the limit was reached.
fn take(srq: &Srq, count: usize) -> Vec<(u64, bool)> {
    (0..count)
        .map(|_| {
            let taken = srq.inner().unwrap().take(None, None);
            (taken.wqe.unwrap().wr_id, taken.limit_reached)
        })
        .collect()
}

#[test]
fn limit_table() {
    let mut table = String::new();
    for limit in [Limit::Disarmed, Limit::Armed(1), Limit::Armed(3)] {
        for left in [0, 1, 2, 3, 4] {
            let (next, event) = limit.after(left);
            writeln!(table, "{limit:?}, {left} left -> {next:?}, event: {event}").unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn receives_are_taken_in_the_order_of_posting() {
    let (_device, _pd, srq) = srq(8);
    let wrs: Vec<RecvWr<'_>> = (0..5).map(|wr_id| RecvWr::new(wr_id, &[])).collect();
    srq.post_recv_list(&wrs).unwrap();
    assert_eq!(srq.posted(), 5);
    let order: Vec<u64> = take(&srq, 5).iter().map(|(wr_id, _)| *wr_id).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    assert!(srq.inner().unwrap().take(None, None).wqe.is_none());
}

#[test]
fn a_full_srq_names_itself_and_keeps_what_was_posted_before_in_the_list() {
    let (_device, _pd, srq) = srq(3);
    let wrs: Vec<RecvWr<'_>> = (0..5).map(|wr_id| RecvWr::new(wr_id, &[])).collect();
    let error = srq.post_recv_list(&wrs).unwrap_err();
    assert_eq!(error.index, 3);
    assert_eq!(error.kind, PostErrorKind::SrqFull { depth: 3 });
    assert!(
        error
            .to_string()
            .contains("the shared receive queue is full: its 3 places are taken"),
        "{error}"
    );
    assert_eq!(srq.posted(), 3);
}

#[test]
fn a_receive_has_no_more_elements_than_the_srq_was_made_for() {
    let (_device, pd, srq) = srq(3);
    let region = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
    let sges = [region.sge(0, 1); 5];
    let error = srq.post_recv(&RecvWr::new(1, &sges)).unwrap_err();
    assert_eq!(error.kind, PostErrorKind::TooManySges { got: 5, max: 4 });
    srq.post_recv(&RecvWr::new(1, &sges[..4])).unwrap();
}

#[test]
fn only_regions_of_the_domain_that_are_not_one_qps_alone_can_be_posted() {
    let (device, pd, srq) = srq(3);
    let cq = device.create_cq(4).unwrap();
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let own = pd
        .register_for(&qp, vec![0; 64], Access::LOCAL_WRITE)
        .unwrap();
    let other = device
        .alloc_pd()
        .unwrap()
        .register(vec![0; 64], Access::LOCAL_WRITE)
        .unwrap();
    let unwritable = pd.register(vec![0; 64], Access::NONE).unwrap();
    for region in [own, other, unwritable] {
        let sges = [region.sge(0, 64)];
        let error = srq.post_recv(&RecvWr::new(1, &sges)).unwrap_err();
        assert!(
            matches!(
                error.kind,
                PostErrorKind::Memory(fault) if !matches!(fault.kind, LocalFaultKind::InvalidKey { .. })
            ),
            "{error}"
        );
    }
    assert_eq!(srq.posted(), 0);
}

#[test]
fn the_limit_is_reached_once_for_each_arming() {
    let (device, _pd, srq) = srq(8);
    post(&srq, 6);
    arm(&srq, 4).unwrap();
    assert_eq!(srq.query().limit, 4);
    let taken = take(&srq, 4);
    let reached: Vec<bool> = taken.iter().map(|(_, reached)| *reached).collect();
    assert_eq!(reached, [false, false, true, false]);
    assert_eq!(srq.query().limit, 0, "disarmed by its event");
    assert!(device.poll_event().is_none(), "the QP that takes tells it");
}

#[test]
fn a_limit_that_is_reached_already_when_it_is_armed_is_told_at_once() {
    let (device, _pd, srq) = srq(8);
    post(&srq, 3);
    arm(&srq, 3).unwrap();
    assert!(device.poll_event().is_none());
    arm(&srq, 4).unwrap();
    let number = srq.srq_num();
    assert!(matches!(
        device.poll_event(),
        Some(AsyncEvent::SrqLimitReached { srq_num }) if srq_num == number
    ));
    assert!(device.poll_event().is_none());
    assert_eq!(srq.query().limit, 0);
}

#[test]
fn a_limit_of_zero_disarms() {
    let (_device, _pd, srq) = srq(8);
    post(&srq, 3);
    arm(&srq, 2).unwrap();
    arm(&srq, 0).unwrap();
    assert!(take(&srq, 3).iter().all(|(_, reached)| !reached));
}

#[test]
fn an_srq_is_resized_between_what_is_in_it_and_what_the_device_allows() {
    let (device, _pd, srq) = srq(4);
    post(&srq, 3);
    assert_eq!(
        resize(&srq, 2),
        Err(ModifySrqError::TooSmall {
            posted: 3,
            max_wr: 2
        })
    );
    let max = device.settings().limits.max_srq_wr;
    for got in [0, max + 1] {
        assert_eq!(resize(&srq, got), Err(ModifySrqError::Size { got, max }));
    }
    resize(&srq, 3).unwrap();
    let full = srq.post_recv(&RecvWr::new(9, &[])).unwrap_err();
    assert_eq!(full.kind, PostErrorKind::SrqFull { depth: 3 });
    resize(&srq, 4).unwrap();
    srq.post_recv(&RecvWr::new(9, &[])).unwrap();
    assert_eq!(srq.query().max_wr, 4);
}

#[test]
fn a_change_of_size_and_limit_is_made_whole_or_not_at_all() {
    let (_device, _pd, srq) = srq(4);
    post(&srq, 4);
    let change = SrqModify {
        max_wr: Some(8),
        limit: Some(9),
    };
    assert_eq!(
        srq.modify(change),
        Err(ModifySrqError::Limit {
            limit: 9,
            max_wr: 8
        })
    );
    assert_eq!((srq.query().max_wr, srq.query().limit), (4, 0));
    let limit = Some(4);
    srq.modify(SrqModify { limit, ..change }).unwrap();
    assert_eq!((srq.query().max_wr, srq.query().limit), (8, 4));
}

#[test]
fn an_srq_is_destroyed_only_when_no_qp_uses_it() {
    let (device, pd, srq) = srq(4);
    let cq = device.create_cq(4).unwrap();
    let qps: Vec<_> = (0..2)
        .map(|_| pd.qp().srq(&srq).build(&cq, &cq).unwrap())
        .collect();
    let (srq, error) = srq.destroy(None).unwrap_err();
    assert_eq!(error, DestroySrqError::InUse { qps: 2 });
    drop(qps);
    arm(&srq, 1).unwrap();
    let event = device.get_event(None).unwrap();
    let (srq, error) = srq.destroy(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(error, DestroySrqError::Unacknowledged { events: 1 });
    drop(event);
    // An event that was not taken is removed.
    arm(&srq, 1).unwrap();
    srq.destroy(None).unwrap();
    assert!(device.poll_event().is_none());
}

#[test]
fn a_device_makes_no_more_srqs_than_its_limit_and_no_larger_ones() {
    let mut settings = Settings::default();
    settings.limits.max_srq = 1;
    settings.limits.max_srq_wr = 8;
    let device = Device::tcp_with(settings, None).unwrap();
    let pd = device.alloc_pd().unwrap();
    let of = |max_wr| SrqAttr {
        max_wr,
        ..SrqAttr::default()
    };
    for max_wr in [0, 9] {
        assert!(matches!(
            pd.create_srq(of(max_wr)),
            Err(DeviceError::Size { .. })
        ));
    }
    let srq = pd.create_srq(of(8)).unwrap();
    let error = pd.create_srq(of(8)).unwrap_err();
    assert!(
        matches!(
            error,
            DeviceError::Limit {
                what: "SRQs",
                limit: 1
            }
        ),
        "{error}"
    );
    drop(srq);
    pd.create_srq(of(8)).unwrap();
}

#[test]
fn a_qp_takes_from_an_srq_of_its_own_device_only() {
    let (device, pd, srq) = srq(4);
    let cq = device.create_cq(4).unwrap();
    let other_domain = device.alloc_pd().unwrap();
    drop(other_domain.qp().srq(&srq).build(&cq, &cq).unwrap());
    let stranger = Device::tcp().unwrap();
    let cq = stranger.create_cq(4).unwrap();
    let error = stranger.alloc_pd().unwrap().qp().srq(&srq).build(&cq, &cq);
    assert!(matches!(
        error,
        Err(DeviceError::OtherDevice { what: "SRQ" })
    ));
    drop(pd);
}

/// A waiter that takes `takes` receives each time it is notified.
struct Hungry {
    srq: Srq,
    name: u32,
    takes: usize,
    calls: AtomicUsize,
    log: Arc<Mutex<Vec<u32>>>,
}

impl ReceiveWaiter for Hungry {
    fn receive_posted(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        for _ in 0..self.takes {
            if self.srq.inner().unwrap().take(None, None).wqe.is_some() {
                self.log.lock().unwrap().push(self.name);
            }
        }
    }
}

/// Creates waiters that found the SRQ empty in this order. Each number in `takes` is how many
/// receives a waiter takes at each notification.
fn hungry(srq: &Srq, takes: &[usize]) -> (Vec<Arc<Hungry>>, Arc<Mutex<Vec<u32>>>) {
    let log: Arc<Mutex<Vec<u32>>> = Arc::default();
    let waiters = takes
        .iter()
        .zip(2..)
        .map(|(takes, name)| {
            let waiter = Arc::new(Hungry {
                srq: srq.clone(),
                name,
                takes: *takes,
                calls: AtomicUsize::new(0),
                log: Arc::clone(&log),
            });
            let weak: Weak<dyn ReceiveWaiter> = {
                let weak: Weak<Hungry> = Arc::downgrade(&waiter);
                weak
            };
            for _ in 0..2 {
                assert!(
                    srq.inner()
                        .unwrap()
                        .take(None, Some((name, &weak)))
                        .wqe
                        .is_none()
                );
            }
            waiter
        })
        .collect();
    (waiters, log)
}

#[test]
fn those_who_wait_get_posted_receives_in_their_order() {
    let (_device, _pd, srq) = srq(8);
    let (_waiters, log) = hungry(&srq, &[1, 1, 1]);
    post(&srq, 2);
    assert_eq!(*log.lock().unwrap(), [2, 3]);
    post(&srq, 2);
    assert_eq!(*log.lock().unwrap(), [2, 3, 4]);
    assert_eq!(srq.posted(), 1, "nobody waits any more");
}

#[test]
fn a_receive_that_a_waiter_leaves_goes_to_the_next() {
    let (_device, _pd, srq) = srq(8);
    let (mut waiters, log) = hungry(&srq, &[0, 1, 1]);
    drop(waiters.remove(1));
    post(&srq, 1);
    assert_eq!(*log.lock().unwrap(), [4]);
    let calls: Vec<usize> = waiters
        .iter()
        .map(|waiter| waiter.calls.load(Ordering::Relaxed))
        .collect();
    assert_eq!(calls, [1, 1], "each waits once, however often it looked");
}

use std::time::Duration;

use super::*;
use crate::clock::{machine_now, until};
use crate::policy::progress::FEW_QPS;
use crate::{AcceptOptions, ConnectOptions, Cq, Device, Pd, Qp, QpCaps, RecvWr, SendWr, Settings};

/// Opens a device whose background leaves a polled connection alone for an hour.
fn device() -> Device {
    let settings = Settings {
        takeover: Duration::from_secs(3600),
        ..Settings::default()
    };
    let network = uwarp_llp::kernel::KernelNetwork::default();
    Device::open(Arc::new(network), settings).unwrap()
}

/// Connections between two devices. All connections of one side share a CQ.
struct World {
    cqs: [Cq; 2],
    pairs: Vec<[Qp; 2]>,
    _pds: [Pd; 2],
}

impl World {
    fn new() -> World {
        let devices = [device(), device()];
        let cqs = [0, 1].map(|side: usize| devices[side].create_cq(256).unwrap());
        let pds = [0, 1].map(|side: usize| devices[side].alloc_pd().unwrap());
        let qp = |side: usize| {
            pds[side]
                .create_qp(&cqs[side], &cqs[side], QpCaps::default())
                .unwrap()
        };
        let listener = devices[1].listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let connect = ConnectOptions {
            peer_to_peer: true,
            ..ConnectOptions::default()
        };
        let pairs = (0..=FEW_QPS).map(|_| {
            let [ours, theirs] = [qp(0), qp(1)];
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let request = listener.wait_request(None).unwrap();
                    request.accept(&theirs, &AcceptOptions::default()).unwrap();
                });
                ours.connect(listener.local_addr(), &connect).unwrap();
            });
            [ours, theirs]
        });
        let world = World {
            pairs: pairs.collect(),
            cqs,
            _pds: pds,
        };
        // Repeats until both sides count as polled by the program. From then on the background
        // leaves ready connections alone for an hour.
        until(|| {
            for [ours, theirs] in &world.pairs {
                world.ping(ours, theirs, 1);
                world.ping(theirs, ours, 0);
            }
            world.is_left_to_polls(0) && world.is_left_to_polls(1)
        });
        for [ours, theirs] in &world.pairs {
            for qp in [ours, theirs] {
                assert!(qp.inner().unwrap().lock().registration.owner.is_grouped());
            }
        }
        world
    }

    fn poll(&self, side: usize) -> usize {
        usize::from(self.cqs[side].poll_one().is_some())
    }

    fn ping(&self, from: &Qp, to: &Qp, side: usize) {
        to.post_recv(&RecvWr::new(1, &[])).unwrap();
        // Takes the completion of the Send too, which frees its place in the send queue.
        from.post_send(&SendWr::send(1, &[])).unwrap();
        let (mut received, mut sent) = (false, false);
        until(|| {
            received = received || self.poll(side) > 0;
            sent = sent || self.poll(1 - side) > 0;
            received && sent
        });
    }

    /// Returns true if a check of the background that begins now would find the group polled. An
    /// earlier check may still be running, receive something, and reset the count of polls.
    fn is_left_to_polls(&self, side: usize) -> bool {
        let group = self.group(side);
        let now = group.device.now();
        let background = &group.device.background;
        group.registration.lock().set_timer(background, Some(now));
        until(|| {
            std::thread::yield_now();
            let timer = group.registration.lock().timer;
            timer.is_none_or(|timer| timer > now)
        });
        let is_watched = group.registration.lock().owner == PollOwner::Watched;
        is_watched && group.spins.load(Ordering::Relaxed) >= GROUP_SPINS
    }

    fn group(&self, side: usize) -> &EpollGroup {
        self.pairs[0][side]
            .inner()
            .unwrap()
            .member()
            .unwrap()
            .group()
    }

    /// Waits until a socket of this side is readable.
    fn ready(&self, side: usize) {
        let set = self.group(side).set.as_fd();
        let deadline = after(machine_now(), Duration::from_secs(60));
        assert!(crate::wait::wait_readable(set, Some(deadline)));
    }
}

#[test]
fn a_refused_turn_is_given_at_the_next_look() {
    let world = World::new();
    let [ours, theirs] = &world.pairs[2];
    theirs.post_recv(&RecvWr::new(1, &[])).unwrap();
    ours.post_send(&SendWr::send(1, &[])).unwrap();
    world.poll(0);
    world.ready(1);
    let another_thread = theirs.inner().unwrap().lock();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(world.poll(1) + world.poll(1), 0));
    });
    drop(another_thread);
    until(|| world.poll(1) > 0);
}

#[test]
fn what_is_staged_on_a_connection_whose_turn_was_refused_leaves_with_the_next() {
    let world = World::new();
    let [ours, theirs] = &world.pairs[3];
    (0..4).for_each(|_| theirs.post_recv(&RecvWr::new(1, &[])).unwrap());
    world.poll(0);
    for _ in 0..4 {
        ours.post_send(&SendWr::send(1, &[]).unsignaled()).unwrap();
    }
    assert!(ours.inner().unwrap().lock().driven.doorbell.is_staged());
    let another_thread = ours.inner().unwrap().lock();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(world.poll(0), 0));
    });
    drop(another_thread);
    assert_eq!(world.poll(0), 0);
    assert!(!ours.inner().unwrap().lock().driven.doorbell.is_staged());
    let mut received = 0;
    until(|| {
        received += world.poll(1);
        received == 4
    });
}

#[test]
fn the_last_active_member_is_polled_alone_and_the_others_soon_after() {
    let world = World::new();
    let [ours, theirs] = &world.pairs[2];
    let [other, other_peer] = &world.pairs[3];
    world.ping(ours, theirs, 1);
    let group = world.group(1);
    // All polls get the same time, so a query becomes due only by the number of polls.
    let now = group.device.now();
    let polled = || {
        group.poll(now, true);
        theirs.attributes().recv_cq.len()
    };
    let mut looks = 0;
    while group
        .last_active
        .poll_alone(group.device.clock(now))
        .is_none()
    {
        assert_eq!(polled(), 0);
        looks += 1;
        assert!(
            looks < 10,
            "a query without ready members holds for some polls"
        );
    }
    for qp in [theirs, other_peer] {
        qp.post_recv(&RecvWr::new(1, &[])).unwrap();
    }
    other.post_send(&SendWr::send(1, &[]).unsignaled()).unwrap();
    world.poll(0);
    world.ready(1);
    assert_eq!(
        polled(),
        0,
        "the sender's peer is not the last active member"
    );
    let polls = (1..100).find(|_| polled() > 0);
    assert!(polls.is_some_and(|polls| polls < 20), "{polls:?}");
}

/// A round gives turns only to dirty and to ready members. Here there are none.
#[test]
fn an_idle_member_gets_no_turn() {
    let world = World::new();
    until(|| world.poll(0) + world.poll(1) == 0);
    let locks: Vec<_> = world
        .pairs
        .iter()
        .map(|[ours, _]| ours.inner().unwrap().lock())
        .collect();
    // A sleeper's turn waits for the lock, so any turn would hang here.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let done = world
                .group(0)
                .round(world.group(0).device.now(), Caller::Sleeper);
            assert_eq!(done, TurnResult::default());
        });
    });
    drop(locks);
}

#[test]
fn while_a_thread_sleeps_no_member_becomes_dirty_and_the_background_has_not_the_set() {
    let world = World::new();
    let group = world.group(0);
    world.poll(0);
    group.wait_begins();
    assert!(group.registration.lock().owner.is_waited());
    let member = world.pairs[1][0].inner().unwrap().member().unwrap();
    assert!(!member.mark_dirty());
    assert!(!member.mark_dirty());
    group.wait_ends();
    assert!(!group.registration.lock().owner.is_waited());
    assert!(member.mark_dirty());
    assert_eq!(group.dirty.len(), 1);
    assert!(member.mark_dirty());
    assert_eq!(group.dirty.len(), 1, "each member is listed once");
    world.poll(0);
    assert_eq!(group.dirty.len(), 0);
}

/// The background has served the dirty list and waits for the lock of another connection. Then a
/// member becomes dirty.
#[test]
fn a_member_that_becomes_dirty_after_the_look_of_the_background_gets_another_round() {
    let world = World::new();
    let group = world.group(0);
    let [slow, slow_peer] = &world.pairs[0];
    let [ours, theirs] = &world.pairs[1];
    (0..4).for_each(|_| theirs.post_recv(&RecvWr::new(1, &[])).unwrap());
    slow.post_recv(&RecvWr::new(1, &[])).unwrap();
    world.poll(0);
    slow_peer.post_send(&SendWr::send(1, &[])).unwrap();
    assert_eq!(group.registration.lock().owner, PollOwner::Watched);
    group.polled_at.store(0, Ordering::Relaxed);
    let another_thread = slow.inner().unwrap().lock();
    group.registration.lock().timer = Some(group.device.now());
    let verdict = std::thread::scope(|scope| {
        let look = scope.spawn(|| group.attend(group.device.now()));
        until(|| {
            std::thread::yield_now();
            group.registration.lock().timer.is_none()
        });
        world.poll(0);
        for _ in 0..4 {
            ours.post_send(&SendWr::send(1, &[]).unsignaled()).unwrap();
        }
        let is_dirty = !group.dirty.is_empty();
        drop(another_thread);
        (look.join().unwrap(), is_dirty)
    });
    let registration = group.registration.lock();
    let seen_to = verdict == (Verdict::Watch, true) || registration.timer.is_some();
    assert!(
        seen_to || group.dirty.is_empty(),
        "{verdict:?} {registration:?}"
    );
}

#[test]
fn a_qp_joins_an_existing_group_with_few_members_left() {
    let device = device();
    let cq = device.create_cq(256).unwrap();
    let pd = device.alloc_pd().unwrap();
    let qp = || pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let mut qps: Vec<Qp> = (0..=FEW_QPS).map(|_| qp()).collect();
    qps.truncate(2);
    qps.extend((0..FEW_QPS).map(|_| qp()));
    let first = qps[0].inner().unwrap().member().unwrap().group();
    for qp in &qps {
        assert!(Arc::ptr_eq(
            qp.inner().unwrap().member().unwrap().group(),
            first
        ));
    }
}

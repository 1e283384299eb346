//! Polling of orphans. An *orphan* is an active connection whose own CQ no thread polls, while the
//! program polls other CQs and finds nothing.
//!
//! The servers of perftest have a second connection and wait in this way. The background would have
//! to take the processor from the program for each message. Therefore the program's polls give
//! turns to these connections instead.
//!
//! A connection stops being an orphan when another thread handles it. This is the case if a
//! notification is requested on its own CQ, if a thread waits for it, or if its own CQ is polled. A
//! poll of its own CQ is detected because the connection's last poll time then differs from the
//! recorded one. The lock of the list is held during the turns and the wake-ups that they cause,
//! but no thread ever waits for that lock.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use crate::connection::inner::QpInner;
use crate::device::DeviceInner;
use crate::policy::progress::{MAX_ORPHANS, ORPHAN_IDLE_TURNS, ORPHAN_POLLED_WITHIN};
use crate::policy::{Heuristic, is_on};

struct Orphan {
    qp: Weak<QpInner>,
    /// Time of the connection's last poll, as recorded by its last turn as an orphan; 0 before the
    /// first such turn.
    polled_at: u64,
    /// Consecutive turns that moved no bytes.
    idle_turns: u32,
}

/// Result of polling an orphan.
pub(crate) enum OrphanTurn {
    /// Another thread has the lock of the connection. That may be the background, which needs the
    /// processor that the polls occupy, so this does not count as an idle turn.
    Refused,
    /// The orphan had a turn.
    Given {
        /// Bytes were sent or received.
        moved: bool,
        /// Time of the turn by the clock of the device.
        polled_at: u64,
    },
}

/// Orphans of a device. Neither a poll nor the background waits for the lock of the list.
pub(crate) struct OrphanPoller {
    /// Time of the last poll that found nothing, by the clock of the device.
    polled_at: AtomicU64,
    has_orphans: AtomicBool,
    list: Mutex<Vec<Orphan>>,
}

impl Default for OrphanPoller {
    fn default() -> Self {
        OrphanPoller {
            polled_at: AtomicU64::new(0),
            has_orphans: AtomicBool::new(false),
            // Allocated at full size, so that the data path allocates nothing.
            list: Mutex::new(Vec::with_capacity(MAX_ORPHANS)),
        }
    }
}

impl OrphanPoller {
    /// Gives each orphan a turn. Call it after a poll that found nothing.
    pub(crate) fn poll(&self, device: &DeviceInner, now: Instant) {
        if !is_on(Heuristic::OrphanPolling) {
            // Without the time of a poll, none is added.
            return;
        }
        self.polled_at.store(device.clock(now), Ordering::Relaxed);
        if !self.has_orphans.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut list) = self.list.try_lock() {
            list.retain_mut(|orphan| {
                let qp = orphan.qp.upgrade();
                match qp.and_then(|qp| qp.poll_orphan(now, orphan.polled_at)) {
                    None => return false,
                    Some(OrphanTurn::Refused) => {}
                    Some(OrphanTurn::Given { moved, polled_at }) => {
                        orphan.polled_at = polled_at;
                        orphan.idle_turns = if moved { 0 } else { orphan.idle_turns + 1 };
                    }
                }
                orphan.idle_turns < ORPHAN_IDLE_TURNS
            });
            self.has_orphans.store(!list.is_empty(), Ordering::Relaxed);
        }
    }

    /// Adds a connection for which the background received something, if the program has polled
    /// other CQs recently.
    pub(crate) fn add(&self, device: &DeviceInner, qp: &Weak<QpInner>, now: Instant) {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        let since = device.clock(now).saturating_sub(polled_at);
        if polled_at == 0 || u128::from(since) > ORPHAN_POLLED_WITHIN.as_nanos() {
            return;
        }
        if let Some(mut list) = self.list.try_lock()
            && list.len() < MAX_ORPHANS
            && !list.iter().any(|orphan| Weak::ptr_eq(&orphan.qp, qp))
        {
            let qp = Weak::clone(qp);
            list.push(Orphan {
                qp,
                polled_at: 0,
                idle_turns: 0,
            });
            self.has_orphans.store(true, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.list.lock().len()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::clock::{machine_now, until};
    use crate::{
        AcceptOptions, Access, ConnectOptions, Cq, Device, MemoryRegion, Notify, Pd, Qp, QpCaps,
        RecvWr, RemoteBuffer, SendWr, Settings,
    };

    /// Time after which a test counts as hung.
    const HANGS: Duration = Duration::from_secs(60);

    fn qp(pd: &Pd, cq: &Cq) -> Qp {
        pd.create_qp(cq, cq, QpCaps::default()).unwrap()
    }

    /// A connection between two devices. The background of the far device leaves polled connections
    /// alone for an hour. `idle` is a CQ of the far device without QPs.
    pub(in crate::progress) struct World {
        far: Device,
        pub(in crate::progress) near_cq: Cq,
        pub(in crate::progress) far_cq: Cq,
        idle: Cq,
        pub(in crate::progress) near_qp: Qp,
        pub(in crate::progress) far_qp: Qp,
        from: MemoryRegion,
        to: MemoryRegion,
    }

    impl World {
        pub(in crate::progress) fn new() -> World {
            let settings = Settings {
                takeover: Duration::from_secs(3600),
                ..Settings::default()
            };
            let network = Arc::new(uwarp_llp::kernel::KernelNetwork::default());
            let far = Device::open(network, settings).unwrap();
            let near = Device::tcp().unwrap();
            let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
            let (near_cq, far_cq) = (near.create_cq(64).unwrap(), far.create_cq(64).unwrap());
            let (near_qp, far_qp) = (qp(&near_pd, &near_cq), qp(&far_pd, &far_cq));
            let listener = far.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let request = listener.wait_request(None).unwrap();
                    request.accept(&far_qp, &AcceptOptions::default()).unwrap();
                });
                let options = ConnectOptions::default();
                near_qp.connect(listener.local_addr(), &options).unwrap();
            });
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            World {
                idle: far.create_cq(1).unwrap(),
                from: near_pd.register(vec![1; 8], access).unwrap(),
                to: far_pd.register(vec![0; 8], access).unwrap(),
                far,
                near_cq,
                far_cq,
                near_qp,
                far_qp,
            }
        }

        fn orphans(&self) -> usize {
            self.far.inner().unwrap().orphans.count()
        }

        /// Repeats Writes to the far side and polls of `idle` until the connection is an orphan.
        /// The Writes complete nothing on the far side.
        fn until_it_is_an_orphan(&self) {
            let RemoteBuffer { addr, rkey, .. } = self.to.remote();
            let sges = [self.from.sge(0, 8)];
            let began = machine_now();
            while self.orphans() == 0 {
                self.near_qp
                    .post_send(&SendWr::write(0, &sges, RemoteBuffer::at(addr, rkey)))
                    .unwrap();
                until(|| self.near_cq.poll_one().is_some());
                assert_eq!(self.idle.poll_one(), None);
                assert!(began.elapsed() < HANGS);
            }
        }
    }

    #[test]
    fn polls_that_find_nothing_drive_a_connection_that_nobody_polls() {
        let world = World::new();
        world.until_it_is_an_orphan();
        world.far_qp.post_recv(&RecvWr::new(7, &[])).unwrap();
        world.near_qp.post_send(&SendWr::send(1, &[])).unwrap();
        let began = machine_now();
        while world.far_qp.attributes().recv_cq.is_empty() {
            let _ = world.near_cq.poll_one();
            assert_eq!(world.idle.poll_one(), None);
            // The connection must stay an orphan: otherwise the background would receive the
            // message.
            assert_eq!(world.orphans(), 1);
            assert!(began.elapsed() < HANGS);
        }
        while world.orphans() > 0 {
            assert_eq!(world.idle.poll_one(), None);
            assert!(
                began.elapsed() < HANGS,
                "an idle connection is no orphan any more"
            );
        }
    }

    /// The background may hold the lock and wait for the processor that the polls occupy.
    #[test]
    fn polls_that_find_its_lock_taken_do_not_count_as_idle() {
        let world = World::new();
        world.until_it_is_an_orphan();
        let held = world.far_qp.inner().unwrap().lock();
        for _ in 0..2 * super::ORPHAN_IDLE_TURNS {
            assert_eq!(world.idle.poll_one(), None);
        }
        assert_eq!(world.orphans(), 1);
        drop(held);
        let began = machine_now();
        while world.orphans() > 0 {
            assert_eq!(world.idle.poll_one(), None);
            assert!(
                began.elapsed() < HANGS,
                "an idle connection is no orphan any more"
            );
        }
    }

    #[test]
    fn it_is_no_orphan_once_its_own_cq_is_polled_or_armed() {
        let world = World::new();
        world.until_it_is_an_orphan();
        assert_eq!(world.far_cq.poll_one(), None);
        assert_eq!(world.idle.poll_one(), None);
        assert_eq!(world.orphans(), 0);
        let world = World::new();
        world.until_it_is_an_orphan();
        world.far_cq.req_notify(Notify::Any);
        assert_eq!(world.idle.poll_one(), None);
        assert_eq!(world.orphans(), 0);
    }
}

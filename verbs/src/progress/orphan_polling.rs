//! Connections that have traffic and that nobody polls, while the program polls other CQs and finds nothing: perftest's targets wait
//! so, by a connection of their own. The background would have to take the processor from the program for each message; the
//! program's polls give these connections a turn instead.
//!
//! A connection is a stray only while nobody else looks after it: not when its own CQ is polled (it is seen by the time of its last
//! poll, which is then not that of ours), not when a notification is requested there, and not while a thread waits for it. The lock
//! of the list is held while turns are given, and with them whatever they wake; nobody ever waits for that lock.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::device::DeviceInner;
use crate::qp::inner::QpInner;

/// Connections that are given turns, at most.
const MOST: usize = 4;
/// A connection without traffic for so many turns by polls is left to the background again.
const IDLE: u32 = 2000;
/// A program that has polled within this time polls on.
const RECENT: Duration = Duration::from_millis(1);

struct Orphan {
    qp: Weak<QpInner>,
    /// When it was last polled, as its turns here have noted it; 0: it had none yet.
    polled_at: u64,
    /// Turns since something moved.
    idle: u32,
}

/// What a poll gave a stray.
pub(crate) enum Given {
    /// Nothing: another thread has its lock, and the background may be that, which has to share the processor with the
    /// polls. So this says nothing of how much there is to do.
    Nothing,
    /// A turn.
    Turn {
        /// Bytes went out or came in.
        moved: bool,
        /// When it was polled, by the clock of the device.
        polled_at: u64,
    },
}

/// Those of a device. Neither a poll nor the background waits for its lock.
pub(crate) struct OrphanPoller {
    /// When a poll last found nothing, by the clock of the device.
    polled_at: AtomicU64,
    are_some: AtomicBool,
    list: Mutex<Vec<Orphan>>,
}

impl Default for OrphanPoller {
    fn default() -> Self {
        OrphanPoller {
            polled_at: AtomicU64::new(0),
            are_some: AtomicBool::new(false),
            // All that it ever holds: the data path allocates nothing.
            list: Mutex::new(Vec::with_capacity(MOST)),
        }
    }
}

impl OrphanPoller {
    /// A poll found nothing: the strays have a turn.
    pub(crate) fn poll(&self, device: &DeviceInner, now: Instant) {
        self.polled_at.store(device.clock(now), Ordering::Relaxed);
        if !self.are_some.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut list) = self.list.try_lock() {
            list.retain_mut(|stray| {
                let qp = stray.qp.upgrade();
                match qp.and_then(|qp| qp.poll_astray(now, stray.polled_at)) {
                    None => return false,
                    Some(Given::Nothing) => {}
                    Some(Given::Turn { moved, polled_at }) => {
                        stray.polled_at = polled_at;
                        stray.idle = if moved { 0 } else { stray.idle + 1 };
                    }
                }
                stray.idle < IDLE
            });
            self.are_some.store(!list.is_empty(), Ordering::Relaxed);
        }
    }

    /// The background has received something for a connection. Polls do that from now on, if there are any.
    pub(crate) fn add(&self, device: &DeviceInner, qp: &Weak<QpInner>, now: Instant) {
        let polled_at = self.polled_at.load(Ordering::Relaxed);
        let since = device.clock(now).saturating_sub(polled_at);
        if polled_at == 0 || u128::from(since) > RECENT.as_nanos() {
            return;
        }
        if let Some(mut list) = self.list.try_lock()
            && list.len() < MOST
            && !list.iter().any(|stray| Weak::ptr_eq(&stray.qp, qp))
        {
            let qp = Weak::clone(qp);
            list.push(Orphan {
                qp,
                polled_at: 0,
                idle: 0,
            });
            self.are_some.store(true, Ordering::Relaxed);
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

    /// A test that takes so long hangs.
    const HANGS: Duration = Duration::from_secs(60);

    fn qp(pd: &Pd, cq: &Cq) -> Qp {
        pd.create_qp(cq, cq, QpCaps::default()).unwrap()
    }

    /// Two devices with a connection, of which the background leaves alone for an hour what it finds polled. Nobody polls `far_cq`.
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
            self.far.inner().orphans.count()
        }

        /// Writes come, which nobody polls for, while the program polls another CQ.
        fn until_it_is_a_stray(&self) {
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
        world.until_it_is_a_stray();
        world.far_qp.post_recv(&RecvWr::new(7, &[])).unwrap();
        world.near_qp.post_send(&SendWr::send(1, &[])).unwrap();
        let began = machine_now();
        while world.far_qp.inner().ctx.recv_cq.is_empty() {
            let _ = world.near_cq.poll_one();
            assert_eq!(world.idle.poll_one(), None);
            // The background would have it if this were not so.
            assert_eq!(world.orphans(), 1);
            assert!(began.elapsed() < HANGS);
        }
        while world.orphans() > 0 {
            assert_eq!(world.idle.poll_one(), None);
            assert!(
                began.elapsed() < HANGS,
                "it is left when nothing comes any more"
            );
        }
    }

    /// Whoever has the lock may be the background, which waits for the processor that the polls keep busy.
    #[test]
    fn polls_that_find_its_lock_taken_do_not_count_as_idle() {
        let world = World::new();
        world.until_it_is_a_stray();
        let held = world.far_qp.inner().lock();
        for _ in 0..2 * super::IDLE {
            assert_eq!(world.idle.poll_one(), None);
        }
        assert_eq!(world.orphans(), 1);
        assert!(
            world.far.inner().lock_yield.stood() > 0,
            "the polls stand aside now and then"
        );
        drop(held);
        let began = machine_now();
        while world.orphans() > 0 {
            assert_eq!(world.idle.poll_one(), None);
            assert!(
                began.elapsed() < HANGS,
                "it is left when nothing comes any more"
            );
        }
    }

    #[test]
    fn it_is_no_stray_once_its_own_cq_is_polled_or_armed() {
        let world = World::new();
        world.until_it_is_a_stray();
        assert_eq!(world.far_cq.poll_one(), None);
        assert_eq!(world.idle.poll_one(), None);
        assert_eq!(world.orphans(), 0);
        let world = World::new();
        world.until_it_is_a_stray();
        world.far_cq.req_notify(Notify::Any);
        assert_eq!(world.idle.poll_one(), None);
        assert_eq!(world.orphans(), 0);
    }
}

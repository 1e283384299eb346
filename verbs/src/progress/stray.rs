//! Connections that have traffic and that nobody polls, while the program polls other CQs and finds nothing: perftest's targets wait
//! so, by a connection of their own. The background would have to take the processor from the program for each message; the
//! program's polls give these connections a turn instead.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::device::DeviceInner;
use crate::qp::inner::QpInner;

/// Connections that are given turns, at most.
const MOST: usize = 4;
/// A connection without traffic for so many polls is left to the background again.
const IDLE: u32 = 2000;
/// A program that has polled within this time polls on.
const RECENT: Duration = Duration::from_millis(1);

struct Stray {
    qp: Weak<QpInner>,
    /// Polls since something moved.
    idle: u32,
}

/// Those of a device. Neither a poll nor the background waits for its lock.
pub(crate) struct Strays {
    /// When a poll last found nothing, by the clock of the device.
    polled_at: AtomicU64,
    are_some: AtomicBool,
    list: Mutex<Vec<Stray>>,
}

impl Default for Strays {
    fn default() -> Self {
        Strays {
            polled_at: AtomicU64::new(0),
            are_some: AtomicBool::new(false),
            // All that it ever holds: the data path allocates nothing.
            list: Mutex::new(Vec::with_capacity(MOST)),
        }
    }
}

impl Strays {
    /// A poll found nothing: the strays have a turn.
    pub(crate) fn poll(&self, device: &DeviceInner, now: Instant) {
        self.polled_at.store(device.clock(now), Ordering::Relaxed);
        if !self.are_some.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut list) = self.list.try_lock() {
            list.retain_mut(|stray| {
                let Some(moved) = stray.qp.upgrade().and_then(|qp| qp.poll_astray(now)) else {
                    return false;
                };
                stray.idle = if moved { 0 } else { stray.idle + 1 };
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
            list.push(Stray { qp, idle: 0 });
            self.are_some.store(true, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.list.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use crate::{AcceptOptions, ConnectOptions, Cq, Device, Pd, Qp, QpCaps, RecvWr, SendWr};

    fn qp(pd: &Pd, cq: &Cq) -> Qp {
        pd.create_qp(cq, cq, QpCaps::default()).unwrap()
    }

    /// The device's polls of one CQ receive for a connection of another one, and leave it when nothing comes any more.
    #[test]
    fn polls_that_find_nothing_drive_a_connection_that_nobody_polls() {
        let (near, far) = (Device::tcp().unwrap(), Device::tcp().unwrap());
        let (near_pd, far_pd) = (near.alloc_pd().unwrap(), far.alloc_pd().unwrap());
        let (near_cq, far_cq) = (near.create_cq(64).unwrap(), far.create_cq(64).unwrap());
        let idle = far.create_cq(1).unwrap();
        let (near_qp, far_qp) = (qp(&near_pd, &near_cq), qp(&far_pd, &far_cq));
        let listener = far.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.wait_request(None).unwrap();
                request.accept(&far_qp, &AcceptOptions::default()).unwrap();
            });
            near_qp.connect(addr, &ConnectOptions::default()).unwrap();
        });
        for id in 0..16 {
            far_qp.post_recv(&RecvWr::new(id, &[])).unwrap();
        }
        let strays = &far.inner().strays;
        let mut sent = 0;
        // The polls are recent whenever the background looks, sooner or later.
        while strays.count() == 0 {
            assert_eq!(idle.poll_one(), None);
            if sent < 16 {
                near_qp.post_send(&SendWr::send(sent, &[])).unwrap();
                sent += 1;
            } else if near_cq.poll_one().is_some() {
                let _ = far_cq.wait(None);
                far_qp.post_recv(&RecvWr::new(sent, &[])).unwrap();
                sent -= 1;
            }
        }
        // What is still on its way comes, and then nothing does.
        while strays.count() > 0 {
            assert_eq!(idle.poll_one(), None);
        }
    }
}

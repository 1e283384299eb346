//! Software RNIC over one network.

pub(crate) mod removal;
pub(crate) mod startup_queue;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uwarp_capture::Capture;
use uwarp_engine::fork_guard::{ForkGuard, ForkGuarded, Inherited};
use uwarp_engine::mem::{RegionTable, RegisterError};
use uwarp_llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_llp::{LlpError, Network, NetworkEvent, NetworkInfo, NetworkWatcher};

use uwarp_mpa::ConfigError;

use crate::clock::TimeSource;
use crate::completion::CompletionChannel;
use crate::event_queue::{EventQueue, UnackedEvent};
use crate::progress::background::Background;
use crate::progress::confirmations::AllConfirmations;
use crate::progress::orphan_polling::OrphanPoller;
use crate::settings::{Progress, Settings};
use crate::traffic::{Traffic, TrafficCount};
use removal::Ids;
use startup_queue::StartupQueue;
use uwarp_engine::connection::BufferPool;
use uwarp_engine::event::{AsyncEvent, EventObject};
use uwarp_engine::limits::{Accounts, Number, ObjectLimit, Objects, Place};
use uwarp_engine::settings::ConnectionSettings;

/// Error of opening a device (`ibv_open_device`) or of creating an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A limit of the device is reached.
    #[error("the device already has {limit} {what}; drop some, or raise the limit in the settings")]
    Limit {
        /// Kind of the objects, in the plural.
        what: &'static str,
        /// Maximum number of these objects.
        limit: u32,
    },
    /// A limit of the protection domain is reached.
    #[error(
        "the protection domain already has {limit} {what}; drop some, use another domain, or raise the limit in the settings (limits.per_pd)"
    )]
    PdLimit {
        /// Kind of the objects, in the plural.
        what: &'static str,
        /// Maximum number of these objects.
        limit: u32,
    },
    /// A receive queue would exceed the number of receives that the protection domain may hold.
    #[error(
        "a queue for {asked} receives is more than is left of the {limit} of the protection domain; make it smaller, drop others, use another domain, or raise the limit in the settings (limits.per_pd.max_recv_wr)"
    )]
    PdReceives {
        /// The requested size.
        asked: u32,
        /// Maximum number of receives in all queues of the domain together.
        limit: u32,
    },
    /// A size is out of range.
    #[error("{what} is {got}, but this device allows {min} to {max}")]
    Size {
        /// Name of the size.
        what: &'static str,
        /// The given value.
        got: u64,
        /// The smallest allowed value.
        min: u64,
        /// The largest allowed value.
        max: u64,
    },
    /// The system refused a resource (a descriptor, a thread or memory).
    #[error("the system refused to {op}: {error}")]
    System {
        /// The refused operation.
        op: &'static str,
        /// The system's error.
        error: std::io::Error,
    },
    /// There is no memory for the region table.
    #[error(transparent)]
    Memory(#[from] RegisterError),
    /// The network refused the operation.
    #[error(transparent)]
    Network(#[from] LlpError),
    /// The settings contradict each other or the RFCs.
    #[error("these settings cannot serve a connection: {0}")]
    Settings(#[from] ConfigError),
    /// The device was opened before a fork.
    #[error(transparent)]
    Inherited(#[from] Inherited),
    /// A device with a progress thread was given a clock.
    #[error(
        "a given clock needs manual progress, because the device's thread cannot sleep by that clock; set Settings::progress to Progress::Manual"
    )]
    ClockNeedsManual,
    /// Objects of two devices were mixed.
    #[error("the {what} belongs to another device")]
    OtherDevice {
        /// Kind of the object.
        what: &'static str,
    },
}

impl From<ObjectLimit> for DeviceError {
    fn from(ObjectLimit { what, limit }: ObjectLimit) -> Self {
        DeviceError::Limit { what, limit }
    }
}

/// A software RNIC (`ibv_context`; RNIC in RFC 5042 section 2.1). Clones are handles to the same
/// device.
///
/// ```
/// use uwarp_verbs::{Access, Device, QpCaps};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::tcp()?;
/// let pd = device.alloc_pd()?;
/// let cq = device.create_cq(16)?;
/// let region = pd.register(vec![0; 4096], Access::LOCAL_WRITE)?;
/// let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
/// assert_eq!(region.len(), 4096);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Device {
    inner: ForkGuarded<Arc<DeviceInner>>,
    /// Receives the events of objects that this handle creates.
    events: Arc<EventQueue>,
    /// Set on a device with manual progress. The program can drive the device while this value
    /// exists.
    _driver: Option<Arc<Driver>>,
}

/// Shared by the handles of a device with manual progress. When the last one is dropped, the
/// program can no longer drive the device.
struct Driver(ForkGuarded<Weak<DeviceInner>>);

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(device) = self.0.here().and_then(Weak::upgrade) {
            device.background.give_up();
        }
    }
}

pub(crate) struct DeviceInner {
    pub(crate) network: Arc<dyn Network>,
    pub(crate) settings: Arc<Settings>,
    /// The part of the settings that connections use.
    pub(crate) of_connections: Arc<ConnectionSettings>,
    pub(crate) table: Arc<RegionTable>,
    pub(crate) pool: BufferPool,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) traffic: Arc<TrafficCount>,
    pub(crate) confirmations: Arc<AllConfirmations>,
    /// Connections in startup that a listener or the program waits for.
    pub(crate) startup_queue: StartupQueue,
    /// Events of the device itself, and of objects created through handles without a queue of their
    /// own.
    pub(crate) events: Arc<EventQueue>,
    /// Queues of the handles that have their own.
    other_events: Mutex<Vec<Weak<EventQueue>>>,
    pub(crate) background: Arc<Background>,
    pub(crate) ids: Arc<Ids>,
    /// Active connections whose own CQ no thread polls. Polls of other CQs drive them.
    pub(crate) orphans: OrphanPoller,
    qps: Objects,
    cqs: Objects,
    srqs: Objects,
    pds: Objects,
    origin: Instant,
    fork_guard: ForkGuard,
}

impl DeviceInner {
    /// Returns the current time of the device's clock, which measures all timeouts of the device.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.settings.clock.now()
    }

    /// Returns true in the process that opened the device. Only for drops of its parts: a call of
    /// the program makes the check when it gets the shared part ([`Device::inner`]).
    pub(crate) fn is_here(&self) -> bool {
        self.fork_guard.is_here()
    }

    /// Returns how long a call with this timeout may sleep: not at all with manual progress.
    pub(crate) fn patience(&self, timeout: Option<Duration>) -> Option<Duration> {
        if self.background.is_manual() {
            Some(Duration::ZERO)
        } else {
            timeout
        }
    }

    /// Returns the nanoseconds from opening the device to `now`, at least 1.
    pub(crate) fn clock(&self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.origin).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX).max(1)
    }

    /// Reserves a place and a number for a new QP.
    pub(crate) fn take_qp(&self) -> Result<(Place, Number), DeviceError> {
        Ok(self.qps.take(self.settings.limits.max_qp)?)
    }

    /// Reserves a place for a new QP, with this number; `None` if the number is in use.
    pub(crate) fn take_qp_number(
        &self,
        number: u32,
    ) -> Result<Option<(Place, Number)>, DeviceError> {
        Ok(self.qps.take_this(self.settings.limits.max_qp, number)?)
    }

    /// Raises an event in the queues of all handles.
    pub(crate) fn raise_for_all(&self, event: AsyncEvent) {
        let mut others = self.other_events.lock();
        others.retain(|queue| queue.strong_count() > 0);
        for queue in others.iter().filter_map(Weak::upgrade) {
            queue.push(event.clone());
        }
        drop(others);
        self.events.push(event);
    }

    /// Returns how many objects of each kind exist: QPs, CQs, SRQs and protection domains.
    pub(crate) fn objects(&self) -> [u32; 4] {
        [&self.qps, &self.cqs, &self.srqs, &self.pds].map(Objects::live)
    }

    /// Reserves a place and a number for a new CQ.
    pub(crate) fn take_cq(&self) -> Result<(Place, Number), DeviceError> {
        Ok(self.cqs.take(self.settings.limits.max_cq)?)
    }

    /// Reserves a place and a number for a new protection domain.
    pub(crate) fn take_pd(&self) -> Result<(Place, Number), DeviceError> {
        Ok(self.pds.take(self.settings.limits.max_pd)?)
    }

    /// Reserves a place and a number for a new SRQ.
    pub(crate) fn take_srq(&self) -> Result<(Place, Number), DeviceError> {
        Ok(self.srqs.take(self.settings.limits.max_srq)?)
    }
}

impl Drop for DeviceInner {
    fn drop(&mut self) {
        if !self.is_here() {
            // The parent still uses the network's link and its thread, so the child must not drop
            // them.
            std::mem::forget(Arc::clone(&self.network));
        }
    }
}

impl NetworkWatcher for DeviceInner {
    fn network_event(&self, event: NetworkEvent) {
        match event {
            NetworkEvent::Down(error) => {
                self.raise_for_all(AsyncEvent::DeviceFatal { error });
                self.ids.network_down(error, &self.background);
            }
            NetworkEvent::AddressConflict(error) => {
                self.raise_for_all(AsyncEvent::AddressConflict { error });
            }
            other => tracing::warn!(event = ?other, "unknown event of the network"),
        }
    }
}

impl Device {
    /// Opens a device over the TCP of the kernel, with default settings (`ibv_open_device`).
    ///
    /// # Errors
    /// [`DeviceError::System`] if the system has no descriptor or thread left.
    pub fn tcp() -> Result<Device, DeviceError> {
        Device::open(Arc::new(KernelNetwork::default()), Settings::default())
    }

    /// Opens a device like [`Device::tcp`], with these settings (`ibv_open_device`). `capture`
    /// records all traffic.
    ///
    /// # Errors
    /// See [`Device::tcp`].
    pub fn tcp_with(settings: Settings, capture: Option<&Capture>) -> Result<Device, DeviceError> {
        Device::open(
            Arc::new(KernelNetwork::new(KernelSettings::default(), capture)),
            settings,
        )
    }

    /// Opens a device over any network (`ibv_open_device`).
    ///
    /// # Errors
    /// [`DeviceError::System`] if the system has no descriptor or thread left.
    /// [`DeviceError::Settings`] or [`DeviceError::ClockNeedsManual`] if the settings contradict
    /// each other.
    pub fn open(network: Arc<dyn Network>, mut settings: Settings) -> Result<Device, DeviceError> {
        settings.trace_errors |= crate::trace::errors_wanted();
        if let Some(keepalive) = settings.keepalive {
            keepalive.check()?;
        }
        match (settings.progress, &settings.clock) {
            (Progress::Automatic, TimeSource::Given(_)) => {
                return Err(DeviceError::ClockNeedsManual);
            }
            (Progress::Automatic, TimeSource::System) => {}
            // A device with manual progress has no thread that could take a connection over.
            (Progress::Manual, _) => settings.takeover = Duration::ZERO,
        }
        let table = RegionTable::new(
            settings.limits.max_mr as usize,
            settings.limits.per_pd.max_mr as usize,
            settings.seed,
        )?;
        let events = Arc::new(event_queue(|_| true)?);
        let background =
            Background::start(settings.takeover, settings.progress, settings.clock.clone());
        let background = background.map_err(|error| DeviceError::System {
            op: "start the progress thread",
            error,
        })?;
        let inner = Arc::new(DeviceInner {
            network,
            table: Arc::new(table),
            pool: BufferPool::default(),
            accounts: Accounts::new(&settings.limits),
            traffic: Arc::default(),
            confirmations: Arc::default(),
            startup_queue: StartupQueue::default(),
            events: Arc::clone(&events),
            other_events: Mutex::default(),
            ids: Ids::new(&background),
            orphans: OrphanPoller::default(),
            background: Arc::new(background),
            origin: settings.clock.now(),
            of_connections: Arc::new(settings.of_connections()),
            settings: Arc::new(settings),
            // QP numbers have 24 bits in RDMA. 0 and 1 have a special meaning on InfiniBand, so
            // they are not used.
            qps: Objects::new("QPs", 2..=0x00FF_FFFF),
            cqs: Objects::new("CQs", 1..=u32::MAX),
            srqs: Objects::new("SRQs", 1..=0x00FF_FFFF),
            pds: Objects::new("protection domains", 1..=u32::MAX),
            fork_guard: ForkGuard::here(),
        });
        let watcher: Weak<DeviceInner> = Arc::downgrade(&inner);
        inner.network.watch(watcher);
        let driver = || Arc::new(Driver(ForkGuarded::new(Arc::downgrade(&inner))));
        Ok(Device {
            _driver: inner.background.is_manual().then(driver),
            events,
            inner: ForkGuarded::new(inner),
        })
    }

    /// Returns another handle to the device, with its own queue of asynchronous events and its own
    /// descriptor (a second `ibv_open_device` in the same program). The queue receives events of
    /// the device and of objects created through this handle, if `wanted` returns true for the
    /// event.
    ///
    /// # Errors
    /// [`DeviceError::System`] if the system has no descriptor left.
    pub fn with_own_events(&self, wanted: fn(&AsyncEvent) -> bool) -> Result<Device, DeviceError> {
        let inner = self.inner()?;
        let events = Arc::new(event_queue(wanted)?);
        let mut others = inner.other_events.lock();
        others.push(Arc::downgrade(&events));
        drop(others);
        Ok(Device {
            events,
            ..self.clone()
        })
    }

    /// Returns the shared part of the device.
    ///
    /// # Errors
    /// [`Inherited`] in the child of a fork.
    pub(crate) fn inner(&self) -> Result<&Arc<DeviceInner>, Inherited> {
        self.inner.get()
    }

    /// Returns the shared part of the device, for an object that checks it itself.
    pub(crate) fn guarded(&self) -> &ForkGuarded<Arc<DeviceInner>> {
        &self.inner
    }

    /// Returns the queue for the events of objects that are created through this handle.
    pub(crate) fn events(&self) -> &Arc<EventQueue> {
        &self.events
    }

    /// Returns the settings in use. With manual progress, `takeover` is zero. `UWARP_TRACE` may
    /// have set `trace_errors`.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.inner.unguarded().settings
    }

    /// Returns the properties of the network; they are empty in the child of a fork.
    pub(crate) fn network_info(&self) -> NetworkInfo {
        let nothing = || NetworkInfo {
            addresses: Vec::new(),
            interfaces: Vec::new(),
            mtu: 0,
            mac: None,
        };
        self.inner
            .here()
            .map_or_else(nothing, |inner| inner.network.info())
    }

    /// Returns true if the network has not failed and belongs to this process.
    pub(crate) fn network_works(&self) -> bool {
        self.inner
            .here()
            .is_some_and(|inner| inner.network.fault().is_none())
    }

    /// Describes the network, for a log or a table.
    #[must_use]
    pub fn describe(&self) -> String {
        self.inner.unguarded().network.describe()
    }

    /// Creates a completion channel (`ibv_create_comp_channel`): one descriptor for the events of
    /// any number of CQs.
    ///
    /// # Errors
    /// [`DeviceError::System`] if the system has no descriptor left.
    pub fn create_channel(&self) -> Result<CompletionChannel, DeviceError> {
        CompletionChannel::new().map_err(|error| DeviceError::System {
            op: "make a completion channel",
            error,
        })
    }

    /// Returns the bytes that the QPs of the device have moved since it was opened. All numbers are
    /// 0 in the child of a fork.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let inner = self.inner.here();
        inner.map_or_else(Traffic::default, |inner| inner.traffic.get())
    }

    /// Takes the next asynchronous event, which has to be acknowledged (`ibv_get_async_event`).
    /// Waits up to `timeout` (`None`: without limit), but returns at once if the program made the
    /// descriptor non-blocking. Returns `None` if there was no event in that time.
    #[must_use]
    pub fn get_event(&self, timeout: Option<Duration>) -> Option<UnackedEvent> {
        self.events.get(self.inner.here()?.patience(timeout))
    }

    /// Acknowledges events that were taken with [`UnackedEvent::ack_later`]
    /// (`ibv_ack_async_event`).
    pub fn ack_events(&self, object: EventObject, count: u64) {
        self.events.ack(object, count);
    }

    /// Number of asynchronous events that were dropped because the program did not fetch them (RFC
    /// 5042 section 2.2.7). The device keeps the newest 4,096.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.events.lost()
    }

    /// Makes one round of progress, with [`Progress::Manual`] (comparable to `ucp_worker_progress`
    /// of UCX). Each connection or listener with a ready descriptor or an expired timer gets a
    /// turn.
    ///
    /// Returns the time at which the next round is due, or `None` if no timer is running. If this
    /// time has already passed, the round did something and more may be pending: a program without
    /// other work calls again at once. Calls on the device's objects may make a round due sooner;
    /// [`progress_fd`](Self::progress_fd) is readable then. Closing connections need rounds, too:
    /// those that have not ended are reset when the last handle to the device is dropped.
    ///
    /// Does nothing and returns `None` on a device with a thread, in the child of a fork, and while
    /// another call of this method is in progress.
    ///
    /// ```
    /// use uwarp_verbs::llp::kernel::KernelNetwork;
    /// use uwarp_verbs::{Device, Progress, Settings};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let settings = Settings::default().progress(Progress::Manual);
    /// let device = Device::open(std::sync::Arc::new(KernelNetwork::default()), settings)?;
    /// let _listener = device.listen("127.0.0.1:0".parse()?)?;
    /// // In the event loop: when `progress_fd` is readable, and when the next round is due.
    /// let next = device.progress();
    /// assert!(next.is_none(), "nobody has connected");
    /// # Ok(()) }
    /// ```
    pub fn progress(&self) -> Option<Instant> {
        self.inner.here()?.background.progress()
    }

    /// Returns a descriptor that is readable when [`progress`](Self::progress) has something to do,
    /// for `poll` or the program's epoll set. `None` on a device with a thread.
    #[must_use]
    pub fn progress_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.unguarded().background.progress_fd()
    }

    /// Takes the next asynchronous event, if there is one (`ibv_get_async_event` without waiting).
    /// It needs no acknowledgement.
    #[must_use]
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.events.pop()
    }

    /// Waits for an asynchronous event and takes it (`ibv_get_async_event`). It needs no
    /// acknowledgement. `None` if `timeout` passed first.
    #[must_use]
    pub fn wait_event(&self, timeout: Option<Duration>) -> Option<AsyncEvent> {
        self.events.wait(self.inner.here()?.patience(timeout))
    }
}

/// The descriptor is readable while asynchronous events are queued.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.fd()
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device")
            .field("network", &self.describe())
            .finish_non_exhaustive()
    }
}

fn event_queue(wanted: fn(&AsyncEvent) -> bool) -> Result<EventQueue, DeviceError> {
    EventQueue::with_filter(wanted).map_err(|error| DeviceError::System {
        op: "make an event descriptor",
        error,
    })
}

/// Returns an error unless the device allows the size.
pub(crate) fn check_size(
    what: &'static str,
    got: u32,
    min: u32,
    max: u32,
) -> Result<(), DeviceError> {
    if (min..=max).contains(&got) {
        return Ok(());
    }
    Err(DeviceError::Size {
        what,
        got: got.into(),
        min: min.into(),
        max: max.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QpCaps, SrqAttr};

    /// The counters wrap around while the first objects still exist, so their numbers must be
    /// skipped.
    #[test]
    fn no_number_is_given_twice_when_the_numbers_begin_anew() {
        let device = Device::tcp().unwrap();
        let (first, second) = (device.alloc_pd().unwrap(), device.alloc_pd().unwrap());
        let cqs = [(); 2].map(|()| device.create_cq(4).unwrap());
        let qp = || {
            let caps = QpCaps::default();
            first.create_qp(&cqs[0], &cqs[1], caps).unwrap()
        };
        let srq = || first.create_srq(SrqAttr::default()).unwrap();
        let (qps, srqs) = ([qp(), qp()], [srq()]);
        assert_eq!(qps.each_ref().map(crate::Qp::qp_num), [2, 3]);
        let inner = device.inner().unwrap();
        inner.qps.set_next(0x00FF_FFFF);
        inner.srqs.set_next(0x00FF_FFFF);
        inner.cqs.set_next(u32::MAX);
        inner.pds.set_next(u32::MAX);
        assert_eq!([qp(), qp()].map(|qp| qp.qp_num()), [0x00FF_FFFF, 4]);
        assert_eq!([srq(), srq()].map(|srq| srq.srq_num()), [0x00FF_FFFF, 2]);
        let more = [(); 2].map(|()| device.create_cq(1).unwrap().cq_num());
        assert_eq!(more, [u32::MAX, 3]);
        let more = [(); 2].map(|()| device.alloc_pd().unwrap().id());
        assert_eq!((more, first.id(), second.id()), ([u32::MAX, 3], 1, 2));
        drop((qps, srqs));
    }

    /// If the number were free, a new QP with the same number could use the old region.
    #[test]
    fn the_number_of_a_qp_stays_in_use_while_a_region_is_for_it_alone() {
        let device = Device::tcp().unwrap();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
        let qp = || pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        let first = qp();
        assert_eq!(first.qp_num(), 2);
        let region = pd
            .register_for(&first, vec![0; 8], crate::Access::NONE)
            .unwrap();
        drop(first);
        device.inner().unwrap().qps.set_next(2);
        assert_eq!(qp().qp_num(), 3);
        drop(region);
        device.inner().unwrap().qps.set_next(2);
        assert_eq!(qp().qp_num(), 2);
    }

    #[test]
    fn a_device_with_a_thread_is_not_driven_by_hand() {
        let device = Device::tcp().unwrap();
        assert_eq!(device.settings().progress, Progress::Automatic);
        assert!(device.progress().is_none() && device.progress_fd().is_none());
    }

    /// The closing connection keeps the device alive, and no thread is left to complete its close.
    #[test]
    fn a_connection_that_is_closing_ends_with_the_last_handle_of_a_device_by_hand() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let settings = Settings {
            progress: Progress::Manual,
            ..Settings::default()
        };
        let device = Device::tcp_with(settings, None).unwrap();
        let weak = Arc::downgrade(device.inner().unwrap());
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        let options = crate::ConnectOptions::default();
        let to = listener.local_addr().unwrap();
        let addrs = crate::cm::resolve(to).unwrap();
        crate::cm::Attempts::new(qp.guarded(), addrs, &options)
            .begin()
            .unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        drop((qp, pd, cq));
        let other = device.clone();
        drop(device);
        assert!(weak.upgrade().is_some());
        drop(other);
        assert!(weak.upgrade().is_none());
        // Its socket is closed, too.
        let mut bytes = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut bytes);
    }

    #[test]
    fn a_handle_with_own_events_hears_of_what_was_made_by_it_and_of_nothing_else() {
        let device = Device::tcp().unwrap();
        let other = device.with_own_events(|_| true).unwrap();
        let deaf = device.with_own_events(|_| false).unwrap();
        let srq_of = |device: &Device| {
            let pd = device.alloc_pd().unwrap();
            let srq = pd.create_srq(SrqAttr::default()).unwrap();
            let limit = Some(4);
            let change = crate::SrqModify {
                limit,
                ..Default::default()
            };
            srq.modify(change).unwrap();
            srq
        };
        let srqs = [srq_of(&device), srq_of(&other), srq_of(&deaf)];
        for (device, srq) in [(&device, &srqs[0]), (&other, &srqs[1])] {
            let event = device.poll_event().unwrap();
            assert_eq!(event.object(), EventObject::Srq(srq.srq_num()));
            assert!(device.poll_event().is_none());
        }
        assert!(deaf.poll_event().is_none());
        // All handles report an error of the device, except those that do not want it.
        let error = LlpError::Broken {
            addr: "127.0.0.1:1".parse().unwrap(),
        };
        device
            .inner()
            .unwrap()
            .network_event(NetworkEvent::Down(error));
        for device in [&device, &other] {
            let event = device.get_event(None).unwrap();
            assert_eq!(event.object(), EventObject::Device);
        }
        assert!(deaf.poll_event().is_none());
    }

    #[test]
    fn the_end_of_an_object_waits_for_the_events_of_its_own_handle() {
        let device = Device::tcp().unwrap();
        let other = device.with_own_events(|_| true).unwrap();
        let pd = other.alloc_pd().unwrap();
        let srq = pd.create_srq(SrqAttr::default()).unwrap();
        let limit = Some(4);
        let change = crate::SrqModify {
            limit,
            ..Default::default()
        };
        srq.modify(change).unwrap();
        let event = other.get_event(None).unwrap();
        let (srq, _) = srq.destroy(Some(Duration::ZERO)).unwrap_err();
        drop(event);
        srq.destroy(None).unwrap();
    }

    /// If the number were free, a new domain with the same number would own the old region.
    #[test]
    fn a_domain_exists_as_long_as_something_is_in_it() {
        let mut settings = Settings::default();
        settings.limits.max_pd = 2;
        let device = Device::tcp_with(settings, None).unwrap();
        let pd = || device.alloc_pd();
        let (one, cq) = (pd().unwrap(), device.create_cq(4).unwrap());
        let id = one.id();
        let (access, buffer) = (crate::Access::NONE, crate::Buffer::from(vec![0; 8]));
        let region = one.register(vec![0; 8], access).unwrap();
        let window = one.alloc_window(crate::WindowKind::Type1).unwrap();
        let fast = one.alloc_fast_region(buffer).unwrap();
        let srq = one.create_srq(SrqAttr::default()).unwrap();
        let qp = one.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        let mut things: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(region),
            Box::new(window),
            Box::new(fast),
            Box::new(srq),
            Box::new(qp),
            Box::new(one),
        ];
        let _other = pd().unwrap();
        while let Some(thing) = things.pop() {
            let error = pd().map(drop).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("already has 2 protection domains"), "{said}");
            drop(thing);
        }
        device.inner().unwrap().pds.set_next(id);
        assert_eq!(pd().unwrap().id(), id);
    }
}

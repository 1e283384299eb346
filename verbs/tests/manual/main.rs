//! Manual progress: the program drives the device, and may also supply the time.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod by_time;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod event_loop;
mod many;
mod refusals;
mod repeats;
mod usage;

use std::sync::Arc;
use std::time::Instant;

use common::Side;
use uwarp_verbs::llp::smol::{Clock, ManualClock, MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    AcceptOptions, Access, CmEventKind, CmId, ConnectOptions, Device, EventChannel, MemoryRegion,
    Progress, QpCaps, Settings, TimeSource,
};

/// Two devices driven by one thread, with an in-memory link between them and a clock that the test
/// controls.
struct World {
    clock: Arc<ManualClock>,
    sides: [Side; 2],
    channel: EventChannel,
    networks: [MemoryNetwork; 2],
}

const SEED: u64 = 0x1AB5;
const SERVER: &str = "192.0.2.2:7174";

impl World {
    fn new() -> World {
        World::with(SEED, &Settings::default(), MemorySettings::default())
    }

    fn with(seed: u64, settings: &Settings, link: MemorySettings) -> World {
        let clock = Arc::new(ManualClock::new());
        let given: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let link = link.clock(Arc::clone(&given)).seed(Some(seed));
        let (a, b) = MemoryNetwork::pair(&link).unwrap();
        let networks = [a, b];
        let side = |number: usize| {
            let settings = settings
                .clone()
                .progress(Progress::Manual)
                .clock(TimeSource::Given(Arc::clone(&given)))
                .seed(Some(seed.wrapping_add(number as u64)));
            let device = Device::open(Arc::new(networks[number].clone()), settings).unwrap();
            Side::new(device, QpCaps::default(), 64)
        };
        World {
            sides: [side(0), side(1)],
            clock,
            channel: EventChannel::new().unwrap(),
            networks,
        }
    }

    /// Drives both devices until nothing more is due at the current time. Returns the time of the
    /// next timer.
    fn settle(&self) -> Option<Instant> {
        for _ in 0..100_000 {
            let due = self.sides.iter().filter_map(|side| side.device.progress());
            let due = due.min();
            if due.is_none_or(|due| due > self.clock.now()) {
                return due;
            }
        }
        panic!("events keep happening without time passing");
    }

    /// Advances the clock from one timer to the next until `done` returns true.
    fn run_until(&self, done: impl Fn() -> bool) {
        loop {
            let next = self.settle();
            if done() {
                return;
            }
            let next = next.expect("something has to be due");
            self.clock.advance(next - self.clock.now());
        }
    }

    /// Connects the first QP to the second. The returned ids receive the events of the connection.
    fn connect(&self) -> [CmId; 2] {
        let [a, b] = &self.sides;
        let addr = SERVER.parse().unwrap();
        let server = self.channel.create_id(&b.device, 1);
        server.bind_addr(addr).unwrap();
        server.listen(4).unwrap();
        let client = self.channel.create_id(&a.device, 2);
        client.resolve_addr(None, addr).unwrap();
        assert_eq!(self.next().kind(), CmEventKind::AddrResolved);
        client.resolve_route().unwrap();
        assert_eq!(self.next().kind(), CmEventKind::RouteResolved);
        client.connect(&a.qp, &ConnectOptions::default()).unwrap();
        let request = self.next();
        assert_eq!(request.kind(), CmEventKind::ConnectRequest);
        let responder = request.id().clone();
        responder.accept(&b.qp, &AcceptOptions::default()).unwrap();
        assert_eq!(self.next().kind(), CmEventKind::Established);
        assert_eq!(self.next().kind(), CmEventKind::Established);
        [client, responder]
    }

    /// Runs until the next event of connection management, and returns it.
    fn next(&self) -> uwarp_verbs::CmEvent {
        self.run_until(|| self.channel.waiting() > 0);
        self.channel.try_get_event().unwrap()
    }
}

/// Registers a region whose addresses for peers are the same in every run.
fn region(side: &Side, content: Vec<u8>) -> MemoryRegion {
    let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let region = side.pd.region().access(all).zero_based();
    region.vec(content).unwrap()
}

/// Returns the number of device threads in this process.
fn progress_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("uwarp-")).count()
}

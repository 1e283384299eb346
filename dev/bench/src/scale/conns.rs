//! Many connections of uwarp. On each side, all of them complete to one CQ, which is the hard case.

use std::sync::Arc;
use std::time::{Duration, Instant};

use uwarp_verbs::llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_verbs::{
    AcceptOptions, Access, Completion, ConnectOptions, Cq, Device, MemoryRegion, Pd, Qp, QpCaps,
    RecvWr, RemoteBuffer, SendWr, Settings, WcOpcode,
};

use super::{Active, Result};
use crate::process::{self, Pinning, Running};
use crate::stats::median;

/// Maximum number of outstanding work requests of a connection.
const DEPTH: u32 = 16;
/// Length in bytes of a message that the server sends back.
const PING: u32 = 8;
/// Length in bytes of a message after which the server sleeps until the next one. Otherwise it
/// polls.
const END: u32 = 9;
/// Length in bytes of the region of each side.
const REGION: usize = 64 << 10;
/// Number of round trips between two clock reads.
const BATCH: usize = 64;

/// Client side of the connections.
pub(super) struct Conns {
    /// Server, which ends before the connections do.
    _server: Option<Running>,
    side: Side,
    /// Region of the server.
    remote: RemoteBuffer,
    /// Memory of a connection in bytes: never used, and after 64 KiB each way.
    pub(super) memory: [f64; 2],
}

/// One side of the connections.
struct Side {
    device: Device,
    pd: Pd,
    cq: Cq,
    region: MemoryRegion,
    /// QPs, at the index `qp_num` minus that of the first.
    qps: Vec<Qp>,
}

impl Conns {
    /// Starts a server, and connects to it this number of times.
    pub(super) fn open(conns: usize, congestion: &str, pinning: &Pinning) -> Result<Self> {
        let (running, line) = start_server(conns, congestion, pinning)?;
        Conns::connect(conns, congestion, &line, Some(running))
    }

    /// Connects to the server that has printed this line.
    pub(super) fn connect(
        conns: usize,
        congestion: &str,
        line: &str,
        server: Option<Running>,
    ) -> Result<Self> {
        let [addr, start, rkey] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return Err("the server did not start".into());
        };
        let remote = RemoteBuffer::at(start.parse()?, rkey.parse()?);
        let mut side = Side::new(conns, congestion)?;
        let before = process_memory();
        for _ in 0..conns {
            let qp = side.create_qp()?;
            qp.connect(addr, &ConnectOptions::default())?;
            side.qps.push(qp);
        }
        let of_one = || (process_memory() - before) / conns as f64;
        let never_used = of_one();
        let sges = [side.region.sge(0, REGION as u32)];
        for conn in 0..conns {
            let write = SendWr::write(0, &sges, remote);
            side.post(conn, &[write, SendWr::read(0, &sges, remote)])?;
            side.completions(2)?;
        }
        Ok(Conns {
            memory: [never_used, of_one()],
            _server: server,
            side,
            remote,
        })
    }

    /// Runs a measurement while the server polls.
    fn while_polling<T>(&self, measure: impl FnOnce() -> Result<T>) -> Result<T> {
        self.exchange(0, PING)?;
        let value = measure()?;
        self.exchange(0, END)?;
        Ok(value)
    }

    /// Sends one message, and waits for its completion and for the response.
    fn exchange(&self, conn: usize, len: u32) -> Result<()> {
        self.side.send(conn, len)?;
        self.side.completions(2)?;
        self.side.receive(&self.side.qps[conn])
    }

    /// Measures half a round trip on one connection in seconds, as the median of batches.
    pub(super) fn latency(&self, time: Duration) -> Result<f64> {
        let conn = self.side.qps.len() / 2;
        let mut times = Vec::new();
        self.while_polling(|| {
            let until = Instant::now() + time;
            while Instant::now() < until {
                let began = Instant::now();
                for _ in 0..BATCH {
                    self.exchange(conn, PING)?;
                }
                times.push(began.elapsed().as_secs_f64() / (2 * BATCH) as f64);
            }
            Ok(())
        })?;
        Ok(median(&mut times))
    }

    /// Measures 64 B Writes per second on some connections in turn, with 16 outstanding on each.
    pub(super) fn rate(&self, Active { conns, list }: Active, time: Duration) -> Result<f64> {
        let side = &self.side;
        let sges = [side.region.sge(0, 64)];
        let writes = [SendWr::write(0, &sges, self.remote); DEPTH as usize];
        let first = side.qps[0].qp_num();
        let mut free = vec![DEPTH as usize; conns];
        let mut batch = [Completion::default(); 64];
        let mut posted = 0_u64;
        self.while_polling(|| {
            let began = Instant::now();
            while began.elapsed() < time {
                for conn in 0..conns {
                    if free[conn] >= list {
                        side.post(conn, &writes[..list])?;
                        free[conn] -= list;
                        posted += list as u64;
                    }
                    let taken = side.cq.poll(&mut batch);
                    for completion in &batch[..taken] {
                        completion.ok()?;
                        free[(completion.qp_num - first) as usize] += 1;
                    }
                }
            }
            side.completions(free.iter().map(|free| DEPTH as usize - free).sum())?;
            // The response to a Read is sent after the Writes before it have arrived.
            for conn in 0..conns {
                side.post(conn, &[SendWr::read(0, &[], self.remote)])?;
            }
            side.completions(conns)?;
            Ok(posted as f64 / began.elapsed().as_secs_f64())
        })
    }
}

impl Side {
    fn new(conns: usize, congestion: &str) -> Result<Self> {
        let settings = KernelSettings::default().congestion(Some(congestion.to_owned()));
        let network = Arc::new(KernelNetwork::new(settings, None));
        let device = Device::open(network, Settings::default())?;
        let pd = device.alloc_pd()?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.register(vec![0; REGION], access)?;
        let entries = u32::try_from(conns).unwrap_or(u32::MAX);
        let cq = device.create_cq(entries.saturating_mul(2 * DEPTH + 4))?;
        Ok(Side {
            device,
            pd,
            cq,
            region,
            qps: Vec::with_capacity(conns),
        })
    }

    /// Creates a QP that can receive a message.
    fn create_qp(&self) -> Result<Qp> {
        let caps = QpCaps::default().max_send_sge(1).max_recv_sge(1);
        let caps = caps
            .max_send_wr(DEPTH + 2)
            .max_recv_wr(DEPTH)
            .max_inline_data(64);
        let qp = self.pd.create_qp(&self.cq, &self.cq, caps)?;
        self.receive(&qp)?;
        Ok(qp)
    }

    fn receive(&self, qp: &Qp) -> Result<()> {
        Ok(qp.post_recv(&RecvWr::new(0, &[self.region.sge(0, 64)]))?)
    }

    fn send(&self, conn: usize, len: u32) -> Result<()> {
        self.post(conn, &[SendWr::send(0, &[self.region.sge(0, len)])])
    }

    fn post(&self, conn: usize, wrs: &[SendWr<'_>]) -> Result<()> {
        Ok(self.qps[conn].post_send_list(wrs)?)
    }

    /// Polls until `count` requests have completed.
    fn completions(&self, mut count: usize) -> Result<()> {
        let mut batch = [Completion::default(); 64];
        while count > 0 {
            let taken = self.cq.poll(&mut batch);
            batch[..taken]
                .iter()
                .try_for_each(|done| done.ok().map(drop))?;
            count -= taken.min(count);
        }
        Ok(())
    }
}

/// Runs a server: tells a line with its address and its region, accepts all connections, and
/// responds to messages.
pub(super) fn serve(conns: usize, congestion: &str, tell: impl FnOnce(String)) -> Result<()> {
    let mut side = Side::new(conns, congestion)?;
    let listener = side.device.listen("127.0.0.1:0".parse()?)?;
    let (addr, region) = (listener.local_addr(), &side.region);
    tell(format!("{addr} {} {}", region.addr(), region.rkey()));
    for _ in 0..conns {
        let request = listener.wait_request(None)?;
        let qp = side.create_qp()?;
        request.accept(&qp, &AcceptOptions::default())?;
        side.qps.push(qp);
    }
    let first = side.qps.first().map_or(0, Qp::qp_num);
    let mut batch = [Completion::default(); 64];
    let mut sleeps = true;
    loop {
        let mut count = side.cq.poll(&mut batch);
        if count == 0 && sleeps {
            batch[0] = side.cq.wait(None).unwrap_or_default();
            count = 1;
        }
        for completion in &batch[..count] {
            completion.ok()?;
            if completion.opcode == WcOpcode::Recv {
                let conn = (completion.qp_num - first) as usize;
                side.receive(&side.qps[conn])?;
                side.send(conn, completion.byte_len)?;
                sleeps = completion.byte_len == END;
            }
        }
    }
}

/// Starts a server. Returns it with the line that it prints.
fn start_server(
    conns: usize,
    congestion: &str,
    pinning: &Pinning,
) -> std::io::Result<(Running, String)> {
    let mut command = pinning.command(process::Side::Server, std::env::current_exe()?);
    process::start(command.args(["scale-server", &conns.to_string(), congestion]))
}

/// Measures the memory of a connection in bytes, in a client process of its own: never used, and
/// after 64 KiB each way.
pub(super) fn memory(conns: usize, congestion: &str, pinning: &Pinning) -> Result<[f64; 2]> {
    let (server, line) = start_server(conns, congestion, pinning)?;
    let mut command = pinning.command(process::Side::Client, std::env::current_exe()?);
    command.args(["scale-memory", &conns.to_string(), congestion, line.trim()]);
    let (client, said) = process::start(&mut command)?;
    // The server ends first. Otherwise it would report that its connections are lost.
    drop(server);
    drop(client);
    let sizes = said.split_whitespace().map(|word| word.parse().ok());
    match sizes.collect::<Vec<_>>()[..] {
        [Some(never_used), Some(used)] => Ok([never_used, used]),
        _ => Err(process::strange("the client of the memory", &said).into()),
    }
}

/// Returns the memory of this process in bytes, as its proportional set size.
fn process_memory() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let mut words = text.split_whitespace().skip_while(|word| *word != "Pss:");
    let kilobytes = words.nth(1).and_then(|word| word.parse::<f64>().ok());
    kilobytes.map_or(f64::NAN, |kilobytes| 1024.0 * kilobytes)
}

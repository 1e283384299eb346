//! The side of a pair that measures.

use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    Completion, ConnectOptions, Cq, Device, MemoryRegion, Qp, RemoteBuffer, SendWr, Settings,
    WcOpcode,
};

use super::memory;
use super::pair::Shape;
use super::server::{
    Advert, DEPTH, END, PING, REGION, SLEEP, Server, TARGET, access, caps, cq, receive,
    signaled_when_full,
};
use crate::stats::median;

/// Number of messages in a list of Writes to random regions.
const LIST: usize = 64;
/// Number of round trips between two clock reads.
const BATCH: usize = 64;

/// A client with all its connections.
struct Client {
    cq: Cq,
    qps: Vec<Qp>,
    first: u32,
    /// Number of slots in each send queue.
    places: usize,
    region: MemoryRegion,
    advert: Advert,
    /// STags of the server's small regions.
    keys: Vec<u32>,
    before: f64,
    /// State of a xorshift generator.
    random: u64,
}

/// Runs a client process. It executes a command for each line of input.
pub(super) fn client(shape: Shape, addr: SocketAddr, device: &Device) -> io::Result<()> {
    run_commands(&mut Client::connect(device, addr, shape)?, None)
}

/// Runs a process with both sides over an in-memory link.
pub(super) fn both(shape: Shape) -> io::Result<()> {
    let usual = MemorySettings::default();
    let settings = usual
        .clone()
        .receive_buffer(shape.buffer.unwrap_or(usual.receive_buffer))
        .send_buffer(shape.buffer.unwrap_or(usual.send_buffer));
    let (one, other) = MemoryNetwork::pair(&settings).map_err(io::Error::other)?;
    let open = |network| Device::open(network, Settings::default()).map_err(io::Error::other);
    let (ours, theirs) = (
        open(std::sync::Arc::new(one))?,
        open(std::sync::Arc::new(other))?,
    );
    let addr = "192.0.2.2:7174".parse().map_err(io::Error::other)?;
    let listener = theirs.listen(addr).map_err(io::Error::other)?;
    let (spin, spins): (Sender<()>, Receiver<()>) = channel();
    std::thread::spawn(move || {
        let served = Server::accept(&theirs, &listener, shape)
            .and_then(|server| spins.iter().try_for_each(|()| server.spin()));
        if let Err(error) = served {
            eprintln!("uwarp-bench: {error}");
        }
    });
    run_commands(&mut Client::connect(&ours, addr, shape)?, Some(spin))
}

/// Executes a command for each line of input, and answers with a number.
fn run_commands(client: &mut Client, spin: Option<Sender<()>>) -> io::Result<()> {
    println!("ready");
    for line in io::stdin().lock().lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default();
        let numbers: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        if let Some(spin) = &spin
            && what != "memory"
        {
            spin.send(()).map_err(io::Error::other)?;
        }
        println!("{}", client.answer(what, &numbers)?);
    }
    Ok(())
}

impl Client {
    fn connect(device: &Device, addr: SocketAddr, shape: Shape) -> io::Result<Self> {
        let pd = device.alloc_pd().map_err(io::Error::other)?;
        let region = pd
            .register(vec![0; TARGET], access())
            .map_err(io::Error::other)?;
        let depth = if shape.conns == 1 {
            4 * DEPTH * 2
        } else {
            DEPTH
        };
        let cq = cq(device, shape.conns, depth)?;
        let before = memory::own();
        let mut advert = Advert::default();
        let mut qps = Vec::with_capacity(shape.conns);
        for _ in 0..shape.conns {
            let qp = pd
                .create_qp(&cq, &cq, caps(depth))
                .map_err(io::Error::other)?;
            receive(&qp, &[region.sge(0, 64)])?;
            let connected = qp.connect(addr, &ConnectOptions::default());
            let said = connected.map_err(io::Error::other)?.private_data;
            advert = Advert::parse(&said).ok_or_else(|| io::Error::other("no advertisement"))?;
            qps.push(qp);
        }
        let mut client = Client {
            cq,
            first: qps.first().map_or(0, Qp::qp_num),
            places: qps.first().map_or(0, Qp::send_room),
            qps,
            region,
            advert,
            keys: Vec::new(),
            before,
            random: 0x9e37_79b9_7f4a_7c15,
        };
        client.read_keys(&pd, shape.regions)?;
        Ok(client)
    }

    /// Reads the STags of the server's small regions from its memory.
    fn read_keys(&mut self, pd: &uwarp_verbs::Pd, regions: usize) -> io::Result<()> {
        let sink = pd
            .register(vec![0; 4 * regions], access())
            .map_err(io::Error::other)?;
        let (addr, rkey) = self.advert.keys;
        for at in (0..4 * regions as u64).step_by(TARGET) {
            let len = (4 * regions as u64 - at).min(TARGET as u64) as u32;
            let sges = [sink.sge(at, len)];
            self.post(
                0,
                &[SendWr::read(0, &sges, RemoteBuffer::at(addr + at, rkey))],
            )?;
            self.completions(1)?;
        }
        let mut bytes = vec![0; 4 * regions];
        sink.read_at(0, &mut bytes).map_err(io::Error::other)?;
        let (keys, _) = bytes.as_chunks();
        self.keys = keys.iter().map(|key| u32::from_ne_bytes(*key)).collect();
        Ok(())
    }

    fn answer(&mut self, what: &str, numbers: &[f64]) -> io::Result<f64> {
        if what == "memory" {
            return Ok((memory::own() - self.before) / self.qps.len() as f64);
        }
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0.0);
        let time = Duration::from_secs_f64(numbers.last().copied().unwrap_or(1.0));
        let value = match what {
            "latency" => self.ping_pong(PING, time)?,
            "sleepy" => self.ping_pong(SLEEP, time)?,
            "bandwidth" => self.bandwidth(time)?,
            "rate" => self.rate(number(0) as usize, number(1) as usize, time)?,
            "touch" => self.touch()?,
            "region-latency" => self.region_latency(time)?,
            "region-rate" => self.region_rate(time, false)?,
            "spread-rate" => self.region_rate(time, true)?,
            other => return Err(io::Error::other(format!("a client cannot {other}"))),
        };
        self.exchange(0, END)?;
        // Only the first and the middle connection have exchanged messages.
        for conn in [0, self.qps.len() / 2] {
            self.free_places(conn)?;
        }
        Ok(value)
    }

    /// Frees the slots that unsignaled Sends hold, so that the next measurement has the whole send
    /// queue. To do so, polls the completion of a later request.
    fn free_places(&self, conn: usize) -> io::Result<()> {
        let (addr, rkey) = self.advert.target;
        let qp = &self.qps[conn];
        // If no slot is free, the last Send was signaled.
        if qp.send_room() > 0 {
            self.post(conn, &[SendWr::write(0, &[], RemoteBuffer::at(addr, rkey))])?;
        }
        while qp.send_room() < self.places {
            if let Some(completion) = self.cq.poll_one() {
                check(&completion)?;
            }
        }
        Ok(())
    }

    fn random_below(&mut self, most: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % most
    }

    fn post(&self, conn: usize, wrs: &[SendWr<'_>]) -> io::Result<()> {
        self.qps[conn].post_send_list(wrs).map_err(io::Error::other)
    }

    /// Polls until `count` requests have completed.
    fn completions(&self, mut count: usize) -> io::Result<()> {
        let mut batch = [Completion::default(); 64];
        while count > 0 {
            let taken = self.cq.poll(&mut batch);
            for completion in &batch[..taken] {
                check(completion)?;
            }
            count -= taken.min(count);
        }
        Ok(())
    }

    /// Sends one message and waits for the response.
    fn exchange(&self, conn: usize, len: u32) -> io::Result<()> {
        let sges = [self.region.sge(0, len)];
        let qp = &self.qps[conn];
        let send = signaled_when_full(qp, SendWr::send(0, &sges));
        qp.post_send(&send).map_err(io::Error::other)?;
        loop {
            let completion = match len {
                SLEEP => self.cq.wait(None),
                _ => self.cq.poll_one(),
            };
            if let Some(completion) = completion {
                check(&completion)?;
                if completion.opcode == WcOpcode::Recv {
                    return receive(qp, &[self.region.sge(0, 64)]);
                }
            }
        }
    }

    /// Measures half a round trip on one connection in microseconds, as the median of batches.
    fn ping_pong(&self, len: u32, time: Duration) -> io::Result<f64> {
        let conn = self.qps.len() / 2;
        self.times(time, 2.0, |client| client.exchange(conn, len))
    }

    /// Measures `act` in microseconds, divided by `parts`, as the median of batches.
    fn times(
        &self,
        time: Duration,
        parts: f64,
        mut act: impl FnMut(&Self) -> io::Result<()>,
    ) -> io::Result<f64> {
        let mut times = Vec::new();
        let until = Instant::now() + time;
        loop {
            let began = Instant::now();
            if began >= until {
                return Ok(median(&mut times));
            }
            for _ in 0..BATCH {
                act(self)?;
            }
            times.push(began.elapsed().as_secs_f64() * 1e6 / parts / BATCH as f64);
        }
    }

    /// Waits until all Writes have arrived. To do so, posts a Read on each connection. The response
    /// to a Read is sent after the Writes have arrived.
    fn arrived(&self, conns: usize) -> io::Result<()> {
        let (addr, rkey) = self.advert.target;
        for conn in 0..conns {
            self.post(conn, &[SendWr::read(0, &[], RemoteBuffer::at(addr, rkey))])?;
        }
        self.completions(conns)
    }

    /// Measures 64 KiB Writes on one connection, 16 outstanding, in GB/s.
    fn bandwidth(&self, time: Duration) -> io::Result<f64> {
        const SIZE: u32 = 65536;
        let conn = self.qps.len() / 2;
        let (addr, rkey) = self.advert.target;
        let sges = [self.region.sge(0, SIZE)];
        let write = [SendWr::write(0, &sges, RemoteBuffer::at(addr, rkey))];
        let (mut posted, mut done) = (0_u64, 0_u64);
        let mut batch = [Completion::default(); 16];
        let began = Instant::now();
        while began.elapsed() < time {
            while posted - done < DEPTH.into() {
                self.post(conn, &write)?;
                posted += 1;
            }
            let taken = self.cq.poll(&mut batch);
            batch[..taken].iter().try_for_each(check)?;
            done += taken as u64;
        }
        self.completions((posted - done) as usize)?;
        self.post(conn, &[SendWr::read(0, &[], RemoteBuffer::at(addr, rkey))])?;
        self.completions(1)?;
        Ok(posted as f64 * f64::from(SIZE) / began.elapsed().as_secs_f64() / 1e9)
    }

    /// Measures 64 B Writes on `active` connections in turn, 16 outstanding on each, posted in
    /// lists. The result is in millions per second.
    fn rate(&self, active: usize, list: usize, time: Duration) -> io::Result<f64> {
        let (addr, rkey) = self.advert.target;
        let sges = [self.region.sge(0, 64)];
        let mut free = vec![DEPTH as usize; active];
        let mut batch = [Completion::default(); 64];
        let mut posted = 0_u64;
        let began = Instant::now();
        while began.elapsed() < time {
            for conn in 0..active {
                if free[conn] >= list {
                    let to = addr + (conn * 64 % TARGET) as u64;
                    let writes =
                        [SendWr::write(0, &sges, RemoteBuffer::at(to, rkey)); DEPTH as usize];
                    self.post(conn, &writes[..list])?;
                    free[conn] -= list;
                    posted += list as u64;
                }
                let taken = self.cq.poll(&mut batch);
                for completion in &batch[..taken] {
                    check(completion)?;
                    free[(completion.qp_num - self.first) as usize] += 1;
                }
            }
        }
        self.completions(free.iter().map(|free| DEPTH as usize - free).sum())?;
        self.arrived(active)?;
        Ok(posted as f64 / began.elapsed().as_secs_f64() / 1e6)
    }

    /// Transfers 64 KiB in each direction on every connection.
    fn touch(&self) -> io::Result<f64> {
        let (addr, rkey) = self.advert.target;
        let sges = [self.region.sge(0, 65536)];
        for conn in 0..self.qps.len() {
            let write = SendWr::write(0, &sges, RemoteBuffer::at(addr, rkey));
            let read = SendWr::read(0, &sges, RemoteBuffer::at(addr, rkey));
            self.post(conn, &[write, read])?;
            self.completions(2)?;
        }
        Ok(0.0)
    }

    /// Returns the address and STag of a random region of the server. With `whole`, the STag
    /// belongs to the region that contains all small regions.
    fn random_region(&mut self, whole: bool) -> (u64, u32) {
        let at = self.random_below(self.keys.len());
        let (addr, rkey) = self.advert.whole;
        (
            addr + (at * REGION) as u64,
            if whole { rkey } else { self.keys[at] },
        )
    }

    /// Measures Reads of 8 bytes from random regions, one at a time, in microseconds.
    fn region_latency(&mut self, time: Duration) -> io::Result<f64> {
        let places: Vec<_> = (0..4096).map(|_| self.random_region(false)).collect();
        let mut next = places.iter().cycle();
        let sges = [self.region.sge(0, 8)];
        self.times(time, 1.0, |client| {
            let (addr, rkey) = next.next().copied().unwrap_or_default();
            client.post(0, &[SendWr::read(0, &sges, RemoteBuffer::at(addr, rkey))])?;
            client.completions(1)
        })
    }

    /// Measures 64 B Writes to random regions, in lists of 64 with two lists outstanding. The
    /// result is in millions per second. With `whole`, uses the STag of the region that contains
    /// all small regions.
    fn region_rate(&mut self, time: Duration, whole: bool) -> io::Result<f64> {
        let sges = [self.region.sge(0, REGION as u32)];
        let places: Vec<_> = (0..1 << 20).map(|_| self.random_region(whole)).collect();
        let mut lists = places.as_chunks::<LIST>().0.iter().cycle();
        let (mut posted, mut done) = (0, 0);
        let mut batch = [Completion::default(); 64];
        let began = Instant::now();
        while began.elapsed() < time {
            while posted - done <= LIST {
                let list = lists.next().copied().unwrap_or([(0, 0); LIST]);
                let writes =
                    list.map(|(addr, rkey)| SendWr::write(0, &sges, RemoteBuffer::at(addr, rkey)));
                self.post(0, &writes)?;
                posted += LIST;
            }
            let taken = self.cq.poll(&mut batch);
            batch[..taken].iter().try_for_each(check)?;
            done += taken;
        }
        self.completions(posted - done)?;
        self.arrived(1)?;
        Ok(posted as f64 / began.elapsed().as_secs_f64() / 1e6)
    }
}

fn check(completion: &Completion) -> io::Result<()> {
    match completion.status.is_success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "{:?}: {}",
            completion.opcode, completion.status
        ))),
    }
}

//! The side of a pair that responds.

use std::io::{self, BufRead};
use std::sync::Arc;

use uwarp_verbs::{
    AcceptOptions, Access, Buffer, Completion, Cq, Device, Listener, MemoryRegion, Pd, Qp, QpCaps,
    RecvWr, SendWr, Sge, WcOpcode,
};

use super::memory;
use super::pair::Shape;

/// Returns the access rights of all regions.
pub(super) fn access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
}

/// Maximum number of outstanding work requests of a connection.
pub(super) const DEPTH: u32 = 16;
/// Length in bytes of a message that requests a response.
pub(super) const PING: u32 = 8;
/// Length in bytes of the message that ends a measurement.
pub(super) const END: u32 = 9;
/// Length in bytes of a message that requests a response and makes both sides sleep from then on.
pub(super) const SLEEP: u32 = 10;
/// Length in bytes of the region that Writes address.
pub(super) const TARGET: usize = 1 << 20;
/// Length in bytes of each small region.
pub(super) const REGION: usize = 64;

/// Returns the queue sizes of a connection.
pub(super) fn caps(depth: u32) -> QpCaps {
    QpCaps::default()
        .max_send_wr(depth + 2)
        .max_recv_wr(DEPTH)
        .max_send_sge(1)
        .max_recv_sge(1)
        .max_inline_data(64)
}

/// Makes the request signaled only if it takes the last slot of the send queue. The completion of a
/// signaled request frees all slots.
pub(super) fn signaled_when_full<'a>(qp: &Qp, wr: SendWr<'a>) -> SendWr<'a> {
    match qp.send_room() {
        0 | 1 => wr,
        _ => wr.unsignaled(),
    }
}

/// Creates a CQ for `conns` connections.
pub(super) fn cq(device: &Device, conns: usize, depth: u32) -> io::Result<Cq> {
    let entries = u32::try_from(conns)
        .unwrap_or(u32::MAX)
        .saturating_mul(depth + DEPTH + 4);
    device.create_cq(entries).map_err(io::Error::other)
}

/// Addresses and STags of the server's regions, which the client receives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Advert {
    pub(super) target: (u64, u32),
    /// Region that covers the memory of all the small regions.
    pub(super) whole: (u64, u32),
    /// Region that contains the STags of the small regions, 4 bytes each.
    pub(super) keys: (u64, u32),
}

impl Advert {
    fn parts(&self) -> [(u64, u32); 3] {
        [self.target, self.whole, self.keys]
    }

    fn bytes(&self) -> Vec<u8> {
        let bytes =
            |(addr, key): (u64, u32)| [&addr.to_be_bytes()[..], &key.to_be_bytes()].concat();
        self.parts().map(bytes).concat()
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let part = |at: usize| {
            let (addr, rest) = bytes.get(12 * at..)?.split_first_chunk()?;
            let (key, _) = rest.split_first_chunk()?;
            Some((u64::from_be_bytes(*addr), u32::from_be_bytes(*key)))
        };
        Some(Advert {
            target: part(0)?,
            whole: part(1)?,
            keys: part(2)?,
        })
    }
}

/// Regions of a server.
struct Memory {
    advert: Advert,
    /// Region for received and sent messages.
    small: MemoryRegion,
    _held: Vec<MemoryRegion>,
}

impl Memory {
    fn new(pd: &Pd, regions: usize) -> io::Result<Self> {
        let region = |len: usize| {
            pd.register(vec![0; len], access())
                .map_err(io::Error::other)
        };
        let (target, small) = (region(TARGET)?, region(4096)?);
        let buffer = Arc::new(Buffer::from(vec![0; regions * REGION]));
        let part = |range| {
            let part = pd
                .region()
                .access(access())
                .part(Arc::clone(&buffer), range);
            part.map_err(io::Error::other)
        };
        let whole = part(0..regions * REGION)?;
        let many = (0..regions).map(|at| part(at * REGION..(at + 1) * REGION));
        let many = many.collect::<io::Result<Vec<_>>>()?;
        let keys: Vec<u8> = many
            .iter()
            .flat_map(|region| region.rkey().to_ne_bytes())
            .collect();
        let keys = pd.register(keys, access()).map_err(io::Error::other)?;
        let named = |region: &MemoryRegion| (region.addr(), region.rkey());
        let advert = Advert {
            target: named(&target),
            whole: named(&whole),
            keys: named(&keys),
        };
        let mut held = many;
        held.extend([target, whole, keys]);
        Ok(Memory {
            advert,
            small,
            _held: held,
        })
    }

    fn sge(&self, len: u32) -> [Sge; 1] {
        [self.small.sge(0, len)]
    }
}

/// A server with all its connections and regions.
pub(super) struct Server {
    cq: Cq,
    /// QPs, at the index `qp_num` minus `first`.
    qps: Vec<Qp>,
    first: u32,
    memory: Memory,
    /// Memory of this process in bytes before it had connections.
    before: f64,
}

impl Server {
    /// Accepts all connections of a client.
    pub(super) fn accept(device: &Device, listener: &Listener, shape: Shape) -> io::Result<Self> {
        let pd = device.alloc_pd().map_err(io::Error::other)?;
        let memory = Memory::new(&pd, shape.regions)?;
        let cq = cq(device, shape.conns, DEPTH)?;
        let before = super::memory::own();
        let options = AcceptOptions::default().private_data(memory.advert.bytes());
        let mut qps = Vec::with_capacity(shape.conns);
        for _ in 0..shape.conns {
            let request = listener.wait_request(None).map_err(io::Error::other)?;
            let qp = pd
                .create_qp(&cq, &cq, caps(DEPTH))
                .map_err(io::Error::other)?;
            receive(&qp, &memory.sge(64))?;
            request.accept(&qp, &options).map_err(io::Error::other)?;
            qps.push(qp);
        }
        Ok(Server {
            cq,
            first: qps.first().map_or(0, Qp::qp_num),
            qps,
            memory,
            before,
        })
    }

    /// Returns the memory of a connection in bytes.
    pub(super) fn memory(&self) -> f64 {
        (memory::own() - self.before) / self.qps.len() as f64
    }

    /// Polls and responds until the client ends the measurement.
    pub(super) fn spin(&self) -> io::Result<()> {
        let mut sleeps = false;
        let mut batch = [Completion::default(); 64];
        loop {
            let count = match sleeps {
                true => {
                    batch[0] = self.cq.wait(None).unwrap_or_default();
                    1
                }
                false => self.cq.poll(&mut batch),
            };
            for completion in &batch[..count] {
                if !completion.status.is_success() {
                    return Err(io::Error::other(completion.status.to_string()));
                }
                if completion.opcode != WcOpcode::Recv {
                    continue;
                }
                let qp = &self.qps[(completion.qp_num - self.first) as usize];
                receive(qp, &self.memory.sge(64))?;
                let sges = self.memory.sge(completion.byte_len);
                let answer = signaled_when_full(qp, SendWr::send(0, &sges));
                qp.post_send(&answer).map_err(io::Error::other)?;
                sleeps = completion.byte_len == SLEEP;
                if completion.byte_len == END {
                    return Ok(());
                }
            }
        }
    }
}

/// Posts one receive.
pub(super) fn receive(qp: &Qp, sges: &[Sge]) -> io::Result<()> {
    qp.post_recv(&RecvWr::new(0, sges))
        .map_err(io::Error::other)
}

/// Runs a server process. It executes a command for each line of input.
pub(super) fn serve(shape: Shape, device: &Device) -> io::Result<()> {
    let addr = "127.0.0.1:0".parse().map_err(io::Error::other)?;
    let listener = device.listen(addr).map_err(io::Error::other)?;
    println!("{}", listener.local_addr());
    let server = Server::accept(device, &listener, shape)?;
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "spin" => server.spin()?,
            "memory" => println!("{}", server.memory()),
            other => return Err(io::Error::other(format!("a server cannot {other}"))),
        }
    }
    Ok(())
}

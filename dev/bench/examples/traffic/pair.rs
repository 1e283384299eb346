//! Two devices in one thread, without a thread of the library. They use kernel TCP with a clock
//! that stands still.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::Clock;
use uwarp_verbs::{
    AcceptOptions, Access, CmEvent, CmId, Completion, ConnectOptions, Cq, Device, EventChannel,
    MemoryRegion, Pd, Progress, Qp, QpCaps, RecvWr, RemoteBuffer, SendWr, Settings, TimeSource,
    WcOpcode,
};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum number of outstanding work requests.
pub(crate) const DEPTH: u64 = 64;

#[allow(dead_code, reason = "not all who use this do all")]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Write,
    Read,
    Send,
    /// A Send to which the peer responds with a Send, one at a time.
    Ping,
    /// Empty polls on both sides.
    Idle,
}

/// A clock that stands still.
struct Still(Instant);

impl Clock for Still {
    fn now(&self) -> Instant {
        self.0
    }
}

pub(crate) struct Side {
    device: Device,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) region: MemoryRegion,
    _pd: Pd,
}

impl Side {
    fn new(clock: TimeSource, size: u32) -> Result<Side> {
        let network = Arc::new(KernelNetwork::default());
        let settings = Settings::default()
            .progress(Progress::Manual)
            .clock(clock)
            .seed(Some(1));
        let device = Device::open(network, settings)?;
        let pd = device.alloc_pd()?;
        // The CQ has room for the completions of both queues.
        let cq = device.create_cq(4 * DEPTH as u32)?;
        let caps = QpCaps::default()
            .max_send_wr(DEPTH as u32 + 2)
            .max_recv_wr(DEPTH as u32 + 2)
            .max_send_sge(1)
            .max_recv_sge(1)
            .max_inline_data(0);
        let qp = pd.create_qp(&cq, &cq, caps)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd.register(vec![0x5a; size as usize], access)?;
        Ok(Side {
            device,
            cq,
            qp,
            region,
            _pd: pd,
        })
    }

    fn post_receives(&self, count: u64) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        let sges = [self.region.sge(0, self.region.len() as u32)];
        let receives = [RecvWr::new(0, &sges); DEPTH as usize];
        Ok(self.qp.post_recv_list(&receives[..count as usize])?)
    }
}

pub(crate) struct Pair {
    what: What,
    list: u64,
    pub(crate) client: Side,
    pub(crate) server: Side,
    posted: u64,
    pub(crate) done: u64,
    /// Regions of the server that Writes and Reads address in turn.
    remotes: Vec<RemoteBuffer>,
    _ids: Ids,
}

/// Ids of both sides and their event channel. They keep the connection open.
type Ids = (CmId, CmId, EventChannel);

impl Pair {
    pub(crate) fn new(what: What, size: u32, list: u64) -> Result<Pair> {
        let clock = TimeSource::Given(Arc::new(Still(Instant::now())));
        let client = Side::new(clock.clone(), size)?;
        let server = Side::new(clock, size)?;
        server.post_receives(DEPTH)?;
        if what == What::Ping {
            client.post_receives(DEPTH)?;
        }
        let ids = connect(&client, &server)?;
        let server_region = server.region.remote();
        Ok(Pair {
            what,
            list,
            client,
            server,
            posted: 0,
            done: 0,
            remotes: vec![server_region],
            _ids: ids,
        })
    }

    pub(crate) fn warm(&mut self, count: u64) -> Result<()> {
        let goal = self.done + count;
        while self.done < goal {
            self.post(goal)?;
            self.poll()?;
            self.serve()?;
        }
        Ok(())
    }

    #[allow(dead_code, reason = "the program counts")]
    pub(crate) fn counted(&mut self, count: u64) -> Result<()> {
        let goal = self.done + count;
        while self.done < goal {
            self.sender_turn_counted(goal)?;
            self.receiver_turn_counted()?;
        }
        Ok(())
    }

    /// Runs a turn of the requester: posts messages up to the depth, and polls.
    #[inline(never)]
    fn sender_turn_counted(&mut self, goal: u64) -> Result<()> {
        self.post(goal)?;
        self.poll()
    }

    /// Runs a turn of the target.
    #[inline(never)]
    fn receiver_turn_counted(&mut self) -> Result<()> {
        self.serve()
    }

    #[inline(always)]
    fn post(&mut self, goal: u64) -> Result<()> {
        let depth = match self.what {
            What::Ping => 1,
            What::Idle => 0,
            _ => DEPTH,
        };
        while self.posted < goal && self.posted - self.done + self.list <= depth {
            let remote = self.remotes[self.posted as usize % self.remotes.len()];
            let sges = [self.client.region.sge(0, self.client.region.len() as u32)];
            let id = self.posted;
            let wr = match self.what {
                What::Write => SendWr::write(id, &sges, remote),
                What::Read => SendWr::read(id, &sges, remote),
                What::Send | What::Ping | What::Idle => SendWr::send(id, &sges),
            };
            if self.list == 1 {
                self.client.qp.post_send(&wr)?;
            } else {
                let list = [wr; DEPTH as usize];
                self.client.qp.post_send_list(&list[..self.list as usize])?;
            }
            self.posted += self.list;
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Result<()> {
        let mut completions = [Completion::default(); DEPTH as usize];
        loop {
            let taken = self.client.cq.poll(&mut completions);
            let mut answers = 0;
            for completion in &completions[..taken] {
                completion.ok()?;
                answers += u64::from(completion.opcode == WcOpcode::Recv);
            }
            self.client.post_receives(answers)?;
            self.done += match self.what {
                What::Ping => answers,
                What::Idle => 1,
                _ => taken as u64,
            };
            if taken == 0 || self.what == What::Ping {
                return Ok(());
            }
        }
    }

    #[inline(always)]
    fn serve(&mut self) -> Result<()> {
        let mut completions = [Completion::default(); DEPTH as usize];
        loop {
            let taken = self.server.cq.poll(&mut completions);
            let mut messages = 0;
            for completion in &completions[..taken] {
                completion.ok()?;
                messages += u64::from(completion.opcode == WcOpcode::Recv);
            }
            if taken == 0 {
                return Ok(());
            }
            self.server.post_receives(messages)?;
            if self.what == What::Ping {
                return self.answer(messages);
            }
        }
    }
}

impl Pair {
    /// Sends `count` responses.
    #[inline(always)]
    fn answer(&self, count: u64) -> Result<()> {
        let sges = [self.server.region.sge(0, self.server.region.len() as u32)];
        for id in 0..count {
            self.server.qp.post_send(&SendWr::send(id, &sges))?;
        }
        Ok(())
    }
}

/// Waits for the next event of connection management.
fn next(channel: &EventChannel, sides: [&Side; 2]) -> Result<CmEvent> {
    for _ in 0..1_000_000 {
        if let Some(event) = channel.try_get_event() {
            return Ok(event);
        }
        for side in sides {
            side.device.progress();
        }
    }
    Err("no event came".into())
}

fn connect(client: &Side, server: &Side) -> Result<Ids> {
    let both = [client, server];
    let channel = EventChannel::new()?;
    let listener = channel.create_id(&server.device, 1);
    listener.bind_addr("127.0.0.1:0".parse()?)?;
    listener.listen(1)?;
    let addr = listener.local_addr().ok_or("it listens nowhere")?;
    let id = channel.create_id(&client.device, 2);
    id.resolve_addr(None, addr)?;
    drop(next(&channel, both)?);
    id.resolve_route()?;
    drop(next(&channel, both)?);
    let depth = DEPTH as u16;
    let options = ConnectOptions::default().ird(depth).ord(depth);
    id.connect(&client.qp, &options)?;
    let responder = next(&channel, both)?.id().clone();
    let options = AcceptOptions::default().ird(depth).ord(depth);
    responder.accept(&server.qp, &options)?;
    // Each side reports that the connection is established.
    drop(next(&channel, both)?);
    drop(next(&channel, both)?);
    Ok((id, responder, channel))
}

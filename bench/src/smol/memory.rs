//! A bare smoltcp or uwarp, with both ends in one process and an in-memory link between them.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use smoltcp::socket::tcp::CongestionControl;
use smoltcp::wire::EthernetAddress;
use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::smol::{Congestion, FaultSettings, MemoryNetwork, MemorySettings};
use uwarp_verbs::{
    AcceptOptions, Access, Completion, ConnectOptions, Cq, Device, MemoryRegion, Qp, QpCaps,
    RemoteBuffer, SendWr, Settings,
};

use super::bare::{Bare, Tuning};
use super::cable::{Cable, End};

const PORT: u16 = 7174;
/// Length in bytes of a Write, and of a write to a bare stream.
const MESSAGE: usize = 64 << 10;
/// Maximum number of outstanding Writes.
const DEPTH: u64 = 16;
/// [`Settings::takeover`] of an end that no thread polls continuously. It is longer than a poll
/// that processes the maximum amount of data.
const TAKEOVER: Duration = Duration::from_millis(20);

fn host(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, number)
}

/// Measures a bare byte stream from one end to the other in bytes per second.
pub(super) fn bare(
    cable: Cable,
    tuning: Tuning,
    threads: usize,
    time: Duration,
) -> io::Result<f64> {
    let [first, second] = cable.ends();
    let end = |end: End, number| Bare::new(end, host(number), EthernetAddress::default(), tuning);
    let (mut first, mut second) = (end(first, 1), end(second, 2));
    second.listen(PORT)?;
    first.begin(SocketAddrV4::new(host(2), PORT), 40_000)?;
    while !second.socket().may_send() {
        first.turn();
        second.turn();
    }
    if threads == 1 {
        bare_in_one_thread(&mut first, &mut second, time / 10)?;
        bare_in_one_thread(&mut first, &mut second, time)
    } else {
        bare_in_two_threads(first, second, time)
    }
}

fn bare_in_one_thread(
    first: &mut Bare<End>,
    second: &mut Bare<End>,
    time: Duration,
) -> io::Result<f64> {
    let (bytes, mut into) = (vec![0x5a; MESSAGE], vec![0; 4 * MESSAGE]);
    let failed = |error| io::Error::other(format!("smoltcp: {error:?}"));
    let (mut sent, mut got) = (0, 0);
    let began = Instant::now();
    loop {
        let over = began.elapsed() >= time;
        if over && sent == got {
            return Ok(got as f64 / began.elapsed().as_secs_f64());
        }
        // A write may accept only a part of the message, if there is not enough room.
        while !over && first.socket().can_send() {
            let rest = MESSAGE - sent % MESSAGE;
            let taken = first.socket().send_slice(&bytes[..rest]);
            sent += taken.map_err(|error| failed(format!("{error:?}")))?;
        }
        first.turn();
        second.turn();
        while second.socket().can_recv() {
            let taken = second.socket().recv_slice(&mut into);
            got += taken.map_err(|error| failed(format!("{error:?}")))?;
        }
        // This sends the acknowledgement, which announces the free room.
        second.turn();
    }
}

fn bare_in_two_threads(
    mut first: Bare<End>,
    mut second: Bare<End>,
    time: Duration,
) -> io::Result<f64> {
    let reader = thread::spawn(move || {
        let mut into = vec![0; 4 * MESSAGE];
        let mut all = 0_u64;
        loop {
            match second.read(&mut into)? {
                0 => break,
                count => all += count as u64,
            }
        }
        let came = Instant::now();
        second.end();
        io::Result::Ok((all, came))
    });
    let bytes = vec![0x5a; MESSAGE];
    let mut warm = 0_u64;
    let mut write = |time| {
        let began = Instant::now();
        let mut sent = 0_u64;
        while began.elapsed() < time {
            io::Write::write_all(&mut first, &bytes)?;
            sent += bytes.len() as u64;
        }
        io::Result::Ok((sent, began))
    };
    warm += write(time / 10)?.0;
    let (_, began) = write(time)?;
    first.end_while(|| !reader.is_finished());
    let (all, came) = reader
        .join()
        .map_err(|_| io::Error::other("the reader panicked"))??;
    Ok((all - warm) as f64 / came.duration_since(began).as_secs_f64())
}

/// Returns the settings of uwarp's link.
pub(super) fn settings(cable: Cable, tuning: Option<Tuning>) -> MemorySettings {
    let usual = MemorySettings::default();
    let faults = FaultSettings::default().seed(cable.seed).loss(cable.loss);
    usual
        .clone()
        .mtu(cable.mtu)
        .checksums(true)
        .early_recovery(cable.loss > 0.0)
        .faults((cable.loss > 0.0).then_some(faults))
        .congestion(match tuning.map(|tuning| tuning.congestion) {
            None => usual.congestion,
            Some(CongestionControl::Reno) => Congestion::Reno,
            Some(CongestionControl::Cubic) => Congestion::Cubic,
            Some(_) => Congestion::None,
        })
}

/// Measures 64 KiB Writes from one device to the other in bytes per second, with CRC and 16
/// outstanding.
pub(super) fn ours(
    cable: Cable,
    tuning: Option<Tuning>,
    threads: usize,
    time: Duration,
) -> io::Result<f64> {
    let pair = MemoryNetwork::pair(&settings(cable, tuning)).map_err(io::Error::other)?;
    let (client, server) = connect([Arc::new(pair.0), Arc::new(pair.1)], threads)?;
    if threads == 1 {
        client.writes(time / 10, || server.polled())?;
        return client.writes(time, || server.polled());
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                server.polled();
            }
        });
        let measured = client
            .writes(time / 10, || {})
            .and_then(|_| client.writes(time, || {}));
        stop.store(true, Ordering::Relaxed);
        measured
    })
}

/// One side of a connection between two uwarp devices.
struct Side {
    cq: Cq,
    qp: Qp,
    region: MemoryRegion,
    remote: RemoteBuffer,
    _device: Device,
}

impl Side {
    fn new(network: Arc<dyn Network>, settings: Settings) -> io::Result<Self> {
        let device = Device::open(network, settings).map_err(io::Error::other)?;
        let pd = device.alloc_pd().map_err(io::Error::other)?;
        let cq = device.create_cq(64).map_err(io::Error::other)?;
        let caps = QpCaps::default().max_send_wr(DEPTH as u32 + 2);
        let qp = pd.create_qp(&cq, &cq, caps).map_err(io::Error::other)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let region = pd
            .register(vec![0x5a; MESSAGE], access)
            .map_err(io::Error::other)?;
        let remote = region.remote();
        Ok(Side {
            cq,
            qp,
            region,
            remote,
            _device: device,
        })
    }

    /// Polls like a target of Writes, which gets no completions.
    fn polled(&self) {
        let mut batch = [Completion::default(); DEPTH as usize];
        self.cq.poll(&mut batch);
    }

    /// Posts Writes for `time`, and waits until the last one is placed. Calls `meanwhile`
    /// repeatedly. Returns bytes per second.
    fn writes(&self, time: Duration, mut meanwhile: impl FnMut()) -> io::Result<f64> {
        let sges = [self.region.sge(0, MESSAGE as u32)];
        let RemoteBuffer { addr, rkey, .. } = self.remote;
        let write = SendWr::write(0, &sges, RemoteBuffer::at(addr, rkey));
        let (mut posted, mut done) = (0_u64, 0_u64);
        let mut batch = [Completion::default(); DEPTH as usize];
        let began = Instant::now();
        let mut take = |done: &mut u64| {
            let taken = self.cq.poll(&mut batch);
            for completion in &batch[..taken] {
                completion.ok().map_err(io::Error::other)?;
            }
            *done += taken as u64;
            io::Result::Ok(())
        };
        while began.elapsed() < time {
            while posted - done < DEPTH {
                self.qp.post_send(&write).map_err(io::Error::other)?;
                posted += 1;
            }
            take(&mut done)?;
            meanwhile();
        }
        // All Writes are placed once this Read has completed.
        let read = SendWr::read(0, &[], RemoteBuffer::at(addr, rkey));
        while posted - done > DEPTH {
            take(&mut done)?;
            meanwhile();
        }
        self.qp.post_send(&read).map_err(io::Error::other)?;
        while done < posted + 1 {
            take(&mut done)?;
            meanwhile();
        }
        Ok((posted * MESSAGE as u64) as f64 / began.elapsed().as_secs_f64())
    }
}

/// Connects a client on the first network to a server on the second. `threads` is the number of
/// threads that will poll them.
fn connect([first, second]: [Arc<dyn Network>; 2], threads: usize) -> io::Result<(Side, Side)> {
    let mut settings = Settings::default();
    if threads == 1 {
        // With one thread, an end is not polled while the thread polls the other end.
        settings.takeover = TAKEOVER;
    }
    let mut client = Side::new(first, settings.clone())?;
    let server = Side::new(second, settings)?;
    let addr = (host(2), PORT).into();
    let listener = server._device.listen(addr).map_err(io::Error::other)?;
    let accepting = thread::spawn(move || {
        let request = listener.wait_request(None).map_err(io::Error::other)?;
        let accepted = request.accept(&server.qp, &AcceptOptions::default());
        accepted.map_err(io::Error::other)?;
        io::Result::Ok(server)
    });
    let connected = client.qp.connect(addr, &ConnectOptions::default());
    connected.map_err(io::Error::other)?;
    let server = accepting
        .join()
        .map_err(|_| io::Error::other("the server panicked"))??;
    // Both sides are in this process, so no message is needed to exchange the region.
    client.remote = server.region.remote();
    Ok((client, server))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CABLE: Cable = Cable {
        mtu: 1500,
        loss: 0.0,
        seed: 1,
    };
    const TUNING: Tuning = Tuning {
        buffer: 64 << 10,
        congestion: CongestionControl::Reno,
    };

    #[test]
    fn bytes_arrive_in_one_thread_and_in_two() {
        for threads in [1, 2] {
            let time = Duration::from_millis(5);
            assert!(bare(CABLE, TUNING, threads, time).unwrap() > 0.0);
            assert!(ours(CABLE, None, threads, time).unwrap() > 0.0);
        }
    }

    #[test]
    fn the_link_of_uwarp_is_as_the_bare_one() {
        let cable = Cable {
            mtu: 9000,
            loss: 0.01,
            seed: 7,
        };
        let ours = settings(cable, Some(TUNING));
        assert_eq!((ours.mtu, ours.checksums), (9000, true));
        assert_eq!(ours.congestion, Congestion::Reno);
        let faults = ours.faults.unwrap();
        assert_eq!(
            (faults.loss.to_bits(), faults.seed),
            (0.01_f64.to_bits(), 7)
        );
        let usual = settings(CABLE, None);
        assert_eq!(usual.congestion, MemorySettings::default().congestion);
        assert!(usual.faults.is_none());
    }

    #[test]
    fn what_is_lost_on_the_cable_comes_again() {
        let cable = Cable {
            loss: 0.05,
            ..CABLE
        };
        let tuning = Tuning {
            congestion: CongestionControl::None,
            ..TUNING
        };
        assert!(bare(cable, tuning, 1, Duration::from_millis(5)).unwrap() > 0.0);
    }
}

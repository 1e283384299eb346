//! A byte stream over two bare smoltcp sockets in one thread, without uwarp. Packets move directly
//! between the queues of the two ends.

use std::collections::VecDeque;
use std::mem;
use std::time::Instant as Machine;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpAddress, IpCidr};

use crate::Link;
use crate::pair::Result;

/// Maximum number of bytes offered to the sender or taken from the receiver at a time.
const CHUNK: usize = 256 << 10;
const PORT: u16 = 7174;

/// Device of one end: arrived packets, buffers of processed packets, sent packets, and free
/// buffers.
struct End {
    arrived: VecDeque<Vec<u8>>,
    used: Vec<Vec<u8>>,
    left: VecDeque<Vec<u8>>,
    free: Vec<Vec<u8>>,
    link: Link,
    random: fastrand::Rng,
}

struct Arrived<'a> {
    packet: Vec<u8>,
    used: &'a mut Vec<Vec<u8>>,
}

struct Leaving<'a> {
    left: &'a mut VecDeque<Vec<u8>>,
    free: &'a mut Vec<Vec<u8>>,
    random: &'a mut fastrand::Rng,
    loss: f64,
}

impl smoltcp::phy::RxToken for Arrived<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let result = f(&self.packet);
        self.used.push(self.packet);
        result
    }
}

impl smoltcp::phy::TxToken for Leaving<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = self.free.pop().unwrap_or_default();
        packet.resize(len, 0);
        let result = f(&mut packet);
        if self.loss > 0.0 && self.random.f64() < self.loss {
            self.free.push(packet);
        } else {
            self.left.push_back(packet);
        }
        result
    }
}

impl Device for End {
    type RxToken<'a> = Arrived<'a>;
    type TxToken<'a> = Leaving<'a>;

    fn receive(&mut self, now: Instant) -> Option<(Arrived<'_>, Leaving<'_>)> {
        let packet = self.arrived.pop_front()?;
        let _ = now;
        let leaving = Leaving {
            left: &mut self.left,
            free: &mut self.free,
            random: &mut self.random,
            loss: self.link.loss,
        };
        let used = &mut self.used;
        Some((Arrived { packet, used }, leaving))
    }

    fn transmit(&mut self, _: Instant) -> Option<Leaving<'_>> {
        Some(Leaving {
            left: &mut self.left,
            free: &mut self.free,
            random: &mut self.random,
            loss: self.link.loss,
        })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.link.mtu;
        capabilities.checksum = ChecksumCapabilities::ignored();
        capabilities.checksum.ipv4 = Checksum::Both;
        capabilities.checksum.tcp = Checksum::Both;
        capabilities
    }
}

struct Host {
    end: End,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl Host {
    fn new(link: Link, number: u8, now: Instant) -> Self {
        let mut end = End {
            arrived: VecDeque::new(),
            used: Vec::new(),
            left: VecDeque::new(),
            free: Vec::new(),
            link,
            random: fastrand::Rng::with_seed(link.seed.wrapping_add(u64::from(number))),
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = u64::from(number);
        let mut interface = Interface::new(config, &mut end, now);
        interface.update_ip_addrs(|addresses| {
            let _ = addresses.push(IpCidr::new(IpAddress::v4(192, 0, 2, number), 0));
        });
        let buffer = || SocketBuffer::new(vec![0; link.buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(link.ack_delay.map(Duration::from));
        socket.set_congestion_control(link.bare());
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self {
            end,
            interface,
            sockets,
            handle,
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Processes the arrived packets, and sends the packets that TCP permits.
    fn turn(&mut self, now: Instant) {
        self.interface.poll(now, &mut self.end, &mut self.sockets);
    }
}

/// Moves the sent packets of `from` to the arrived packets of `to`. Moves the processed buffers of
/// `to` back to `from`.
fn carry(from: &mut Host, to: &mut Host) {
    debug_assert!(to.end.arrived.is_empty());
    mem::swap(&mut from.end.left, &mut to.end.arrived);
    from.end.free.append(&mut to.end.used);
}

/// Two connected hosts.
pub(crate) struct Stream {
    first: Host,
    second: Host,
    start: Machine,
    data: Vec<u8>,
    buffer: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(link: Link) -> Result<Self> {
        let start = Machine::now();
        let now = Instant::from_millis(1);
        let (first, second) = (Host::new(link, 1, now), Host::new(link, 2, now));
        let mut stream = Self {
            first,
            second,
            start,
            data: vec![0x5a; CHUNK],
            buffer: vec![0; CHUNK],
        };
        stream.second.socket().listen(PORT)?;
        let Host {
            interface,
            sockets,
            handle,
            ..
        } = &mut stream.first;
        let to = (IpAddress::v4(192, 0, 2, 2), PORT);
        (sockets.get_mut::<Socket<'_>>(*handle)).connect(interface.context(), to, 50_000)?;
        while stream.second.socket().state() != State::Established {
            stream.turn()?;
        }
        Ok(stream)
    }

    /// Sends `bytes` bytes and receives them.
    pub(crate) fn carry(&mut self, bytes: usize) -> Result<()> {
        let (mut sent, mut got) = (0, 0);
        while got < bytes {
            let rest = CHUNK.min(bytes - sent);
            if rest > 0 && self.first.socket().can_send() {
                sent += self.first.socket().send_slice(&self.data[..rest])?;
            }
            got += self.turn()?;
        }
        Ok(())
    }

    /// Runs a turn of both hosts. Returns the number of bytes received.
    fn turn(&mut self) -> Result<usize> {
        // The time starts at 1 ms, because smoltcp treats time 0 as "at once".
        let micros = self.start.elapsed().as_micros() + 1_000;
        let now = Instant::from_micros(i64::try_from(micros)?);
        self.first.turn(now);
        carry(&mut self.first, &mut self.second);
        self.second.turn(now);
        let mut got = 0;
        while self.second.socket().can_recv() {
            got += self.second.socket().recv_slice(&mut self.buffer)?;
        }
        // One acknowledgement covers the received bytes and the room that reading them has freed.
        self.second.turn(now);
        carry(&mut self.second, &mut self.first);
        Ok(got)
    }

    /// Sends 8 bytes in each direction, `times` times.
    pub(crate) fn ping_pong(&mut self, times: u32) -> Result<()> {
        let mut bytes = [1; 8];
        for _ in 0..times {
            for flip in [false, true] {
                let micros = self.start.elapsed().as_micros() + 1_000;
                let now = Instant::from_micros(i64::try_from(micros)?);
                let (from, to) = if flip {
                    (&mut self.second, &mut self.first)
                } else {
                    (&mut self.first, &mut self.second)
                };
                from.socket().send_slice(&bytes)?;
                from.turn(now);
                carry(from, to);
                to.turn(now);
                let got = to.socket().recv_slice(&mut bytes)?;
                if got != 8 {
                    return Err("a message is not there".into());
                }
                carry(to, from);
            }
        }
        Ok(())
    }
}

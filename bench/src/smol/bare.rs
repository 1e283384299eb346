//! A byte stream over a bare smoltcp in a well-written program: the performance that an application
//! can reach with smoltcp and without RDMA.
//!
//! Each end has one socket and spins. The work on the stream is that of [`crate::raw`].

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant as Clock};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, Medium};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, IpListenEndpoint};

use crate::raw::{self, Stream};

/// A device for a bare smoltcp.
pub(super) trait Port: Device {
    /// Sends the frames that smoltcp has produced. `Bare::turn` calls it at its end.
    fn flush(&mut self) {}
}

/// Settings of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tuning {
    /// Size in bytes of each of the two buffers.
    pub(super) buffer: usize,
    pub(super) congestion: CongestionControl,
}

/// One end of a connection, with its own device.
pub(super) struct Bare<D: Port> {
    device: D,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    began: Clock,
}

fn failed(error: impl std::fmt::Debug) -> io::Error {
    io::Error::other(format!("smoltcp: {error:?}"))
}

impl<D: Port> Bare<D> {
    /// Creates a host with one unconnected socket. `mac` has an effect only on Ethernet.
    pub(super) fn new(mut device: D, addr: Ipv4Addr, mac: EthernetAddress, tuning: Tuning) -> Self {
        let began = Clock::now();
        let mut config = Config::new(match device.capabilities().medium {
            Medium::Ethernet => HardwareAddress::Ethernet(mac),
            _ => HardwareAddress::Ip,
        });
        // Seed of the sequence numbers, which must differ from those of an earlier connection to
        // the same peer.
        config.random_seed = u64::from(std::process::id()) << 32 | u64::from(addr.to_bits());
        let mut interface = Interface::new(config, &mut device, Instant::from_micros(1_000));
        interface.update_ip_addrs(|all| {
            let _ = all.push(IpCidr::new(addr.into(), 24));
        });
        let buffer = || SocketBuffer::new(vec![0; tuning.buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_congestion_control(tuning.congestion);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Bare {
            device,
            interface,
            sockets,
            handle,
            began,
        }
    }

    pub(super) fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Processes the arrived frames, and sends the frames that TCP permits.
    pub(super) fn turn(&mut self) {
        // The time starts at 1 ms, because smoltcp treats time 0 as "at once".
        let micros = 1_000 + self.began.elapsed().as_micros();
        let now = Instant::from_micros(i64::try_from(micros).unwrap_or(i64::MAX));
        self.interface
            .poll(now, &mut self.device, &mut self.sockets);
        self.device.flush();
    }

    /// Starts to connect.
    pub(super) fn begin(&mut self, to: SocketAddrV4, port: u16) -> io::Result<()> {
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        socket
            .connect(self.interface.context(), to, port)
            .map_err(failed)
    }

    pub(super) fn listen(&mut self, port: u16) -> io::Result<()> {
        let at = IpListenEndpoint { addr: None, port };
        self.socket().listen(at).map_err(failed)
    }

    /// Waits until the socket is connected.
    pub(super) fn connected(&mut self) -> io::Result<()> {
        loop {
            self.turn();
            let socket = self.socket();
            if socket.may_send() {
                return Ok(());
            }
            if !socket.is_open() {
                return Err(ErrorKind::ConnectionRefused.into());
            }
        }
    }

    /// Closes the connection, and waits for at most a second until it has ended on both sides.
    pub(super) fn end(&mut self) {
        let until = Clock::now() + Duration::from_secs(1);
        self.end_while(|| Clock::now() < until);
    }

    /// Closes the connection. Waits until it has ended on both sides, or until `more` returns
    /// false.
    pub(super) fn end_while(&mut self, mut more: impl FnMut() -> bool) {
        self.socket().close();
        while self.socket().is_active() && more() {
            self.turn();
        }
    }
}

impl<D: Port> Read for Bare<D> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            let socket = self.socket();
            if socket.can_recv() {
                return socket.recv_slice(bytes).map_err(failed);
            }
            if !socket.may_recv() {
                return Ok(0);
            }
            self.turn();
        }
    }
}

impl<D: Port> Write for Bare<D> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let socket = self.socket();
            if socket.can_send() {
                let taken = socket.send_slice(bytes).map_err(failed)?;
                self.turn();
                return Ok(taken);
            }
            if !socket.may_send() {
                return Err(ErrorKind::BrokenPipe.into());
            }
            self.turn();
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<D: Port> Stream for Bare<D> {
    /// Does nothing, because reads always spin.
    fn spin(&mut self, _spins: bool) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.socket().close();
        self.turn();
        Ok(())
    }
}

/// Connects and runs the load.
pub(super) fn client(
    mut bare: Bare<impl Port>,
    to: SocketAddrV4,
    load: raw::Load,
) -> io::Result<()> {
    // The port differs for each process, because the kernel remembers the ports of earlier clients.
    let port = 32_768 + (std::process::id() % 28_000) as u16;
    bare.begin(to, port)?;
    bare.connected()?;
    load.run(&mut bare)?;
    bare.end();
    Ok(())
}

/// Serves one client.
pub(super) fn server(mut bare: Bare<impl Port>, at: SocketAddrV4) -> io::Result<()> {
    bare.listen(at.port())?;
    println!("{at}");
    bare.connected()?;
    let served = raw::serve_one(&mut bare);
    bare.end();
    match served {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
        served => served,
    }
}

//! Makes the SYN|ACK for a SYN, by a socket of smoltcp that exists only for this.

use std::net::IpAddr;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, IpListenEndpoint};

use super::burst::{BURST_MTU, name_own_mss, tcp_at};
use super::handshakes::Handshake;
use super::packet::{Packet, Pool};
use super::segment::FlowKey;
use super::settings::StackSettings;
use super::stack::Stack;

/// Size of a TCP header without options, in bytes.
const TCP_HEADER: usize = 20;

/// A socket that answers one SYN after another. Its buffers have the size of a connection's, which
/// decides the window of the SYN|ACK. No byte is ever written to them, so their pages use no
/// memory.
pub(super) struct SynAnswerer {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
}

impl SynAnswerer {
    /// Creates a socket with the buffers of these settings.
    pub(super) fn new(settings: &StackSettings) -> Self {
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(new_socket(settings));
        Self { sockets, handle }
    }

    /// Makes the SYN|ACK that a connection with `seed` sends in answer to `syn`. Returns `None` if
    /// smoltcp does not answer it.
    pub(super) fn answer(
        &mut self,
        stack: &Stack,
        key: &FlowKey,
        handshake: &Handshake,
    ) -> Option<Packet> {
        let settings = &stack.settings;
        let mut wire = Wire {
            syn: Some(&handshake.syn),
            answer: None,
            pool: &stack.pool,
            capabilities: capabilities(settings, stack.checksums()),
        };
        // Only the seed matters here. The connection's clock begins when it is created.
        let now = Instant::ZERO;
        let mut interface = new_interface(&mut wire, key.local.ip(), now, handshake.seed);
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.handle);
        socket.abort();
        socket.listen(listen_endpoint(key)).ok()?;
        interface.poll_ingress_single(now, &mut wire, &mut self.sockets);
        interface.poll_egress(now, &mut wire, &mut self.sockets);
        let mut answer = wire.answer?;
        if settings.bursts {
            let headers = tcp_at(answer.bytes()) + TCP_HEADER;
            name_own_mss(answer.bytes_mut(), settings.mtu.saturating_sub(headers));
        }
        Some(answer)
    }
}

/// Creates a socket with the buffers of these settings.
pub(super) fn new_socket(settings: &StackSettings) -> tcp::Socket<'static> {
    let buffer = |len| tcp::SocketBuffer::new(vec![0; len]);
    tcp::Socket::new(
        buffer(settings.receive_buffer),
        buffer(settings.send_buffer),
    )
}

/// Returns the address at which a socket waits for the peer's SYN.
pub(super) fn listen_endpoint(key: &FlowKey) -> IpListenEndpoint {
    IpListenEndpoint {
        addr: Some(key.local.ip().into()),
        port: key.local.port(),
    }
}

/// Creates a smoltcp interface with this address.
pub(super) fn new_interface(
    device: &mut (impl phy::Device + ?Sized),
    addr: IpAddr,
    now: Instant,
    random_seed: u64,
) -> Interface {
    let mut config = Config::new(HardwareAddress::Ip);
    config.random_seed = random_seed;
    let mut interface = Interface::new(config, device, now);
    interface.update_ip_addrs(|addresses| {
        // With prefix length 0, all addresses are on the link and no route is needed.
        let _ = addresses.push(IpCidr::new(addr.into(), 0));
    });
    interface
}

/// Returns the capabilities of a device with these settings.
pub(super) fn capabilities(
    settings: &StackSettings,
    checksums: ChecksumCapabilities,
) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = if settings.bursts {
        BURST_MTU
    } else {
        settings.mtu
    };
    capabilities.checksum = checksums;
    capabilities
}

/// Device that delivers one packet and accepts one.
struct Wire<'a> {
    syn: Option<&'a [u8]>,
    answer: Option<Packet>,
    pool: &'a Pool,
    capabilities: DeviceCapabilities,
}

impl phy::Device for Wire<'_> {
    type RxToken<'a>
        = RxToken<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = TxToken<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_>)> {
        let syn = self.syn.take()?;
        Some((RxToken(syn), TxToken(&mut self.answer, self.pool)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_>> {
        self.answer
            .is_none()
            .then_some(TxToken(&mut self.answer, self.pool))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

struct RxToken<'a>(&'a [u8]);

impl phy::RxToken for RxToken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

struct TxToken<'a>(&'a mut Option<Packet>, &'a Pool);

impl phy::TxToken for TxToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = self.1.take_for(len);
        let result = f(packet.resize(len));
        *self.0 = Some(packet);
        result
    }
}

//! A network card for a bare smoltcp: a TAP device, or an AF_PACKET socket on an interface.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;

use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium};
use smoltcp::time::Instant;
use smoltcp::wire::{Ipv4Packet, TcpPacket};

use super::bare::Port;
use super::vnet::{ETHERNET, HEADER, LARGEST, arrived, outgoing};

/// Size of the buffer for the largest frame, including the virtio-net header.
const ROOM: usize = HEADER + ETHERNET + 65_535;

/// A network card, opened as a file.
pub(super) struct Card {
    receive: Vec<u8>,
    receiver: File,
    sender: Sender,
}

struct Sender {
    file: File,
    frame: Vec<u8>,
    /// Maximum segment size on the wire. `None` without offloads.
    mss: Option<u16>,
    /// Maximum length of an IP packet on the wire in bytes.
    mtu: usize,
}

impl Card {
    /// Creates a card on a descriptor that `sys` has opened with the same value of `offload`. `mtu`
    /// is the MTU of the wire.
    pub(super) fn new(descriptor: OwnedFd, offload: bool, mtu: u16) -> io::Result<Self> {
        let file = File::from(descriptor);
        Ok(Card {
            receive: vec![0; ROOM],
            receiver: file.try_clone()?,
            sender: Sender {
                file,
                frame: vec![0; ROOM],
                mss: offload.then_some(mtu - 40),
                mtu: usize::from(mtu),
            },
        })
    }

    /// Reads the next valid frame. Returns its range in the buffer.
    fn take(&mut self) -> Option<Range<usize>> {
        loop {
            let len = self.receiver.read(&mut self.receive).ok()?;
            if self.sender.mss.is_none() {
                return Some(0..len);
            }
            let (header, frame) = self.receive.get_mut(..len)?.split_first_chunk_mut()?;
            if arrived(*header, frame) || is_whole(frame) {
                return Some(HEADER..len);
            }
        }
    }
}

impl Port for Card {}

/// Returns true if the checksum of a TCP segment over IPv4 is valid.
fn is_whole(frame: &[u8]) -> bool {
    let parsed = || {
        let ip = Ipv4Packet::new_checked(frame.get(ETHERNET..)?).ok()?;
        let (from, to) = (ip.src_addr().into(), ip.dst_addr().into());
        let tcp = TcpPacket::new_checked(ip.payload()).ok()?;
        Some(tcp.verify_checksum(&from, &to))
    };
    parsed().unwrap_or(false)
}

impl Device for Card {
    type RxToken<'a> = Received<'a>;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Received<'_>, Sending<'_>)> {
        let at = self.take()?;
        let frame = &self.receive[at];
        Some((Received(frame), Sending(&mut self.sender)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sender))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = ETHERNET
            + match self.sender.mss {
                Some(_) => usize::from(LARGEST) + 40,
                None => self.sender.mtu,
            };
        capabilities.checksum = ChecksumCapabilities::default();
        if self.sender.mss.is_some() {
            capabilities.checksum.tcp = Checksum::None;
        }
        capabilities
    }
}

/// Token to process an arrived frame.
pub(super) struct Received<'a>(&'a [u8]);

impl smoltcp::phy::RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

/// Token to send a frame.
pub(super) struct Sending<'a>(&'a mut Sender);

impl smoltcp::phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Sender {
            file, frame, mss, ..
        } = self.0;
        let front = if mss.is_some() { HEADER } else { 0 };
        let frame = &mut frame[..front + len];
        let result = f(&mut frame[front..]);
        if let Some(mss) = *mss {
            let header = outgoing(&mut frame[front..], mss);
            frame[..front].copy_from_slice(&header);
        }
        send(file, frame);
        result
    }
}

/// Sends a frame. Retries while the queue is full. After any other error the frame is lost, as on a
/// wire.
fn send(file: &mut File, frame: &[u8]) {
    loop {
        match file.write(frame) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::hint::spin_loop(),
            _ => return,
        }
    }
}

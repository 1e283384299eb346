//! The link between the suite and the target of a world: packets take no time, and come in order.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use uwarp_verbs::llp::smol::Carrier;

/// The number of the target's host; the suite's is the other.
const TARGET: usize = 0;

/// Packets on their way, and what is announced in those of the suite.
#[derive(Default)]
pub(crate) struct Wire {
    packets: Mutex<VecDeque<(usize, Vec<u8>)>>,
    /// The MSS that a case has chosen, by the suite's port.
    announced: Mutex<BTreeMap<u16, u16>>,
}

fn with<T, U>(mutex: &Mutex<T>, act: impl FnOnce(&mut T) -> U) -> U {
    act(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Wire {
    /// The suite's SYNs of this port name this MSS. (As a router clamps it: a host in memory has one for all.)
    pub(crate) fn announce(&self, port: u16, mss: Option<u16>) {
        with(&self.announced, |announced| match mss {
            Some(mss) => announced.insert(port, mss),
            None => announced.remove(&port),
        });
    }

    /// The packet that arrives next, and at which host.
    pub(crate) fn arrival(&self) -> Option<(usize, Vec<u8>)> {
        let (to, mut packet) = with(&self.packets, VecDeque::pop_front)?;
        if to == TARGET {
            with(&self.announced, |announced| clamp(&mut packet, announced));
        }
        Some((to, packet))
    }

    /// Whether no packet is on its way.
    pub(crate) fn is_idle(&self) -> bool {
        with(&self.packets, |packets| packets.is_empty())
    }
}

/// Rewrites the MSS option of a SYN from one of these ports. Nobody looks at checksums here.
fn clamp(packet: &mut [u8], announced: &BTreeMap<u16, u16>) -> Option<()> {
    let ip_header = usize::from(packet.first()? & 0xF) * 4;
    let tcp = packet.get_mut(ip_header..)?;
    let mss = announced.get(&u16::from_be_bytes([*tcp.first()?, *tcp.get(1)?]))?;
    let (is_syn, end) = (tcp.get(13)? & 2 != 0, usize::from(tcp.get(12)? >> 4) * 4);
    let mut options = tcp.get_mut(20..end).filter(|_| is_syn)?;
    loop {
        match options {
            [2, 4, value @ ..] => {
                value.get_mut(..2)?.copy_from_slice(&mss.to_be_bytes());
                return Some(());
            }
            [1, rest @ ..] => options = rest,
            [0, ..] | [] | [_] => return None,
            [_, len, ..] => {
                let len = usize::from(*len).max(2);
                options = options.get_mut(len..)?;
            }
        }
    }
}

/// The end of the link that a host has.
pub(crate) struct Port {
    wire: Arc<Wire>,
    other: usize,
}

impl Port {
    pub(crate) fn new(wire: &Arc<Wire>, host: usize) -> Port {
        Port {
            wire: Arc::clone(wire),
            other: 1 - host,
        }
    }
}

impl Carrier for Port {
    fn carry(&self, packet: &[u8]) {
        let packet = (self.other, packet.to_vec());
        with(&self.wire.packets, |packets| packets.push_back(packet));
    }

    fn reaches(&self, _to: IpAddr) -> bool {
        true
    }
}

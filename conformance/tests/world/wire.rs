//! The link between the suite and the target of a world. Packets take no time and stay in order.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use uwarp_verbs::llp::smol::Carrier;

/// Number of the target among the two hosts. The suite is the other host.
const TARGET: usize = 0;

/// Packets on the link, and the MSS values that the suite announces.
#[derive(Default)]
pub(crate) struct Wire {
    packets: Mutex<VecDeque<(usize, Vec<u8>)>>,
    /// MSS that a case chose, keyed by the local port of the suite.
    announced: Mutex<BTreeMap<u16, u16>>,
}

fn with<T, U>(mutex: &Mutex<T>, act: impl FnOnce(&mut T) -> U) -> U {
    act(&mut mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Wire {
    /// Makes SYNs of the suite from this port announce this MSS. A host in memory has only one MSS,
    /// so the link rewrites the option in the SYN, as a router does when it clamps the MSS.
    pub(crate) fn announce(&self, port: u16, mss: Option<u16>) {
        with(&self.announced, |announced| match mss {
            Some(mss) => announced.insert(port, mss),
            None => announced.remove(&port),
        });
    }

    /// Removes and returns the next packet, with the number of the host that receives it.
    pub(crate) fn arrival(&self) -> Option<(usize, Vec<u8>)> {
        let (to, mut packet) = with(&self.packets, VecDeque::pop_front)?;
        if to == TARGET {
            with(&self.announced, |announced| clamp(&mut packet, announced));
        }
        Some((to, packet))
    }

    /// Returns true if the link holds no packet.
    pub(crate) fn is_idle(&self) -> bool {
        with(&self.packets, |packets| packets.is_empty())
    }
}

/// Rewrites the MSS option of a SYN if its source port is in `announced`. The checksum is not
/// updated, because the hosts do not check it.
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

/// The end of the link at one host.
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

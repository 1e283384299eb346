//! In-memory hosts whose packets are carried by other code, such as a switch or a simulator.

use std::net::IpAddr;
use std::sync::Arc;

use super::link::{Link, Route};
use super::mailbox::Mailbox;
use super::memory::{MemoryNetwork, MemorySettings};
use super::packet::{Packet, Pool};
use super::stack::Stack;
use crate::LlpError;

/// Carries the packets of one host. It may lose, delay, duplicate or damage them. It passes packets
/// for a host to that host's [`MemoryNetwork::deliver`]. It must not do so from within
/// [`carry`](Self::carry): no call of that host may be in progress in the same thread.
pub trait Carrier: Send + Sync {
    /// Accepts an IP packet that the host sends.
    fn carry(&self, packet: &[u8]);
    /// Returns true if there is a route to this address.
    fn reaches(&self, to: IpAddr) -> bool;
}

impl MemoryNetwork {
    /// Creates a host with the first of the two sets of addresses in `settings`. `carrier` carries
    /// its packets, except those to itself.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] if a setting is out of range, or if faults or a capture are set, which
    /// only the carrier can provide.
    pub fn host(settings: &MemorySettings, carrier: Arc<dyn Carrier>) -> Result<Self, LlpError> {
        if settings.faults.is_some() || settings.capture.is_some() {
            return Err(LlpError::Misuse {
                op: "make a host in memory",
                why: "faults and captures are up to the carrier of its packets",
            });
        }
        let pool = Arc::new(Pool::new(settings.mtu));
        let link = Box::new(ExternalLink {
            carrier,
            pool: Arc::clone(&pool),
        });
        let [own, _] = &settings.addresses;
        let stack = Stack::new(
            settings.addresses_of(own)?,
            link,
            pool,
            Arc::clone(&settings.clock),
            settings.stack(0)?,
        );
        Ok(Self::of(stack))
    }

    /// Processes an IP packet that arrives over the link. A malformed packet, or one for another
    /// host, is dropped.
    pub fn deliver(&self, packet: &[u8]) {
        let stack = self.stack();
        let mut copy = stack.pool.take_one();
        copy.resize(packet.len()).copy_from_slice(packet);
        stack.receive(copy, &mut Route::default());
    }

    /// Limits the packets of all current connections to `mtu` bytes, like an ICMP message from a
    /// router (RFC 1191).
    pub fn limit_mtu(&self, mtu: usize) {
        self.stack().limit_mtu(mtu);
    }

    /// Number of connections in any state, without those that are closed and linger (TIME-WAIT).
    #[must_use]
    pub fn connections(&self) -> usize {
        self.stack().connections()
    }
}

struct ExternalLink {
    carrier: Arc<dyn Carrier>,
    pool: Arc<Pool>,
}

impl Link for ExternalLink {
    fn send(&self, packet: Packet, _route: &mut Route) {
        self.carrier.carry(packet.bytes());
        self.pool.give_one(packet);
    }

    fn reaches(&self, addr: IpAddr) -> bool {
        self.carrier.reaches(addr)
    }

    fn next_hop(&self, _to: IpAddr) -> Option<IpAddr> {
        None
    }

    fn source_for(&self, _to: IpAddr) -> Option<IpAddr> {
        None
    }

    fn subscribe_if_full(&self, _route: &Route, _sender: &Arc<Mailbox>) -> bool {
        // The carrier drops packets that it cannot hold.
        false
    }

    fn poll(&self, _stack: &Stack) {
        // The carrier calls `deliver` itself.
    }

    fn close(&self) {}

    fn describe(&self) -> String {
        "memory, external link".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Network, Piece, Recv, SendHints};
    use parking_lot::Mutex;
    use std::time::Duration;

    /// Keeps packets until the test forwards them.
    #[derive(Default)]
    struct Kept(Mutex<Vec<Vec<u8>>>);

    impl Carrier for Kept {
        fn carry(&self, packet: &[u8]) {
            self.0.lock().push(packet.to_vec());
        }

        fn reaches(&self, to: IpAddr) -> bool {
            to.is_ipv4()
        }
    }

    fn host(number: usize) -> (MemoryNetwork, Arc<Kept>) {
        let mut settings = MemorySettings {
            checksums: true,
            ..MemorySettings::default()
        };
        settings.addresses.swap(0, number);
        let carrier = Arc::new(Kept::default());
        let given: Arc<Kept> = Arc::clone(&carrier);
        (MemoryNetwork::host(&settings, given).unwrap(), carrier)
    }

    fn carry(from: &Kept, to: &MemoryNetwork) -> usize {
        let packets = std::mem::take(&mut *from.0.lock());
        for packet in &packets {
            to.deliver(packet);
        }
        packets.len()
    }

    #[test]
    fn a_connection_goes_as_far_as_its_packets_are_carried() {
        let ((a, from_a), (b, from_b)) = (host(0), host(1));
        let mut listener = b.listen("192.0.2.2:7174".parse().unwrap(), 4).unwrap();
        let mut client = a.connect(None, listener.local_addr()).unwrap();
        assert_eq!((a.connections(), b.connections()), (1, 0));
        let mut server = loop {
            carry(&from_a, &b);
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
            carry(&from_b, &a);
            client.drive();
        };
        assert!(client.connect_progress().unwrap());
        a.limit_mtu(700);
        let pieces = [Piece::from(&[7; 2000][..])];
        assert_eq!(client.try_send(&pieces, SendHints::NONE).unwrap(), 2000);
        assert!(from_a.0.lock().iter().all(|packet| packet.len() <= 700));
        assert!(carry(&from_a, &b) >= 3);
        let mut bytes = [0; 2000];
        assert_eq!(server.try_recv(&mut bytes).unwrap(), Recv::Data(2000));
        drop((client, server));
        assert_eq!((a.connections(), b.connections()), (0, 0));
    }

    /// Found by the simulator: a SYN for a listening port was damaged and lost its SYN flag. The
    /// stack answered with a reset, so the connection was refused although a listener existed.
    #[test]
    fn a_damaged_segment_is_neither_answered_nor_a_connection() {
        let ((a, from_a), (b, from_b)) = (host(0), host(1));
        let mut listener = b.listen("192.0.2.2:7174".parse().unwrap(), 4).unwrap();
        let _client = a.connect(None, listener.local_addr()).unwrap();
        let syn = from_a.0.lock().remove(0);
        // Damage to the flags, the sequence number and the port.
        for (at, bits) in [(33, 3), (24, 1), (22, 1)] {
            let mut packet = syn.clone();
            packet[at] ^= bits;
            b.deliver(&packet);
            assert!(listener.try_accept().unwrap().is_none());
            assert_eq!((from_b.0.lock().len(), b.connections()), (0, 0));
        }
        b.deliver(&syn);
        assert!(listener.try_accept().unwrap().is_none());
        assert_eq!(from_b.0.lock().len(), 1);
    }

    #[test]
    fn faults_are_for_who_carries() {
        let settings = MemorySettings {
            faults: Some(super::super::FaultSettings::default()),
            connect_timeout: Duration::from_secs(1),
            ..MemorySettings::default()
        };
        let error = MemoryNetwork::host(&settings, Arc::new(Kept::default()));
        assert!(matches!(error, Err(LlpError::Misuse { .. })));
    }
}

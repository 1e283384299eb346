//! Hosts on an Ethernet whose frames are carried by other code, such as a switch or a fuzzer.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use super::frame::Mac;
use super::neighbours::Timing;
use super::network::{EthernetNetwork, Runs};
use super::settings::LinkSettings;
use crate::LlpError;
use crate::smol::{Packet, PacketOffload, Signal};
use crate::wire::{HEADER, MAX_MTU, Received, Wire};

/// Carries the frames of one host. A carrier may lose, delay or damage frames. It passes a frame to
/// the [`EthernetNetwork::deliver`] of the receiving host, but not from within
/// [`carry`](Self::carry).
pub trait FrameCarrier: Send + Sync {
    /// Accepts a frame that the host sends: an Ethernet II header and a packet.
    fn carry(&self, frame: &[u8]);
}

impl EthernetNetwork {
    /// Creates a host on an Ethernet whose frames `carrier` carries. The host has no thread. Its
    /// timers use [`LinkSettings::clock`], and the owner has to call [`turn`](Self::turn) for the
    /// timers of ARP and NDP.
    ///
    /// # Errors
    /// [`LlpError::Misuse`] if a setting is out of range, and errors for a lack of descriptors.
    pub fn with_carrier(
        settings: &LinkSettings,
        mac: [u8; 6],
        carrier: Arc<dyn FrameCarrier>,
    ) -> Result<Self, LlpError> {
        let wire = ExternalWire {
            carrier,
            mac,
            mtu: settings.mtu.unwrap_or(1500).min(MAX_MTU),
            never: Signal::new()?,
        };
        Self::make(
            Box::new(wire),
            settings,
            Timing::default(),
            Runs::ExternalLink,
        )
    }

    /// Processes a received frame. A frame that is shorter than an Ethernet header, or is delivered
    /// from within [`FrameCarrier::carry`], is dropped.
    pub fn deliver(&self, frame: &[u8]) {
        if let Some((header, packet)) = frame.split_first_chunk::<HEADER>() {
            self.shared.deliver(&self.stack, header, packet);
        }
    }

    /// Runs the timers of the link: repeats questions for neighbours or gives up on them, and
    /// announces addresses. Returns the time of the next timer. Only a host made by
    /// [`with_carrier`](Self::with_carrier) needs this call.
    pub fn turn(&self) -> Option<Instant> {
        let now = self.shared.clock.now();
        self.shared.tick(now);
        self.shared.flush();
        let announce = self.shared.announce_if_due(now);
        [announce, self.shared.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Number of connections in any state, without those that are closed and linger (TIME-WAIT).
    #[must_use]
    pub fn connections(&self) -> usize {
        self.stack.connections()
    }
}

/// Wire that passes frames to a carrier. It never receives, because the carrier delivers frames
/// directly to the link.
struct ExternalWire {
    carrier: Arc<dyn FrameCarrier>,
    mac: Mac,
    mtu: usize,
    never: Signal,
}

impl Wire for ExternalWire {
    fn send_with(
        &self,
        header: &[u8; HEADER],
        packet: &[u8],
        _: PacketOffload,
    ) -> Result<bool, LlpError> {
        self.carrier.carry(&[header, packet].concat());
        Ok(true)
    }

    fn recv(&self, _: &mut [u8; HEADER], _: &mut Packet) -> Result<Received, LlpError> {
        Ok(Received::Nothing)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.never.as_fd()
    }

    fn mac(&self) -> Mac {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn describe(&self) -> String {
        "an Ethernet with an external carrier".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smol::{Clock, ManualClock};
    use crate::{Network, Piece, Recv, SendHints};
    use parking_lot::Mutex;
    use std::net::IpAddr;
    use std::time::Duration;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Vec<u8>>>);

    impl FrameCarrier for Kept {
        fn carry(&self, frame: &[u8]) {
            self.0.lock().push(frame.to_vec());
        }
    }

    fn host(last: u8, clock: &Arc<ManualClock>) -> (EthernetNetwork, Arc<Kept>) {
        let given: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
        let settings = LinkSettings {
            addresses: vec![(IpAddr::from([192, 0, 2, last]), 24)],
            clock: given,
            seed: Some(u64::from(last)),
            ..LinkSettings::default()
        };
        let kept = Arc::new(Kept::default());
        let carrier: Arc<Kept> = Arc::clone(&kept);
        let mac = [2, 0, 0, 0, 0, last];
        let network = EthernetNetwork::with_carrier(&settings, mac, carrier).unwrap();
        (network, kept)
    }

    fn carry(from: &Kept, to: &EthernetNetwork) -> usize {
        let frames = std::mem::take(&mut *from.0.lock());
        frames.iter().for_each(|frame| to.deliver(frame));
        frames.len()
    }

    #[test]
    fn a_connection_goes_as_far_as_its_frames_are_carried() {
        let clock = Arc::new(ManualClock::new());
        let ((a, from_a), (b, from_b)) = (host(1, &clock), host(2, &clock));
        let mut listener = b.listen("192.0.2.2:7174".parse().unwrap(), 4).unwrap();
        let mut client = a.connect(None, listener.local_addr()).unwrap();
        let mut server = loop {
            assert!(carry(&from_a, &b) + carry(&from_b, &a) > 0);
            client.drive();
            if let Some(server) = listener.try_accept().unwrap() {
                break server;
            }
        };
        assert!(client.connect_progress().unwrap());
        let bytes = [7; 2000];
        let pieces = [Piece::from(&bytes[..])];
        assert_eq!(client.try_send(&pieces, SendHints::NONE).unwrap(), 2000);
        carry(&from_a, &b);
        let mut got = [0; 2000];
        assert_eq!(server.try_recv(&mut got).unwrap(), Recv::Data(2000));
        drop((client, server));
        assert_eq!((a.connections(), b.connections()), (0, 0));
    }

    #[test]
    fn neighbours_are_asked_for_by_the_clock_that_is_given() {
        let clock = Arc::new(ManualClock::new());
        let (a, from_a) = host(1, &clock);
        // The host probes for its address at once, and announces it 100 ms later and no sooner.
        assert_eq!(from_a.0.lock().drain(..).count(), 1);
        let announced = a.turn().unwrap();
        assert_eq!(announced - clock.now(), Duration::from_millis(100));
        clock.set(announced);
        assert_eq!(a.turn(), None);
        assert_eq!(from_a.0.lock().drain(..).count(), 1);
        let mut silent = a.connect(None, "192.0.2.9:7".parse().unwrap()).unwrap();
        let mut asked = 0;
        while let Some(due) = a.turn() {
            clock.set(due);
            asked += from_a.0.lock().drain(..).count();
        }
        assert_eq!(asked, 3);
        assert!(matches!(
            silent.connect_progress(),
            Err(LlpError::Unreachable { .. })
        ));
    }
}

//! The seam to the Ethernet link, declared as far as the wires and the device specification need it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use uwarp_capture::Capture;

use crate::smol::{Clock, Congestion, SystemClock};
use crate::wire::Wire;
use crate::{Llp, LlpError, LlpListener, Network};

/// What may be set for a host on an Ethernet.
#[derive(Clone)]
pub struct LinkSettings {
    /// Its addresses, each with the length of its network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The routers.
    pub gateways: Vec<IpAddr>,
    /// The largest IP packet in octets.
    pub mtu: Option<usize>,
    /// Octets that each connection holds for its reader.
    pub receive_buffer: usize,
    /// Octets that each connection holds until the peer has acknowledged them.
    pub send_buffer: usize,
    /// Packets that may wait for one connection.
    pub inbox: usize,
    /// What to do about loss.
    pub congestion: Congestion,
    /// How long an acknowledgement waits for data to travel with.
    pub ack_delay: Option<Duration>,
    /// How long a handshake may take.
    pub connect_timeout: Duration,
    /// Where every frame is recorded.
    pub capture: Option<Capture>,
    /// The clock that the timers of TCP run by.
    pub clock: Arc<dyn Clock>,
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            gateways: Vec::new(),
            mtu: None,
            receive_buffer: 256 << 10,
            send_buffer: 256 << 10,
            inbox: 256,
            congestion: Congestion::Reno,
            ack_delay: None,
            connect_timeout: Duration::from_secs(60),
            capture: None,
            clock: Arc::new(SystemClock),
        }
    }
}

/// A host on an Ethernet.
pub struct EthernetNetwork {
    wire: Box<dyn Wire>,
}

impl EthernetNetwork {
    pub(crate) fn open(wire: Box<dyn Wire>, _: &LinkSettings) -> Result<Self, LlpError> {
        Ok(Self { wire })
    }
}

const SEAM: LlpError = LlpError::Misuse {
    op: "use an Ethernet link",
    why: "this is the declaration of its seam only",
};

impl Network for EthernetNetwork {
    fn connect(&self, _: Option<SocketAddr>, _: SocketAddr) -> Result<Box<dyn Llp>, LlpError> {
        Err(SEAM)
    }

    fn listen(&self, _: SocketAddr, _: u32) -> Result<Box<dyn LlpListener>, LlpError> {
        Err(SEAM)
    }

    fn describe(&self) -> String {
        format!(
            "smoltcp over {}, MTU {}",
            self.wire.describe(),
            self.wire.mtu()
        )
    }
}

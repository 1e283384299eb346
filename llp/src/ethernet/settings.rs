//! What may be set for a host on an Ethernet.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use uwarp_capture::Capture;

use crate::LlpError;
use crate::setters::setters;
use crate::smol::{Clock, Congestion, FaultSettings, LATEST_ACK, StackSettings, SystemClock};

/// What may be set for a host on an Ethernet.
#[derive(Clone)]
#[non_exhaustive]
pub struct LinkSettings {
    /// Its addresses, each with the length of its network's prefix; at least one. The first one of
    /// a family is the source of connections that leave their networks. Nothing else on the link,
    /// the kernel of this machine among it, may have them.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The routers for everything that is in none of these networks, one for each family at most.
    pub gateways: Vec<IpAddr>,
    /// The largest IP packet in bytes, 576 to 65535, IPv6 from 1280 on; what the attachment says
    /// by default, and never more than that.
    pub mtu: Option<usize>,
    /// Bytes that each connection holds for its reader, which is the largest window it offers;
    /// 256 KiB by default.
    pub receive_buffer: usize,
    /// Bytes that each connection holds until the peer has acknowledged them; 256 KiB by default.
    pub send_buffer: usize,
    /// Packets that may wait for one connection, 256 by default. Somewhat above twice that, and when they take eight
    /// times the memory of [`receive_buffer`](Self::receive_buffer), what still comes is dropped.
    pub inbox: usize,
    /// What to do about loss; [`Congestion::Reno`] by default.
    pub congestion: Congestion,
    /// Whether what is lost is sent again as soon as repeated acknowledgements or a late answer show it, and not when smoltcp does, mostly
    /// by a timer of a second. Off by default: where an end of the connection is late by two milliseconds
    /// because its processor is busy, segments are sent twice. Never on a link
    /// that [offloads](Self::offload).
    pub early_recovery: bool,
    /// Whether the kernel at the other side of the attachment cuts TCP segments and deals with their checksums;
    /// [`Offload::Auto`] by default. Nobody does when [`faults`](Self::faults) are to corrupt packets, which a
    /// checksum made later would hide.
    pub offload: Offload,
    /// How long an acknowledgement waits for data to travel with. `None`, the default: it does not
    /// wait. With congestion control, waiting makes the start of a transfer slow.
    pub ack_delay: Option<Duration>,
    /// How long a handshake may take before it is [`LlpError::TimedOut`]; 60 s by default.
    pub connect_timeout: Duration,
    /// After so long without traffic the peer is asked whether it is still there. One that says
    /// nothing for ten times as long, whether bytes are under way or not, is gone
    /// ([`LlpError::TimedOut`]). `None`, the default: nobody asks, and a connection to a peer that
    /// has vanished without a word lasts for ever.
    pub keepalive: Option<Duration>,
    /// Where every frame is recorded that was sent or that arrived, those that are not for us too.
    pub capture: Option<Capture>,
    /// Faults to put into the TCP packets of both directions; none by default. ARP, NDP and ICMP are
    /// spared. The capture has what is on the wire: before the faults inbound, after them outbound.
    pub faults: Option<FaultSettings>,
    /// The clock that the timers of TCP run by. Those of the link run by the machine's, but for a host
    /// [`with_carrier`](super::EthernetNetwork::with_carrier) by somebody.
    pub clock: Arc<dyn Clock>,
    /// Where ports and sequence numbers come from, so that two runs send the same; `None`, the default: from chance.
    pub seed: Option<u64>,
}

setters! { LinkSettings {
    addresses: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    mtu: Option<usize>,
    receive_buffer: usize,
    send_buffer: usize,
    inbox: usize,
    congestion: Congestion,
    early_recovery: bool,
    offload: Offload,
    ack_delay: Option<Duration>,
    connect_timeout: Duration,
    keepalive: Option<Duration>,
    capture: Option<Capture>,
    faults: Option<FaultSettings>,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
} }

/// Who cuts the stream of a connection into segments for the wire, and computes their checksums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// The kernel, or its network card, where the attachment is one of TAP or a raw socket and the kernel can: it takes
    /// and gives packets of up to 64 KiB. Else this process.
    #[default]
    Auto,
    /// This process. Packets of up to 64 KiB may arrive all the same from a raw socket.
    Off,
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
            early_recovery: false,
            offload: Offload::default(),
            ack_delay: None,
            connect_timeout: Duration::from_secs(60),
            keepalive: None,
            capture: None,
            faults: None,
            clock: Arc::new(SystemClock),
            seed: None,
        }
    }
}

impl fmt::Debug for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkSettings")
            .field("addresses", &self.addresses)
            .field("gateways", &self.gateways)
            .field("mtu", &self.mtu)
            .field("receive_buffer", &self.receive_buffer)
            .field("send_buffer", &self.send_buffer)
            .field("congestion", &self.congestion)
            .field("offload", &self.offload)
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl LinkSettings {
    /// Whether a wire is to offload, if it can.
    pub(crate) fn offloads(&self) -> bool {
        let corrupts = self.faults.is_some_and(|faults| faults.corrupt > 0.0);
        self.offload == Offload::Auto && !corrupts
    }

    /// What its stack needs, on a wire with this MTU that offloads or does not.
    pub(super) fn stack(&self, wire_mtu: usize, offloads: bool) -> Result<StackSettings, LlpError> {
        let mtu = self.mtu.unwrap_or(wire_mtu.min(65535));
        let settings = StackSettings {
            mtu,
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            inbox: self.inbox,
            inbox_octets: self.receive_buffer.max(LEAST_INBOX).saturating_mul(INBOX),
            congestion: self.congestion,
            early_recovery: self.early_recovery && !offloads,
            checksums: !offloads,
            bursts: offloads,
            ack_delay: self.ack_delay,
            peer_ack_delay: LATEST_ACK,
            connect_timeout: self.connect_timeout,
            keepalive: self.keepalive,
            seed: self.seed,
        };
        settings.check(OPEN)?;
        if self.keepalive.is_some_and(|every| every.is_zero()) {
            return Err(misuse("a keep-alive without a pause would never end"));
        }
        if let Some(faults) = &self.faults {
            faults.check(OPEN)?;
        }
        if mtu > wire_mtu {
            return Err(misuse(
                "the MTU in the settings is above that of the interface; lower it, or raise that \
                 of the interface",
            ));
        }
        Ok(settings)
    }
}

/// An inbox holds so many times what a connection may receive. A packet fills at least a fifth of its buffer, as a rule:
/// see how `receive` chooses one.
const INBOX: usize = 8;
/// Of so many bytes at least: two packets of 64 KiB are to find room.
const LEAST_INBOX: usize = 32 << 10;

const OPEN: &str = "open the Ethernet link";

/// A setting that cannot be.
pub(super) fn misuse(why: &'static str) -> LlpError {
    LlpError::Misuse { op: OPEN, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wire_that_offloads_never_recovers_early() {
        for asked in [true, false] {
            let settings = LinkSettings {
                early_recovery: asked,
                ..LinkSettings::default()
            };
            let recovers = |offloads| settings.stack(1500, offloads).unwrap().early_recovery;
            assert!(!recovers(true));
            assert_eq!(recovers(false), asked);
        }
    }
}

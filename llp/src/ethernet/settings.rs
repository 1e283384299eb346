//! Settings of a host on an Ethernet.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use uwarp_capture::Capture;

use crate::LlpError;
use crate::smol::{Clock, Congestion, FaultSettings, LATEST_ACK, StackSettings, SystemClock};
use uwarp_engine::setters;

/// Settings of a host on an Ethernet.
#[derive(Clone)]
#[non_exhaustive]
pub struct LinkSettings {
    /// Addresses of the host, each with its prefix length; at least one. The first one of a family
    /// is the source of connections to other networks. No other host on the link may have these
    /// addresses, and neither may the kernel of this machine.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routers to all other networks, at most one per family.
    pub gateways: Vec<IpAddr>,
    /// Largest IP packet in bytes: 576 to 65535, and at least 1280 with IPv6. The default is the
    /// MTU of the attachment, which is also the upper limit.
    pub mtu: Option<usize>,
    /// Size in bytes of each connection's receive buffer, which is the largest window that it
    /// offers; 256 KiB by default.
    pub receive_buffer: usize,
    /// Size in bytes of each connection's send buffer, which holds bytes until the peer has
    /// acknowledged them; 256 KiB by default.
    pub send_buffer: usize,
    /// Number of packets waiting for one connection at which other connections of this host hold
    /// back packets for it; 256 by default. At twice this number plus 64, further packets are
    /// dropped. They are also dropped if the buffers of the waiting packets would exceed eight
    /// times [`receive_buffer`](Self::receive_buffer).
    pub inbox: usize,
    /// Congestion control; [`Congestion::Reno`] by default.
    pub congestion: Congestion,
    /// Retransmits lost bytes as soon as repeated acknowledgements or an overdue acknowledgement
    /// indicate the loss. Otherwise smoltcp retransmits them, mostly after a timer of one second.
    /// Off by default: if a busy processor delays one end by two milliseconds, segments are sent
    /// twice. This setting has no effect on a link that [offloads](Self::offload).
    pub early_recovery: bool,
    /// Lets the kernel at the other side of the attachment cut TCP segments and handle their
    /// checksums; [`Offload::Auto`] by default. There is no offload if [`faults`](Self::faults)
    /// corrupt packets, because a checksum computed after the damage would hide it.
    pub offload: Offload,
    /// Time that an acknowledgement waits for data to be sent with it. With `None`, the default, it
    /// does not wait. With congestion control, waiting slows down the start of a transfer.
    pub ack_delay: Option<Duration>,
    /// Time after which an incomplete handshake fails with [`LlpError::TimedOut`]; 60 s by default.
    pub connect_timeout: Duration,
    /// Time without traffic after which the peer is probed. A connection ends with
    /// [`LlpError::TimedOut`] if its peer is silent for ten times this long, whether bytes are in
    /// flight or not. With `None`, the default, the peer is not probed. A connection to a peer that
    /// disappeared then lasts forever.
    pub keepalive: Option<Duration>,
    /// Capture of every frame that is sent or received, including those for other hosts.
    pub capture: Option<Capture>,
    /// Faults of TCP packets in both directions; none by default. Packets of ARP, NDP and ICMP have
    /// no faults. The capture shows the frames on the wire, which means before inbound faults and
    /// after outbound faults.
    pub faults: Option<FaultSettings>,
    /// Clock for TCP's timers. The timers of the link use the system's clock, except for a host
    /// made by [`with_carrier`](super::EthernetNetwork::with_carrier).
    pub clock: Arc<dyn Clock>,
    /// Seed for ports and initial sequence numbers, so that they are the same in every run. **Only
    /// for simulation**, because it makes them predictable. `None`, the default, uses the random
    /// numbers of the system.
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

/// Place where a connection's stream is cut into segments and their checksums are computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// In the kernel or its network card, if the attachment is a TAP device or a raw socket and the
    /// kernel supports it. The kernel then accepts and delivers packets of up to 64 KiB. Otherwise
    /// in this process.
    #[default]
    Auto,
    /// In this process. A raw socket can still receive packets of up to 64 KiB.
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
    /// Returns true if these settings allow offload.
    pub(crate) fn offloads(&self) -> bool {
        let corrupts = self.faults.is_some_and(|faults| faults.corrupt > 0.0);
        self.offload == Offload::Auto && !corrupts
    }

    /// Returns the settings of the stack for a wire with this MTU. `offloads` is true if the wire
    /// supports offload.
    pub(super) fn stack(&self, wire_mtu: usize, offloads: bool) -> Result<StackSettings, LlpError> {
        let mtu = self.mtu.unwrap_or(wire_mtu.min(65535));
        let settings = StackSettings {
            mtu,
            receive_buffer: self.receive_buffer,
            send_buffer: self.send_buffer,
            inbox: self.inbox,
            inbox_bytes: self.receive_buffer.max(LEAST_INBOX).saturating_mul(INBOX),
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

/// Limit on the buffers of an inbox, in units of the receive buffer. `receive.rs` copies short
/// packets into smaller buffers, so packets usually fill at least a fifth of their buffers. A full
/// window then takes at most five times the receive buffer, which is below the limit.
const INBOX: usize = 8;
/// Smallest receive buffer assumed for [`INBOX`], so that an inbox has room for packets of 64 KiB.
const LEAST_INBOX: usize = 32 << 10;

const OPEN: &str = "open the Ethernet link";

/// Makes the error for an invalid setting.
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

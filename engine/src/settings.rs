//! Settings of a connection, and limits on the resources of a device.

use std::time::Duration;

use uwarp_mpa::FpduSegments;
use uwarp_rdmap::Peer;

use crate::setters;

/// Time that siw may take after its MPA Reply until it notices arriving data. An FPDU that arrives
/// earlier stays unread until another FPDU follows. Measured: with a delay of 200 ms none of 25
/// connections stalled, and without a delay every third did.
pub const SIW_FIRST_FPDU_DELAY: Duration = Duration::from_millis(200);

/// Settings of a connection, which are the same for all connections of a device. The settings of a
/// device (`Settings` of `uwarp-verbs`) describe the fields with these names.
#[derive(Clone, Debug)]
pub struct ConnectionSettings {
    /// Number of TCP segments that a sent FPDU may span.
    pub fpdu_segments: FpduSegments,
    /// Sends large payloads with a CRC from the program's memory.
    pub send_in_place: bool,
    /// Retries once with MPA revision 1 if the peer closes on a Request of revision 2.
    pub retry_with_revision_1: bool,
    /// Kind of the peers.
    pub peer: Peer,
    /// Initiator: delay between the MPA Reply and the first FPDU. `None`: that of the peer's kind.
    pub first_fpdu_delay: Option<Duration>,
    /// Initiator: time without an answer to the first FPDU until an empty Write follows it.
    pub wake_up: Option<Duration>,
    /// Responder: sends without waiting for the initiator's first FPDU.
    pub send_first: bool,
    /// Raises a completion event for a Write of the peer.
    pub event_on_write: bool,
    /// Maximum number of RDMA Reads and atomic operations that a peer may have outstanding.
    pub max_ird: u16,
    /// Maximum number of RDMA Reads and atomic operations that this side may have outstanding.
    pub max_ord: u16,
    /// Limits on each wait.
    pub timeouts: Timeouts,
}

impl Default for ConnectionSettings {
    fn default() -> Self {
        let limits = Limits::default();
        ConnectionSettings {
            fpdu_segments: FpduSegments::ONE,
            send_in_place: false,
            retry_with_revision_1: false,
            peer: Peer::default(),
            first_fpdu_delay: None,
            wake_up: Some(SIW_FIRST_FPDU_DELAY),
            send_first: false,
            event_on_write: false,
            max_ird: limits.max_ird,
            max_ord: limits.max_ord,
            timeouts: Timeouts::default(),
        }
    }
}

/// Behaviour when a message of the peer needs a receive and there is none in the QP's own queue or
/// its SRQ (RFC 5041 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNoReceive {
    /// The connection ends with a Terminate Message, as RFC 5041 section 7.1 describes.
    #[default]
    Terminate,
    /// The message waits for a receive, and so does everything after it: nothing more is read from
    /// TCP, whose flow control then stops the peer. RFC 5041 section 7.1 allows this; it resembles
    /// InfiniBand's RNR retry. If no receive is posted within this time, the connection ends as
    /// with `Terminate`. The cause then reports how long the message was held.
    ///
    /// Sending continues, but nothing is received meanwhile: Read Responses and Terminate Messages
    /// that arrive after the message wait as well. A reset is noticed at once. A FIN is checked for
    /// four times a second, but a full TCP window may keep it out. After a FIN the message waits
    /// for at most [`Timeouts::hold_after_close`]. A waiting connection holds a receive buffer of
    /// at most 1 MiB, which counts as receive memory ([`Limits::max_receive_memory`]).
    ///
    /// No other limit applies. A peer whose message waits here counts as stalled
    /// ([`Timeouts::stalled`]) only if it does not read what this side sends. But a peer that has
    /// more to send than TCP can buffer may give up by its own limits. For a uwarp peer that limit
    /// is its `Timeouts::stalled`.
    Hold(Duration),
}

/// Limits on the resources of one device (RFC 5042 section 6.4). Exceeding one is an error that
/// names the limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of QPs that exist at once. Default: 262,144.
    pub max_qp: u32,
    /// Maximum number of CQs that exist at once. Default: 65,536.
    pub max_cq: u32,
    /// Maximum number of registered regions and memory windows that exist at once. Default:
    /// 1,048,576.
    pub max_mr: u32,
    /// Maximum number of SRQs that exist at once. Default: 65,536.
    pub max_srq: u32,
    /// Maximum number of protection domains that exist at once. A domain exists while it has a
    /// handle or contains an object. Default: 65,536.
    pub max_pd: u32,
    /// Maximum number of work requests in one send or receive queue. Default: 32,768.
    pub max_wr: u32,
    /// Maximum number of receives in one SRQ. Default: 262,144.
    pub max_srq_wr: u32,
    /// Maximum number of scatter/gather elements in one work request. Default: 16.
    pub max_sge: u32,
    /// Maximum number of bytes of inline data in one work request. Default: 512.
    pub max_inline_data: u32,
    /// Maximum number of entries in one CQ. A CQ that several QPs share needs room for all their
    /// queues, and for the receives that they take from SRQs. A QP ends if the CQ has no room for
    /// one of its completions (`Cq`). Default: 4,194,304.
    pub max_cqe: u32,
    /// Maximum number of RDMA Reads and atomic operations that a peer may have outstanding on one
    /// connection. Default: 128.
    pub max_ird: u16,
    /// Maximum number of RDMA Reads and atomic operations that this side may have outstanding on
    /// one connection. Default: 128.
    pub max_ord: u16,
    /// Maximum number of connections of one listener that are in startup or wait for a decision.
    /// When one more arrives, the oldest whose Request is incomplete after 100 ms is reset
    /// (`StartupError::Displaced`). If there is none, the new
    /// connection waits in TCP's own queue. Default: 4,096.
    pub max_startup: u32,
    /// Maximum number of connections of the device that peers opened and that are in startup, wait
    /// for a decision, or are being closed after a rejection. One more displaces another as with
    /// `max_startup`, or is reset. Default: 16,384.
    pub max_half_open: u32,
    /// Maximum number of RDMA Reads and atomic operations that all peers together may have
    /// outstanding: the sum of the IRDs of all connections. When little is left, a new connection
    /// gets a smaller IRD. Default: 33,554,432.
    pub max_ird_total: u32,
    /// Maximum number of bytes that are kept of FPDUs that are partly received. While that much is
    /// in use, each peer may receive one FPDU at a time, and its other connections are not read. An
    /// FPDU that was begun when more than half was in use, and that is not finished after 2 s, then
    /// ends its connection (`EndReason::Stalled`). Default: 1 GiB.
    pub max_receive_memory: u64,
    /// Maximum number of bytes of buffers for FPDUs that peers do not read. Memory that is sent in
    /// place is not counted. While that much is in use, each peer is sent one FPDU at a time.
    /// Default: 1 GiB.
    pub max_send_memory: u64,
    /// Limits on each protection domain.
    pub per_pd: PdLimits,
    /// Limits on each peer address.
    pub per_peer: PeerLimits,
}

setters! { const Limits {
    max_qp: u32,
    max_cq: u32,
    max_mr: u32,
    max_srq: u32,
    max_pd: u32,
    max_wr: u32,
    max_srq_wr: u32,
    max_sge: u32,
    max_inline_data: u32,
    max_cqe: u32,
    max_ird: u16,
    max_ord: u16,
    max_startup: u32,
    max_half_open: u32,
    max_ird_total: u32,
    max_receive_memory: u64,
    max_send_memory: u64,
    per_pd: PdLimits,
    per_peer: PeerLimits,
} }

/// Limits on one protection domain, so that one part of a program leaves resources to the others
/// (RFC 5042 section 6.4.1).
///
/// CQs belong to no protection domain; [`Limits::max_cq`] bounds them. A connection in startup
/// belongs to none until a QP of the domain accepts it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PdLimits {
    /// Maximum number of QPs that exist at once. Default: no limit besides that of the device.
    pub max_qp: u32,
    /// Maximum number of registered regions and memory windows that exist at once. Default: no
    /// limit besides that of the device.
    pub max_mr: u32,
    /// Maximum number of SRQs that exist at once. Default: no limit besides that of the device.
    pub max_srq: u32,
    /// Maximum number of receives that all queues of the domain together can hold: the sum of the
    /// sizes with which the receive queues of QPs and the SRQs were created. Default:
    /// 4,294,967,295.
    pub max_recv_wr: u32,
    /// Same as [`Limits::max_ird_total`], but for the connections of the domain's QPs. Default: no
    /// limit besides that of the device.
    pub max_ird_total: u32,
}

setters! { const PdLimits {
    max_qp: u32,
    max_mr: u32,
    max_srq: u32,
    max_recv_wr: u32,
    max_ird_total: u32,
} }

/// Limits on the resources that one peer may hold at this side (RFC 5042 sections 6.4.1 to 6.4.3).
///
/// A peer is an IPv4 address, or an IPv6 network of 64 bits, because a host may own all addresses
/// of such a network. The link-local addresses of one interface count as one peer, and so do peers
/// that share an address translator.
///
/// A default is a sixteenth of the limit of the device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PeerLimits {
    /// Maximum number of connections that the peer opened and the program accepted. One more is
    /// rejected. Default: 16,384.
    pub max_qp: u32,
    /// Same as [`Limits::max_half_open`], but for one peer. One more is reset. Default: 1,024.
    pub max_half_open: u32,
    /// Same as [`Limits::max_ird_total`], but for one peer. Default: 2,097,152.
    pub max_ird_total: u32,
    /// Same as [`Limits::max_receive_memory`], but for one peer. Default: 64 MiB.
    pub max_receive_memory: u64,
    /// Same as [`Limits::max_send_memory`], but for one peer. Default: 64 MiB.
    pub max_send_memory: u64,
    /// Number of connections that may end because the peer accessed memory without permission (an
    /// STag, a right or a bound was wrong), before new connections of the peer are delayed. One end
    /// is forgotten every 10 s. With more, the peer's connections are accepted one at a time: 100
    /// ms after the last one, then 200 ms, and so on, at most 10 s. Others are rejected
    /// (`StartupError::TooManyStagErrors`). So a peer
    /// cannot try STags until one is valid. 4,294,967,295: no limit. Default: 4,096, because test
    /// suites cause hundreds of errors on purpose.
    pub max_stag_errors: u32,
}

setters! { const PeerLimits {
    max_qp: u32,
    max_half_open: u32,
    max_ird_total: u32,
    max_receive_memory: u64,
    max_send_memory: u64,
    max_stag_errors: u32,
} }

/// Timeouts in the life of a connection (RFC 5042 section 6.4.2).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Timeouts {
    /// Maximum time from `connect` until TCP is connected. Default: 10 s.
    pub connect: Duration,
    /// Initiator: time during which a `connect` by address is retried every 50 ms while the peer's
    /// TCP refuses. A client may then start before its server listens. Programs expect this if they
    /// were written for networks that repeat such requests. Default: zero, so a refusal is reported
    /// at once.
    pub refused: Duration,
    /// Initiator: maximum time from the MPA Request until the Reply is complete. Default: 10 s.
    pub reply: Duration,
    /// Responder: maximum time from TCP's accept until the MPA Request is complete (5044-7.1.2-18).
    /// Default: 5 s.
    pub request: Duration,
    /// Responder: maximum time from the Request until the consumer accepts or rejects. Default: 30
    /// s.
    pub decision: Duration,
    /// Responder in peer-to-peer mode: maximum time from the Reply until the RTR indication.
    /// Default: 10 s.
    pub rtr: Duration,
    /// Responder in the client-server model: maximum time from the Reply until the first FPDU.
    /// Default: none, because a client may have nothing to send for a long time.
    pub first_fpdu: Option<Duration>,
    /// After a graceful close or a Terminate: time without progress until the connection is given
    /// up. Progress is work that completes, and bytes that the peer's TCP acknowledges: at least 4
    /// KiB, or all that is left. Once the peer has acknowledged everything, the same time limits
    /// the wait for the peer's own close. If data is lost, the connection ends with
    /// `EndReason::CloseTimedOut`. Responses to the peer's Reads
    /// and atomics belong to the close if the requests had arrived when it began. Responses to
    /// later requests are sent, too, but do not extend the time. Default: 5 s.
    pub close: Duration,
    /// Limit on a stalled direction, after which the connection is reset. A peer that does not read
    /// what this side sends, or does not finish an FPDU that it began, occupies memory here:
    /// buffers, and regions that cannot be deregistered meanwhile. Any byte that TCP takes is
    /// progress of sending; only a complete FPDU is progress of receiving. The reset comes after at
    /// most twice this time. A message that waits for a receive here ([`OnNoReceive::Hold`]) is no
    /// stall. `None`: no limit, as needed for a peer that a debugger stops. Default: 120 s.
    pub stalled: Option<Duration>,
    /// Further time that a message waits for a receive ([`OnNoReceive::Hold`]) after its sender has
    /// closed the connection, within the limit of `Hold`. Default: 2 s.
    pub hold_after_close: Duration,
}

setters! { const Timeouts {
    connect: Duration,
    refused: Duration,
    reply: Duration,
    request: Duration,
    decision: Duration,
    rtr: Duration,
    first_fpdu: Option<Duration>,
    close: Duration,
    stalled: Option<Duration>,
    hold_after_close: Duration,
} }

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_qp: 1 << 18,
            max_cq: 65_536,
            max_mr: 1 << 20,
            max_srq: 65_536,
            max_pd: 65_536,
            max_wr: 32_768,
            max_srq_wr: 1 << 18,
            max_sge: 16,
            max_inline_data: 512,
            max_cqe: 1 << 22,
            max_ird: 128,
            max_ord: 128,
            max_startup: 4096,
            max_half_open: 16_384,
            max_ird_total: 1 << 25,
            max_receive_memory: 1 << 30,
            max_send_memory: 1 << 30,
            per_pd: PdLimits::default(),
            per_peer: PeerLimits::default(),
        }
    }
}

impl Default for PdLimits {
    fn default() -> Self {
        PdLimits {
            max_qp: u32::MAX,
            max_mr: u32::MAX,
            max_srq: u32::MAX,
            max_recv_wr: u32::MAX,
            max_ird_total: u32::MAX,
        }
    }
}

impl Default for PeerLimits {
    fn default() -> Self {
        PeerLimits {
            max_qp: 1 << 14,
            max_half_open: 1024,
            max_ird_total: 1 << 21,
            max_receive_memory: 64 << 20,
            max_send_memory: 64 << 20,
            max_stag_errors: 4096,
        }
    }
}

impl Timeouts {
    /// Returns the defaults, like [`Default`], in a constant context.
    #[must_use]
    pub const fn new() -> Self {
        Timeouts {
            connect: Duration::from_secs(10),
            refused: Duration::ZERO,
            reply: Duration::from_secs(10),
            request: Duration::from_secs(5),
            decision: Duration::from_secs(30),
            rtr: Duration::from_secs(10),
            first_fpdu: None,
            close: Duration::from_secs(5),
            stalled: Some(Duration::from_secs(120)),
            hold_after_close: Duration::from_secs(2),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts::new()
    }
}

//! Settings of a device: protocol choices, limits, timeouts.

use std::time::Duration;

use uwarp_llp::Keepalive;
use uwarp_mpa::{FpduSegments, Revision, RtrKinds};
use uwarp_rdmap::Peer;

use crate::clock::TimeSource;
use crate::setters::setters;

/// Time that siw may take after its MPA Reply until it notices arriving data. An FPDU that arrives
/// earlier stays unread until another FPDU follows. Measured: with a delay of 200 ms none of 25
/// connections stalled, and without a delay every third did.
pub(crate) const SIW_FIRST_FPDU_DELAY: Duration = Duration::from_millis(200);

/// Settings of a [`Device`](crate::Device). The defaults are safe and interoperable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Requests CRC32C for both directions. CRC is in use if either side requests it (RFC 5044
    /// section 7.1.1). Default: on, as RFC 5044 section 4.4 demands. Switch it off only if the path
    /// is known to be protected equally well (5044-1.2-02, 5044-4.4-02).
    pub crc: bool,
    /// Asks the peer to insert Markers into the FPDUs that it sends. This side inserts Markers
    /// whenever the peer asks for them, regardless of this setting. Default: off.
    pub markers: bool,
    /// Number of TCP segments that a sent FPDU may span. With more than one, large messages become
    /// fewer and longer FPDUs. Long FPDUs are cheaper if a lower layer cuts the segments: the
    /// kernel or network card below a `tap` or `raw` device with offload, or the kernel's TCP over
    /// an Ethernet.
    ///
    /// A value above one gives up FPDU alignment. A ULPDU may be longer than RFC 5044 section 4.5
    /// allows (5044-4.5-01, 5044-4.5-02, 5044-5.1-01, and so 5041-5.2-02), and a segment may begin
    /// within an FPDU (5044-5.1-03). No RFC promises that a peer accepts this: uwarp does, but some
    /// adapters end the connection (docs/links.md). At a uwarp peer, [`Timeouts::stalled`] then
    /// limits the time for an FPDU of up to 64 KiB. After a loss, more data must arrive before the
    /// peer can place any.
    ///
    /// Received FPDUs are not affected. On a loopback device one segment already holds the longest
    /// FPDU. Default: [`FpduSegments::ONE`], as the RFC demands. [`FpduSegments::MOST`] makes FPDUs
    /// as long as whole segments allow, below 64 KiB.
    pub fpdu_segments: FpduSegments,
    /// Sends large payloads with a CRC from the program's memory instead of copying them first.
    /// Each FPDU with at least 8 KiB of payload is then read twice: for the CRC when it is framed,
    /// and by TCP when it is sent. If the program writes to the memory in between, the CRC is wrong
    /// and the peer ends the connection. **Only for programs that leave the memory of a Send or
    /// Write unchanged until the request completes**, as the verbs demand. On an Intel Xeon, the
    /// copy costs up to 11 % of the bandwidth of 64 KiB messages and gains up to 6 % at 1 MiB
    /// (docs/performance.md has the command).
    ///
    /// Without this setting a copy is checksummed and sent, so every FPDU is valid whatever the
    /// program does. Read Responses and FPDUs with Markers are always copied. Connections without a
    /// CRC never copy: a payload that changes meanwhile arrives torn, but in a valid FPDU. Default:
    /// off.
    pub send_in_place: bool,
    /// MPA revision of an initiator's first Request. Default: 2 (RFC 6581).
    pub revision: Revision,
    /// Highest MPA revision that a responder accepts. With revision 1 it acts as an endpoint that
    /// does not know RFC 6581 and closes on enhanced Requests. Default: 2.
    pub accept_revision: Revision,
    /// Retries once with revision 1, on a new connection, if the peer closes on a Request of
    /// revision 2 (RFC 6581 section 10). Default: off.
    pub retry_with_revision_1: bool,
    /// Kinds of RTR indication that this side can send and accept (RFC 6581 section 9.2). Default:
    /// all three.
    pub rtr: RtrKinds,
    /// Kind of the peers, which selects the departures from the RFCs that this side expects. With
    /// [`Peer::Siw`], Terminate Messages are read in siw's layout, IRD is stated as a power of two,
    /// private data that siw cannot accept is refused, and the first FPDU is delayed
    /// ([`first_fpdu_delay`](Self::first_fpdu_delay)). Bytes on the wire follow the RFCs in any
    /// case. Default: [`Peer::Rfc`].
    pub peer: Peer,
    /// Initiator: delay between the MPA Reply and the first FPDU. A workaround for responders that
    /// miss an early FPDU, such as Linux siw. Default: 200 ms with [`Peer::Siw`](Self::peer),
    /// otherwise none.
    pub first_fpdu_delay: Option<Duration>,
    /// Initiator: sends one RDMA Write of zero length if no byte of an FPDU has arrived from the
    /// peer for this long after the first sent FPDU. It wakes a responder that overlooked the first
    /// FPDU, as Linux siw sometimes does; other peers ignore it. It is not sent if the first FPDU
    /// was delayed by [`first_fpdu_delay`](Self::first_fpdu_delay), or while other data is waiting
    /// to be sent. `None`: never. Default: 200 ms. A first FPDU sent 200 ms after siw's Reply was
    /// overlooked on none of 25 connections.
    pub wake_up: Option<Duration>,
    /// Responder: sends once [`first_fpdu_delay`](Self::first_fpdu_delay) has passed after its MPA
    /// Reply, without waiting for the initiator's first FPDU. RFC 5044 section 7.1.2 makes a
    /// responder wait for that FPDU without limit. A program whose server sends first then never
    /// starts, unless the initiator requests the peer-to-peer model of RFC 6581, which Linux siw
    /// does not support. Use this setting only with initiators that are known to be ready after the
    /// delay. Default: off.
    pub send_first: bool,
    /// Behaviour when a message of the peer needs a receive and none is posted. A QP may override
    /// it ([`QpBuilder::on_no_receive`](crate::QpBuilder::on_no_receive)). Default:
    /// [`OnNoReceive::Terminate`].
    pub on_no_receive: OnNoReceive,
    /// Raises a completion event for a Write of the peer if no completion of the QP is pending.
    ///
    /// This setting is for programs that sleep until a Write of the peer lets them continue. Such a
    /// program takes the event, polls without finding a completion, reads its memory and arms the
    /// CQ again.
    ///
    /// The event goes to the send CQ of the QP, if all of these hold:
    /// * The CQ has a channel and is armed for any completion.
    /// * The QP has posted a request before, and none is outstanding. If a request is outstanding,
    ///   the event is raised when none is left, unless a completion raises an event first.
    /// * If the CQ is the receive CQ too, no receive is posted.
    ///
    /// On other transports a Send completes when the peer has acknowledged it. The peer's Write
    /// usually arrives before that completion, whose event then wakes the program. Here a Send
    /// completes when TCP has taken it, which RFC 5040 section 5.5 allows. Default: off.
    pub event_on_write: bool,
    /// A Write completes when the peer has placed it, as on InfiniBand. By default it completes
    /// when TCP has taken it, which RFC 5040 section 5.5 allows. A program needs this if it tells
    /// the peer of its Writes by another connection.
    ///
    /// An empty RDMA Read confirms all Writes before it; at most one is outstanding. It needs a
    /// place among the Reads (ORD), so that Writes complete as by default if the peer allows no
    /// Reads. A QP may override it ([`QpBuilder::placed_writes`](crate::QpBuilder::placed_writes)).
    pub placed_writes: bool,
    /// Limits on resources.
    pub limits: Limits,
    /// Limits on each wait.
    pub timeouts: Timeouts,
    /// Detects dead peers: after this much silence the connection ends with
    /// [`LlpError::TimedOut`](uwarp_llp::LlpError::TimedOut). `None` leaves the detection to the
    /// network, which does not probe by itself. An idle connection then survives forever if its
    /// peer vanishes. [`QpBuilder::keepalive`](crate::QpBuilder::keepalive) sets it for one QP.
    /// Default: `None`.
    pub keepalive: Option<Keepalive>,
    /// Writes the error and the last frames ([`Qp::flight_record`](crate::Qp::flight_record)) of
    /// each connection that ends in error to standard error. The environment variable
    /// `UWARP_TRACE=errors` does so for all devices. Default: off.
    pub trace_errors: bool,
    /// Time after the last poll of a CQ until the background thread drives its connections again
    /// and sends staged requests ([`Qp::post_send`](crate::Qp::post_send)), and confirmations of
    /// [`placed_writes`](Self::placed_writes) that wait for a post of the program.
    ///
    /// The thread checks periodically, so this may take twice as long. It checks less often while
    /// the program polls continuously: then it may take an additional eighth of the polling time,
    /// at most ten times `takeover`. If the last bytes were not received by a poll, the thread
    /// receives at once.
    /// Default: 50 us.
    pub takeover: Duration,
    /// Driver of connections while no call of the program drives them. Default: a thread of the
    /// device.
    pub progress: Progress,
    /// Source of the device's time. Default: the monotonic clock of the system.
    pub clock: TimeSource,
    /// Seed of everything random in the device, **for simulation only**. With a seed, a peer can
    /// compute the STags of regions that were never advertised to it; RFC 5042 section 6.1.1 wants
    /// them hard to guess. Default: `None`, the random numbers of the system.
    pub seed: Option<u64>,
}

setters! { Settings {
    crc: bool,
    markers: bool,
    fpdu_segments: FpduSegments,
    send_in_place: bool,
    revision: Revision,
    accept_revision: Revision,
    retry_with_revision_1: bool,
    rtr: RtrKinds,
    peer: Peer,
    first_fpdu_delay: Option<Duration>,
    wake_up: Option<Duration>,
    send_first: bool,
    on_no_receive: OnNoReceive,
    event_on_write: bool,
    placed_writes: bool,
    limits: Limits,
    timeouts: Timeouts,
    keepalive: Option<Keepalive>,
    trace_errors: bool,
    takeover: Duration,
    progress: Progress,
    clock: TimeSource,
    seed: Option<u64>,
} }

/// Driver of a device's connections while no call of the program drives them. libfabric calls it
/// the progress model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// A thread of the device, which sleeps while there is nothing to do.
    #[default]
    Automatic,
    /// The program calls [`Device::progress`](crate::Device::progress) when
    /// [`Device::progress_fd`](crate::Device::progress_fd) is readable, and at the time that the
    /// last call returned. This is for programs with an event loop of their own, and for
    /// simulation. The device has no thread.
    ///
    /// **No call on the device sleeps**, because the device would make no progress meanwhile. A
    /// call with a timeout checks once, as if the timeout were zero. The calls that can only wait
    /// return an error: [`Qp::connect`](crate::Qp::connect),
    /// [`Qp::connect_over`](crate::Qp::connect_over) and
    /// [`Device::request_over`](crate::Device::request_over). A [`CmId`](crate::CmId) and the
    /// [async API](crate::aio) connect without waiting. Posting and polling still drive the
    /// connections concerned. Posts are sent at once, and [`Settings::takeover`] has no effect.
    Manual,
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
    /// one of its completions ([`Cq`](crate::Cq)). Default: 4,194,304.
    pub max_cqe: u32,
    /// Maximum number of RDMA Reads and atomic operations that a peer may have outstanding on one
    /// connection. Default: 128.
    pub max_ird: u16,
    /// Maximum number of RDMA Reads and atomic operations that this side may have outstanding on
    /// one connection. Default: 128.
    pub max_ord: u16,
    /// Maximum number of connections of one listener that are in startup or wait for a decision.
    /// When one more arrives, the oldest whose Request is incomplete after 100 ms is reset
    /// ([`StartupError::Displaced`](crate::StartupError::Displaced)). If there is none, the new
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
    /// ends its connection ([`EndReason::Stalled`](crate::EndReason::Stalled)). Default: 1 GiB.
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
    /// ([`StartupError::TooManyStagErrors`](crate::StartupError::TooManyStagErrors)). So a peer
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
    /// [`EndReason::CloseTimedOut`](crate::EndReason::CloseTimedOut). Responses to the peer's Reads
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

impl Default for Settings {
    fn default() -> Self {
        Settings {
            crc: true,
            markers: false,
            fpdu_segments: FpduSegments::ONE,
            send_in_place: false,
            revision: Revision::Two,
            accept_revision: Revision::Two,
            retry_with_revision_1: false,
            rtr: RtrKinds::ALL,
            peer: Peer::default(),
            first_fpdu_delay: None,
            wake_up: Some(SIW_FIRST_FPDU_DELAY),
            send_first: false,
            on_no_receive: OnNoReceive::default(),
            event_on_write: false,
            placed_writes: false,
            limits: Limits::default(),
            timeouts: Timeouts::default(),
            keepalive: None,
            trace_errors: false,
            takeover: Duration::from_micros(50),
            progress: Progress::default(),
            clock: TimeSource::default(),
            seed: None,
        }
    }
}

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

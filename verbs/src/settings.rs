//! What a device can be told: protocol choices, limits, timeouts.

use std::time::Duration;

use uwarp_llp::Keepalive;
use uwarp_mpa::{FpduSegments, Revision, RtrKinds};
use uwarp_rdmap::Peer;

use crate::clock::TimeSource;
use crate::setters::setters;

/// How long siw may take between its MPA Reply and the moment from which it notices what arrives.
/// An FPDU that comes earlier stays unread until another one follows it. Measured: with 200 ms none
/// of 25 connections stalled, without a delay every third.
pub(crate) const SIW_FIRST_FPDU_DELAY: Duration = Duration::from_millis(200);

/// Settings of a [`Device`](crate::Device) (the verbs have no counterpart). `Default` is safe and interoperable.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Ask for CRC32C in both directions. CRC is in use when either side asks for it
    /// (RFC 5044 section 7.1.1). Default: on, as RFC 5044 section 4.4 demands; only who knows that the path is protected
    /// as well may switch it off (5044-1.2-02, 5044-4.4-02).
    pub crc: bool,
    /// Ask the peer to put Markers into what it sends us. Markers are inserted into what we send
    /// whenever the peer asks for them, whatever this says. Default: off.
    pub markers: bool,
    /// Over how many TCP segments an FPDU that we send may go. With more than one, large messages are fewer and longer FPDUs, which
    /// costs less where segments are cut by somebody else: by the kernel or the network card below a `tap` or `raw` device with
    /// offload, or for the kernel's TCP over an Ethernet. FPDU alignment is given up for it: a ULPDU is longer than RFC 5044 section 4.5 says
    /// (5044-4.5-01, 5044-4.5-02, 5044-5.1-01, and so 5041-5.2-02), and a segment may begin within an FPDU (5044-5.1-03). No RFC promises that a
    /// peer takes it: uwarp does, some adapters end the connection (docs/links.md). At the peer, `Timeouts::stalled` is then the time for
    /// an FPDU of up to 64 KiB, and after a loss more has to come before anything can be placed. What we receive is not concerned. On a loopback device a segment holds the longest FPDU as it is. Default: [`FpduSegments::ONE`], as the
    /// RFC has it; [`FpduSegments::MOST`] is FPDUs as long as whole segments make them, below 64 KiB.
    pub fpdu_segments: FpduSegments,
    /// Send large payloads with a CRC from the program's memory instead of copying them first. Each FPDU with 8 KiB
    /// of payload or more is then read twice: for the CRC when it is framed, and by TCP when it is sent. A program
    /// that writes to the memory in between makes the CRC wrong, and the peer ends the connection. **Only for programs
    /// that leave the memory of a Send or Write unchanged until the request completes**, as the verbs ask.
    /// On an Intel Xeon the copy costs up to 11 % of the bandwidth of 64 KiB messages, and gains up
    /// to 6 % at 1 MiB (docs/performance.md has the command).
    ///
    /// Without this, a copy is checksummed and sent, so that every FPDU is valid whatever the program does. Not
    /// concerned are Read Responses (always copied), FPDUs with Markers (always copied), and connections without
    /// a CRC (never copied; a payload that changes meanwhile arrives torn, but valid). Default: off.
    pub send_in_place: bool,
    /// The MPA revision an initiator opens with. Default: 2 (RFC 6581).
    pub revision: Revision,
    /// The highest MPA revision that a responder takes. Revision 1 makes it an endpoint that does
    /// not know RFC 6581: it closes on enhanced requests. Default: 2.
    pub accept_revision: Revision,
    /// When the peer closes on a revision 2 request, try once more with revision 1 on a new
    /// connection (RFC 6581 section 10). Default: off.
    pub retry_with_revision_1: bool,
    /// Kinds of RTR indication we can send and take (RFC 6581 section 9.2). Default: all three.
    pub rtr: RtrKinds,
    /// Who the peers are: which departures from the RFCs this side is ready for. With
    /// [`Peer::Siw`] Terminate Messages are read by siw's layout, IRD is stated as a power of two,
    /// private data that siw cannot take is refused, and the first FPDU waits
    /// ([`first_fpdu_delay`](Self::first_fpdu_delay)). What goes on the wire follows the RFCs in any
    /// case. Default: [`Peer::Rfc`].
    pub peer: Peer,
    /// Initiator: how long to wait behind the MPA Reply before the first FPDU. A workaround for a
    /// responder that misses an FPDU that comes too early, as Linux siw does. Default: what
    /// [`peer`](Self::peer) needs, which is 200 ms for siw and nothing else.
    pub first_fpdu_delay: Option<Duration>,
    /// Initiator: when nothing of an FPDU has come from the peer for this long after our first one,
    /// send an RDMA Write of zero length, once. It wakes a responder that has overlooked the first
    /// FPDU, as Linux siw does now and then; others ignore it. Not sent where the first FPDU waits
    /// for [`first_fpdu_delay`](Self::first_fpdu_delay), nor while there is something else to send.
    /// `None`: never. Default: 200 ms, after which siw overlooked none of 25.
    pub wake_up: Option<Duration>,
    /// Responder: once [`first_fpdu_delay`](Self::first_fpdu_delay) has passed behind its MPA Reply, send without having had the
    /// initiator's first FPDU. RFC 5044 section 7.1.2 has it wait for that one, for as long as it takes, so that a program whose
    /// server speaks first never starts, unless the initiator asks for the peer-to-peer model of RFC 6581; Linux siw cannot ask.
    /// Only for initiators that are known to be ready by then. Default: off.
    pub send_first: bool,
    /// What happens when a message of the peer comes that needs a receive, and none is posted. A QP may choose
    /// otherwise ([`QpBuilder::on_no_receive`](crate::QpBuilder::on_no_receive)). Default:
    /// [`OnNoReceive::Terminate`].
    pub on_no_receive: OnNoReceive,
    /// A Write of the peer sends an event to an armed send CQ to which nothing of that QP can complete: no request is outstanding (with one that is, the
    /// event comes when it is none any more, unless a completion was quicker), and,
    /// where it is the receive CQ too, no receive is posted, so that what was written is all that the program can be waiting for. There is
    /// no completion then: a program that takes the event and polls finds none, looks at its memory, and arms the CQ again. For programs that
    /// sleep with nothing outstanding until the peer gives them leave for more by a Write. Where a Send completes when the peer has
    /// acknowledged it, leave mostly comes first; here it completes when TCP has taken it, which RFC 5040 section 5.5 allows.
    /// Only where the CQ is armed for any completion and has a channel, and the QP has posted a request before. Default: off.
    pub event_on_write: bool,
    /// Limits on resources.
    pub limits: Limits,
    /// How long each wait may last.
    pub timeouts: Timeouts,
    /// Half-open detection: when a peer that is silent is taken for dead, and the connection ends with
    /// [`LlpError::TimedOut`](uwarp_llp::LlpError::TimedOut). `None` leaves it to the network, which by itself asks
    /// nobody: a connection to a peer that has vanished without a word, and with nothing under way, then stands for
    /// ever. [`QpBuilder::keepalive`](crate::QpBuilder::keepalive) sets it for one QP. Default: `None`.
    pub keepalive: Option<Keepalive>,
    /// When a connection ends in error, write the error and the record of its last frames
    /// ([`Qp::flight_record`](crate::Qp::flight_record)) to standard error, as `UWARP_TRACE=errors` in the environment
    /// does for all devices. Default: off.
    pub trace_errors: bool,
    /// How long after the last poll of a CQ the background thread takes its connections over
    /// again, and sends what posts have left to a poll. It looks every so often, so that may take twice as long; and
    /// more rarely while a program polls without a pause, so that one that has polled for long may wait an eighth of that time in addition, ten
    /// times as long at most. Where the last bytes were not received by a poll, it receives at once. Default: 50 us.
    pub takeover: Duration,
    /// Who looks after connections that no call of the program is looking after. Default: a thread of the device.
    pub progress: Progress,
    /// Where the device gets the time. Default: the clock of the machine.
    pub clock: TimeSource,
    /// What everything random in the device comes from, **for simulation alone**: with a seed a peer can compute the
    /// STags of regions that nobody has advertised to it (RFC 5042 section 6.1.1 wants them hard to guess). Default:
    /// `None`, the random numbers of the system.
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
    limits: Limits,
    timeouts: Timeouts,
    keepalive: Option<Keepalive>,
    trace_errors: bool,
    takeover: Duration,
    progress: Progress,
    clock: TimeSource,
    seed: Option<u64>,
} }

/// Who looks after the connections of a device while no call of the program does: the progress model, as libfabric
/// calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Progress {
    /// A thread of the device, which sleeps while there is nothing to do.
    #[default]
    Automatic,
    /// The program calls [`Device::progress`](crate::Device::progress), when
    /// [`Device::progress_fd`](crate::Device::progress_fd) is readable and at the time that the last call gave: for a
    /// program with an event loop of its own, and for simulation. The device has no thread.
    ///
    /// **No call of the device sleeps** then, for nobody would drive it meanwhile: whatever time to wait a call is
    /// given (or none, "without end"), it looks once, as if it were zero, and tells that nothing came in time. The
    /// calls that can only wait ([`Qp::connect`](crate::Qp::connect), [`Qp::connect_over`](crate::Qp::connect_over),
    /// [`Device::request_over`](crate::Device::request_over)) refuse; a [`CmId`](crate::CmId) and the
    /// [async API](crate::aio) connect without waiting. Posting and polling still drive the connections that they are
    /// about, posts go out at once, and [`Settings::takeover`] means nothing.
    Manual,
}

/// What happens when a message of the peer needs a receive and there is none, neither in the QP's own queue nor in
/// its SRQ (RFC 5041 section 7.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnNoReceive {
    /// The connection ends with a Terminate Message, as RFC 5041 section 7.1 says of a queue without a buffer.
    #[default]
    Terminate,
    /// The message waits for a receive, and everything behind it: nothing more is read from TCP, which makes the
    /// peer stop in time. The same section allows it, and it is as near as iWARP comes to InfiniBand's RNR retry.
    /// When no receive was posted within this time, the connection ends as with `Terminate`; its cause says how
    /// long the message was held.
    ///
    /// What this side sends goes on, but nothing is heard from the peer meanwhile: answers to Reads and Terminate
    /// Messages wait behind the message. A reset is noticed at once. A FIN is looked for four times a second, and from
    /// then on the message waits for [`Timeouts::hold_after_close`] at most. (One that cannot pass TCP's full window is not seen.) A connection that waits holds
    /// a receive buffer of 1 MiB at most, which counts as receive memory ([`Limits::max_receive_memory`]).
    ///
    /// The time has no other bound: a peer whose message waits here does not count as stalled
    /// ([`Timeouts::stalled`]), unless it does not take what this side sends. But a peer that has more to send than
    /// TCP has room for may itself lose patience; if it is uwarp too, after its own `Timeouts::stalled`.
    Hold(Duration),
}

/// Limits on what one device hands out (RFC 5042 section 6.4). Reaching one is an error that names it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// QPs that exist at once. Default: 65,536.
    pub max_qp: u32,
    /// CQs that exist at once. Default: 65,536.
    pub max_cq: u32,
    /// Registered regions and memory windows that exist at once. Default: 1,048,576.
    pub max_mr: u32,
    /// SRQs that exist at once. Default: 65,536.
    pub max_srq: u32,
    /// Protection domains that exist at once: one does as long as there is a handle to it or an object in it. Default:
    /// 65,536.
    pub max_pd: u32,
    /// Work requests in one send or receive queue. Default: 32,768.
    pub max_wr: u32,
    /// Receives in one SRQ. Default: 262,144.
    pub max_srq_wr: u32,
    /// Scatter/gather elements in one work request. Default: 16.
    pub max_sge: u32,
    /// Bytes of inline data in one work request. Default: 512.
    pub max_inline_data: u32,
    /// Entries in one CQ. A CQ that several QPs share needs room for all their queues, and for the receives that
    /// they take from SRQs: a QP that loses a completion ends ([`Cq`](crate::Cq)). Default: 4,194,304.
    pub max_cqe: u32,
    /// RDMA Reads and atomic operations a peer may have outstanding towards us on one connection. Default: 128.
    pub max_ird: u16,
    /// RDMA Reads and atomic operations we may have outstanding on one connection. Default: 128.
    pub max_ord: u16,
    /// Connections of one listener that are in startup or wait for a decision. When one more comes, the oldest whose Request
    /// is not whole after 100 ms is reset ([`StartupError::Displaced`](crate::StartupError::Displaced)); where there is
    /// none, it waits in TCP's own queue. Default: 4,096.
    pub max_startup: u32,
    /// Connections of the device that peers have opened and that are in startup, wait for a decision, or
    /// are being closed after it was no. One more displaces another as with `max_startup`, or is reset. Default: 16,384.
    pub max_half_open: u32,
    /// RDMA Reads and atomic operations that all peers together may have outstanding towards us: the sum of the IRDs of all
    /// connections. When little is left, a new connection is granted a smaller IRD. Default: 4,194,304.
    pub max_ird_total: u32,
    /// Bytes of buffers for FPDUs that have begun to come and are not whole. While that much is in use,
    /// nothing is read from connections that are between FPDUs. Default: 1 GiB.
    pub max_receive_memory: u64,
    /// Limits for each protection domain.
    pub per_pd: PdLimits,
    /// Limits for each peer address.
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
    per_pd: PdLimits,
    per_peer: PeerLimits,
} }

/// What one protection domain may have, so that one part of a program leaves something to the others
/// (RFC 5042 section 6.4.1).
///
/// CQs belong to no protection domain; [`Limits::max_cq`] bounds them. Nor does a connection in startup, until a QP of
/// the domain accepts it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PdLimits {
    /// QPs that exist at once. Default: as many as the device has.
    pub max_qp: u32,
    /// Registered regions and memory windows that exist at once. Default: as many as the device has.
    pub max_mr: u32,
    /// SRQs that exist at once. Default: as many as the device has.
    pub max_srq: u32,
    /// Receives that all its queues together can hold: the sum of the sizes of the receive queues of QPs, and of SRQs, as
    /// they were made. Default: 4,294,967,295.
    pub max_recv_wr: u32,
    /// As [`Limits::max_ird_total`], of the connections of its QPs. Default: as many as the device has.
    pub max_ird_total: u32,
}

setters! { const PdLimits {
    max_qp: u32,
    max_mr: u32,
    max_srq: u32,
    max_recv_wr: u32,
    max_ird_total: u32,
} }

/// What one peer may make this side hold (RFC 5042 sections 6.4.1 to 6.4.3).
///
/// A peer is an IPv4 address, or an IPv6 network of 64 bits (a host owns the whole of it; a link-local
/// address stands for itself). Peers behind one address translator are one peer.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PeerLimits {
    /// Connections that it opened and the program accepted. One more is rejected. Default: 32,768.
    pub max_qp: u32,
    /// As [`Limits::max_half_open`], of this peer; one more is reset. Default: 2,048.
    pub max_half_open: u32,
    /// As [`Limits::max_ird_total`], of this peer. Default: 2,097,152.
    pub max_ird_total: u32,
    /// As [`Limits::max_receive_memory`], of this peer. Default: 512 MiB.
    pub max_receive_memory: u64,
}

setters! { const PeerLimits {
    max_qp: u32,
    max_half_open: u32,
    max_ird_total: u32,
    max_receive_memory: u64,
} }

/// Timeouts of a connection's life (RFC 5042 section 6.4.2).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Timeouts {
    /// From `connect` until TCP is connected. Default: 10 s.
    pub connect: Duration,
    /// Initiator: how long TCP asks again, every 50 ms, where the peer's TCP refuses (of a `connect` by address). A server
    /// that is about to listen then finds its client waiting, as programs expect that were written for networks where
    /// such a request is repeated for them. Default: none, a refusal is told at once.
    pub refused: Duration,
    /// Initiator: from the MPA Request until the whole Reply. Default: 10 s.
    pub reply: Duration,
    /// Responder: from TCP's accept until the whole MPA Request (5044-7.1.2-18). Default: 5 s.
    pub request: Duration,
    /// Responder: from the Request until the consumer accepts or rejects. Default: 30 s.
    pub decision: Duration,
    /// Responder in peer-to-peer mode: from the Reply until the RTR indication. Default: 10 s.
    pub rtr: Duration,
    /// Responder in the client-server model: from the Reply until the first FPDU. Default: none, for a
    /// client may have nothing to say for long.
    pub first_fpdu: Option<Duration>,
    /// After a graceful close or a Terminate: time without progress until the connection is given
    /// up. Progress is work that completes, and bytes that the peer's TCP acknowledges: at least 4
    /// KiB, or all that is left. When the peer has everything, this is the time for its own close.
    /// If something is lost, the end is
    /// [`EndReason::CloseTimedOut`](crate::EndReason::CloseTimedOut). Answers to the peer's Reads
    /// and atomics belong to the close if the requests had arrived when it began. Answers to later
    /// requests are sent, too, but give it no more time. Default: 5 s.
    pub close: Duration,
    /// A peer that reads nothing of what we have to send, or does not finish an FPDU that it began, keeps
    /// memory of ours: buffers, and regions that cannot be deregistered meanwhile. After so long (at most
    /// twice) without any progress of that direction the connection is reset. An byte that TCP takes is
    /// progress of what we send; of what the peer sends, an FPDU that is whole. A message that waits for a
    /// receive here ([`OnNoReceive::Hold`]) is no stall. `None` lets such a peer
    /// keep them, as a debugger that stops the peer may need. Default: 120 s.
    pub stalled: Option<Duration>,
    /// How long a message that waits for a receive ([`OnNoReceive::Hold`]) still waits when its sender has closed the connection
    /// behind it, if its own bound is not over before. Default: 2 s.
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
            max_qp: 65_536,
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
            max_ird_total: 1 << 22,
            max_receive_memory: 1 << 30,
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
            max_qp: 32_768,
            max_half_open: 2048,
            max_ird_total: 1 << 21,
            max_receive_memory: 512 << 20,
        }
    }
}

impl Timeouts {
    /// The defaults, as [`Default`] gives them, for constants.
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

//! Settings of a device: protocol choices, limits, timeouts.

use std::time::Duration;

use uwarp_engine::settings::{ConnectionSettings, SIW_FIRST_FPDU_DELAY};
pub use uwarp_engine::settings::{Limits, OnNoReceive, PdLimits, PeerLimits, Timeouts};
use uwarp_llp::Keepalive;
use uwarp_mpa::{FpduSegments, Revision, RtrKinds};
use uwarp_rdmap::Peer;

use crate::clock::TimeSource;
use crate::policy::progress::TAKEOVER;
use uwarp_engine::setters;

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
            takeover: TAKEOVER,
            progress: Progress::default(),
            clock: TimeSource::default(),
            seed: None,
        }
    }
}

impl Settings {
    /// Returns the part that connections use.
    pub(crate) fn of_connections(&self) -> ConnectionSettings {
        ConnectionSettings {
            fpdu_segments: self.fpdu_segments,
            send_in_place: self.send_in_place,
            retry_with_revision_1: self.retry_with_revision_1,
            peer: self.peer,
            first_fpdu_delay: self.first_fpdu_delay,
            wake_up: self.wake_up,
            send_first: self.send_first,
            event_on_write: self.event_on_write,
            max_ird: self.limits.max_ird,
            max_ord: self.limits.max_ord,
            timeouts: self.timeouts,
        }
    }
}

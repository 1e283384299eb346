//! Phases of the LLP stream of a connection.

use crate::mutants::mutate;
use uwarp_mpa::{FpduSegments, Negotiated, SendGate};
use uwarp_rdmap::{Peer, Stream, StreamConfig};

use super::closing::Close;
use super::inbound::InboundHalf;
use super::outbound::OutboundHalf;
use super::startup::Startup;
use super::work::SendQueue;

/// Phase of the LLP stream of a connection, with the data whose life is that of the phase.
///
/// ```text
///                start_initiator                Reply accepted
///   Detached ──────────────────────► Startup ──────────────────► Open
///      ▲  │                             │                         ▲ │
///      │  └───────── start_responder (accept), start_open ────────┘ │
///      │                                │                           │
///      └── failed, refused, timed out, aborted, closed ─────────────┘
/// ```
///
/// A snapshot in `connection/tests.rs` shows the effect of each event in each stage.
pub(crate) enum Stage {
    /// No LLP stream.
    Detached,
    /// An initiator connects TCP, and then waits for the MPA Reply.
    Startup(Box<Startup>),
    /// Full Operation: segments in both directions.
    Open(Box<OpenStream>),
}

impl Stage {
    /// Returns the open stream.
    #[inline]
    pub(super) fn open(&self) -> Option<&OpenStream> {
        match self {
            Stage::Open(stream) => Some(stream),
            Stage::Detached | Stage::Startup(_) => None,
        }
    }

    /// Returns the open stream.
    #[inline]
    pub(super) fn open_mut(&mut self) -> Option<&mut OpenStream> {
        match self {
            Stage::Open(stream) => Some(stream),
            Stage::Detached | Stage::Startup(_) => None,
        }
    }

    /// Returns the attempt of an initiator to set up its stream.
    pub(super) fn startup(&self) -> Option<&Startup> {
        match self {
            Stage::Startup(startup) => Some(startup),
            Stage::Detached | Stage::Open(_) => None,
        }
    }

    /// Returns the attempt of an initiator to set up its stream.
    pub(super) fn startup_mut(&mut self) -> Option<&mut Startup> {
        match self {
            Stage::Startup(startup) => Some(startup),
            Stage::Detached | Stage::Open(_) => None,
        }
    }

    /// Returns the close that is under way.
    pub(super) fn close(&self) -> Option<&Close> {
        self.open()?.close.as_ref()
    }

    /// Returns the close that is under way.
    pub(super) fn close_mut(&mut self) -> Option<&mut Close> {
        self.open_mut()?.close.as_mut()
    }

    /// Returns true if there is no LLP stream, and none is being set up. That is so also between
    /// the attempts for two addresses.
    pub(super) fn is_detached(&self) -> bool {
        match self {
            Stage::Detached => true,
            Stage::Startup(startup) => startup.failure().is_some(),
            Stage::Open(_) => false,
        }
    }
}

/// An open stream: both directions, and what they share.
pub(crate) struct OpenStream {
    /// Receiving half.
    pub(super) inbound: InboundHalf,
    /// Sending half.
    pub(super) outbound: OutboundHalf,
    /// RDMAP and DDP. The Reads of one direction are answered in the other.
    pub(super) rdmap: Stream,
    /// Whether this side may send, which depends on what has arrived.
    pub(super) gate: SendGate,
    pub(super) negotiated: Negotiated,
    /// The close that is under way, with its time limit.
    pub(super) close: Option<Close>,
}

impl OpenStream {
    /// Creates the parts of a stream that enters Full Operation.
    ///
    /// `send_immediate`: the peer takes Immediate Data that belongs to a Send.
    pub(super) fn new(
        negotiated: Negotiated,
        peer: Peer,
        segments: FpduSegments,
        emss: usize,
        send_immediate: bool,
    ) -> Self {
        let config = StreamConfig {
            ird: negotiated.ird,
            ord: negotiated.ord,
        };
        OpenStream {
            inbound: InboundHalf::new(&negotiated),
            outbound: OutboundHalf::new(&negotiated, segments, emss, send_immediate),
            rdmap: Stream::new(config).with_peer(peer),
            gate: mutate!(negotiated.send_gate(), ResponderSendsFirst => SendGate::Open),
            negotiated,
            close: None,
        }
    }

    /// Returns true if something may be framed: the rest of a message, an answer, or a request of
    /// the send queue.
    #[inline]
    pub(super) fn has_unsent(&self, sq: &SendQueue) -> bool {
        self.outbound.current.is_some()
            || self.rdmap.requests_pending()
            || sq.next_to_send().is_some()
            || sq.unconfirmed().is_some() && self.rdmap.ord_available()
    }

    /// Returns true if no posted work and no request of the peer is unfinished.
    pub(super) fn is_drained(&self, sq: &SendQueue) -> bool {
        sq.is_empty() && self.outbound.current.is_none() && !self.rdmap.requests_pending()
    }

    /// Returns true if all that is to be sent are Responses to empty Reads, which nearly always
    /// confirm Writes of the peer.
    pub(super) fn owes_only_confirmations(&self, sq: &SendQueue) -> bool {
        self.outbound.current.is_none()
            && self.rdmap.only_empty_reads_pending()
            && sq.next_to_send().is_none()
            && sq.unconfirmed().is_none()
    }
}

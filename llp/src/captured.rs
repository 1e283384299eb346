//! [`Captured`]: a connection whose bytes also go to a capture file.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use uwarp_capture::{Flow, Interface};

use crate::{Keepalive, Llp, LlpError, Piece, Recv, SendHints};

/// Wraps a connection of the kernel's TCP, whose packets this process does not see, and records the
/// bytes that it sends and receives. [`Flow`] generates consistent TCP/IP headers for the record.
///
/// The record holds sent bytes when TCP *accepts* them, and received bytes when [`Llp::try_recv`]
/// returns them. The sent bytes are copied for the record just after the call that sent them. A
/// program must not change a source buffer before its completion. If it does, the bytes in the
/// record may differ from those on the wire.
pub struct Captured<L> {
    inner: L,
    /// Created when the connection is established, because both addresses are known only then.
    flow: Option<Flow>,
    interface: Interface,
    /// Bytes of one `try_send`, gathered for the record. The buffer is reused.
    gathered: Vec<u8>,
    ended: Ended,
}

/// Directions whose end (a FIN or a reset) has been recorded.
#[derive(Default)]
struct Ended {
    sending: bool,
    receiving: bool,
}

impl<L: Llp> Captured<L> {
    /// Wraps a connection that this side opens. The record begins, with the SYN, when the
    /// connection is established.
    pub fn connecting(inner: L, interface: Interface) -> Self {
        Self {
            inner,
            flow: None,
            interface,
            gathered: Vec::new(),
            ended: Ended::default(),
        }
    }

    /// Wraps an accepted connection.
    pub fn accepted(inner: L, interface: Interface) -> Self {
        let mut this = Self::connecting(inner, interface);
        this.open(false);
        this
    }

    /// Returns the wrapped connection.
    pub fn get_ref(&self) -> &L {
        &self.inner
    }

    fn open(&mut self, we_connected: bool) {
        if self.flow.is_none() {
            let (local, peer) = (self.inner.local_addr(), self.inner.peer_addr());
            let mut flow = Flow::new(self.interface.clone(), local, peer, self.inner.emss());
            flow.opened(we_connected);
            self.flow = Some(flow);
        }
    }

    /// Records a reset by the peer, unless the ends of both directions were recorded before.
    /// Returns the error for the caller.
    fn failed(&mut self, error: LlpError) -> LlpError {
        if let (LlpError::Reset { .. }, Some(flow), false) = (
            error,
            &mut self.flow,
            self.ended.sending && self.ended.receiving,
        ) {
            flow.peer_reset();
            self.ended = Ended {
                sending: true,
                receiving: true,
            };
        }
        error
    }
}

impl<L: Llp> Llp for Captured<L> {
    fn try_recv(&mut self, buf: &mut [u8]) -> Result<Recv, LlpError> {
        let result = self.inner.try_recv(buf);
        match (result, &mut self.flow) {
            (Ok(Recv::Data(count)), Some(flow)) => {
                if let Some(bytes) = buf.get(..count) {
                    flow.received(bytes);
                }
            }
            (Ok(Recv::Closed), Some(flow)) if !self.ended.receiving => {
                flow.peer_fin();
                self.ended.receiving = true;
            }
            _ => {}
        }
        result.map_err(|error| self.failed(error))
    }

    fn try_send(&mut self, pieces: &[Piece<'_>], hints: SendHints<'_>) -> Result<usize, LlpError> {
        let taken = self
            .inner
            .try_send(pieces, hints)
            .map_err(|error| self.failed(error))?;
        if let Some(flow) = &mut self.flow {
            self.gathered.clear();
            for piece in pieces {
                let missing = taken - self.gathered.len();
                if missing == 0 {
                    break;
                }
                piece.append_to(missing, &mut self.gathered);
            }
            if taken > 0 {
                flow.sent(&self.gathered);
            }
        }
        Ok(taken)
    }

    fn emss(&self) -> usize {
        self.inner.emss()
    }

    fn congestion_control(&self) -> Option<String> {
        self.inner.congestion_control()
    }

    fn shutdown(&mut self) -> Result<(), LlpError> {
        self.inner.shutdown().map_err(|error| self.failed(error))?;
        if let (Some(flow), false) = (&mut self.flow, self.ended.sending) {
            flow.local_fin();
            self.ended.sending = true;
        }
        Ok(())
    }

    fn abort(&mut self) {
        self.inner.abort();
        if let (Some(flow), false) = (&mut self.flow, self.ended.sending && self.ended.receiving) {
            flow.local_reset();
            self.ended = Ended {
                sending: true,
                receiving: true,
            };
        }
    }

    fn flushed(&mut self) -> bool {
        self.inner.flushed()
    }

    fn unacknowledged(&mut self) -> usize {
        self.inner.unacknowledged()
    }

    fn lost(&mut self) -> Option<LlpError> {
        let error = self.inner.lost()?;
        Some(self.failed(error))
    }

    fn peer_closed(&mut self) -> bool {
        self.inner.peer_closed()
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn peer_addr(&self) -> SocketAddr {
        self.inner.peer_addr()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn wants_write_event(&self) -> bool {
        self.inner.wants_write_event()
    }

    fn clear_readiness(&mut self) {
        self.inner.clear_readiness();
    }

    fn deadline(&self) -> Option<Instant> {
        self.inner.deadline()
    }

    fn drive(&mut self) {
        self.inner.drive();
    }

    fn set_keepalive(&mut self, keepalive: Keepalive) -> Result<(), LlpError> {
        self.inner.set_keepalive(keepalive)
    }

    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        let stands = self.inner.connect_progress()?;
        if stands {
            self.open(true);
        }
        Ok(stands)
    }
}

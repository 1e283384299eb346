//! A startup frame goes to TCP in one call, whole: Linux siw waits in its only worker for the rest of
//! one that comes in pieces, and other connections with it.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;

use uwarp_llp::{FpduEnds, Keepalive, Llp, LlpError, Piece, Recv};

use super::wire::startup;
use super::*;
use crate::progress::drive::{Driven, Waits};

/// One call: how many pieces, and the octets.
type Call = (usize, Vec<u8>);

/// An LLP that takes everything and remembers each call.
struct Recorder {
    calls: Arc<Mutex<Vec<Call>>>,
    fd: OwnedFd,
}

impl Llp for Recorder {
    fn try_recv(&mut self, _: &mut [u8]) -> Result<Recv, LlpError> {
        Ok(Recv::WouldBlock)
    }
    fn try_send(&mut self, pieces: &[Piece<'_>], _: FpduEnds<'_>) -> Result<usize, LlpError> {
        let mut octets = Vec::new();
        let mut count = 0;
        for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
            piece.append_to(piece.len(), &mut octets);
            count += 1;
        }
        let taken = octets.len();
        self.calls.lock().unwrap().push((count, octets));
        Ok(taken)
    }
    fn emss(&self) -> usize {
        536
    }
    fn shutdown(&mut self) -> Result<(), LlpError> {
        Ok(())
    }
    fn abort(&mut self) {}
    fn set_keepalive(&mut self, _: Keepalive) -> Result<(), LlpError> {
        Ok(())
    }
    fn lost(&mut self) -> Option<LlpError> {
        None
    }
    fn flushed(&mut self) -> bool {
        true
    }
    fn local_addr(&self) -> SocketAddr {
        "192.0.2.1:1".parse().unwrap()
    }
    fn peer_addr(&self) -> SocketAddr {
        "192.0.2.2:2".parse().unwrap()
    }
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
    fn wants_write_event(&self) -> bool {
        true
    }
    fn clear_readiness(&mut self) {}
    fn deadline(&self) -> Option<Instant> {
        None
    }
    fn drive(&mut self) {}
    fn connect_progress(&mut self) -> Result<bool, LlpError> {
        Ok(true)
    }
}

/// What a connection hands to TCP in its first turn.
fn first_turn(end: End) -> Vec<Call> {
    let calls = Arc::default();
    let fd = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    let mut driven = Driven {
        conn: end.conn,
        llp: Some(Box::new(Recorder {
            calls: Arc::clone(&calls),
            fd,
        })),
        rx: ReceiveBuffer::default(),
        peer: None,
        waits: Waits::default(),
    };
    driven.turn(&BufferPool::default(), Instant::now());
    calls.lock().unwrap().clone()
}

#[test]
fn startup_frames_go_to_tcp_in_one_call() {
    let settings = Settings::default();
    for private_data in [0, 1, 251, 508] {
        let mut client = End::new(&Memory::new(), &settings);
        let config = InitiatorConfig {
            private_data: vec![7; private_data],
            ..initiator_config(&settings)
        };
        assert!(client.conn.start_initiator(config, true).unwrap());
        let mut calls = first_turn(client);
        let (pieces, request) = calls.remove(0);
        assert_eq!((pieces, calls.len()), (1, 0));
        assert_eq!(startup(&request).len, request.len());

        let mut server = accept(&settings, &Memory::new(), &request);
        // Posted before the Reply has gone: nothing of it joins the Reply.
        server
            .conn
            .post_send(&SendWr::send_inline(1, b"early"))
            .unwrap();
        let mut calls = first_turn(server);
        let (pieces, reply) = calls.remove(0);
        assert_eq!((pieces, calls.len()), (1, 0));
        assert_eq!(startup(&reply).len, reply.len());
    }
}

//! The raw peer, which is a kernel TCP socket without an RDMA stack.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::wire::{Fpdus, receive_startup, startup};

/// Time limit of every wait. Only a hang takes this long. The limit says nothing about speed: a
/// loaded machine may take minutes for work of a few milliseconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Repeats `look` until it returns a value, and panics after [`PATIENCE`].
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One connection of the raw peer, with the FPDU encoders of both directions.
pub(crate) struct Peer {
    stream: TcpStream,
    /// True if the socket was reset before its first use.
    was_reset: bool,
    local: SocketAddr,
    pub(crate) tx: Fpdus,
    pub(crate) rx: Fpdus,
}

impl Peer {
    pub(crate) fn connect(to: SocketAddr) -> Self {
        Self::new(TcpStream::connect(to).expect("the listener takes TCP connections"))
    }

    /// Connects from another address of this host, which counts as another peer.
    #[allow(
        dead_code,
        reason = "only some test binaries have peers of several addresses"
    )]
    pub(crate) fn connect_from(from: [u8; 4], to: SocketAddr) -> Self {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((from, 0))).unwrap();
        // The address is read now, because a socket that was reset has none.
        let stream = TcpStream::from(socket);
        let local = stream.local_addr().unwrap();
        let connected = connect(&stream, &to);
        // A connection that is refused may be reset before the call returns.
        let was_reset = connected == Err(rustix::io::Errno::CONNRESET);
        assert!(
            connected.is_ok() || was_reset,
            "the listener takes TCP connections: {connected:?}"
        );
        Peer {
            was_reset,
            local,
            ..Self::new(stream)
        }
    }

    pub(crate) fn accept(listener: &TcpListener) -> Self {
        listener.set_nonblocking(true).unwrap();
        let stream = eventually("a TCP connection", || match listener.accept() {
            Ok((stream, _)) => Some(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("accept: {error}"),
        });
        stream.set_nonblocking(false).unwrap();
        Self::new(stream)
    }

    fn new(stream: TcpStream) -> Self {
        let local = stream.local_addr().unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Peer {
            stream,
            was_reset: false,
            local,
            tx: Fpdus::new(true, false),
            rx: Fpdus::new(true, false),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.local
    }

    /// Sends raw bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream
            .write_all(bytes)
            .expect("the other side takes bytes");
    }

    /// Sends bytes to a side that may have closed the connection. Returns true if the socket
    /// accepted them.
    #[allow(
        dead_code,
        reason = "only some test binaries have peers that are refused"
    )]
    pub(crate) fn offers(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    pub(crate) fn send_startup(
        &mut self,
        key: &[u8; 16],
        flags: u8,
        revision: u8,
        private_data: &[u8],
    ) {
        self.send(&startup(key, flags, revision, private_data));
    }

    /// Sends ULPDUs, each in an FPDU, in a single write.
    pub(crate) fn send_ulpdus<U: AsRef<[u8]>>(&mut self, ulpdus: &[U]) {
        let fpdus: Vec<u8> = ulpdus
            .iter()
            .flat_map(|ulpdu| self.tx.seal(ulpdu.as_ref()))
            .collect();
        self.send(&fpdus);
    }

    fn receive<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream
            .read_exact(&mut bytes)
            .unwrap_or_else(|error| panic!("{N} bytes were due: {error}"));
        bytes
    }

    /// Receives one startup frame, with its private data.
    pub(crate) fn receive_startup(&mut self) -> Vec<u8> {
        receive_startup(&mut self.stream).unwrap().bytes()
    }

    /// Receives the next FPDU and returns its ULPDU. PAD, Markers and CRC must equal those that
    /// `Fpdus` would have written.
    pub(crate) fn receive_ulpdu(&mut self) -> Vec<u8> {
        let begin = self.rx.clone();
        let mut words = Vec::new();
        let mut wire = Vec::new();
        let mut due = usize::MAX;
        while words.len() < due {
            let word: [u8; 4] = self.receive();
            let is_marker = self.rx.markers && (begin.position + wire.len()).is_multiple_of(512);
            wire.extend_from_slice(&word);
            if !is_marker {
                words.extend_from_slice(&word);
                let len = usize::from(u16::from_be_bytes([words[0], words[1]]));
                due = (2 + len).next_multiple_of(4) + 4;
            }
        }
        let len = usize::from(u16::from_be_bytes([words[0], words[1]]));
        let ulpdu = words[2..2 + len].to_vec();
        assert_eq!(
            wire,
            self.rx.seal(&ulpdu),
            "the FPDU that was received, and what it should be"
        );
        ulpdu
    }

    /// Expects a FIN without any data before it.
    pub(crate) fn expect_fin(&mut self) {
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(0) => {}
            Ok(count) => panic!("a FIN was due, but bytes came: {:02x?}", &bytes[..count]),
            Err(error) => panic!("a FIN was due: {error}"),
        }
    }

    /// Expects a reset. Any bytes before it are ignored.
    pub(crate) fn expect_reset(&mut self) {
        if self.was_reset {
            return;
        }
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => panic!("a reset was due, but a FIN came"),
                Ok(_) => {}
                Err(error) => {
                    return assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                }
            }
        }
    }

    /// Returns true if bytes of the other side wait to be received.
    #[allow(dead_code, reason = "only some test binaries have peers that ask")]
    pub(crate) fn has_arrived(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let found = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        found.is_ok_and(|bytes| bytes > 0)
    }

    /// Expects the end of the connection, a FIN or a reset. Any bytes before it are ignored.
    #[allow(
        dead_code,
        reason = "only some test binaries have peers that are refused"
    )]
    pub(crate) fn expect_end(&mut self) {
        if self.was_reset {
            return;
        }
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => {
                    return assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                }
            }
        }
    }

    /// Sends single bytes with short pauses between them until the other side ends the connection.
    pub(crate) fn drip(&mut self, bytes: &[u8]) {
        self.stream
            .set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();
        let dripped = bytes.iter().position(|byte| {
            let _ = self.stream.write_all(&[*byte]);
            !matches!(self.stream.peek(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
        });
        assert!(dripped.is_some(), "all bytes were taken");
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    /// Sends a FIN unless one was sent before.
    pub(crate) fn fin(&self) {
        match self.stream.shutdown(Shutdown::Write) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}"),
        }
    }

    pub(crate) fn reset(&self) {
        // This has the same effect as closing with an `SO_LINGER` of 0, but the descriptor stays
        // open.
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
        rustix::net::connect_unspec(&self.stream).unwrap();
    }
}

//! A peer without an iWARP stack. It sends the given bytes and returns the received ones. It uses
//! kernel TCP, because only the layers above TCP are tested.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::wire::PATIENCE;
pub use uwarp_oracle::{
    CRC as C, Crc, ENHANCED as S, MARKERS as M, REJECT as R, REPLY, REQUEST, SEND_INVALIDATE,
    StartupFrame, TERMINATE, Tagged, Untagged, fpdu, read_request,
};
use uwarp_oracle::{receive_fpdu, receive_startup};

/// One TCP connection to the guest.
pub struct RawPeer {
    stream: TcpStream,
    crc: Crc,
}

/// A listener for connections from the guest.
pub struct RawListener(TcpListener);

impl RawListener {
    /// Listens on a free port.
    ///
    /// # Errors
    /// Names the step that the system refused.
    pub fn bind(ip: IpAddr) -> Result<RawListener> {
        let listener = TcpListener::bind((ip, 0))?;
        listener.set_nonblocking(true)?;
        Ok(RawListener(listener))
    }

    /// Returns the port on which the listener listens.
    ///
    /// # Errors
    /// Names the step that the system refused.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    /// No connection arrives in time.
    pub fn accept(&self) -> Result<RawPeer> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.0.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false)?;
                    return RawPeer::new(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if Instant::now() > deadline {
                return Err(Failure::new("the guest does not connect to the raw peer"));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl RawPeer {
    /// Connects to the guest. The caller must send an MPA Request, because a connection without one
    /// can kill siw's listener.
    ///
    /// # Errors
    /// The guest does not accept the connection.
    pub fn connect(to: SocketAddr) -> Result<RawPeer> {
        let stream = TcpStream::connect_timeout(&to, PATIENCE)
            .map_err(|error| Failure::new(format!("the guest at {to}: {error}")))?;
        RawPeer::new(stream)
    }

    fn new(stream: TcpStream) -> Result<RawPeer> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(RawPeer {
            stream,
            crc: Crc::Zero,
        })
    }

    /// Switches CRCs on for all later FPDUs, in both directions.
    pub fn use_crc(&mut self) {
        self.crc = Crc::Right;
    }

    /// Sends these bytes in one call.
    ///
    /// # Errors
    /// The error of TCP.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// Sends a ULPDU in an FPDU, with a CRC if CRCs are in use.
    ///
    /// # Errors
    /// The error of TCP.
    pub fn send_ulpdu(&mut self, ulpdu: &[u8]) -> Result<()> {
        let bytes = fpdu(ulpdu, self.crc);
        self.send(&bytes)
    }

    /// Receives the guest's MPA Request or Reply.
    ///
    /// # Errors
    /// The frame does not arrive completely.
    pub fn startup_frame(&mut self) -> Result<StartupFrame> {
        receive_startup(&mut self.stream).map_err(|error| missed("MPA startup frame", &error))
    }

    /// Receives `len` bytes of any kind.
    ///
    /// # Errors
    /// The bytes do not arrive.
    pub fn bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = self.stream.read_exact(&mut bytes);
        read.map_err(|error| missed("next bytes", &error))?;
        Ok(bytes)
    }

    /// Closes the sending half (FIN).
    ///
    /// # Errors
    /// The error of TCP.
    pub fn half_close(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// Receives the ULPDU of the next FPDU.
    ///
    /// # Errors
    /// The FPDU does not arrive completely, or its CRC is wrong.
    pub fn ulpdu(&mut self) -> Result<Vec<u8>> {
        let fpdu = receive_fpdu(&mut self.stream).map_err(|error| missed("FPDU", &error))?;
        let want = match self.crc {
            Crc::Zero => 0,
            _ => fpdu.right_crc,
        };
        if fpdu.crc != want {
            return Err(Failure::new(format!(
                "the CRC field of the guest's FPDU {:02x?} is {:08x}, not {want:08x}",
                fpdu.ulpdu, fpdu.crc
            )));
        }
        Ok(fpdu.ulpdu)
    }

    /// Receives a Terminate Message with QN 2, MSN 1 and MO 0, and returns its Terminate Header.
    ///
    /// # Errors
    /// Another message arrives, or none.
    pub fn terminate(&mut self) -> Result<Vec<u8>> {
        let ulpdu = self
            .ulpdu()
            .map_err(|failure| failure.during("expected a Terminate Message"))?;
        let want = Untagged::new(TERMINATE, 2, 1, &[]).bytes();
        match ulpdu.strip_prefix(&want[..]) {
            Some(header) => Ok(header.to_vec()),
            None => Err(Failure::new(format!(
                "expected a Terminate Message, got: {ulpdu:02x?}"
            ))),
        }
    }

    /// Receives all bytes until the guest closes or resets the connection. QEMU's user network does
    /// not distinguish FIN and RST.
    ///
    /// # Errors
    /// The guest does not close the connection.
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(bytes),
                Ok(count) => bytes.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(bytes);
                }
                Err(error) => {
                    return Err(Failure::new(format!(
                        "the guest should close the connection, but: {error}; received so far: {bytes:02x?}"
                    )));
                }
            }
        }
    }

    /// Checks that the guest closes without sending another byte.
    ///
    /// # Errors
    /// The guest does not close the connection, or sends another byte.
    pub fn closed(&mut self) -> Result<()> {
        let bytes = self.rest()?;
        if bytes.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the guest should close the connection, but sent {bytes:02x?} first"
        )))
    }
}

fn missed(what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("receiving the guest's {what}: {error}"))
}

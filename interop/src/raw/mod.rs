//! A peer that is no iWARP stack: it sends what it is told, and shows what comes. It runs over the
//! kernel's TCP, because what it is for lies above TCP.

mod frame;

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::wire::PATIENCE;
pub use frame::{
    C, Crc, LAST, M, MORE, R, REPLY, REQUEST, S, StartupFrame, TAGGED_LAST, TAGGED_MORE, Tagged,
    Untagged, crc32c, fpdu, read_request,
};

/// One TCP connection.
pub struct RawPeer {
    stream: TcpStream,
    crc: Crc,
}

/// Where the guest can connect to.
pub struct RawListener(TcpListener);

impl RawListener {
    /// Listens on a free port.
    ///
    /// # Errors
    /// What the system refused.
    pub fn bind(ip: IpAddr) -> Result<RawListener> {
        let listener = TcpListener::bind((ip, 0))?;
        listener.set_nonblocking(true)?;
        Ok(RawListener(listener))
    }

    /// The port.
    ///
    /// # Errors
    /// What the system refused.
    pub fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// The next connection.
    ///
    /// # Errors
    /// None came.
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
    /// Connects to the guest. The caller has to send an MPA Request: siw can lose its listener to a
    /// connection without one.
    ///
    /// # Errors
    /// It is refused.
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

    /// FPDUs have CRCs from here on.
    pub fn use_crc(&mut self) {
        self.crc = Crc::Right;
    }

    /// Sends these bytes in one piece.
    ///
    /// # Errors
    /// What TCP says.
    pub fn send(&mut self, octets: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(octets)?)
    }

    /// Sends an FPDU, as the connection has them.
    ///
    /// # Errors
    /// What TCP says.
    pub fn send_ulpdu(&mut self, ulpdu: &[u8]) -> Result<()> {
        let octets = fpdu(ulpdu, self.crc);
        self.send(&octets)
    }

    fn take(&mut self, len: usize, what: &str) -> Result<Vec<u8>> {
        let mut octets = vec![0; len];
        self.stream
            .read_exact(&mut octets)
            .map_err(|error| Failure::new(format!("of the guest's {what}: {error}")))?;
        Ok(octets)
    }

    /// The guest's MPA Request or Reply.
    ///
    /// # Errors
    /// It does not come whole.
    pub fn startup_frame(&mut self) -> Result<StartupFrame> {
        let head = self.take(20, "MPA startup frame")?;
        let len = u16::from_be_bytes([head[18], head[19]]);
        let mut key = [0; 16];
        key.copy_from_slice(&head[..16]);
        let private_data = self.take(len.into(), "private data")?;
        Ok(StartupFrame::new(key, head[16], head[17], &private_data))
    }

    /// So many bytes, whatever they are.
    ///
    /// # Errors
    /// They do not come.
    pub fn octets(&mut self, len: usize) -> Result<Vec<u8>> {
        self.take(len, "next bytes")
    }

    /// Says that nothing more will be sent (FIN).
    ///
    /// # Errors
    /// What TCP says.
    pub fn half_close(&mut self) -> Result<()> {
        Ok(self.stream.shutdown(Shutdown::Write)?)
    }

    /// The ULPDU of the next FPDU.
    ///
    /// # Errors
    /// It does not come whole, or its CRC is wrong.
    pub fn ulpdu(&mut self) -> Result<Vec<u8>> {
        let mut octets = self.take(2, "FPDU")?;
        let len = usize::from(u16::from_be_bytes([octets[0], octets[1]]));
        let padded = (2 + len).next_multiple_of(4);
        octets.extend(self.take(padded - 2, "ULPDU")?);
        let field = self.take(4, "CRC")?;
        let want = match self.crc {
            Crc::Zero => [0; 4],
            _ => crc32c(&octets),
        };
        if field != want {
            return Err(Failure::new(format!(
                "the CRC field of the guest's FPDU {octets:02x?} is {field:02x?}, not {want:02x?}"
            )));
        }
        Ok(octets[2..2 + len].to_vec())
    }

    /// The Terminate Header of the Terminate Message that comes next: QN 2, MSN 1, MO 0.
    ///
    /// # Errors
    /// Another message comes, or none.
    pub fn terminate(&mut self) -> Result<Vec<u8>> {
        let ulpdu = self
            .ulpdu()
            .map_err(|failure| failure.during("a Terminate Message was awaited"))?;
        let want = Untagged {
            rdmap: 0x47,
            qn: 2,
            ..Untagged::send(1)
        }
        .with(&[]);
        match ulpdu.strip_prefix(&want[..]) {
            Some(header) => Ok(header.to_vec()),
            None => Err(Failure::new(format!(
                "a Terminate Message was awaited, but this came: {ulpdu:02x?}"
            ))),
        }
    }

    /// What comes until the guest closes (FIN or RST: QEMU's network does not tell the two apart).
    ///
    /// # Errors
    /// It does not close.
    pub fn rest(&mut self) -> Result<Vec<u8>> {
        let mut octets = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(octets),
                Ok(count) => octets.extend(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Ok(octets);
                }
                Err(error) => {
                    return Err(Failure::new(format!(
                        "the guest was to close the connection, but: {error}; until now {octets:02x?} came"
                    )));
                }
            }
        }
    }

    /// That the guest closes without another byte.
    ///
    /// # Errors
    /// It does not close, or it sends something.
    pub fn closed(&mut self) -> Result<()> {
        let octets = self.rest()?;
        if octets.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the guest was to close the connection, but sent {octets:02x?} first"
        )))
    }
}

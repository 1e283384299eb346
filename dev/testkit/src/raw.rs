//! A peer without an RDMA stack: a TCP connection of the kernel and an MPA startup by hand.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use uwarp_oracle::{REPLY, REQUEST, StartupFrame, WrongKey, receive_startup, startup};

/// Accepts a TCP connection, receives its MPA Request, and answers with a Reply of revision 1 with
/// these flags. Returns the Request, too.
///
/// # Errors
/// Those of TCP, also when nothing arrives within `patience`, and a frame that is no Request.
pub fn raw_accept(
    listener: &TcpListener,
    flags: u8,
    patience: Duration,
) -> io::Result<(TcpStream, StartupFrame)> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(patience))?;
    let request = receive(&mut stream, REQUEST)?;
    stream.write_all(&startup(REPLY, flags, 1, &[]))?;
    Ok((stream, request))
}

/// Connects with an MPA Request of revision 1 with these flags. Returns the Reply, too.
///
/// # Errors
/// Those of TCP, also when nothing arrives within `patience`, and a frame that is no Reply.
pub fn raw_connect(
    to: SocketAddr,
    flags: u8,
    patience: Duration,
) -> io::Result<(TcpStream, StartupFrame)> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(&startup(REQUEST, flags, 1, &[]))?;
    let reply = receive(&mut stream, REPLY)?;
    Ok((stream, reply))
}

fn receive(stream: &mut TcpStream, key: &[u8; 16]) -> io::Result<StartupFrame> {
    let frame = receive_startup(stream)?;
    if frame.key == *key {
        Ok(frame)
    } else {
        Err(io::Error::other(WrongKey))
    }
}

//! Peers written by hand on a TCP socket, without uwarp: one does not support RFC 7306, and one
//! reads slowly.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use uwarp_oracle::{CRC, Code, Crc, IMMEDIATE, fpdu, receive_fpdu};
use uwarp_testkit::raw_accept;

use crate::process::TIMEOUT;

/// Accepts a connection of MPA revision 1, and reads FPDUs up to the first message of RFC 7306.
/// Refuses that message with a Terminate (RFC 5040 section 4.8: remote operation error, unexpected
/// opcode). As with Linux siw, the Terminate does not contain the headers of the message.
pub(crate) fn refuse_extension(listener: &TcpListener) -> io::Result<()> {
    let mut stream = accept(listener)?;
    while !is_extension(&receive_fpdu(&mut stream)?.ulpdu) {}
    // RDMAP, remote operation error, unexpected opcode.
    stream.write_all(&fpdu(&Code::rdmap(2, 6).bare(), Crc::Right))?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Accepts a connection of MPA revision 1.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, request) = raw_accept(listener, CRC, TIMEOUT)?;
    let said = (request.revision, request.private_data.len());
    assert_eq!(said, (1, 0), "revision 1, no private data");
    Ok(stream)
}

/// Reads to the end of the stream, at about 128 kB/s. Returns the number of bytes.
pub(crate) fn read_slowly(mut stream: TcpStream) -> io::Result<usize> {
    let (mut total, mut part) = (0, [0; 16 * 1024]);
    loop {
        match stream.read(&mut part)? {
            0 => return Ok(total),
            count => total += count,
        }
        std::thread::sleep(Duration::from_millis(128));
    }
}

/// Returns true for Atomic Operations and Immediate Data (RFC 7306 section 8.1).
fn is_extension(ulpdu: &[u8]) -> bool {
    ulpdu
        .get(1)
        .is_some_and(|control| control & 0x0F >= IMMEDIATE)
}

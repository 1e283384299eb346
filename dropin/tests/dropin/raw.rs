//! Peers written by hand on a TCP socket, without uwarp: one does not support RFC 7306, and one
//! reads slowly.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use crate::process::TIMEOUT;

/// Accepts a connection of MPA revision 1, and reads FPDUs up to the first message of RFC 7306.
/// Refuses that message with a Terminate (RFC 5040 section 4.8: remote operation error, unexpected
/// opcode). As with Linux siw, the Terminate does not contain the headers of the message.
pub(crate) fn refuse_extension(listener: &TcpListener) -> io::Result<()> {
    let mut stream = accept(listener)?;
    while !is_extension(&read_fpdu(&mut stream)?) {}
    let mut fpdu = vec![0, 22, 0x41, 0x47];
    // DDP header: queue 2 (Terminate), message 1, offset 0.
    fpdu.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0]);
    fpdu.extend([0x02, 0x06, 0, 0]);
    fpdu.extend(crc32c(&fpdu).to_le_bytes());
    stream.write_all(&fpdu)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Accepts a connection of MPA revision 1.
pub(crate) fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut request = [0; 20];
    stream.read_exact(&mut request)?;
    assert_eq!(request[17..], [1, 0, 0], "revision 1, no private data");
    stream.write_all(b"MPA ID Rep Frame\x40\x01\0\0")?;
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

/// Reads an FPDU (RFC 5044 section 4: length, ULPDU, pad, CRC) and returns its ULPDU.
fn read_fpdu(stream: &mut impl io::Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 2];
    stream.read_exact(&mut len)?;
    let len = usize::from(u16::from_be_bytes(len));
    let mut rest = vec![0; (2 + len).next_multiple_of(4) - 2 + 4];
    stream.read_exact(&mut rest)?;
    rest.truncate(len);
    Ok(rest)
}

/// Returns true for Atomic Operations and Immediate Data (RFC 7306 section 8.1).
fn is_extension(ulpdu: &[u8]) -> bool {
    ulpdu.get(1).is_some_and(|control| control & 0x0F >= 8)
}

/// Computes a CRC32C (RFC 5044 section 4.3) bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 0 { 0 } else { 0x82F6_3B78 };
        }
    }
    !crc
}

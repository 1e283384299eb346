//! Upload by token (rendezvous): the client offers its memory, and the server Reads it.
//!
//! ```text
//!  client                                                   server
//!    │ ── Send:  the token "my file: address, length, key" ──► │
//!    │ ◄═ Read:  byte 0 to 256 K ════════════════════════════ │  when it has time and room,
//!    │ ◄═ Read:  byte 256 K to 512 K ═══════════════════════  │  several at once
//!    │ ◄─ Send:  the checksum, and "your key is void now" ──── │
//! ```
//!
//! The server decides when, how much and in what order it reads. It needs memory only for the
//! pieces that it reads at the same time, so a thousand clients may offer gigabytes. This costs one
//! more round trip than a Send, so it suits large data. The client's program does nothing while its
//! memory is read.

use std::net::SocketAddr;
use std::process::ExitCode;

use uwarp_examples::{
    LONGEST, Result, checksum, close, compare, done, load, next, offer, offered, run, serve,
};
use uwarp_verbs::{
    Access, ConnectOptions, ConnectRequest, Device, QpCaps, RecvWr, RemoteBuffer, SendWr,
};

/// Bytes that one Read fetches.
const PIECE: u64 = 256 * 1024;
/// Maximum number of outstanding Reads.
const READS: u64 = 4;

fn main() -> ExitCode {
    let about = "Upload by token: the server Reads the file out of the client's memory.";
    run(about, "FILE", server, client)
}

fn client(server: SocketAddr, file: Option<String>) -> Result {
    let bytes = load(file)?;
    let sum = checksum(&bytes);
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(16)?, device.create_cq(16)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;
    // The server may only read the file. The region is registered for this QP alone, because a peer
    // can invalidate only the key of such a region. (One byte is added, because empty memory cannot
    // be registered.)
    let len = bytes.len() as u64;
    let source = pd.register_for(&qp, [bytes, vec![0]].concat(), Access::REMOTE_READ)?;
    let answer = pd.register(vec![0; 8], Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(1, &[answer.sge(0, 8)]))?;
    // In its private data the server announces the maximum length of a file.
    let connected = qp.connect(server, &ConnectOptions::default())?;
    offered(&connected.private_data, len)?;

    let token = source.remote().slice(0, len)?;
    qp.post_send(&SendWr::send_inline(2, &token.to_bytes()))?;
    done(&sent)?;
    // The library answers the Reads while this thread sleeps.
    let arrived = done(&received)?;
    compare(&answer, sum)?;
    // "Send with Invalidate": from now on the key is useless to anyone who has learned it.
    let void = arrived.invalidated == Some(source.rkey());
    println!("uploaded {len} bytes, checksum {sum:016x}, the key is void: {void}");
    close(&qp)
}

fn server(addr: SocketAddr) -> Result {
    serve(&Device::tcp()?, addr, take_uploads)
}

fn take_uploads(device: &Device, request: ConnectRequest) -> Result {
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(16)?, device.create_cq(16)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;
    let token_len = RemoteBuffer::BYTES as u32;
    let inbox = pd.register(vec![0; RemoteBuffer::BYTES], Access::LOCAL_WRITE)?;
    // Target of the Reads. Each outstanding Read uses a quarter.
    let room = pd.register(vec![0; (PIECE * READS) as usize], Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, token_len)]))?;
    // When they connect, the two sides negotiate the number of outstanding Reads ("ORD" and "IRD").
    // The send queue delays further Reads.
    request.accept(&qp, &offer(None))?;

    while next(&received)?.is_some() {
        let mut token = [0; RemoteBuffer::BYTES];
        inbox.read_at(0, &mut token)?;
        qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, token_len)]))?;
        let file = RemoteBuffer::from_bytes(&token).ok_or("this is not a token")?;
        if file.len > LONGEST {
            return Err(format!("a file of {} bytes is too long", file.len).into());
        }

        let mut bytes = Vec::new();
        let pieces = file.len.div_ceil(PIECE);
        let read = |n: u64| -> Result {
            let piece = file.slice(n * PIECE, PIECE.min(file.len - n * PIECE))?;
            let sink = [room.sge(n % READS * PIECE, piece.len as u32)];
            Ok(qp.post_send(&SendWr::read(n, &sink, piece))?)
        };
        for n in 0..pieces.min(READS) {
            read(n)?;
        }
        for n in 0..pieces {
            // Reads complete in the order of posting. Append the bytes of the completed Read, and
            // reuse its quarter of the region for the next Read.
            let len = done(&sent)?.byte_len as usize;
            let start = bytes.len();
            bytes.resize(start + len, 0);
            room.read_at((n % READS * PIECE) as usize, &mut bytes[start..])?;
            if n + READS < pieces {
                read(n + READS)?;
            }
        }
        let sum = checksum(&bytes);
        println!("read {} bytes, checksum {sum:016x}", bytes.len());
        let answer = sum.to_be_bytes();
        qp.post_send(&SendWr::send_inline(0, &answer).invalidate(file.rkey))?;
        done(&sent)?;
    }
    Ok(())
}

//! Small messages travel in a Send, large ones by a token.
//!
//! ```text
//!  client                                              server
//!    │ ── Send: 'M', the bytes themselves ──────────────► │  up to 4 KiB
//!    │ ◄─ Send: checksum ───────────────────────────────── │
//!    │ ── Send: 'T', "address, length, key" ─────────────► │  above that
//!    │ ◄═ Read: the bytes ═══════════════════════════════ │
//!    │ ◄─ Send: checksum ───────────────────────────────── │
//! ```
//!
//! MPI, NFS over RDMA and most other protocols use these two ways, under the names *eager* and
//! *rendezvous*. A Send costs a copy on each side, and a receive buffer for the longest message. A
//! token costs one more round trip, and no copy. Measure on your machines at which length the two
//! costs are equal; 4 KiB is a common start.

use std::net::SocketAddr;
use std::process::ExitCode;

use uwarp_examples::{Result, checksum, close, done, load, next, run, serve};
use uwarp_verbs::{
    AcceptOptions, Access, ConnectOptions, ConnectRequest, Device, MemoryRegion, Pd, Qp, QpCaps,
    RecvWr, RemoteBuffer, SendWr,
};

/// Length in bytes of the longest message that goes in a Send.
const EAGER: usize = 4096;
/// Length in bytes of a receive buffer: one byte for the kind of the message, and the message.
const INBOX: usize = 1 + EAGER;
/// Longest message in bytes.
const LONGEST: u64 = 64 * 1024 * 1024;

fn main() -> ExitCode {
    let about = "Messages of any size: small ones in a Send, large ones by Read.";
    run(about, "FILE", server, client)
}

fn client(server: SocketAddr, file: Option<String>) -> Result {
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let cq = device.create_cq(16)?;
    let qp = pd.create_qp(&cq, &cq, QpCaps::default())?;
    let inbox = pd.register(vec![0; 8], Access::LOCAL_WRITE)?;
    let outbox = pd.register(vec![0; INBOX], Access::NONE)?;
    qp.connect(server, &ConnectOptions::default())?;

    let bytes = load(file)?;
    for size in [0, 100, EAGER, EAGER + 1, 100_000, bytes.len()] {
        let message = &bytes[..size.min(bytes.len())];
        // Post the receive before sending, because the answer may be fast. (Send and receive share
        // a completion queue here, and the two completions arrive in any order.)
        qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, 8)]))?;
        // Dropping `lent` ends the server's access. This must happen after the answer.
        let lent = send(&pd, &qp, &outbox, message)?;
        done(&cq)?;
        done(&cq)?;
        drop(lent);
        let mut sum = [0; 8];
        inbox.read_at(0, &mut sum)?;
        if u64::from_be_bytes(sum) != checksum(message) {
            return Err("the server received other data".into());
        }
        let way = if message.len() > EAGER {
            "Read by the server"
        } else {
            "in the Send"
        };
        println!("{} bytes arrived, {way}", message.len());
    }
    close(&qp)
}

/// Sends a message in the way that fits its size. Returns the region that the server may read, if
/// any.
fn send(pd: &Pd, qp: &Qp, outbox: &MemoryRegion, message: &[u8]) -> Result<Option<MemoryRegion>> {
    let mut lent = None;
    let mut bytes = vec![b'M'];
    if message.len() <= EAGER {
        bytes.extend_from_slice(message);
    } else {
        // Registering each message is slow. A real program registers its buffers once.
        let region = pd.register(message.to_vec(), Access::REMOTE_READ)?;
        bytes[0] = b'T';
        bytes.extend_from_slice(&region.remote().to_bytes());
        lent = Some(region);
    }
    outbox.write_at(0, &bytes)?;
    qp.post_send(&SendWr::send(1, &[outbox.sge(0, bytes.len() as u32)]))?;
    Ok(lent)
}

fn server(addr: SocketAddr) -> Result {
    serve(&Device::tcp()?, addr, take_messages)
}

fn take_messages(device: &Device, request: ConnectRequest) -> Result {
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(16)?, device.create_cq(16)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;
    let inbox = pd.register(vec![0; INBOX], Access::LOCAL_WRITE)?;
    qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, INBOX as u32)]))?;
    request.accept(&qp, &AcceptOptions::default())?;

    while let Some(arrived) = next(&received)? {
        let mut bytes = vec![0; arrived.byte_len as usize];
        inbox.read_at(0, &mut bytes)?;
        qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, INBOX as u32)]))?;
        let (way, message) = match bytes.split_first() {
            Some((b'M', message)) => ("message", message.to_vec()),
            Some((b'T', token)) => {
                let theirs = RemoteBuffer::from_bytes(token).ok_or("this is not a token")?;
                // Check a length from a peer against a limit before you allocate memory.
                if theirs.len > LONGEST {
                    return Err(format!("{} bytes are too many", theirs.len).into());
                }
                let room = pd.register(vec![0; theirs.len as usize], Access::LOCAL_WRITE)?;
                let sink = [room.sge(0, theirs.len as u32)];
                qp.post_send(&SendWr::read(1, &sink, theirs))?;
                done(&sent)?;
                let mut message = vec![0; room.len()];
                room.read_at(0, &mut message)?;
                ("token", message)
            }
            _ => return Err("the kind of the message is unknown".into()),
        };
        println!("{} bytes by {way}", message.len());
        qp.post_send(&SendWr::send_inline(2, &checksum(&message).to_be_bytes()))?;
        done(&sent)?;
    }
    Ok(())
}

//! Upload through a ring: the client Writes into a registered ring buffer on the server.
//!
//! ```text
//!  client                                                     server
//!    │ ◄── accept, with "my ring: address, length, key" ─────── │  ┌────────────────┐
//!    │ ─── Write: a piece of the file, into the next slot ────► │  │ 0 │ 1 │ 2 │ .. │
//!    │ ─── Send:  the number of bytes in it (4 bytes) ────────► │  └────────────────┘
//!    │ ◄── Send:  "4 more slots are free" ───────────────────── │
//! ```
//!
//! The payload goes to its place in the server's memory, in order, without a receive buffer for
//! each message. The size of the ring limits how far a client can be ahead of the server.
//! **Credits** keep the client from overwriting slots that the server has not emptied: a busy
//! server cannot refuse one-sided Writes, so both sides must count.

use std::net::SocketAddr;
use std::process::ExitCode;

use uwarp_examples::{
    LONGEST, Result, checksum, close, compare, done, load, next, offer, offered, run, serve,
};
use uwarp_verbs::{Access, ConnectOptions, ConnectRequest, Device, QpCaps, RecvWr, SendWr};

/// Bytes of a slot.
const SLOT: u64 = 16 * 1024;
/// Slots of the ring.
const SLOTS: u64 = 16;
/// Number of slots that one credit message reports as free.
const CREDIT: u64 = 4;

fn main() -> ExitCode {
    let about = "Upload by Writes into a ring buffer of the server.";
    run(about, "FILE", server, client)
}

fn client(server: SocketAddr, file: Option<String>) -> Result {
    let bytes = load(file)?;
    let sum = checksum(&bytes);
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(64)?, device.create_cq(64)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;
    // The whole file is registered and sent from this memory. One byte is added, because empty
    // memory cannot be registered.
    let len = bytes.len() as u64;
    let source = pd.register([bytes, vec![0]].concat(), Access::NONE)?;
    // A receive for each credit message that may arrive, and one for the last message.
    let inbox = pd.register(vec![0; 8], Access::LOCAL_WRITE)?;
    for _ in 0..=SLOTS / CREDIT {
        qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, 8)]))?;
    }
    // The server's private data, which travels with accept, has the address of its ring and the
    // longest file.
    let connected = qp.connect(server, &ConnectOptions::default())?;
    let ring = offered(&connected.private_data, len)?.ok_or("the server offers no ring")?;

    let mut credits = SLOTS;
    for slot in 0..len.div_ceil(SLOT) {
        if credits == 0 {
            // All slots are full: wait until the server has emptied some.
            done(&received)?;
            qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, 8)]))?;
            credits += CREDIT;
        }
        credits -= 1;
        let at = slot * SLOT;
        let size = SLOT.min(len - at) as u32;
        let to = ring.slice(slot % SLOTS * SLOT, size.into())?;
        qp.post_send_list(&[
            SendWr::write(1, &[source.sge(at, size)], to).unsignaled(),
            SendWr::send_inline(2, &size.to_be_bytes()),
        ])?;
        // The completion means that the network has taken the bytes, not that the server has read
        // them. So the client does not wait for the server here, and the ring fills while the
        // server works.
        done(&sent)?;
    }
    // A length of 0 ends the file. The server answers with its checksum; credits may arrive before
    // the answer.
    qp.post_send(&SendWr::send_inline(3, &0u32.to_be_bytes()))?;
    while done(&received)?.byte_len != 8 {
        qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, 8)]))?;
    }
    compare(&inbox, sum)?;
    println!("uploaded {len} bytes, checksum {sum:016x}");
    close(&qp)
}

fn server(addr: SocketAddr) -> Result {
    serve(&Device::tcp()?, addr, take_upload)
}

fn take_upload(device: &Device, request: ConnectRequest) -> Result {
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(64)?, device.create_cq(64)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;
    // This client may write to the ring, but may not read it.
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let ring = pd.register(vec![0; (SLOT * SLOTS) as usize], access)?;
    // A receive for each notice that may arrive, each with its own four bytes.
    let inbox = pd.register(vec![0; 4 * (SLOTS as usize + 1)], Access::LOCAL_WRITE)?;
    for n in 0..=SLOTS {
        qp.post_recv(&RecvWr::new(n, &[inbox.sge(4 * n, 4)]))?;
    }
    request.accept(&qp, &offer(Some(&ring)))?;

    let mut file = Vec::new();
    let mut slots = 0;
    while let Some(notice) = next(&received)? {
        let (n, mut size) = (notice.wr_id, [0; 4]);
        inbox.read_at(4 * n as usize, &mut size)?;
        qp.post_recv(&RecvWr::new(n, &[inbox.sge(4 * n, 4)]))?;
        let size = u32::from_be_bytes(size) as usize;
        if size == 0 {
            let sum = checksum(&file);
            println!("received {} bytes, checksum {sum:016x}", file.len());
            qp.post_send(&SendWr::send_inline(0, &sum.to_be_bytes()))?;
            done(&sent)?;
            file.clear();
            continue;
        }
        // The Write was placed before its notice arrived. Copy the bytes out, which frees the slot.
        if size as u64 > SLOT || (file.len() + size) as u64 > LONGEST {
            return Err("the client announces more bytes than a slot or a file may have".into());
        }
        let mut bytes = vec![0; size];
        ring.read_at((slots % SLOTS * SLOT) as usize, &mut bytes)?;
        file.extend_from_slice(&bytes);
        slots += 1;
        if slots.is_multiple_of(CREDIT) {
            qp.post_send(&SendWr::send_inline(0, &[]))?;
            done(&sent)?;
        }
    }
    Ok(())
}

//! RPC: the request is a Send, and the answer is a Write followed by a Send.
//!
//! ```text
//!  client                                                        server
//!    │ ── Send:  "10000", and the address for the answer ────────► │ computes
//!    │ ◄─ Write: the answer, straight into the client's memory ─── │
//!    │ ◄─ Send:  "it has arrived, 5735 bytes" ──────────────────── │
//! ```
//!
//! A **Send** is a message: it arrives in a buffer that the receiver has posted, and the receiver
//! gets a completion. A **Write** puts bytes into memory that the other side has registered for it.
//! The other side gets no completion. Together they carry a large answer without a copy, and need
//! only small receive buffers. The request names the memory for the answer. This is correct because
//! on one connection a Send is never delivered before the Writes that precede it are placed.

use std::net::SocketAddr;
use std::process::ExitCode;

use uwarp_examples::{Result, close, done, next, run, serve};
use uwarp_verbs::{
    AcceptOptions, Access, ConnectOptions, ConnectRequest, Device, QpCaps, RecvWr, RemoteBuffer,
    SendWr,
};

/// Longest request in bytes.
const REQUEST: u32 = 64;
/// Longest answer in bytes.
const ANSWER: usize = 64 * 1024;

fn main() -> ExitCode {
    let about = "RPC: requests by Send, answers by Write + Send. The server lists prime numbers.";
    run(about, "LIMIT", server, client)
}

fn client(server: SocketAddr, limit: Option<String>) -> Result {
    // The objects of RDMA: the device; a protection domain, which holds memory and connections that
    // belong together; completion queues, which report finished work; and a queue pair, one end of
    // a connection.
    let device = Device::tcp()?;
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(16)?, device.create_cq(16)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;

    // The network may only touch registered memory. The server may write to the first region. The
    // second, small one receives the Send that follows the answer.
    let answer = pd.register(vec![0; ANSWER], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let notice = pd.register(vec![0; 4], Access::LOCAL_WRITE)?;
    qp.connect(server, &ConnectOptions::default())?;

    let limits = limit.map_or(vec!["10".into(), "100".into(), "50000".into()], |limit| {
        vec![limit]
    });
    for limit in limits {
        // Post the buffer for the notice before the request, because the server may be fast. We
        // number each work request; its completion carries the number.
        qp.post_recv(&RecvWr::new(1, &[notice.sge(0, 4)]))?;
        let request = [&answer.remote().to_bytes(), limit.as_bytes()].concat();
        // "inline": the call copies this small request, so that it needs no registered memory.
        qp.post_send(&SendWr::send_inline(2, &request))?;
        done(&sent)?;

        // The client sleeps here while the answer is written into its memory.
        done(&received)?;
        let mut len = [0; 4];
        notice.read_at(0, &mut len)?;
        let mut bytes = vec![0; u32::from_be_bytes(len) as usize];
        answer.read_at(0, &mut bytes)?;
        let text = String::from_utf8(bytes)?;
        println!(
            "primes below {limit}: {} bytes, {}",
            text.len(),
            shorten(&text)
        );
    }
    close(&qp)
}

fn server(addr: SocketAddr) -> Result {
    serve(&Device::tcp()?, addr, answer_requests)
}

fn answer_requests(device: &Device, request: ConnectRequest) -> Result {
    let pd = device.alloc_pd()?;
    let (sent, received) = (device.create_cq(16)?, device.create_cq(16)?);
    let qp = pd.create_qp(&sent, &received, QpCaps::default())?;
    let inbox = pd.register(vec![0; REQUEST as usize], Access::LOCAL_WRITE)?;
    // The answer is sent from here. Peers need no access.
    let outbox = pd.register(vec![0; ANSWER], Access::NONE)?;
    qp.post_recv(&RecvWr::new(1, &[inbox.sge(0, REQUEST)]))?;
    request.accept(&qp, &AcceptOptions::default())?;

    while let Some(arrived) = next(&received)? {
        let mut request = vec![0; arrived.byte_len as usize];
        inbox.read_at(0, &mut request)?;
        // The request has been copied out, so its buffer can take the next one.
        qp.post_recv(&RecvWr::new(1, &[inbox.sge(0, REQUEST)]))?;

        let to = RemoteBuffer::from_bytes(&request).ok_or("the request is too short")?;
        let limit = str::from_utf8(&request[RemoteBuffer::BYTES..])?;
        let primes = primes_below(limit.parse()?);
        let len = primes.len().min(ANSWER).min(to.len as usize) as u32;
        outbox.write_at(0, &primes.as_bytes()[..len as usize])?;
        // Two work requests, posted together. The Write needs no completion of its own
        // ("unsignaled"), because the Send after it completes later.
        qp.post_send_list(&[
            SendWr::write(2, &[outbox.sge(0, len)], to).unsignaled(),
            SendWr::send_inline(3, &len.to_be_bytes()),
        ])?;
        // Until the Send completes, the network may still read the outbox.
        done(&sent)?;
        println!("answered {limit} with {len} bytes");
    }
    Ok(())
}

fn primes_below(limit: u32) -> String {
    let is_prime = |n: &u32| {
        (2..)
            .take_while(|d| d * d <= *n)
            .all(|d| !n.is_multiple_of(d))
    };
    let primes = (2..limit.min(100_000)).filter(is_prime);
    primes.map(|n| n.to_string()).collect::<Vec<_>>().join(" ")
}

fn shorten(text: &str) -> String {
    let end = text.rsplit(' ').next().unwrap_or_default();
    match text.get(..24) {
        Some(start) if text.len() > 40 => format!("{start}... {end}"),
        _ => text.to_owned(),
    }
}

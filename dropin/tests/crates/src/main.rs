//! Messages over a transport of rdma-io, between two processes: the server sends each one back, and
//! the client compares it.
//!
//! ```text
//! rings TRANSPORT serve|call ADDR
//! ```
//! `TRANSPORT`: `sends` (Sends), `reads` (a ring that the peer writes to; the sender reads how far
//! the peer is) or `credits` (the same; the peer sends how far it is).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use rdma_io::async_cm::AsyncCmListener;
use rdma_io::credit_ring_transport::CreditRingConfig;
use rdma_io::read_ring_transport::ReadRingConfig;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::{RecvCompletion, Transport, TransportBuilder};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Number of messages. The rings have 64 KiB, so the data goes about 50 times around.
const MESSAGES: usize = 5000;
/// Number of messages that are under way at most. All of them fit into the receive queue.
const WINDOW: usize = 16;

/// Returns the message with this number, of 8 to 1500 bytes. No other one is equal.
fn message(number: usize) -> Vec<u8> {
    let byte = |at: usize| ((number * 31 + at * 7 + (at >> 8)) % 251) as u8;
    let mut message = number.to_be_bytes().to_vec();
    message.extend((8..8 + number * 37 % 1493).map(byte));
    message
}

/// Sends the first message of the queue if the transport takes it now, and calls `take` with each
/// message that has arrived. Returns false after the peer has closed.
///
/// Nothing here waits. The ring `reads` does not wake a task when the answer to its last Read has
/// come (`poll_send_completion` returns only after a Write), so the caller polls.
fn step<T: Transport>(
    transport: &mut T,
    context: &mut Context<'_>,
    queue: &mut VecDeque<Vec<u8>>,
    mut take: impl FnMut(&[u8]) -> Outcome,
) -> Result<bool, Box<dyn std::error::Error>> {
    if let Some(first) = queue.front() {
        match transport.send_copy(first)? {
            0 => {}
            sent if sent == first.len() => drop(queue.pop_front()),
            sent => return Err(format!("{sent} of {} bytes were sent", first.len()).into()),
        }
    }
    if let Poll::Ready(Err(error)) = transport.poll_send_completion(context) {
        return Err(error.into());
    }
    let mut arrived = [RecvCompletion::default(); 4];
    match transport.poll_recv(context, &mut arrived) {
        Poll::Pending => Ok(!transport.poll_disconnect(context)),
        Poll::Ready(Err(_)) if transport.poll_disconnect(context) => Ok(false),
        Poll::Ready(Err(error)) => Err(error.into()),
        Poll::Ready(Ok(count)) => {
            for one in &arrived[..count] {
                take(&transport.recv_buf(one.buf_idx)[..one.byte_len])?;
                transport.repost_recv(one.buf_idx)?;
            }
            Ok(true)
        }
    }
}

async fn serve(builder: impl TransportBuilder, addr: SocketAddr) -> Outcome {
    let listener = AsyncCmListener::bind(&addr)?;
    let mut transport = builder.accept(&listener).await?;
    let (mut queue, mut count) = (VecDeque::new(), 0);
    loop {
        let mut taken = Vec::new();
        let open = poll_fn(|context| {
            Poll::Ready(step(&mut transport, context, &mut queue, |message| {
                taken.push(message.to_vec());
                Ok(())
            }))
        });
        let open = open.await?;
        count += taken.len();
        queue.extend(taken);
        if !open {
            break;
        }
        tokio::task::yield_now().await;
    }
    println!("{count} messages were sent back");
    Ok(())
}

async fn call(builder: impl TransportBuilder, addr: SocketAddr) -> Outcome {
    let mut transport = builder.connect(&addr).await?;
    let (mut queue, mut next, mut back) = (VecDeque::new(), 0, 0);
    while back < MESSAGES {
        if next < MESSAGES && next < back + WINDOW {
            queue.push_back(message(next));
            next += 1;
        }
        let open = poll_fn(|context| {
            Poll::Ready(step(&mut transport, context, &mut queue, |arrived| {
                if arrived != message(back) {
                    return Err(format!("message {back} has come back with other data").into());
                }
                back += 1;
                Ok(())
            }))
        });
        if !open.await? && back < MESSAGES {
            return Err(format!("the server has closed after {back} messages").into());
        }
        tokio::task::yield_now().await;
    }
    transport.disconnect()?;
    println!("{back} messages came back as they were sent");
    Ok(())
}

async fn run(builder: impl TransportBuilder, role: &str, addr: SocketAddr) -> Outcome {
    match role {
        "serve" => serve(builder, addr).await,
        "call" => call(builder, addr).await,
        _ => Err("the role is 'serve' or 'call'".into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [transport, role, addr] = &words[..] else {
        return Err("rings TRANSPORT serve|call ADDR".into());
    };
    let addr = addr.parse()?;
    match transport.as_str() {
        "sends" => run(SendRecvConfig::datagram(), role, addr).await,
        "reads" => run(ReadRingConfig::datagram(), role, addr).await,
        "credits" => run(CreditRingConfig::datagram(), role, addr).await,
        _ => Err("the transport is 'sends', 'reads' or 'credits'".into()),
    }
}

//! The async API on tokio: one thread, many clients, many requests at once.
//!
//! The other examples block a thread while they wait. Here waiting is `.await`, so that one thread
//! serves any number of connections. The library needs no particular runtime: its own thread wakes
//! the tasks. This example uses only tokio's scheduler; even the I/O driver is off.
//!
//! **Owned buffers.** While an operation is under way, the network may read or write its memory at
//! any moment. So a buffer is given away (`send(buf)`) and comes back with the result (`let
//! (result, buf) = ...`). Until the buffer is back, no code can touch it. Dropping the future, as
//! `select!` and time limits do, is safe at every point.

use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::task::{JoinSet, LocalSet};
use uwarp_examples::{Result, run};
use uwarp_verbs::aio::{BufferPool, Connection, Domain, Listener, Request};
use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps};

/// Bytes of a message.
const MESSAGE: usize = 256;
/// Maximum number of requests of a client that wait for their answer.
const AT_ONCE: usize = 8;
/// Clients that the client program runs.
const CLIENTS: usize = 20;

fn main() -> ExitCode {
    let about = "The async API on tokio: the server reverses words, for many clients at once.";
    run(
        about,
        "WORD",
        |addr| on_tokio(server(addr)),
        |addr, word| on_tokio(client(addr, word)),
    )
}

/// Runs a future on a runtime with one thread.
fn on_tokio(main: impl Future<Output = Result>) -> Result {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    LocalSet::new().block_on(&runtime, main)
}

async fn server(addr: SocketAddr) -> Result {
    // A domain holds the connections and buffers of the async API that belong together.
    let domain = Domain::new(&Device::tcp()?)?;
    let listener = Listener::bind(&domain, addr)?;
    println!("listening on {}", listener.local_addr());
    loop {
        let request = listener.accept().await?;
        let domain = domain.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = serve(&domain, request).await {
                eprintln!("client failed: {error}");
            }
        });
    }
}

async fn serve(domain: &Domain, request: Request) -> Result {
    // Each client has its own buffers, in one piece of registered memory, so that no client takes
    // buffers from another.
    let pool = domain.pool(AT_ONCE + 2, MESSAGE)?;
    let connection = Connection::new(domain, QpCaps::default())?;
    // A message needs a posted buffer, and the client may send as soon as it is accepted.
    for _ in 0..AT_ONCE {
        connection
            .post_recv(pool.get().await)
            .map_err(|(error, _)| error)?;
    }
    request
        .accept_on(&connection, &AcceptOptions::default())
        .await?;
    let mut served = 0;
    loop {
        // Posts one more buffer, and waits for the next message. Messages arrive in order.
        let (received, mut message) = connection.recv(pool.get().await).await;
        match received {
            Ok(_) => message.reverse(), // a buffer is a slice while we own it
            Err(error) if error.is_end() => break,
            Err(error) => return Err(error.into()),
        }
        let (sent, _message) = connection.send(message).await;
        sent?;
        served += 1;
    }
    println!("served {served} requests");
    Ok(())
}

async fn client(server: SocketAddr, word: Option<String>) -> Result {
    let word = word.unwrap_or_else(|| "iWARP".to_owned());
    let domain = Domain::new(&Device::tcp()?)?;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (domain, word) = (domain.clone(), word.clone());
        clients.spawn_local(async move { play(&domain, server, number, &word).await });
    }
    let mut answers = Vec::new();
    while let Some(result) = clients.join_next().await {
        answers.push(result??);
    }
    answers.sort();
    println!(
        "{} clients, answer of the first: {}",
        answers.len(),
        answers[0].1
    );
    Ok(())
}

async fn play(
    domain: &Domain,
    server: SocketAddr,
    number: usize,
    word: &str,
) -> Result<(usize, String)> {
    let pool = domain.pool(AT_ONCE + 2, MESSAGE)?;
    let connection = domain.connect(server, &ConnectOptions::default()).await?;
    // The answers may arrive all at once, so there is a buffer for each.
    for _ in 0..AT_ONCE {
        let buf = pool.get().await;
        connection.post_recv(buf).map_err(|(error, _)| error)?;
    }
    let mut last = String::new();
    for _round in 0..3 {
        for n in 0..AT_ONCE {
            send(&connection, &pool, &format!("{word} {n} of {number}")).await?;
        }
        for n in 0..AT_ONCE {
            let (received, answer) = connection.recv(pool.get().await).await;
            received?;
            last = String::from_utf8(answer.to_vec())?;
            let expected: String = format!("{word} {n} of {number}").chars().rev().collect();
            if last != expected {
                return Err(format!("{last} is not {expected}").into());
            }
        }
    }
    connection.close().await?;
    Ok((number, last))
}

async fn send(connection: &Connection, pool: &BufferPool, text: &str) -> Result {
    let mut buf = pool.get().await;
    buf.fill_from(text.as_bytes());
    let (sent, _buf) = connection.send(buf).await; // dropped: back to the pool
    Ok(sent?)
}

//! Many tasks and many connections, on one thread and on several.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::executor::{OneThread, block_on, both};
use crate::{End, pair};
use uwarp_verbs::aio::{Connection, Domain, Listener};
use uwarp_verbs::{AcceptOptions, ConnectOptions, Device, QpCaps};

const CONNECTIONS: usize = 100;
const ROUNDS: u32 = 5;

#[test]
fn a_hundred_connections_live_on_one_thread() {
    let runtime = OneThread::default();
    let server = Domain::new(&Device::tcp().unwrap()).unwrap();
    let listener = Listener::bind(&server, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let served = Rc::new(Cell::new(0));
    let (spawner, count) = (runtime.clone(), Rc::clone(&served));
    runtime.spawn(async move {
        let pool = server.pool(2 * CONNECTIONS, 64).unwrap();
        for _ in 0..CONNECTIONS {
            let connection = Connection::new(&server, QpCaps::default()).unwrap();
            connection.post_recv(pool.get().await).unwrap();
            let request = listener.accept().await.unwrap();
            let options = AcceptOptions::default();
            request.accept_on(&connection, &options).await.unwrap();
            let (pool, count) = (pool.clone(), Rc::clone(&count));
            spawner.spawn(async move {
                let mut buf = pool.get().await;
                for _ in 0..ROUNDS {
                    let (received, request) = connection.recv(buf).await;
                    received.unwrap();
                    let (sent, back) = connection.send(request).await;
                    sent.unwrap();
                    buf = back;
                }
                connection.closed().await;
                count.set(count.get() + 1);
            });
        }
    });
    let client = Domain::new(&Device::tcp().unwrap()).unwrap();
    let pool = client.pool(2 * CONNECTIONS, 64).unwrap();
    for id in 0..CONNECTIONS {
        let (client, pool) = (client.clone(), pool.clone());
        runtime.spawn(async move {
            let connected = client.connect(addr, &ConnectOptions::default()).await;
            let connection = connected.unwrap();
            for round in 0..ROUNDS {
                let text = format!("{id} {round}");
                let mut buf = pool.get().await;
                buf.fill_from(text.as_bytes());
                let (answered, sent) =
                    both(connection.recv(pool.get().await), connection.send(buf)).await;
                sent.0.unwrap();
                answered.0.unwrap();
                assert_eq!(&answered.1[..], text.as_bytes());
            }
            connection.close().await.unwrap();
        });
    }
    runtime.run();
    assert_eq!(served.get(), CONNECTIONS);
    assert_eq!(pool.available(), 2 * CONNECTIONS);
}

#[test]
fn tasks_on_several_threads_share_one_connection() {
    const THREADS: u8 = 4;
    const EACH: u32 = 200;
    let (a, b) = pair();
    let (a, b): (Arc<End>, Arc<End>) = (Arc::new(a), Arc::new(b));
    let received = Arc::new(AtomicUsize::new(0));
    // One receive for each message that may be in flight.
    for _ in 0..THREADS {
        b.connection.post_recv(b.blank()).unwrap();
    }
    let mut threads = Vec::new();
    for n in 0..THREADS {
        let (a, b, received) = (Arc::clone(&a), Arc::clone(&b), Arc::clone(&received));
        threads.push(std::thread::spawn(move || {
            block_on(async {
                let bytes = [n];
                for _ in 0..EACH {
                    let send = a.connection.send_inline(&bytes);
                    let (sent, (got, _)) = both(send, b.connection.recv(b.blank())).await;
                    sent.unwrap();
                    got.unwrap();
                    received.fetch_add(1, Ordering::Relaxed);
                }
            });
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(
        received.load(Ordering::Relaxed),
        usize::from(THREADS) * EACH as usize
    );
}

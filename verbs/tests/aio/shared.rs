//! Receives that connections share, and operations without a completion.

use std::net::SocketAddr;

use crate::executor::{block_on, both};
use crate::{BUFFERS, End, pair, pair_with};
use uwarp_verbs::aio::{Connection, Domain, Error, Listener, Srq};
use uwarp_verbs::{AcceptOptions, Access, ConnectOptions, Device, QpCaps, SrqAttr};

/// A server whose connections use one SRQ, and its clients.
struct Shared {
    clients: Vec<End>,
    servers: Vec<Connection>,
    srq: Srq,
    pool: uwarp_verbs::aio::BufferPool,
}

fn shared(count: usize) -> Shared {
    let device = Device::tcp().unwrap();
    let domain = Domain::new(&device).unwrap();
    let srq = Srq::new(&domain, SrqAttr::default().max_wr(BUFFERS as u32)).unwrap();
    let pool = domain.pool(BUFFERS, 64).unwrap();
    while let Some(buf) = pool.try_get() {
        srq.post_recv(buf).unwrap();
    }
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&domain, any).unwrap();
    let (mut clients, mut servers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let client = End::new(&Device::tcp().unwrap(), QpCaps::default());
        let server = Connection::with_srq(&domain, QpCaps::default(), &srq).unwrap();
        block_on(async {
            let accept = async {
                let request = listener.accept().await.unwrap();
                request.accept_on(&server, &AcceptOptions::default()).await
            };
            let options = ConnectOptions::default();
            let connect = client.connection.connect(listener.local_addr(), &options);
            let (connected, accepted) = both(connect, accept).await;
            connected.unwrap();
            accepted.unwrap();
        });
        clients.push(client);
        servers.push(server);
    }
    Shared {
        clients,
        servers,
        srq,
        pool,
    }
}

#[test]
fn connections_take_their_messages_from_one_queue_and_buffers_come_back() {
    let s = shared(3);
    assert_eq!(s.srq.posted(), BUFFERS);
    block_on(async {
        for round in 0..2 * BUFFERS as u8 {
            for (number, client) in s.clients.iter().enumerate() {
                let message = [round, number as u8];
                client.connection.send_inline(&message).await.unwrap();
                let (received, buf) = s.servers[number].recv_shared().await.unwrap();
                assert_eq!((received.len, &buf[..]), (2, &message[..]));
                s.srq.post_recv(buf).unwrap();
            }
        }
    });
    let Shared {
        clients,
        servers,
        srq,
        pool,
    } = s;
    assert_eq!(pool.available(), 0, "all are in the queue");
    drop((clients, servers, srq));
    block_on(async {
        // The buffers return to the pool once the QPs are gone, which may happen in the background.
        let mut all = Vec::new();
        for _ in 0..BUFFERS {
            all.push(pool.get().await);
        }
    });
}

#[test]
fn what_came_before_the_end_is_received_and_then_the_end() {
    let s = shared(1);
    block_on(async {
        for n in 0..3u8 {
            s.clients[0].connection.send_inline(&[n]).await.unwrap();
        }
        s.clients[0].connection.close().await.unwrap();
        for n in 0..3u8 {
            let (_, buf) = s.servers[0].recv_shared().await.unwrap();
            assert_eq!(&buf[..], [n]);
        }
        let error = s.servers[0].recv_shared().await.unwrap_err();
        assert!(error.is_end(), "{error}");
    });
    assert_eq!(s.srq.posted(), BUFFERS - 3);
}

#[test]
fn a_queue_that_is_full_gives_the_buffer_back_and_so_does_a_connection_without_one() {
    let s = shared(1);
    let (error, buf) = s.srq.post_recv(s.clients[0].blank()).unwrap_err();
    assert!(error.to_string().contains("is full"), "{error}");
    let (error, _buf) = s.servers[0].post_recv(buf).unwrap_err();
    assert!(error.to_string().contains("Srq::post_recv"), "{error}");
}

#[test]
fn unsignaled_writes_arrive_in_order_and_their_buffers_come_back_with_a_later_completion() {
    let (a, b) = pair();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let lent = b.domain.register(vec![0; 4 * 4], access).unwrap();
    block_on(async {
        for n in 0..4u8 {
            let to = lent.remote().slice(u64::from(n) * 4, 4).unwrap();
            let quiet = a.connection.unsignaled();
            quiet.write(a.buf(&[n + 1; 4]), to).await.unwrap();
        }
        b.connection.post_recv(b.blank()).unwrap();
        a.connection.send_inline(b"all").await.unwrap();
        assert_eq!(a.pool.available(), BUFFERS, "the Send completed after them");
        b.connection.recv(b.blank()).await.0.unwrap();
    });
    let mut all = [0; 16];
    lent.read_at(0, &mut all).unwrap();
    assert_eq!(all, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4]);
}

#[test]
fn a_send_queue_of_any_depth_takes_unsignaled_operations_without_end() {
    for depth in [1, 2, 3, 16] {
        let (a, b) = pair_with(QpCaps::default().max_send_wr(depth));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let lent = b.domain.register(vec![0; 8], access).unwrap();
        block_on(async {
            for n in 0..200u64 {
                let buf = async {
                    let mut buf = a.pool.get().await;
                    buf.fill_from(&n.to_be_bytes());
                    buf
                };
                let buf = buf.await;
                let quiet = a.connection.unsignaled();
                quiet.write(buf, lent.remote()).await.unwrap();
            }
            b.connection.post_recv(b.blank()).unwrap();
            a.connection.send_inline(b"done").await.unwrap();
            b.connection.recv(b.blank()).await.0.unwrap();
        });
        let mut last = [0; 8];
        lent.read_at(0, &mut last).unwrap();
        assert_eq!(u64::from_be_bytes(last), 199, "depth {depth}");
        assert_eq!(a.pool.available(), BUFFERS, "depth {depth}");
    }
}

#[test]
fn an_unsignaled_operation_that_does_not_fit_gives_its_buffer_back() {
    let (a, b) = pair();
    let lent = b.domain.register(vec![0; 8], Access::NONE).unwrap();
    block_on(async {
        let quiet = a.connection.unsignaled();
        let (error, buf) = quiet
            .write(a.buf(&[1; 9]), lent.remote())
            .await
            .unwrap_err();
        assert!(matches!(
            error,
            Error::TooSmall {
                len: 9,
                room: 8,
                ..
            }
        ));
        assert_eq!(&buf[..], [1; 9]);
    });
    assert_eq!(a.pool.available(), BUFFERS);
}

#[test]
fn an_unsignaled_operation_that_fails_ends_the_connection_and_its_buffer_comes_back() {
    let (a, b) = pair();
    // The peer has no right to write to this region.
    let lent = b.domain.register(vec![0; 8], Access::NONE).unwrap();
    block_on(async {
        let quiet = a.connection.unsignaled();
        quiet.write(a.buf(&[1; 8]), lent.remote()).await.unwrap();
        a.connection.closed().await;
    });
    assert!(a.connection.end_reason().is_some());
    let End {
        pool, connection, ..
    } = a;
    drop((connection, b));
    block_on(async {
        let mut all = Vec::new();
        for _ in 0..BUFFERS {
            all.push(pool.get().await);
        }
    });
}

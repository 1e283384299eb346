//! Failed connection attempts, and every way to end a connection.

use std::net::TcpListener;
use std::pin::pin;

use crate::executor::{block_on, both, poll_once};
use crate::{BUFFERS, End, pair};
use uwarp_verbs::aio::{Domain, Listener};
use uwarp_verbs::{
    Access, ConnectError, ConnectOptions, Device, EndReason, QpCaps, RemoteBuffer, Status,
};

#[test]
fn a_close_ends_both_sides_and_work_that_waits() {
    let (a, b) = pair();
    block_on(async {
        let waiting = b.connection.recv(b.blank());
        let ((closed, end), (received, _)) =
            both(both(a.connection.close(), b.connection.closed()), waiting).await;
        closed.unwrap();
        assert!(matches!(end, EndReason::PeerDisconnect), "{end}");
        let error = received.unwrap_err();
        assert!(error.is_end());
        assert!(error.to_string().contains("closed by the peer"), "{error}");
        // Later operations fail immediately and return their buffers.
        let (received, _) = b.connection.recv(b.blank()).await;
        assert!(received.unwrap_err().is_end());
        let (sent, _) = a.connection.send(a.buf(b"late")).await;
        assert!(sent.unwrap_err().is_end());
        a.connection.close().await.unwrap();
    });
    assert_eq!((a.pool.available(), b.pool.available()), (BUFFERS, BUFFERS));
}

#[test]
fn a_peer_that_refuses_an_access_ends_the_connection_with_the_reason() {
    let (a, b) = pair();
    let lent = b.domain.register(vec![0; 8], Access::REMOTE_READ).unwrap();
    block_on(async {
        let wrong = RemoteBuffer {
            rkey: lent.rkey() ^ 1,
            ..lent.remote()
        };
        let (read, _) = a.connection.read(a.blank(), wrong).await;
        let error = read.unwrap_err();
        let uwarp_verbs::aio::Error::Failed { error, reason } = &error else {
            panic!("{error}")
        };
        assert_eq!(error.0.status, Status::RemoteAccess);
        assert!(matches!(
            reason.as_deref(),
            Some(EndReason::TerminateReceived { .. })
        ));
        let end = a.connection.close().await.unwrap_err();
        assert!(matches!(end, EndReason::TerminateReceived { .. }), "{end}");
    });
}

#[test]
fn a_request_can_be_rejected_and_a_dropped_one_is() {
    let device = Device::tcp().unwrap();
    let domain = Domain::new(&device).unwrap();
    let listener = Listener::bind(&domain, "127.0.0.1:0".parse().unwrap()).unwrap();
    block_on(async {
        let options = ConnectOptions::default().private_data(b"may I".to_vec());
        let reject = async {
            let request = listener.accept().await.unwrap();
            assert_eq!(request.info().private_data(), b"may I");
            request.reject(b"no").unwrap();
        };
        let (connected, ()) = both(domain.connect(listener.local_addr(), &options), reject).await;
        let error = connected.unwrap_err();
        assert!(
            error.to_string().contains("rejected the connection"),
            "{error}"
        );
        let end = End::new(&device, QpCaps::default());
        let connect = end.connection.connect(listener.local_addr(), &options);
        let (connected, ()) = both(connect, async { drop(listener.accept().await) }).await;
        assert!(matches!(connected, Err(ConnectError::Rejected { .. })));
    });
}

#[test]
fn connecting_to_nobody_is_an_error_that_names_the_address() {
    let domain = Domain::new(&Device::tcp().unwrap()).unwrap();
    // Nothing listens on port 1.
    let error = block_on(domain.connect("127.0.0.1:1", &ConnectOptions::default())).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn connecting_blocks_no_thread_and_stops_with_its_connection() {
    // This listener accepts TCP connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let end = End::new(&Device::tcp().unwrap(), QpCaps::default());
    let to = silent.local_addr().unwrap();
    let options = ConnectOptions::default();
    end.connection.post_recv(end.blank()).unwrap();
    {
        let mut connect = pin!(end.connection.connect(to, &options));
        for _ in 0..3 {
            assert!(poll_once(connect.as_mut()).is_pending());
        }
    }
    drop(end.connection);
    assert_eq!(end.pool.available(), BUFFERS);
}

//! Connection attempts to a list of addresses, in the order of the list.

use super::*;

use std::net::{SocketAddr, TcpListener};

use uwarp_verbs::ResolveError;

/// Returns an address at which nothing listens. No other program can bind it while the socket
/// exists.
fn nobody() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let addr = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, addr)
}

#[test]
fn the_next_address_is_tried_and_receives_posted_before_stay_posted() {
    let ends = Setup::new(Wire::Kernel).unconnected();
    let (_held, nobody) = nobody();
    let inbox = ends.a.blank(64);
    ends.a
        .qp
        .post_recv(&RecvWr::new(7, &[inbox.sge(0, 64)]))
        .unwrap();
    let addrs = [nobody, nobody, ends.listener.local_addr()];
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let options = ConnectOptions::default().peer_to_peer(true);
            ends.a.qp.connect(&addrs[..], &options).unwrap();
        });
        let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
        request
            .accept(&ends.b.qp, &AcceptOptions::default())
            .unwrap();
        connecting.join().unwrap();
    });
    assert_eq!(ends.a.qp.connection().unwrap().peer, addrs[2]);
    ends.b
        .qp
        .post_send(&SendWr::send_inline(2, b"kept"))
        .unwrap();
    assert_eq!(ends.a.recv_cq.success(7).byte_len, 4);
}

#[test]
fn where_no_address_connects_the_error_names_each() {
    let ends = Setup::new(Wire::Kernel).unconnected();
    let nobodies = [nobody(), nobody()];
    let addrs = nobodies.each_ref().map(|(_, addr)| *addr);
    let options = ConnectOptions::default();
    let error = ends.a.qp.connect(&addrs[..], &options).unwrap_err();
    let ConnectError::NoneConnected { tried } = &error else {
        panic!("{error}")
    };
    let names: Vec<SocketAddr> = tried.iter().map(|attempt| attempt.addr).collect();
    assert_eq!(names, addrs);
    for addr in addrs {
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }
    // The QP is in the usual state after a failed connect, and can be used again.
    assert_eq!(ends.a.qp.state(), QpState::Error);
    assert!(ends.a.qp.reset());
}

#[test]
fn a_peer_that_rejects_is_the_last_one_tried() {
    let ends = Setup::new(Wire::Kernel).unconnected();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let addrs = [ends.listener.local_addr(), other.local_addr().unwrap()];
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let options = ConnectOptions::default();
            ends.a.qp.connect(&addrs[..], &options).unwrap_err()
        });
        let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
        request.reject(b"").unwrap();
        let error = connecting.join().unwrap();
        assert!(matches!(error, ConnectError::Rejected { .. }), "{error}");
    });
    other.set_nonblocking(true).unwrap();
    assert!(other.accept().is_err(), "no connection came");
}

#[test]
fn a_list_without_an_address_is_an_error_of_its_own() {
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let none: [SocketAddr; 0] = [];
    let error = qp
        .connect(&none[..], &ConnectOptions::default())
        .unwrap_err();
    assert!(
        matches!(error, ConnectError::Resolve(ResolveError::NoAddress)),
        "{error}"
    );
    let error = qp
        .connect("no port here", &ConnectOptions::default())
        .unwrap_err();
    assert!(
        matches!(error, ConnectError::Resolve(ResolveError::System { .. })),
        "{error}"
    );
    assert_eq!(qp.state(), QpState::Idle);
}

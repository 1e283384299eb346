//! Strangers at the port of a rendezvous: they are rejected, and nobody else notices.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    ConnectError, ConnectOptions, Device, PairOptions, PeerQp, Qp, QpCaps, QpState,
    RendezvousOptions,
};

use crate::common::LIMIT;
use crate::{Host, LOOPBACK, exchange, in_order};

/// Private data of a call, as another implementation would write it.
fn hello(own: u32, peer: u32) -> Vec<u8> {
    let addr = Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    let numbers = [own.to_be_bytes(), peer.to_be_bytes()].concat();
    [&b"uwQP\x01\0\0\0"[..], &numbers, &addr].concat()
}

/// Connects with this private data, as a stranger does. Returns the private data of the Reply.
fn call(to: SocketAddr, from: Ipv4Addr, private_data: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    let device = Device::open(
        std::sync::Arc::<KernelNetwork>::default(),
        Default::default(),
    );
    let device = device.unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let options = ConnectOptions::default()
        .local(Some((from, 0).into()))
        .peer_to_peer(true)
        .private_data(private_data);
    match qp.connect(to, &options) {
        Ok(connected) => Ok(connected.private_data),
        Err(ConnectError::Rejected { private_data, .. }) => Err(private_data),
        Err(error) => panic!("{error}"),
    }
}

/// Two hosts, a QP on each, and the port of the first QP, which is called by the second one.
fn called() -> ([Host; 2], [Qp; 2], SocketAddr) {
    let [(b, y), (a, x)] = in_order();
    let at = port(&x);
    ([a, b], [x, y], at)
}

/// Port at which the QP is called.
fn port(qp: &Qp) -> SocketAddr {
    SocketAddr::new(LOOPBACK, u16::try_from(qp.qp_num() >> 8).unwrap())
}

#[test]
fn a_stranger_that_names_no_pair_is_rejected_and_nobody_notices() {
    let ([a, b], [x, y], at) = called();
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    let rejected = |status: u8| Err([&b"uwQP\x01\x02"[..], &[status, 0]].concat());
    let local = Ipv4Addr::LOCALHOST;
    assert_eq!(call(at, local, b""), rejected(1));
    assert_eq!(call(at, local, b"rping says hello"), rejected(1));
    let (own, peer) = (y.qp_num(), x.qp_num());
    assert_eq!(call(at, local, &hello(own, peer)[..20]), rejected(1));
    assert_eq!(call(at, local, &hello(own ^ 1, peer)), rejected(1));
    assert_eq!(call(at, local, &hello(own, peer ^ 1)), rejected(1));
    let mut later = hello(own, peer);
    later[4] = 2;
    assert_eq!(call(at, local, &later), rejected(3));
    // A call in reverse, from the side that calls first.
    let mut reverse = hello(own, peer);
    reverse[5] = 1;
    assert_eq!(call(at, local, &reverse), rejected(1));
    assert_eq!(x.state(), QpState::Connecting);
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    exchange([&a, &b], [&x, &y]);
}

#[test]
fn what_is_no_mpa_request_ends_its_own_connection_only() {
    let ([a, b], [x, y], at) = called();
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    let mut stranger = TcpStream::connect(at).unwrap();
    stranger.set_read_timeout(Some(LIMIT)).unwrap();
    stranger
        .write_all(b"GET / HTTP/1.1\r\nHost: uwarp.example\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    // The stranger sees a close or a reset.
    let _ = stranger.read_to_end(&mut answer);
    assert_eq!(answer, b"");
    let _silent = TcpStream::connect(at).unwrap();
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    exchange([&a, &b], [&x, &y]);
}

#[test]
fn the_right_pair_from_a_wrong_address_is_rejected_unless_any_source_is_allowed() {
    for any_source in [false, true] {
        let options = RendezvousOptions::default().any_source(any_source);
        let network = std::sync::Arc::<KernelNetwork>::default();
        let host = Host::new(network, LOOPBACK, options.addr(Some(LOOPBACK)));
        let qp = host.qp();
        // The peer is on another host, and has the smaller number: it is to call.
        let peer = PeerQp::new(Ipv4Addr::new(192, 0, 2, 9).into(), 0x0004_0000);
        qp.pair(peer, &PairOptions::default()).unwrap();
        let answer = call(
            port(&qp),
            Ipv4Addr::LOCALHOST,
            &hello(peer.qp_num, qp.qp_num()),
        );
        assert_eq!(answer.is_ok(), any_source, "{answer:?}");
    }
}

#[test]
fn a_listener_that_knows_no_numbers_is_no_peer() {
    let (host, listener, qp, number) = loop {
        let host = Host::here();
        let listener = host.device.listen((LOOPBACK, 0).into()).unwrap();
        let qp = host.qp();
        let number = u32::from(listener.local_addr().port()) << 8;
        // The smaller number calls.
        if qp.qp_num() < number {
            break (host, listener, qp, number);
        }
    };
    let patience = Some(std::time::Duration::from_millis(300));
    let options = PairOptions::default().patience(patience);
    // Each connection is accepted, by a program that has nothing to do with numbers.
    std::thread::scope(|scope| {
        let pd = &host.pd;
        let cq = host.device.create_cq(16).unwrap();
        scope.spawn(move || {
            while let Ok(request) = listener.wait_request(Some(std::time::Duration::from_secs(2))) {
                let stranger = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
                let _ = request.accept(&stranger, &Default::default());
            }
        });
        qp.pair(PeerQp::new(LOOPBACK, number), &options).unwrap();
        host.send(&qp, 1);
        host.gone(1);
    });
}

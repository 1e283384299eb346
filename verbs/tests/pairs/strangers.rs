//! Strangers at the port of a rendezvous: they are rejected, and nobody else notices.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    ConnectError, ConnectOptions, Device, PairOptions, PeerQp, Qp, QpCaps, QpState,
    RendezvousOptions,
};

use crate::caller::{
    CALLER, Caller, SEND_IMMEDIATE, answer, await_caller, hello, host, port, receive,
};
use crate::common::{LIMIT, until};
use crate::peer::Peer;
use crate::wire::{CRC, ENHANCED, PEER_TO_PEER, REPLY, RTR_WRITE, WRITE, words};
use crate::{Host, LOOPBACK, exchange, in_order};

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

#[test]
fn a_stranger_that_names_no_pair_is_rejected_and_nobody_notices() {
    let ([a, b], [x, y], at) = called();
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    let rejected = |status: u8| Err(answer(status));
    let local = Ipv4Addr::LOCALHOST;
    assert_eq!(call(at, local, b""), rejected(1));
    assert_eq!(call(at, local, b"rping says hello"), rejected(1));
    let (own, peer) = (y.qp_num(), x.qp_num());
    assert_eq!(call(at, local, &hello(0, own, peer)[..20]), rejected(1));
    assert_eq!(call(at, local, &hello(0, own ^ 1, peer)), rejected(1));
    assert_eq!(call(at, local, &hello(0, own, peer ^ 1)), rejected(1));
    let mut later = hello(0, own, peer);
    later[4] = 2;
    assert_eq!(call(at, local, &later), rejected(3));
    // A call in reverse, from the side that calls first.
    let mut reverse = hello(0, own, peer);
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
            &hello(0, peer.qp_num, qp.qp_num()),
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

#[test]
fn a_number_of_another_device_is_not_called_at_this_port() {
    let ([a, b], [x, y], at) = called();
    x.pair(b.peer(&y), &PairOptions::default()).unwrap();
    let [(_, third), (other, fourth)] = in_order();
    fourth
        .pair(other.peer(&third), &PairOptions::default())
        .unwrap();
    // The pair of the other device is right, and the port is not.
    let answer = call(
        at,
        Ipv4Addr::LOCALHOST,
        &hello(0, third.qp_num(), fourth.qp_num()),
    );
    assert_eq!(answer, Err(crate::caller::answer(1)));
    y.pair(a.peer(&x), &PairOptions::default()).unwrap();
    exchange([&a, &b], [&x, &y]);
}

#[test]
fn a_pair_that_is_called_again_keeps_its_connection_and_one_later_call_waits() {
    let host = host();
    let qp = host.qp();
    await_caller(&qp);
    let mut first = Caller::new(&qp, SEND_IMMEDIATE);
    let private_data = hello(SEND_IMMEDIATE, CALLER, qp.qp_num());
    let second = Caller::dial(port(&qp), &private_data);
    let third = Caller::dial(port(&qp), &private_data);
    // One of them is rejected, because the other came later.
    until("one of them has its Reply", || {
        second.peer.has_arrived() || third.peer.has_arrived()
    });
    let (mut rejected, mut later) = match second.peer.has_arrived() {
        true => (second, third),
        false => (third, second),
    };
    assert_eq!(rejected.reply(), Err(answer(1)));
    // The first one is as it was.
    receive(&host, &qp, 1);
    first.send_marked(b"data");
    first.send(b"first");
    assert_eq!(host.cq.success(1).byte_len, 5);
    assert!(!later.peer.has_arrived());
    // The later one is taken when the program has given the QP this peer again.
    until("the QP is reset", || {
        qp.abort();
        qp.reset()
    });
    receive(&host, &qp, 2);
    await_caller(&qp);
    assert_eq!(later.reply(), Ok(answer(0)));
    later.send_rtr();
    later.send(b"later");
    let done = host.cq.success(2);
    assert_eq!((done.byte_len, done.immediate), (5, None));
}

#[test]
fn a_caller_that_goes_before_its_first_message_makes_room_for_the_next_call() {
    let host = host();
    let qp = host.qp();
    await_caller(&qp);
    let private_data = hello(SEND_IMMEDIATE, CALLER, qp.qp_num());
    let mut first = Caller::dial(port(&qp), &private_data);
    assert_eq!(first.reply(), Ok(answer(0)));
    let mut second = Caller::dial(port(&qp), &private_data);
    first.peer.fin();
    assert_eq!(second.reply(), Ok(answer(0)));
    second.send_rtr();
    receive(&host, &qp, 1);
    second.send(b"second");
    assert_eq!(host.cq.success(1).byte_len, 6);
}

#[test]
fn a_reply_that_is_not_that_of_a_rendezvous_is_followed_by_another_call() {
    let (host, listener, qp, number) = loop {
        let host = host();
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let qp = host.qp();
        let number = u32::from(listener.local_addr().unwrap().port()) << 8;
        // The smaller number calls.
        if qp.qp_num() < number {
            break (host, listener, qp, number);
        }
    };
    qp.pair(PeerQp::new(LOOPBACK, number), &PairOptions::default())
        .unwrap();
    host.send(&qp, 1);
    let words = words(PEER_TO_PEER | 4, RTR_WRITE | 4);
    let answer_with = |private_data: &[u8]| {
        let mut peer = Peer::accept(&listener);
        let request = peer.receive_startup();
        // Between the words of RFC 6581 and the address, which the network chooses.
        let due = hello(SEND_IMMEDIATE, qp.qp_num(), number);
        assert_eq!(request[24..40], due[..16]);
        let reply = [&words[..], private_data].concat();
        peer.send_startup(REPLY, CRC | ENHANCED, 2, &reply);
        peer
    };
    let forged: [&[u8]; 6] = [
        b"",
        b"uwQP",
        b"uwQP\x01\x02",
        b"uwQP\x02\x02\0\0",
        b"uwQP\x01\x02\x01\0",
        b"UWqp\x01\x02\0\0",
    ];
    for private_data in forged {
        let mut peer = answer_with(private_data);
        peer.expect_end();
        assert_eq!(qp.state(), QpState::Connecting);
        host.cq.assert_empty();
    }
    let mut peer = answer_with(&answer(0));
    let rtr = peer.receive_ulpdu();
    assert_eq!(rtr[1] & 0x0F, WRITE);
    assert_eq!(peer.receive_ulpdu()[18..], *b"12345678");
    host.done([1]);
}

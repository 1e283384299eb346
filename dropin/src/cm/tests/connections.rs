//! Events of connections: their order and contents.

use super::*;
use crate::abi::{
    IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_REJECTED,
};
use crate::cm::attributes;
use crate::qp;

#[test]
fn a_connection_has_the_events_of_iwarp_with_the_private_data_alone() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    let ours = ready(client, listener.local());
    assert_eq!(ours.connect(b"please"), 0);
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.listener(), listener);
    assert_eq!(request.private_data(), b"please");
    // `param` sets 3 and 5. The responder resources of one side are the initiator depth of the
    // other.
    assert_eq!(request.conn().responder_resources, 5);
    assert_eq!(request.conn().initiator_depth, 3);
    let theirs = request.id();
    assert_eq!(theirs.shown().context.addr(), LISTENER);
    assert_eq!(theirs.shown().channel, server.0);
    assert!(!theirs.shown().verbs.is_null() && !theirs.shown().pd.is_null());
    assert_eq!(theirs.create_qp(), 0);
    request.ack();
    assert_eq!(theirs.accept(b"welcome"), 0);
    let there = server.next(RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!((there.id(), there.status()), (theirs, 0));
    there.ack();
    let here = client.next(RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(
        (here.id(), here.private_data()),
        (ours, b"welcome".to_vec())
    );
    assert!(here.listener().0.is_null());
    here.ack();
    assert_ne!(ours.local().port(), 0);
    assert_eq!(ours.disconnect(), 0);
    for (channel, id) in [(client, ours), (server, theirs)] {
        let over = channel.next(RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!((over.id(), over.status()), (id, 0));
        over.ack();
        // Linux also returns 0 if the peer has disconnected first.
        assert_eq!(id.disconnect(), 0);
        id.end();
    }
    listener.end();
    client.end();
    server.end();
}

#[test]
fn the_port_of_a_client_that_has_disconnected_can_be_listened_on_at_once() {
    let (client, server) = (Channel::new(), Channel::new());
    let (ours, theirs) = connected(client, server);
    let port = ours.local().to_string();
    assert_eq!(ours.disconnect(), 0);
    for (channel, id) in [(client, ours), (server, theirs)] {
        channel.next(RDMA_CM_EVENT_DISCONNECTED).ack();
        id.end();
    }
    let id = client.id(0);
    assert_eq!(id.bind(&port), 0);
    assert_eq!(id.listen(), 0);
    id.end();
    client.end();
    server.end();
}

#[test]
fn a_reject_brings_its_private_data_and_leaves_nothing_to_end() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    let ours = ready(client, listener.local());
    assert_eq!(failed(ours.disconnect()), libc::EINVAL);
    assert_eq!(ours.connect(b""), 0);
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let theirs = request.id();
    request.ack();
    // SAFETY: the test passes an id, and bytes.
    unsafe {
        assert_eq!(connect::reject(theirs.0, b"no".as_ptr().cast(), 2), 0);
    }
    theirs.end();
    let event = client.next(RDMA_CM_EVENT_REJECTED);
    assert_eq!(event.status(), -libc::ECONNREFUSED);
    assert_eq!(event.private_data(), b"no");
    event.ack();
    assert_eq!(ours.disconnect(), 0);
    ours.end();
    listener.end();
    client.end();
    server.end();
}

#[test]
fn a_queue_pair_of_the_programs_own_is_named_by_its_number() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    // `ours` has no queue pair and connects with the queue pair of `owner`.
    let owner = ready(client, listener.local());
    let ours = client.id(CLIENT);
    assert_eq!(ours.resolve(listener.local()), 0);
    client.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    // SAFETY: the test passes ids, structures and memory for results; the queue pair belongs to
    // `owner`.
    unsafe {
        assert_eq!(address::resolve_route(ours.0, 0), 0);
        client.passes(RDMA_CM_EVENT_ROUTE_RESOLVED);
        let (mut attr, mut mask) = (mem::zeroed::<crate::abi::ibv_qp_attr>(), 0);
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            attr.qp_state = state;
            assert_eq!(
                attributes::init_qp_attr(ours.0, &raw mut attr, &raw mut mask),
                0
            );
            let qp = owner.shown().qp;
            assert_eq!(qp::modify::modify_qp(qp, &raw mut attr, mask), 0);
        }
        let mut named = param(b"");
        assert_eq!(
            failed(connect::connect(ours.0, &raw mut named)),
            libc::EINVAL
        );
        named.qp_num = (*owner.shown().qp).qp_num;
        assert_eq!(connect::connect(ours.0, &raw mut named), 0);
    }
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let theirs = request.id();
    request.ack();
    assert_eq!(theirs.create_qp(), 0);
    assert_eq!(theirs.accept(b""), 0);
    server.passes(RDMA_CM_EVENT_ESTABLISHED);
    client.passes(RDMA_CM_EVENT_ESTABLISHED);
    // SAFETY: the test passes an id. The call succeeds: the connection is already established.
    assert_eq!(unsafe { connect::establish(ours.0) }, 0);
    assert_eq!(ours.disconnect(), 0);
    client.passes(RDMA_CM_EVENT_DISCONNECTED);
    server.passes(RDMA_CM_EVENT_DISCONNECTED);
    for id in [ours, owner, theirs, listener] {
        id.end();
    }
    client.end();
    server.end();
}

#[test]
fn an_id_that_goes_with_its_connection_lets_the_peer_know() {
    let (client, server) = (Channel::new(), Channel::new());
    let (ours, theirs) = connected(client, server);
    let qp = ours.shown().qp;
    // SAFETY: the test owns the id and the queue pair. A program that does not disconnect destroys
    // them in this order.
    unsafe {
        assert_eq!(id::destroy_id(ours.0), 0);
        server.passes(RDMA_CM_EVENT_DISCONNECTED);
        assert_eq!(qp::destroy_qp(qp), 0);
    }
    theirs.end();
    client.end();
    server.end();
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = server.id(LISTENER);
    assert_eq!(listener.bind("127.0.0.1:0"), 0);
    let ours = ready(client, listener.local());
    assert_eq!(ours.connect(b""), 0);
    // A second `rdma_connect` while the first is in progress fails.
    assert_eq!(failed(ours.connect(b"")), libc::EINVAL);
    assert_eq!(listener.listen(), 0);
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let theirs = request.id();
    request.ack();
    // Destroying the id of a request rejects it.
    theirs.end();
    client.passes(RDMA_CM_EVENT_REJECTED);
    ours.end();
    listener.end();
    client.end();
    server.end();
}

#[test]
fn a_request_that_was_not_fetched_goes_where_the_one_that_listens_goes() {
    let (client, from, to) = (Channel::new(), Channel::new(), Channel::new());
    let listener = listening(from);
    let here = ready(client, listener.local());
    assert_eq!(here.connect(b""), 0);
    // The request has arrived, and the program has not fetched it.
    readable(from);
    // SAFETY: the test passes an id, and a channel.
    assert_eq!(unsafe { id::migrate_id(listener.0, to.0) }, 0);
    from.end();
    readable(to);
    let request = to.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let there = request.id();
    assert_eq!(there.shown().channel, to.0);
    assert_eq!(there.create_qp(), 0);
    assert_eq!(there.accept(b""), 0);
    request.ack();
    client.passes(RDMA_CM_EVENT_ESTABLISHED);
    // If the id still had the old channel, the event would arrive there and never here.
    readable(to);
    to.passes(RDMA_CM_EVENT_ESTABLISHED);
    assert_eq!(here.disconnect(), 0);
    client.passes(RDMA_CM_EVENT_DISCONNECTED);
    to.passes(RDMA_CM_EVENT_DISCONNECTED);
    for id in [here, there, listener] {
        id.end();
    }
    client.end();
    to.end();
}

/// Waits until the channel has an event.
fn readable(channel: Channel) {
    // SAFETY: the test passes a channel.
    let fd = unsafe { (*channel.0).fd };
    let mut wanted = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is that of one structure.
    assert_eq!(unsafe { libc::poll(&raw mut wanted, 1, 60_000) }, 1);
}

/// RFC 6581 section 9: IRD and ORD have 14 bits. Programs must not get numbers for `rdma_accept`
/// that the device does not support.
#[test]
fn reads_that_a_peer_asks_for_are_told_as_far_as_the_device_can_have_them() {
    use std::io::Write as _;
    const REQUEST: &[u8] = b"MPA ID Req Frame\x50\x02\x00\x04\x01\x2c\x01\x2c";
    let server = Channel::new();
    let listener = listening(server);
    let mut peer = std::net::TcpStream::connect(listener.local()).unwrap();
    peer.write_all(REQUEST).unwrap();
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let conn = request.conn();
    let most = connect::most(&crate::rnic::device().unwrap());
    assert_eq!((conn.responder_resources, conn.initiator_depth), most);
    let theirs = request.id();
    request.ack();
    assert_eq!(theirs.create_qp(), 0);
    let mut same = param(b"");
    (same.responder_resources, same.initiator_depth) = most;
    // SAFETY: the test passes an id, and a structure.
    assert_eq!(unsafe { connect::accept(theirs.0, &raw mut same) }, 0);
    server.passes(RDMA_CM_EVENT_ESTABLISHED);
    for id in [theirs, listener] {
        id.end();
    }
    server.end();
}

/// Returns private data of the maximum length of the field `private_data_len`: 255 bytes.
fn most() -> Vec<u8> {
    (1..=u8::MAX).collect()
}

#[test]
fn private_data_of_any_length_that_its_field_can_say_arrives_as_it_is() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    for data in [most(), vec![0], Vec::new()] {
        let [accepted, rejected] = [(), ()].map(|()| {
            let ours = ready(client, listener.local());
            assert_eq!(ours.connect(&data), 0);
            let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
            assert_eq!(request.private_data(), data);
            let theirs = request.id();
            request.ack();
            (ours, theirs)
        });
        assert_eq!(accepted.1.create_qp(), 0);
        assert_eq!(accepted.1.accept(&data), 0);
        server.passes(RDMA_CM_EVENT_ESTABLISHED);
        let event = client.next(RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(
            (event.id(), event.private_data()),
            (accepted.0, data.clone())
        );
        event.ack();
        let len = u8::try_from(data.len()).unwrap();
        // SAFETY: the test passes an id, and bytes.
        unsafe { assert_eq!(connect::reject(rejected.1.0, data.as_ptr().cast(), len), 0) };
        let event = client.next(RDMA_CM_EVENT_REJECTED);
        assert_eq!((event.id(), event.private_data()), (rejected.0, data));
        event.ack();
        for id in [accepted.0, accepted.1, rejected.0, rejected.1] {
            id.end();
        }
    }
    listener.end();
    client.end();
    server.end();
}

/// One byte from `rdma_getaddrinfo` (`ai_connect`) precedes 255 bytes of private data. That makes
/// 256 bytes, more than the length field of the peer's event can hold.
#[test]
fn private_data_of_one_byte_more_is_refused_and_the_id_may_try_again() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = listening(server);
    let ours = ready(client, listener.local());
    // SAFETY: the test passes an id.
    unsafe { id::of(ours.0) }.state.lock().connect = b"+".to_vec();
    assert_eq!(failed(ours.connect(&most())), libc::EINVAL);
    assert_eq!(ours.connect(&most()[1..]), 0);
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.private_data(), [b"+", &most()[1..]].concat());
    let theirs = request.id();
    request.ack();
    theirs.end();
    client.passes(RDMA_CM_EVENT_REJECTED);
    for id in [ours, listener] {
        id.end();
    }
    client.end();
    server.end();
}

/// RFC 6581 section 9: IRD and ORD precede the private data, and are included in its length on the
/// wire.
#[test]
fn the_words_of_rfc_6581_are_on_the_wire_and_not_in_an_event() {
    use std::io::{Read as _, Write as _};
    let client = Channel::new();
    let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = ready(client, peer.local_addr().unwrap());
    assert_eq!(ours.connect(&most()), 0);
    let (mut stream, _) = peer.accept().unwrap();
    let mut request = [0; 20 + 4 + 255];
    stream.read_exact(&mut request).unwrap();
    // The request is enhanced, has revision 2, and a length of 259 bytes: 4 for IRD and ORD, and
    // 255 of private data.
    assert_eq!((request[16] & 0x10, request[17]), (0x10, 2));
    assert_eq!(request[18..20], 259_u16.to_be_bytes());
    assert_eq!(request[24..], most());
    // A reject with IRD, ORD, and two bytes.
    let words = b"MPA ID Rep Frame\x70\x02\x00\x06\x00\x03\x00\x05no";
    stream.write_all(words).unwrap();
    let event = client.next(RDMA_CM_EVENT_REJECTED);
    assert_eq!(event.private_data(), b"no");
    event.ack();
    ours.end();
    client.end();
}

/// A peer may send up to 512 bytes (RFC 5044 section 7.1.1), but the field of an event holds at
/// most 255.
#[test]
fn private_data_that_is_longer_than_its_field_is_cut() {
    use std::io::Write as _;
    let server = Channel::new();
    let listener = listening(server);
    let mut peer = std::net::TcpStream::connect(listener.local()).unwrap();
    let data: Vec<u8> = (0..512).map(|at| (at % 251) as u8).collect();
    let request = [b"MPA ID Req Frame\x40\x01\x02\x00", &data[..]].concat();
    peer.write_all(&request).unwrap();
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    assert_eq!(request.private_data(), data[..255]);
    let theirs = request.id();
    request.ack();
    for id in [theirs, listener] {
        id.end();
    }
    server.end();
}

#[test]
fn as_many_reads_as_the_device_says_can_be_asked_for_and_no_more() {
    let client = Channel::new();
    let most = connect::most(&crate::rnic::device().unwrap());
    // SAFETY: all bytes of the structure may be zero; the context is open.
    let told = unsafe {
        let mut attr = mem::zeroed::<crate::abi::ibv_device_attr>();
        let context = crate::cm::common::get().unwrap().verbs;
        assert_eq!(crate::query::query_device(context, &raw mut attr), 0);
        (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom)
    };
    assert_eq!((c_int::from(most.0), c_int::from(most.1)), told);
    let peer = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = ready(client, peer.local_addr().unwrap());
    let connect = |resources, depth| {
        let mut param = param(b"");
        (param.responder_resources, param.initiator_depth) = (resources, depth);
        // SAFETY: the test passes an id, and a structure.
        unsafe { connect::connect(ours.0, &raw mut param) }
    };
    assert_eq!(failed(connect(most.0 + 1, most.1)), libc::EINVAL);
    assert_eq!(failed(connect(most.0, most.1 + 1)), libc::EINVAL);
    assert_eq!(connect(most.0, most.1), 0);
    ours.end();
    client.end();
}

#[test]
fn a_bound_id_asks_again_from_its_own_port() {
    let (client, server) = (Channel::new(), Channel::new());
    let listener = server.id(LISTENER);
    assert_eq!(listener.bind("127.0.0.1:0"), 0);
    let ours = client.id(CLIENT);
    assert_eq!(ours.bind("127.0.0.1:0"), 0);
    let own = ours.local();
    assert_eq!(ours.resolve(listener.local()), 0);
    client.passes(RDMA_CM_EVENT_ADDR_RESOLVED);
    // SAFETY: the test passes an id.
    assert_eq!(unsafe { address::resolve_route(ours.0, 1000) }, 0);
    client.passes(RDMA_CM_EVENT_ROUTE_RESOLVED);
    assert_eq!(ours.create_qp(), 0);
    // The first attempt is refused at once, because the server does not listen yet.
    assert_eq!(ours.connect(b""), 0);
    // SAFETY: the test passes an id.
    let refused = || unsafe { id::of(ours.0) }.id.state() == uwarp_verbs::CmState::Connecting;
    assert!(refused());
    assert_eq!(listener.listen(), 0);
    let request = server.next(RDMA_CM_EVENT_CONNECT_REQUEST);
    let theirs = request.id();
    request.ack();
    let shown = &raw const theirs.shown().route.addr.__bindgen_anon_2;
    // SAFETY: the test passes an address that the library has written.
    let from = unsafe { addresses::read(shown.cast()) };
    assert_eq!(from, Ok(own));
    theirs.end();
    client.passes(RDMA_CM_EVENT_REJECTED);
    for id in [ours, listener] {
        id.end();
    }
    client.end();
    server.end();
}

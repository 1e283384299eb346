//! QPs for unreliable datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{
    AsyncEvent, Completion, DatagramPath, DatagramWr, DeviceError, EndReason, IbvQpState, Notify,
    PairError, PostErrorKind, Progress, Qp, QpModify, QpState, RecvWr, RemoteBuffer,
    RendezvousOptions, SendWr, Settings, SrqAttr, Status, WcOpcode,
};

use crate::common::until;
use crate::{Host, LOOPBACK};

const QKEY: u32 = 0x1234;
/// Number of bytes of the Global Route Header.
const GRH: usize = 40;
/// Largest payload of the QPs here.
const MTU: u32 = 1024;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn host(addr: IpAddr) -> Host {
    Host::new(
        Arc::new(KernelNetwork::default()),
        addr,
        RendezvousOptions::default().addr(Some(addr)),
    )
}

fn closed(host: &Host) -> Qp {
    let builder = host.pd.qp().datagrams(&host.rendezvous, MTU);
    builder.late_faults(true).build(&host.cq, &host.cq).unwrap()
}

fn qp(host: &Host) -> Qp {
    let qp = closed(host);
    assert!(qp.open_datagrams());
    qp.set_qkey(QKEY);
    qp
}

/// A QP that refuses when it is posted what others let fail.
fn early(host: &Host) -> Qp {
    let builder = host.pd.qp().datagrams(&host.rendezvous, MTU);
    let qp = builder.build(&host.cq, &host.cq).unwrap();
    assert!(qp.open_datagrams());
    qp
}

fn path(from: &Host, to: &Host) -> DatagramPath {
    let local = Some(SocketAddr::new(from.addr, 0));
    from.device.datagram_path(local, to.addr).unwrap()
}

/// Posts a receive of `len` bytes at the start of the region.
fn receive(host: &Host, qp: &Qp, wr_id: u64, len: u32) {
    qp.post_recv(&RecvWr::new(wr_id, &[host.region.sge(0, len)]))
        .unwrap();
}

fn received(host: &Host, payload: usize) -> ([u8; GRH], Vec<u8>) {
    let (mut grh, mut bytes) = ([0; GRH], vec![0; payload]);
    host.region.read_at(0, &mut grh).unwrap();
    host.region.read_at(GRH, &mut bytes).unwrap();
    (grh, bytes)
}

/// Waits for the next completion of a receive, and passes over those of Sends.
fn next_receive(host: &Host) -> Completion {
    loop {
        let completion = host.cq.next();
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        if completion.opcode.is_recv() {
            return completion;
        }
    }
}

/// Two hosts with a QP each.
struct Two {
    a: Host,
    b: Host,
    x: Qp,
    y: Qp,
}

impl Two {
    fn new() -> Self {
        let (a, b) = (host(LOOPBACK), host(LOOPBACK));
        let (x, y) = (qp(&a), qp(&b));
        Two { a, b, x, y }
    }

    fn to_y<'a>(&self, send: SendWr<'a>) -> DatagramWr<'a> {
        DatagramWr::new(send, path(&self.a, &self.b), self.y.qp_num(), QKEY)
    }

    /// Waits until what was sent has been received or dropped. Datagrams of one port are handled
    /// one after the other.
    fn settle(&self) {
        self.settle_from(&self.x);
    }

    /// As [`settle`](Self::settle), for what another QP of the same host has sent.
    fn settle_from(&self, from: &Qp) {
        let other = qp(&self.b);
        receive(&self.b, &other, 76, 256);
        let send = SendWr::send_inline(0, b"after all others").unsignaled();
        let away = path(&self.a, &self.b);
        let wr = DatagramWr::new(send, away, other.qp_num(), QKEY);
        from.post_datagram(&wr).unwrap();
        assert_eq!(next_receive(&self.b).wr_id, 76);
    }

    /// Sends a datagram that is received, and returns its completion.
    fn one_arrives(&self) -> Completion {
        self.settle();
        self.b.cq.assert_empty();
        receive(&self.b, &self.y, 77, 1024);
        let send = SendWr::send_inline(78, b"arrives");
        self.x.post_datagram(&self.to_y(send)).unwrap();
        let done = next_receive(&self.b);
        assert_eq!(received(&self.b, 7).1, b"arrives");
        done
    }
}

#[test]
fn a_datagram_arrives_with_its_header_and_its_origin() {
    for addr in [LOOPBACK, Ipv6Addr::LOCALHOST.into()] {
        let (a, b) = (host(addr), host(addr));
        let (x, y) = (qp(&a), qp(&b));
        receive(&b, &y, 1, 256);
        let wr = DatagramWr::new(
            SendWr::send_inline(2, b"hello").solicited(),
            path(&a, &b).with_traffic_class(0xA4),
            y.qp_num(),
            QKEY,
        );
        x.post_datagram(&wr).unwrap();
        a.done([2]);
        let done = next_receive(&b);
        assert_eq!((done.wr_id, done.opcode), (1, WcOpcode::Recv));
        assert_eq!(done.byte_len as usize, GRH + 5);
        assert!(done.solicited && done.immediate.is_none());
        let source = done.datagram.unwrap();
        assert_eq!(source.qp_num(), x.qp_num());
        assert_eq!(source.is_ipv6(), addr.is_ipv6());
        let (grh, bytes) = received(&b, 5);
        assert_eq!(bytes, b"hello");
        match addr {
            IpAddr::V4(addr) => {
                assert_eq!(grh[32..36], addr.octets());
                assert_eq!(grh[21], 0xA4);
            }
            IpAddr::V6(addr) => {
                assert_eq!(grh[8..24], addr.octets());
                assert_eq!(grh[..2], [0x6A, 0x40]);
            }
        }
        // And an answer to its origin, out of memory, with Immediate Data.
        receive(&a, &x, 3, 256);
        b.region.write_at(512, b"answer").unwrap();
        let sges = [b.region.sge(512, 3), b.region.sge(515, 3)];
        let wr = DatagramWr::new(SendWr::send(4, &sges), path(&b, &a), source.qp_num(), QKEY);
        y.post_datagram(&wr.immediate([1, 2, 3, 4])).unwrap();
        let done = next_receive(&a);
        assert_eq!(done.immediate, Some([1, 2, 3, 4, 0, 0, 0, 0]));
        assert_eq!(received(&a, 6).1, b"answer");
    }
}

#[test]
fn a_datagram_of_the_longest_length_arrives_and_a_longer_one_is_refused() {
    let mut two = Two::new();
    two.x = early(&two.a);
    two.b.region.write_at(0, &[0; 2048]).unwrap();
    receive(&two.b, &two.y, 1, 40 + MTU);
    let bytes = vec![7; MTU as usize];
    two.a.region.write_at(0, &bytes).unwrap();
    let sges = [two.a.region.sge(0, MTU)];
    two.x
        .post_datagram(&two.to_y(SendWr::send(2, &sges)))
        .unwrap();
    assert_eq!(next_receive(&two.b).byte_len, 40 + MTU);
    assert_eq!(received(&two.b, MTU as usize).1, bytes);
    let sges = [two.a.region.sge(0, MTU), two.a.region.sge(0, 1)];
    let refused = two.x.post_datagram(&two.to_y(SendWr::send(3, &sges)));
    let got = u64::from(MTU) + 1;
    assert_eq!(
        refused.unwrap_err().kind,
        PostErrorKind::DatagramTooLong { got, max: MTU }
    );
}

#[test]
fn what_has_no_receive_or_another_key_or_no_destination_is_dropped_and_complete() {
    let two = Two::new();
    let send = |wr_id| SendWr::send_inline(wr_id, b"dropped");
    two.x.post_datagram(&two.to_y(send(1))).unwrap();
    two.a.done([1]);
    two.one_arrives();
    two.a.done([78]);
    let away = path(&two.a, &two.b);
    receive(&two.b, &two.y, 2, 1024);
    for (qp_num, qkey) in [
        (two.y.qp_num(), QKEY + 1),
        (two.y.qp_num() ^ 0x80, QKEY),
        (5, QKEY),
        (0x00FF_FFFF, QKEY),
    ] {
        let wr = DatagramWr::new(send(3), away, qp_num, qkey);
        two.x.post_datagram(&wr).unwrap();
        two.a.done([3]);
    }
    // The receive that was posted before those is still there.
    assert_eq!(two.one_arrives().wr_id, 2);
}

#[test]
fn a_receive_that_is_too_short_stays_for_the_next_datagram() {
    let two = Two::new();
    receive(&two.b, &two.y, 1, 40 + 7);
    let sges = [two.a.region.sge(0, 8)];
    two.x
        .post_datagram(&two.to_y(SendWr::send(2, &sges)))
        .unwrap();
    assert_eq!(two.one_arrives().wr_id, 1);
}

#[test]
fn a_key_with_its_highest_bit_stands_for_that_of_the_sender() {
    let two = Two::new();
    receive(&two.b, &two.y, 1, 256);
    let send = SendWr::send_inline(2, b"mine");
    let wr = DatagramWr::new(send, path(&two.a, &two.b), two.y.qp_num(), 0x8000_0001);
    two.x.post_datagram(&wr).unwrap();
    assert_eq!(next_receive(&two.b).wr_id, 1);
}

#[test]
fn strangers_and_forgers_are_dropped() {
    let two = Two::new();
    receive(&two.b, &two.y, 1, 1024);
    let port = u16::try_from(two.y.qp_num() >> 8).unwrap();
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut forged = [0_u8; 60];
    forged[..8].copy_from_slice(b"uwUD\x01\0\0\0");
    forged[8..12].copy_from_slice(&two.x.qp_num().to_be_bytes());
    forged[12..16].copy_from_slice(&two.y.qp_num().to_be_bytes());
    forged[16..20].copy_from_slice(&QKEY.to_be_bytes());
    forged[34..40].copy_from_slice(&[0xFF, 0xFF, 127, 0, 0, 9]);
    forged[50..56].copy_from_slice(&[0xFF, 0xFF, 127, 0, 0, 1]);
    let all = [b"hello".to_vec(), Vec::new(), vec![0xFF; 9000]];
    let cut = (0..56).map(|len| forged[..len].to_vec());
    for bytes in all.into_iter().chain(cut).chain([forged.to_vec()]) {
        stranger.send_to(&bytes, (LOOPBACK, port)).unwrap();
    }
    // The right address, but not the port of the queue pair that it names.
    forged[34..40].copy_from_slice(&[0xFF, 0xFF, 127, 0, 0, 1]);
    stranger.send_to(&forged, (LOOPBACK, port)).unwrap();
    two.settle();
    two.b.cq.assert_empty();
    // The receive 1 was not taken.
    let send = SendWr::send_inline(78, b"arrives");
    two.x.post_datagram(&two.to_y(send)).unwrap();
    assert_eq!(next_receive(&two.b).wr_id, 1);
}

#[test]
fn any_source_is_taken_if_addresses_are_translated() {
    let a = host(LOOPBACK);
    let options = RendezvousOptions::default()
        .addr(Some(LOOPBACK))
        .any_source(true);
    let b = Host::new(Arc::new(KernelNetwork::default()), LOOPBACK, options);
    let (x, y) = (qp(&a), qp(&b));
    receive(&b, &y, 1, 256);
    let mut bytes = [0_u8; 56];
    bytes[..8].copy_from_slice(b"uwUD\x01\0\0\0");
    bytes[8..12].copy_from_slice(&x.qp_num().to_be_bytes());
    bytes[12..16].copy_from_slice(&y.qp_num().to_be_bytes());
    bytes[16..20].copy_from_slice(&QKEY.to_be_bytes());
    let port = u16::try_from(y.qp_num() >> 8).unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&bytes, (LOOPBACK, port)).unwrap();
    assert_eq!(next_receive(&b).byte_len, 40);
}

#[test]
fn a_qp_for_datagrams_is_nothing_else_and_sends_from_its_opening_on() {
    let mut two = Two::new();
    two.x = early(&two.a);
    let kind = |result: Result<(), uwarp_verbs::PostError>| result.unwrap_err().kind;
    let send = SendWr::send_inline(1, b"x");
    assert_eq!(kind(two.x.post_send(&send)), PostErrorKind::NoDestination);
    let remote = two.b.region.remote();
    let write = SendWr::write_inline(1, b"x", remote);
    for wr in [write, send.invalidate(7)] {
        assert_eq!(
            kind(two.x.post_datagram(&two.to_y(wr))),
            PostErrorKind::NotADatagram
        );
    }
    let closed = closed(&two.a);
    assert_eq!(
        kind(closed.post_datagram(&two.to_y(send))),
        PostErrorKind::NotConnected {
            state: QpState::Idle
        }
    );
    let options = uwarp_verbs::PairOptions::default();
    let error = closed.pair(two.b.peer(&two.y), &options).unwrap_err();
    assert!(matches!(error, PairError::ForDatagrams), "{error}");
    let ordinary = two.a.qp();
    assert!(!ordinary.open_datagrams());
    assert_eq!(
        kind(ordinary.post_datagram(&two.to_y(send))),
        PostErrorKind::NotForDatagrams
    );
    let builder = two.a.pd.qp().datagrams(&two.a.rendezvous, 4097);
    let error = builder.build(&two.a.cq, &two.a.cq).unwrap_err();
    assert!(matches!(error, DeviceError::Size { .. }), "{error}");
}

#[test]
fn with_late_faults_what_is_no_datagram_or_too_long_is_accepted_and_fails() {
    let inline = SendWr::send_inline(2, b"x");
    let fails = |post: &dyn Fn(&Two), status| {
        let two = Two::new();
        post(&two);
        let mut done = [two.a.cq.next(), two.a.cq.next()];
        done.sort_by_key(|done| done.wr_id);
        let all = done.map(|done| (done.wr_id, done.status));
        assert_eq!(all, [(1, Status::Success), (2, status)]);
        assert!(done[1].cause.is_some());
        two.settle_from(&qp(&two.a));
        two.b.cq.assert_empty();
        // A later request is flushed.
        two.x
            .post_datagram(&two.to_y(SendWr::send_inline(3, b"x")))
            .unwrap();
        assert_eq!(two.a.cq.next().status, Status::WrFlush);
    };
    let before = |two: &Two| {
        two.x
            .post_datagram(&two.to_y(SendWr::send_inline(1, b"sent")))
            .unwrap();
    };
    for invalid in [
        inline.invalidate(7),
        SendWr::read(2, &[], RemoteBuffer::at(0, 0)),
        SendWr::write_inline(2, b"x", RemoteBuffer::at(0, 0)),
        SendWr::write_with_immediate(2, &[], RemoteBuffer::at(0, 0), [0; 8]),
    ] {
        let named = |two: &Two| {
            before(two);
            two.x.post_datagram(&two.to_y(invalid)).unwrap();
        };
        fails(&named, Status::LocalQpOperation);
        let unnamed = |two: &Two| {
            before(two);
            two.x.post_send(&invalid).unwrap();
        };
        fails(&unnamed, Status::LocalQpOperation);
    }
    let too_long = |two: &Two| {
        let sges = [two.a.region.sge(0, MTU), two.a.region.sge(0, 1)];
        let list = [SendWr::send_inline(1, b"sent"), SendWr::send(2, &sges)];
        let wrs = list.map(|send| two.to_y(send));
        two.x.post_datagrams(wrs).unwrap();
    };
    fails(&too_long, Status::LocalLength);
}

#[test]
fn a_list_is_sent_whole_or_not_at_all() {
    let mut two = Two::new();
    two.x = early(&two.a);
    let [first, second] = [1, 2].map(|number| SendWr::send_inline(number, b"listed"));
    let long = [0; MTU as usize + 1];
    let long = SendWr::send_inline(3, &long);
    let list = [first, second, long].map(|send| two.to_y(send));
    receive(&two.b, &two.y, 10, 1024);
    receive(&two.b, &two.y, 11, 1024);
    let error = two.x.post_datagrams(list).unwrap_err();
    assert_eq!(error.index, 2);
    assert!(matches!(error.kind, PostErrorKind::DatagramTooLong { .. }));
    two.settle();
    for host in [&two.a, &two.b] {
        host.cq.assert_empty();
    }
    two.x.post_datagrams(list[..2].iter().copied()).unwrap();
    assert_eq!([1, 2].map(|_| next_receive(&two.b).wr_id), [10, 11]);
    let many = vec![list[0]; two.x.send_room() + 1];
    let error = two.x.post_datagrams(many).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::SendQueueFull { .. }));
}

#[test]
fn a_qp_for_datagrams_that_is_closed_flushes_its_receives() {
    let close: [fn(&Qp); 2] = [Qp::disconnect, |qp| {
        let to = QpModify::new().state(QpState::Terminate);
        qp.modify(&to).unwrap();
    }];
    for close in close {
        let two = Two::new();
        receive(&two.b, &two.y, 7, 256);
        close(&two.y);
        assert!(two.y.wait_closed(Duration::from_secs(20)));
        assert_eq!(two.y.state(), QpState::Error);
        assert!(two.y.end_reason().is_some());
        let completion = two.b.cq.next();
        assert_eq!((completion.wr_id, completion.status), (7, Status::WrFlush));
        // Its number takes part again after a reset.
        two.y.modify(&QpModify::new().state(QpState::Idle)).unwrap();
        assert!(two.y.open_datagrams());
        two.y.set_qkey(QKEY);
        two.one_arrives();
    }
}

#[test]
fn the_network_in_memory_has_no_datagrams() {
    let [a, _b] = Host::two_in_memory();
    let builder = a.pd.qp().datagrams(&a.rendezvous, MTU);
    let error = builder.build(&a.cq, &a.cq).unwrap_err();
    assert!(matches!(error, DeviceError::Network(_)), "{error}");
    // Other QPs are as before.
    let _other = a.qp();
}

#[test]
fn a_sleeping_program_is_woken_by_a_datagram() {
    let two = Two::new();
    let channel = two.b.device.create_channel().unwrap();
    let cq = two.b.device.create_cq_on(16, &channel, 0).unwrap();
    let builder = two.b.pd.qp().datagrams(&two.b.rendezvous, MTU);
    let z = builder.build(&cq, &cq).unwrap();
    z.set_qkey(QKEY);
    assert!(z.open_datagrams());
    for round in 0..20 {
        receive(&two.b, &z, round, 256);
        // A program that has polled, and arms the queue.
        assert!(cq.poll_one().is_none());
        assert!(!cq.req_notify(Notify::Any));
        let send = SendWr::send_inline(1, b"wake up");
        let wr = DatagramWr::new(send, path(&two.a, &two.b), z.qp_num(), QKEY);
        two.x.post_datagram(&wr).unwrap();
        drop(channel.get_event(LIMIT).unwrap());
        assert_eq!(cq.poll_one().unwrap().wr_id, round);
        // And one that waits by a call.
        receive(&two.b, &z, 100 + round, 256);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| cq.wait(LIMIT).unwrap().wr_id);
            two.x.post_datagram(&wr).unwrap();
            assert_eq!(waits.join().unwrap(), 100 + round);
        });
    }
}

#[test]
fn receives_of_a_shared_queue_go_to_the_qp_that_gets_a_datagram() {
    let two = Two::new();
    let srq = two.b.pd.create_srq(SrqAttr::default()).unwrap();
    let qps = [0, 1].map(|_| {
        let builder = two.b.pd.qp().datagrams(&two.b.rendezvous, MTU).srq(&srq);
        let qp = builder.build(&two.b.cq, &two.b.cq).unwrap();
        qp.set_qkey(QKEY);
        assert!(qp.open_datagrams());
        qp
    });
    for wr_id in [1, 2] {
        srq.post_recv(&RecvWr::new(wr_id, &[two.b.region.sge(0, 256)]))
            .unwrap();
    }
    for (qp, wr_id) in qps.iter().zip([1, 2]) {
        let send = SendWr::send_inline(9, b"shared");
        let wr = DatagramWr::new(send, path(&two.a, &two.b), qp.qp_num(), QKEY);
        two.x.post_datagram(&wr).unwrap();
        let done = next_receive(&two.b);
        assert_eq!((done.wr_id, done.qp_num), (wr_id, qp.qp_num()));
    }
}

#[test]
fn memory_that_may_not_be_used_fails_its_request_and_ends_the_qp() {
    let two = Two::new();
    let mut wrong = two.a.region.sge(0, 8);
    wrong.lkey ^= 0xFF;
    let sges = [wrong];
    two.x
        .post_datagram(&two.to_y(SendWr::send(1, &sges)))
        .unwrap();
    let done = two.a.cq.next();
    assert_eq!((done.wr_id, done.status), (1, Status::LocalProtection));
    assert_eq!(two.x.state(), QpState::Error);
    two.x
        .post_datagram(&two.to_y(SendWr::send_inline(2, b"late")))
        .unwrap();
    assert_eq!(two.a.cq.next().status, Status::WrFlush);
    // A receive, which a datagram of another QP reaches.
    let mut wrong = two.b.region.sge(0, 256);
    wrong.lkey ^= 0xFF;
    two.y.post_recv(&RecvWr::new(3, &[wrong])).unwrap();
    receive(&two.b, &two.y, 4, 256);
    let z = qp(&two.a);
    z.post_datagram(&two.to_y(SendWr::send_inline(5, b"x")))
        .unwrap();
    let mut done = [(); 2].map(|()| {
        let completion = two.b.cq.next();
        (completion.wr_id, completion.status)
    });
    done.sort_unstable_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(done, [(3, Status::LocalProtection), (4, Status::WrFlush)]);
    assert_eq!(two.y.state(), QpState::Error);
}

#[test]
fn a_reset_empties_the_queues_and_the_qp_can_be_opened_again() {
    let two = Two::new();
    receive(&two.b, &two.y, 1, 256);
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    two.y.modify(&reset).unwrap();
    assert_eq!(two.b.cq.next().status, Status::WrFlush);
    assert_eq!(two.y.state(), QpState::Idle);
    let send = SendWr::send_inline(2, b"nobody");
    two.x.post_datagram(&two.to_y(send)).unwrap();
    two.b.cq.assert_empty();
    assert!(two.y.open_datagrams());
    two.y.set_qkey(QKEY);
    two.one_arrives();
}

#[test]
fn more_qps_than_a_port_has_numbers_receive_at_several_ports() {
    let (a, b) = (host(LOOPBACK), host(LOOPBACK));
    let x = qp(&a);
    let qps: Vec<Qp> = (0..300).map(|_| qp(&b)).collect();
    for (wr_id, qp) in (0..).zip(&qps) {
        receive(&b, qp, wr_id, 256);
        let send = SendWr::send_inline(1, b"x").unsignaled();
        let send = if wr_id % 64 == 63 {
            SendWr::send_inline(1, b"x")
        } else {
            send
        };
        let wr = DatagramWr::new(send, path(&a, &b), qp.qp_num(), QKEY);
        x.post_datagram(&wr).unwrap();
        while a.cq.poll_one().is_some() {}
        assert_eq!(next_receive(&b).qp_num, qp.qp_num());
    }
    let ports = |qps: &[Qp]| {
        let mut ports: Vec<u32> = qps.iter().map(|qp| qp.qp_num() >> 8).collect();
        ports.dedup();
        ports.len()
    };
    assert_eq!(ports(&qps), 2);
}

#[test]
fn a_port_that_another_program_has_is_passed_over() {
    let a = host(LOOPBACK);
    // The rendezvous takes the port of TCP first.
    let first = a.qp().qp_num() >> 8;
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, u16::try_from(first).unwrap())).unwrap();
    let x = qp(&a);
    assert_ne!(x.qp_num() >> 8, first);
    drop(taken);
    assert_eq!(a.qp().qp_num() >> 8, x.qp_num() >> 8);
}

#[test]
fn a_device_without_a_thread_receives_in_its_rounds() {
    let settings = Settings::default().progress(Progress::Manual);
    let options = RendezvousOptions::default().addr(Some(LOOPBACK));
    let network = Arc::<KernelNetwork>::default();
    let a = Host::with(network, LOOPBACK, options, settings);
    let channel = a.device.create_channel().unwrap();
    let cq = a.device.create_cq_on(16, &channel, 0).unwrap();
    let builder = a.pd.qp().datagrams(&a.rendezvous, MTU);
    let x = builder.build(&cq, &cq).unwrap();
    x.set_qkey(QKEY);
    assert!(x.open_datagrams());
    receive(&a, &x, 1, 256);
    cq.req_notify(Notify::Any);
    let send = SendWr::send_inline(2, b"myself").unsignaled();
    let wr = DatagramWr::new(send, path(&a, &a), x.qp_num(), QKEY);
    x.post_datagram(&wr).unwrap();
    until("the datagram is received", || {
        a.device.progress();
        channel.get_event(Some(Duration::ZERO)).is_ok()
    });
}

/// Takes the asynchronous events of a host. Returns the reasons of those about the end of the QP,
/// the number of those about its last receive, and the number of lost completions.
fn events(host: &Host, qp: &Qp) -> (Vec<EndReason>, usize, usize) {
    let (mut reasons, mut last, mut lost) = (Vec::new(), 0, 0);
    for event in std::iter::from_fn(|| host.device.poll_event()) {
        match event {
            AsyncEvent::Ended { qp_num, reason } if qp_num == qp.qp_num() => reasons.push(reason),
            AsyncEvent::LastWqeReached { qp_num } if qp_num == qp.qp_num() => last += 1,
            AsyncEvent::CqOverflow { qp_num, .. } if qp_num == qp.qp_num() => lost += 1,
            other => panic!("{other:?}"),
        }
    }
    (reasons, last, lost)
}

#[test]
fn a_qp_for_datagrams_that_ends_raises_each_event_once() {
    let a = host(LOOPBACK);
    let srq = a.pd.create_srq(SrqAttr::default()).unwrap();
    let short = a.device.create_cq(1).unwrap();
    let to = |qp: &Qp, modify: QpModify| qp.modify(&modify).unwrap();
    let fails_itself = |qp: &Qp| to(qp, QpModify::new().state(QpState::Terminate));
    let fails = |qp: &Qp| to(qp, QpModify::new().ibv_state(IbvQpState::Err));
    let overflows = |qp: &Qp| {
        for wr_id in [1, 2] {
            let send = SendWr::send_inline(wr_id, b"to itself");
            let wr = DatagramWr::new(send, path(&a, &a), qp.qp_num(), QKEY);
            qp.post_datagram(&wr).unwrap();
        }
    };
    let ends: [&dyn Fn(&Qp); 4] = [&Qp::disconnect, &fails_itself, &fails, &overflows];
    for (number, end) in ends.into_iter().enumerate() {
        let builder = a.pd.qp().datagrams(&a.rendezvous, MTU).srq(&srq);
        let qp = builder.build(&short, &a.cq).unwrap();
        assert!(qp.open_datagrams());
        qp.set_qkey(QKEY);
        end(&qp);
        assert!(qp.wait_closed(Duration::from_secs(20)));
        assert_eq!(qp.state(), QpState::Error);
        let (reasons, last, lost) = events(&a, &qp);
        let is_due = matches!(
            (number, &reasons[..]),
            (0, [EndReason::LocalDisconnect])
                | (1, [EndReason::LocalError { .. }])
                | (2, [EndReason::Aborted])
                | (3, [EndReason::CqOverflow { wr_id: 2, .. }])
        );
        assert!(is_due, "{number}: {reasons:?}");
        assert_eq!((last, lost), (1, usize::from(number == 3)), "{number}");
    }
}

#[test]
fn a_reset_of_a_qp_for_datagrams_is_no_failure() {
    let a = host(LOOPBACK);
    let srq = a.pd.create_srq(SrqAttr::default()).unwrap();
    let builder = a.pd.qp().datagrams(&a.rendezvous, MTU).srq(&srq);
    let qp = builder.build(&a.cq, &a.cq).unwrap();
    assert!(qp.open_datagrams());
    let reset = QpModify::new().ibv_state(IbvQpState::Reset);
    qp.modify(&reset).unwrap();
    let (reasons, last, lost) = events(&a, &qp);
    let aborted = matches!(reasons[..], [EndReason::Aborted]);
    assert!(
        aborted && (last, lost) == (0, 0),
        "{reasons:?} {last} {lost}"
    );
}

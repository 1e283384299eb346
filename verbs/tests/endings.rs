//! Connections whose two sides are in different phases: a FIN after data, a Terminate before a
//! reset, and a peer that half closes, stays open, or sends too early.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{
    Ends, FILL, LIMIT, RawPeer, Setup, Side, Wire, both_ways, brief, content, join, pair, pattern,
    placed_only, raw_peer, raw_settings, same, until,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use uwarp_oracle::{
    Crc, READ_REQUEST, READ_RESPONSE, REPLY, REQUEST, SEND, TERMINATE, Tagged, Untagged, WRITE,
    fpdu, startup,
};
use uwarp_verbs::{
    AcceptOptions, CompletionChannel, ConnectOptions, Cq, Device, DeviceError, EndReason, Notify,
    Pd, Qp, QpCaps, QpState, RecvWr, RemoteBuffer, RtrKinds, SendWr, Settings, Status, WcOpcode,
};

/// Timeout that never expires in a test.
const NEVER: Duration = Duration::from_secs(3600);

/// Returns an untagged message of one segment, in an FPDU without CRC.
fn untagged(opcode: u8, queue: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    fpdu(
        &Untagged::new(opcode, queue, msn, payload).bytes(),
        Crc::Zero,
    )
}

/// Returns a segment of a tagged message, in an FPDU without CRC.
fn tagged(opcode: u8, last: bool, stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    let segment = Tagged {
        last,
        ..Tagged::new(opcode, stag, to, payload)
    };
    fpdu(&segment.bytes(), Crc::Zero)
}

/// Returns a valid FPDU without effect, which is an empty Write.
fn empty_write() -> Vec<u8> {
    tagged(WRITE, true, 1, 0, b"")
}

/// Returns settings for a raw peer, with this limit on a close.
fn closing_in(close: Duration) -> Settings {
    let mut settings = raw_settings();
    settings.timeouts.close = close;
    settings
}

/// Creates an endpoint on the kernel's TCP.
fn side(settings: Settings) -> Side {
    let device = Device::tcp_with(settings, None).unwrap();
    let caps = QpCaps::default().max_send_wr(4000);
    Side::new(device, caps, 4096)
}

fn post(side: &Side, wr: &SendWr<'_>) {
    side.qp.post_send(wr).unwrap();
}

/// Closes the stream with a reset.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Connects a raw initiator, which sends its MPA Request (revision 1, no CRC) and then `early`. The
/// responder accepts.
fn raw_initiator(b: &Side, early: &[u8]) -> TcpStream {
    let listener = b.device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&startup(REQUEST, 0, 1, b"")).unwrap();
    let request = listener.wait_request(Some(LIMIT)).unwrap();
    stream.write_all(early).unwrap();
    request.accept(&b.qp, &AcceptOptions::default()).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply[..16], b"MPA ID Rep Frame");
    stream
}

/// Creates a responder whose raw initiator has sent nothing after its Request. The responder may
/// not send yet (5044-7.1.2-15).
fn responder(settings: Settings) -> (Side, TcpStream) {
    let b = side(settings);
    let stream = raw_initiator(&b, b"");
    (b, stream)
}

#[track_caller]
fn reads_fin(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 64]).unwrap(), 0);
}

/// TCP in user space signals data and a FIN after it only once. A reader that stops after the data
/// detects the FIN when TCP retransmits, or never. The test needs many rounds, because timing
/// decides whether both arrive together. All rounds share one time limit.
#[test]
fn a_fin_or_reset_behind_data_is_noticed_by_a_side_that_only_waits() {
    let deadline = Instant::now() + LIMIT;
    for round in 0..100 {
        let (a, b) = pair(Wire::MEMORY);
        b.post_empty(1);
        post(&a, &SendWr::send(2, &[]));
        if round % 4 == 0 {
            // Dropping the QP with a Read in flight sends a reset.
            let (sink, lent) = (a.blank(64), b.filled(1, 64));
            let whole = [sink.sge(0, 64)];
            post(
                &a,
                &SendWr::read(3, &whole, RemoteBuffer::at(lent.addr(), lent.rkey())),
            );
            drop(a.qp);
        } else {
            a.qp.disconnect();
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(b.qp.wait_closed(left), "in round {round}: {}", b.qp.state());
        if round % 4 > 0 {
            assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
            b.recv_cq.success(1);
        }
    }
}

/// The reported reason is the Terminate Message, not the failure of TCP.
#[test]
fn the_terminate_of_a_peer_is_told_although_our_own_send_failed() {
    for _ in 0..40 {
        let a = side(raw_settings());
        let RawPeer { mut stream } = raw_peer(&a.qp);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                stream.read_exact(&mut [0; 8]).unwrap();
                // The error is DDP's base or bounds violation of a tagged buffer.
                let terminate = untagged(TERMINATE, 2, 1, &[0x11, 0x01, 0, 0]);
                stream.write_all(&terminate).unwrap();
                reset(stream);
            });
            let write = SendWr::write_inline(1, b"x", RemoteBuffer::at(0, 5)).unsignaled();
            while a.qp.post_send(&write).is_ok() && a.qp.end_reason().is_none() {}
        });
        let reason = a.wait_end();
        let terminated = matches!(reason, EndReason::TerminateReceived { .. });
        assert!(terminated, "{reason}");
    }
}

/// The first FPDU ends the wait for an RTR indication, but not the wait for the peer's close.
#[test]
fn a_responder_that_has_closed_ends_although_the_peer_then_begins_to_send() {
    let mut settings = closing_in(Duration::from_secs(2));
    settings.limits.max_qp = 1;
    for dropped in [false, true] {
        let (b, mut stream) = responder(settings.clone());
        b.qp.disconnect();
        reads_fin(&mut stream);
        stream.write_all(&empty_write()).unwrap();
        // The peer keeps its side open and sends nothing more.
        if !dropped {
            assert!(matches!(b.wait_end(), EndReason::LocalDisconnect));
        }
        drop(b.qp);
        // A QP counts towards the limit until its connection has ended.
        until("the end of the dropped QP", || {
            b.pd.create_qp(&b.send_cq, &b.recv_cq, QpCaps::default())
                .is_ok()
        });
        until("the reset", || stream.write_all(&[0]).is_err());
    }
}

/// After the peer's FIN, nothing can permit this side to send (5044-7.1.2-15). The connection
/// therefore ends without waiting for the close timer.
#[test]
fn a_responder_that_may_not_send_ends_with_the_fin_of_its_peer() {
    for reset_too in [false, true] {
        let (b, mut stream) = responder(closing_in(NEVER));
        post(&b, &SendWr::send_inline(1, b"held back"));
        stream.shutdown(Shutdown::Write).unwrap();
        if reset_too {
            reset(stream);
            b.wait_end();
        } else {
            assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
            reads_fin(&mut stream);
        }
        b.send_cq.flushed(1);
    }
}

/// RFC 6581 section 10: the second attempt uses another TCP connection.
#[test]
fn after_the_retry_with_revision_1_the_addresses_are_those_of_the_second_connection() {
    let settings = Settings::default().retry_with_revision_1(true);
    let a = side(settings);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let mut first = listener.accept().unwrap().0;
            first.read_exact(&mut [0; 24]).unwrap();
            drop(first);
            let (mut second, from) = listener.accept().unwrap();
            second.read_exact(&mut [0; 20]).unwrap();
            second.write_all(&startup(REPLY, 0, 1, b"")).unwrap();
            (second, from)
        });
        a.qp.connect(to, &ConnectOptions::default()).unwrap();
        let (_open, from) = peer.join().unwrap();
        assert_eq!(a.qp.connection().unwrap().local, from);
    });
}

#[test]
fn a_connect_that_fails_at_once_is_told_in_an_event_too() {
    let a = side(Settings::default());
    // This is an address for documentation (RFC 5737), which this host does not have.
    let options = ConnectOptions::default().local(Some("192.0.2.77:0".parse().unwrap()));
    a.qp.connect("127.0.0.1:9", &options).unwrap_err();
    let (_, reason) = a.ended_event();
    let failed = matches!(reason, EndReason::ConnectFailed { .. });
    assert!(failed, "{reason}");
    assert!(a.device.wait_event(Some(Duration::ZERO)).is_none());
}

/// 5041-6.2.1-04: the peer's FIN ends only the peer's direction. Its Reads are answered completely
/// and in order (5040-5.2.2). Our requests posted before the FIN are sent, and only our Read is
/// flushed.
#[test]
fn a_peer_that_has_closed_its_half_still_gets_its_responses_and_what_was_posted() {
    // This is more than TCP takes at once, so that much of it is unsent when the FIN arrives.
    const LEN: usize = 8 << 20;
    let (b, mut stream) = responder(closing_in(NEVER));
    let (lent, sink) = (b.filled(1, LEN), b.blank(64));
    for msn in 1..=2_u32 {
        // The header has the sink's STag and TO, the length, and the source's STag.
        let mut header = [0x100 * msn, 0, 0, LEN as u32, lent.rkey()]
            .map(u32::to_be_bytes)
            .concat();
        header.extend_from_slice(&lent.addr().to_be_bytes());
        let request = untagged(READ_REQUEST, 1, msn, &header);
        stream.write_all(&request).unwrap();
    }
    // The first Response is in flight now.
    assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
    post(&b, &SendWr::send_inline(1, b"the Send"));
    post(
        &b,
        &SendWr::write_inline(2, b"the Write", RemoteBuffer::at(0x5000, 0x300)),
    );
    post(
        &b,
        &SendWr::read(3, &[sink.sge(0, 64)], RemoteBuffer::at(0x1000, 0x77)),
    );
    stream.shutdown(Shutdown::Write).unwrap();
    until("the FIN", || b.qp.state() == QpState::Closing);
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();

    let mut messages = [const { (Vec::new(), false) }; 4];
    let mut rest = &bytes[..];
    while let Some(len) = rest.first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len));
        let (ulpdu, last) = (&rest[2..2 + len], rest[2] & 0x40 != 0);
        rest = &rest[(2 + len).next_multiple_of(4) + 4..];
        let (place, header) = match ulpdu[1] & 15 {
            READ_RESPONSE => (usize::from(ulpdu[4]) - 1, 14),
            SEND => (2, 18),
            WRITE => (3, 14),
            // Timing decides whether our Read Request was sent before the FIN arrived.
            READ_REQUEST => continue,
            opcode => panic!("opcode {opcode}"),
        };
        assert!(place != 1 || messages[0].1, "Responses are in order");
        let (payload, whole) = &mut messages[place];
        assert!(!*whole, "a message has one last segment");
        payload.extend_from_slice(&ulpdu[header..]);
        *whole = last;
    }
    let response = pattern(1, LEN);
    let due = [&response[..], &response, b"the Send", b"the Write"];
    for (number, ((payload, whole), due)) in messages.iter().zip(due).enumerate() {
        assert!(whole, "message {number}: {} bytes came", payload.len());
        same(payload, due, &format!("message {number}"));
    }
    assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
    b.send_cq.successes([1, 2]);
    b.send_cq.flushed(3);
    assert_eq!(content(&sink), [FILL; 64]);
}

/// Requests posted before a close are carried out as long as the connection makes progress.
#[test]
fn a_read_posted_before_disconnect_completes_though_its_response_comes_slowly() {
    const STEPS: usize = 80;
    // The Response takes twice the time limit of a close without progress, and arrives at twice the
    // minimum pace.
    let a = side(closing_in(Duration::from_millis(2000)));
    let RawPeer { mut stream } = raw_peer(&a.qp);
    let sink = a.blank(STEPS * 200);
    let whole = [sink.sge(0, (STEPS * 200) as u32)];
    post(&a, &SendWr::read(9, &whole, RemoteBuffer::at(0x1000, 0x77)));
    a.qp.disconnect();
    let mut request = [0; 52];
    stream.read_exact(&mut request).unwrap();
    let stag = u32::from_be_bytes(request[20..24].try_into().unwrap());
    let to = u64::from_be_bytes(request[24..32].try_into().unwrap());
    let data = pattern(9, STEPS * 200);
    for (step, part) in (1..).zip(data.chunks(200)) {
        let at = to + 200 * (step as u64 - 1);
        let segment = tagged(READ_RESPONSE, step == STEPS, stag, at, part);
        stream.write_all(&segment).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    a.send_cq.success(9);
    placed_only(&sink, 0, &data, "the Response");
    reads_fin(&mut stream);
    drop(stream);
    assert!(matches!(a.wait_end(), EndReason::LocalDisconnect));
}

/// For a user `Duration::MAX` means "no limit". Adding it to an instant would overflow.
#[test]
fn the_longest_timeout_is_no_limit() {
    const MAX: Duration = Duration::MAX;
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire).peer_to_peer();
        for settings in &mut setup.settings {
            let t = &mut settings.timeouts;
            (t.connect, t.reply, t.request) = (MAX, MAX, MAX);
            (t.decision, t.rtr, t.close) = (MAX, MAX, MAX);
        }
        let (a, b) = setup.connected();
        both_ways(&a, &b);
        b.post_empty(1);
        post(&a, &SendWr::send(2, &[]));
        assert_eq!(b.recv_cq.wait(Some(MAX)).unwrap().wr_id, 1);
        assert_eq!(a.send_cq.wait(Some(MAX)).unwrap().wr_id, 2);
        a.qp.disconnect();
        assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
        assert!(a.qp.wait_closed(MAX));
        assert!(b.device.wait_event(Some(MAX)).is_some());
    }
}

/// RFC 6581 section 9.2: a responder to enhanced Requests must accept some kind of RTR indication.
#[test]
fn settings_that_cannot_serve_a_connection_are_refused_in_words() {
    let settings = Settings::default().rtr(RtrKinds::NONE);
    let device = Device::tcp_with(settings, None).unwrap();
    let error = device.listen("127.0.0.1:0".parse().unwrap()).unwrap_err();
    assert!(matches!(error, DeviceError::Settings(_)), "{error:?}");
    let words = error.to_string();
    assert!(
        words.contains("settings") && words.contains("RTR"),
        "{words}"
    );
}

/// The Reply has arrived. Later events must not undo the connection or its private data.
#[test]
fn connect_succeeds_although_the_peer_closes_at_once() {
    for _ in 0..40 {
        let a = side(raw_settings());
        a.post_empty(1);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 20]).unwrap();
                let bytes = [startup(REPLY, 0, 1, b"hello"), untagged(SEND, 0, 1, b"")].concat();
                stream.write_all(&bytes).unwrap();
            });
            let connected = a.qp.connect(to, &ConnectOptions::default()).unwrap();
            assert_eq!(connected.private_data, b"hello");
        });
        a.recv_cq.success(1);
        assert!(matches!(a.wait_end(), EndReason::PeerDisconnect));
    }
}

/// 5044-7.1.2-11: an initiator must not send an FPDU before the Reply. If it does, it still gets
/// the Reply first, which `raw_initiator` checks.
#[test]
fn the_reply_goes_out_before_fpdus_that_came_too_early_are_looked_at() {
    // RDMAP opcode 9 does not exist.
    for (early, bad) in [(empty_write(), false), (tagged(9, true, 1, 0, b""), true)] {
        for _ in 0..10 {
            let b = side(raw_settings());
            drop(raw_initiator(&b, &early));
            let reason = b.wait_end();
            let faulty = matches!(reason, EndReason::TerminateSent { .. });
            assert_eq!(faulty, bad, "{reason}");
        }
    }
}

/// One side of the echo below, with one CQ and a channel.
struct Sleeper {
    channel: CompletionChannel,
    cq: Cq,
    qp: Qp,
}

impl Sleeper {
    fn new(device: &Device, pd: &Pd) -> Self {
        let channel = CompletionChannel::new().unwrap();
        let cq = device.create_cq_on(64, &channel, 0).unwrap();
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        Sleeper { channel, cq, qp }
    }

    fn send(&self) {
        self.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        let send = SendWr::send(2, &[]);
        // The request that fills the queue is signaled, because its completion frees the queue.
        let send = match self.qp.send_room() {
            1 => send,
            _ => send.unsignaled(),
        };
        self.qp.post_send(&send).unwrap();
    }

    /// Receives as event-driven programs do: arms, polls again, and sleeps on the channel's
    /// descriptor.
    #[track_caller]
    fn receive(&self) {
        let limit = Timespec::try_from(LIMIT).unwrap();
        loop {
            self.cq.req_notify(Notify::Any);
            if let Some(completion) = self.cq.poll_one() {
                if brief(&completion) == (2, Status::Success, WcOpcode::Send, 0) {
                    continue;
                }
                let expected = (1, Status::Success, WcOpcode::Recv, 0);
                return assert_eq!(brief(&completion), expected);
            }
            let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "no event came");
            while self.channel.try_get_event().is_some() {}
        }
    }
}

/// A program that has armed its CQ does not poll. The background must take its connections over,
/// even after the poll that follows the arming.
#[test]
fn programs_that_sleep_on_the_channel_alone_miss_nothing() {
    const ROUNDS: usize = 1000;
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let Ends { a, b, listener, .. } = setup.unconnected();
        let one = Sleeper::new(&a.device, &a.pd);
        let other = Sleeper::new(&b.device, &b.pd);
        other.qp.post_recv(&RecvWr::new(1, &[])).unwrap();
        join(&listener, &one.qp, &other.qp, &setup.connect, &setup.accept);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    other.receive();
                    other.send();
                }
            });
            for _ in 0..ROUNDS {
                one.send();
                one.receive();
            }
        });
    }
}

//! Graceful closes over the kernel's TCP. Completed requests reach the peer, or the end of the
//! connection reports that they did not.
#![allow(
    clippy::disallowed_methods,
    reason = "tests wait by the clock of the machine"
)]

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use common::{
    LIMIT, RawPeer, Setup, Side, Wire, content, pattern, raw_peer, raw_settings, same, until,
};
use uwarp_oracle::{Code, Crc, Tagged, fpdu, receive_fpdu};
use uwarp_verbs::{
    Device, EndReason, MemoryRegion, OnNoReceive, QpCaps, QpModify, QpState, RemoteBuffer, SendWr,
    Settings, Status,
};

/// Length in bytes of a Write that exceeds the peer's receive buffer, but that TCP on loopback
/// accepts at once.
const LEN: usize = 1 << 20;
/// Time after which a close without progress is given up.
const SOON: Duration = Duration::from_millis(300);

fn closing_in(close: Duration) -> Settings {
    let mut settings = raw_settings();
    settings.timeouts.close = close;
    settings.limits.max_qp = 1;
    settings
}

/// Returns a side with a completed Write of [`LEN`] bytes, and its peer, which has read nothing.
fn written(close: Duration) -> (Side, TcpStream) {
    let device = Device::tcp_with(closing_in(close), None).unwrap();
    let a = Side::new(device, QpCaps::default(), 16);
    let RawPeer { stream } = raw_peer(&a.qp);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let source = a.filled(7, LEN);
    let sges = [source.sge(0, LEN as u32)];
    a.qp.post_send(&SendWr::write(1, &sges, RemoteBuffer::at(0x1000, 7)))
        .unwrap();
    a.send_cq.success(1);
    (a, stream)
}

/// Returns the payload of the FPDUs of a Write, without Markers and CRC. Panics if the last FPDU is
/// incomplete.
fn payload(mut fpdus: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    while let Some(len) = fpdus.first_chunk() {
        let len = usize::from(u16::from_be_bytes(*len));
        payload.extend_from_slice(&fpdus[16..2 + len]);
        fpdus = &fpdus[(2 + len).next_multiple_of(4) + 4..];
    }
    payload
}

#[track_caller]
fn arrives_whole(fpdus: &[u8]) {
    same(&payload(fpdus), &pattern(7, LEN), "the Write");
}

#[track_caller]
fn times_out_in_close(a: &Side) {
    let reason = a.wait_end();
    let EndReason::CloseTimedOut { undelivered } = reason else {
        panic!("{reason}");
    };
    assert!((1..=2 * LEN as u64).contains(&undelivered), "{reason}");
    assert!(
        reason.to_string().contains(&undelivered.to_string()),
        "{reason}"
    );
    // The graceful close was reported first. A second event corrects that report.
    let first = a.ended_event().1;
    assert!(first.is_orderly(), "{first}");
    let second = a.ended_event().1;
    assert!(
        matches!(second, EndReason::CloseTimedOut { .. }),
        "{second}"
    );
}

/// The transfer takes longer than the time that a close may last without progress.
#[test]
fn a_slow_peer_gets_all_that_completed_before_the_close() {
    let (a, mut stream) = written(Duration::from_secs(2));
    a.qp.disconnect();
    let (mut fpdus, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match stream.read(&mut part).unwrap() {
            0 => break,
            count => fpdus.extend_from_slice(&part[..count]),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    arrives_whole(&fpdus);
    drop(stream);
    assert!(matches!(a.wait_end(), EndReason::LocalDisconnect));
}

/// Length in bytes of a response that exceeds the socket buffers of both ends. Its FPDUs are
/// therefore framed while the peer reads.
const ANSWER: usize = 16 << 20;

/// Returns a Read Request of a raw peer, without CRC.
fn read_request(msn: u32, len: u32, source: RemoteBuffer) -> Vec<u8> {
    // The sink is not checked.
    let source = (source.rkey, source.addr);
    let request = uwarp_oracle::read_request(msn, (0, 0), len, source);
    fpdu(&request, Crc::Zero)
}

/// Returns a side that has received `requests` Read Requests for [`ANSWER`] bytes each, and its
/// peer, which has read nothing.
fn asked(close: Duration, requests: u32) -> (Side, TcpStream, MemoryRegion) {
    let device = Device::tcp_with(closing_in(close), None).unwrap();
    let a = Side::new(device, QpCaps::default(), 16);
    let RawPeer { mut stream } = raw_peer(&a.qp);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let source = a.filled(9, ANSWER);
    for msn in 1..=requests {
        let request = read_request(msn, ANSWER as u32, source.remote());
        stream.write_all(&request).unwrap();
    }
    until("the Read Requests", || {
        a.qp.query().ird_used == requests as u16
    });
    (a, stream, source)
}

fn is_last(ulpdu: &[u8]) -> bool {
    ulpdu[0] & 0x40 != 0
}

/// The FIN waits for the response, and the response waits for the peer.
#[test]
fn a_slow_peer_gets_the_answer_to_a_read_that_it_asked_for_before_the_close() {
    const CLOSE: Duration = Duration::from_secs(1);
    let (a, mut stream, _source) = asked(CLOSE, 1);
    let begin = Instant::now();
    a.qp.disconnect();
    let mut fpdus = Vec::new();
    let mut part = vec![0; 64 * 1024];
    loop {
        match stream.read(&mut part).unwrap() {
            0 => break,
            count => fpdus.extend_from_slice(&part[..count]),
        }
        std::thread::sleep(Duration::from_millis(12));
    }
    assert!(begin.elapsed() > 2 * CLOSE);
    same(&payload(&fpdus), &pattern(9, ANSWER), "the answer");
    drop(stream);
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalDisconnect), "{reason}");
}

#[test]
fn a_close_with_an_answer_that_the_peer_does_not_take_is_not_reported_as_clean() {
    let (a, mut stream, _source) = asked(SOON, 1);
    a.qp.disconnect();
    let reason = a.wait_end();
    assert!(
        matches!(reason, EndReason::CloseTimedOut { undelivered: 1.. }),
        "{reason}"
    );
    let reasons = [a.ended_event().1, a.ended_event().1];
    assert!(
        matches!(
            reasons,
            [EndReason::LocalDisconnect, EndReason::CloseTimedOut { .. }]
        ),
        "{reasons:?}"
    );
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// Keeps two Reads outstanding at any time, so that this side always has something to answer.
fn asks_and_drains_without_end(mut stream: TcpStream, source: RemoteBuffer) {
    for msn in 3.. {
        loop {
            match receive_fpdu(&mut stream).map(|fpdu| fpdu.ulpdu) {
                Ok(ulpdu) if ulpdu[1] & 0x0F == 2 && is_last(&ulpdu) => break,
                Ok(_) => {}
                Err(_reset) => return,
            }
        }
        let request = read_request(msn, ANSWER as u32, source);
        if stream.write_all(&request).is_err() {
            return;
        }
    }
}

#[test]
fn a_peer_that_asks_for_more_and_more_does_not_hold_up_a_close() {
    let (a, stream, source) = asked(SOON, 2);
    let source = source.remote();
    let peer = std::thread::spawn(move || asks_and_drains_without_end(stream, source));
    a.qp.disconnect();
    // The peer got the responses to the Reads that it requested before the close.
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalDisconnect), "{reason}");
    peer.join().unwrap();
}

/// An unanswered Read of this side does not extend the time of the close either.
#[test]
fn nor_does_one_that_owes_an_answer_itself() {
    let (a, stream, source) = asked(SOON, 2);
    let source = source.remote();
    let sink = a.blank(64);
    let whole = [sink.sge(0, 64)];
    a.qp.post_send(&SendWr::read(1, &whole, RemoteBuffer::at(0x1000, 7)))
        .unwrap();
    a.qp.disconnect();
    let peer = std::thread::spawn(move || asks_and_drains_without_end(stream, source));
    let reason = a.wait_end();
    assert!(
        matches!(reason, EndReason::CloseTimedOut { .. }),
        "{reason}"
    );
    assert_eq!(a.send_cq.next().status, Status::WrFlush);
    peer.join().unwrap();
}

/// The Terminate Message is sent after all completed requests.
#[test]
fn a_slow_peer_gets_all_data_and_then_the_terminate_message() {
    const CLOSE: Duration = Duration::from_secs(1);
    let (a, mut stream) = written(CLOSE);
    let begin = Instant::now();
    let terminate = QpModify::new().state(QpState::Terminate);
    a.qp.modify(&terminate).unwrap();
    let mut ulpdus = Vec::new();
    let (mut fpdus, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match stream.read(&mut part).unwrap() {
            0 => break,
            count => fpdus.extend_from_slice(&part[..count]),
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(begin.elapsed() > 2 * CLOSE);
    let mut fpdus = &fpdus[..];
    while !fpdus.is_empty() {
        ulpdus.push(receive_fpdu(&mut fpdus).expect("a whole FPDU").ulpdu);
    }
    let last = ulpdus.pop().unwrap();
    assert_eq!(last[1] & 0x0F, 7, "a Terminate Message: {last:02x?}");
    let data: Vec<u8> = ulpdus
        .iter()
        .flat_map(|ulpdu| {
            assert_eq!(ulpdu[1] & 0x0F, 0, "a Write");
            &ulpdu[14..]
        })
        .copied()
        .collect();
    same(&data, &pattern(7, LEN), "the Write");
    drop(stream);
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LocalError { .. }), "{reason}");
}

/// Each message waits for a receive at the peer. The sender has closed after sending all messages.
#[test]
fn a_peer_that_holds_messages_and_posts_receives_slowly_gets_them_all() {
    for wire in Wire::BOTH {
        holds_and_gets_all(wire);
    }
}

fn holds_and_gets_all(wire: Wire) {
    const CLOSE: Duration = Duration::from_secs(1);
    const MESSAGES: u64 = 24;
    let mut setup = Setup::new(wire);
    setup.settings[0].timeouts.close = CLOSE;
    setup.settings[1].timeouts.hold_after_close = CLOSE;
    setup.settings[1].on_no_receive = OnNoReceive::Hold(LIMIT);
    let (a, b) = setup.connected();
    let source = a.filled(7, LEN);
    let sink = b.blank(LEN);
    let sges = [source.sge(0, LEN as u32)];
    for wr_id in 0..MESSAGES {
        a.qp.post_send(&SendWr::send(wr_id, &sges)).unwrap();
    }
    let begin = Instant::now();
    a.qp.disconnect();
    for wr_id in 0..MESSAGES {
        std::thread::sleep(CLOSE / 10);
        b.post_whole(wr_id, &sink);
        b.recv_cq.success(wr_id);
        same(&content(&sink), &pattern(7, LEN), "a message");
    }
    assert!(begin.elapsed() > 2 * CLOSE);
    assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
    assert!(matches!(a.wait_end(), EndReason::LocalDisconnect));
    a.send_cq.successes(0..MESSAGES);
}

#[test]
fn a_close_in_which_the_peer_takes_nothing_is_not_reported_as_clean() {
    let (a, mut stream) = written(SOON);
    a.qp.disconnect();
    times_out_in_close(&a);
    let error = stream.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// The peer closes first, and then reads none of the remaining data.
#[test]
fn nor_is_one_that_the_peer_began() {
    let (a, stream) = written(SOON);
    stream.shutdown(Shutdown::Write).unwrap();
    times_out_in_close(&a);
}

#[test]
fn nor_is_one_that_the_peer_cuts() {
    let (a, stream) = written(LIMIT);
    a.qp.disconnect();
    // The stream is closed with unread bytes, which resets the connection.
    drop(stream);
    let reason = a.wait_end();
    assert!(matches!(reason, EndReason::LlpLost { .. }), "{reason}");
}

/// A Read that waits for its response also counts as lost data, although this side has nothing left
/// to send.
#[test]
fn nor_is_one_with_a_read_that_is_not_answered() {
    let device = Device::tcp_with(closing_in(SOON), None).unwrap();
    let a = Side::new(device, QpCaps::default(), 16);
    let RawPeer { stream: _open } = raw_peer(&a.qp);
    let sink = a.blank(64);
    let whole = [sink.sge(0, 64)];
    a.qp.post_send(&SendWr::read(1, &whole, RemoteBuffer::at(0x1000, 7)))
        .unwrap();
    a.qp.disconnect();
    let reason = a.wait_end();
    let timed_out = matches!(reason, EndReason::CloseTimedOut { undelivered: 0 });
    assert!(timed_out, "{reason}");
    assert_eq!(a.send_cq.next().status, Status::WrFlush);
}

/// A Terminate Message about an earlier message takes precedence over the graceful close.
#[test]
fn nor_is_one_to_which_the_peer_answers_with_a_terminate() {
    let device = Device::tcp_with(closing_in(LIMIT), None).unwrap();
    let a = Side::new(device, QpCaps::default(), 16);
    let RawPeer { mut stream } = raw_peer(&a.qp);
    a.qp.post_send(&SendWr::send_inline(1, b"unwanted"))
        .unwrap();
    a.send_cq.success(1);
    a.qp.disconnect();
    stream.read_to_end(&mut Vec::new()).unwrap();
    // No receive for the Send (RFC 5041 section 7.1).
    let terminate = fpdu(&Code::ddp(2, 2).bare(), Crc::Zero);
    stream.write_all(&terminate).unwrap();
    drop(stream);
    let reason = a.wait_end();
    let refused = matches!(reason, EndReason::TerminateReceived { .. });
    assert!(refused, "{reason}");
}

/// This side sends a Terminate Message during its own close. Both sides report the same end.
#[test]
fn nor_is_one_in_which_this_side_sends_a_terminate() {
    let device = Device::tcp_with(closing_in(LIMIT), None).unwrap();
    let a = Side::new(device, QpCaps::default(), 16);
    let RawPeer { mut stream } = raw_peer(&a.qp);
    let sink = a.blank(64);
    let whole = [sink.sge(0, 64)];
    // The close waits for the Response, so a Terminate Message can still be sent.
    a.qp.post_send(&SendWr::read(1, &whole, RemoteBuffer::at(0x1000, 7)))
        .unwrap();
    a.qp.disconnect();
    // A one-byte Write to an invalid STag.
    let write = fpdu(&Tagged::write(9, 0).with(&[7]), Crc::Zero);
    stream.write_all(&write).unwrap();
    let mut fpdus = Vec::new();
    stream.read_to_end(&mut fpdus).unwrap();
    drop(stream);
    let terminate = fpdus
        .chunks(52)
        .nth(1)
        .expect("a Terminate after the Read Request");
    assert_eq!(terminate[3] & 0x0F, 7, "{terminate:02x?}");
    let reason = a.wait_end();
    assert!(
        matches!(reason, EndReason::TerminateSent { .. }),
        "{reason}"
    );
    let reasons = [a.ended_event().1, a.ended_event().1];
    assert!(
        matches!(
            reasons,
            [EndReason::LocalDisconnect, EndReason::TerminateSent { .. }]
        ),
        "{reasons:?}"
    );
    assert_eq!(a.send_cq.next().status, Status::WrFlush);
}

/// The peer has received everything, but leaves its side open. It may still be reading, so it gets
/// no reset.
#[test]
fn a_peer_that_has_everything_and_does_not_close_is_left_alone() {
    let (a, mut stream) = written(SOON);
    a.qp.disconnect();
    let mut fpdus = vec![0; LEN];
    stream.read_exact(&mut fpdus).unwrap();
    // The rest fits into the peer's receive buffer and stays there.
    assert!(matches!(a.wait_end(), EndReason::LocalDisconnect));
    let Side { device, .. } = a;
    drop(device);
    stream.read_to_end(&mut fpdus).unwrap();
    arrives_whole(&fpdus);
}

/// The peer reads after the QP and all other objects of this side are dropped.
#[test]
fn what_tcp_has_of_a_dropped_qp_is_left_to_the_kernel() {
    let (a, mut stream) = written(SOON);
    let Side {
        device,
        pd,
        qp,
        send_cq,
        recv_cq,
    } = a;
    drop(qp);
    // A QP counts towards the limit until its connection has ended.
    until("the end of the dropped QP", || {
        pd.create_qp(&send_cq, &recv_cq, QpCaps::default()).is_ok()
    });
    drop((pd, send_cq, recv_cq, device));
    let mut fpdus = Vec::new();
    stream.read_to_end(&mut fpdus).unwrap();
    arrives_whole(&fpdus);
}

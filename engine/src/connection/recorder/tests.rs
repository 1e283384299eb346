use uwarp_ddp::{STag, TaggedOffset};
use uwarp_mpa::{Enhanced, FrameKind as Startup, Model, RtrKinds, StartupFrame};
use uwarp_rdmap::{AccessError, AtomicOp, Opcode, SendKind, Stream, StreamConfig, StreamError};

use super::*;

fn recorder() -> (Recorder, Instant) {
    let now = Instant::now();
    let mut recorder = Recorder::new(now);
    recorder.begin(now);
    (recorder, now)
}

fn startup(kind: Startup, rejected: bool, revision: u8, enhanced: Option<Enhanced>) -> Vec<u8> {
    let frame = StartupFrame {
        kind,
        markers: rejected,
        crc: true,
        rejected,
        revision,
        enhanced,
        private_data: b"secret".to_vec(),
    };
    frame.emit().unwrap()
}

#[test]
fn the_last_frames_are_kept_in_order_and_the_oldest_give_way() {
    let (mut recorder, now) = recorder();
    let mut stream = Stream::new(StreamConfig { ird: 1, ord: 1 });
    for number in 0..40_u8 {
        let mut message = stream.begin_write(STag(1), TaggedOffset(number.into()), 0);
        let mut header = [0; MAX_HEADER];
        let segment = message.next_segment(128, &mut header).unwrap();
        let at = now + Duration::from_micros(number.into());
        recorder.received(at, &header[..segment.header_len], 14);
        let record = recorder.record(0, Peer::Rfc);
        assert_eq!(record.seen(), u64::from(number) + 1);
        let first = (number + 1).saturating_sub(32);
        let offsets: Vec<u8> = record
            .frames()
            .iter()
            .map(|frame| frame.head()[13])
            .collect();
        assert_eq!(offsets, (first..=number).collect::<Vec<_>>());
    }
    let text = recorder.record(0, Peer::Rfc).to_string();
    assert!(
        text.starts_with("the last 32 of 40 frames (-> sent"),
        "{text}"
    );
    assert!(
        text.ends_with("<- 0.000039 RDMA Write STag 0x00000001 TO 0x27 0 bytes, Last"),
        "{text}"
    );
}

#[test]
fn nothing_is_kept_before_a_connection_begins_and_each_begins_empty() {
    let now = Instant::now();
    let mut recorder = Recorder::new(now);
    recorder.received(now, &[0x41, 0x43], 18);
    assert!(recorder.ring.is_none());
    let record = recorder.record(0, Peer::Rfc);
    assert_eq!(record.to_string(), "no frame was sent or received");
    recorder.begin(now);
    recorder.received(now, &[0x41, 0x43], 18);
    assert_eq!(recorder.record(0, Peer::Rfc).seen(), 1);
    recorder.begin(now);
    assert_eq!(recorder.record(0, Peer::Rfc).seen(), 0);
}

#[test]
fn payload_and_private_data_are_not_kept() {
    let (mut recorder, now) = recorder();
    let mut write = [0xEE; MAX_HEADER];
    write[..2].copy_from_slice(&[0xC1, 0x40]);
    let mut send = [0xEE; MAX_HEADER];
    send[..2].copy_from_slice(&[0x41, 0x43]);
    recorder.received(now, &write, 1000);
    recorder.sent(now, &send, 1000, 1);
    recorder.startup_received(now, &startup(Startup::Request, false, 1, None));
    let record = recorder.record(1, Peer::Rfc);
    let kept: Vec<usize> = record.frames().iter().map(|f| f.head().len()).collect();
    // In a Request of revision 1, the private data begins at byte 20, so 4 bytes of it are kept.
    assert_eq!(kept, [14, 18, 24]);
    assert!(!record.to_string().contains("secret"));
}

#[test]
fn what_tcp_did_not_take_is_marked() {
    let (mut recorder, now) = recorder();
    let head = [0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    let whole = |recorder: &Recorder, taken| -> Vec<bool> {
        let record = recorder.record(taken, Peer::Rfc);
        record
            .frames()
            .iter()
            .map(RecordedFrame::is_whole)
            .collect()
    };
    recorder.sent(now, &head, 18, 24);
    recorder.sent(now, &head, 18, 48);
    recorder.sent(now, &head, 18, 72);
    assert_eq!(whole(&recorder, 30), [true, false, false]);
    // The last frame is dropped, and another frame takes its place in the stream.
    recorder.drop_after(48);
    recorder.sent(now, &head, 18, 72);
    assert_eq!(whole(&recorder, 72), [true, true, false, true]);
    recorder.stream_over(60);
    assert_eq!(whole(&recorder, 0), [true, true, false, false]);
    let text = recorder.record(0, Peer::Rfc).to_string();
    assert!(
        text.ends_with("Send MSN 1 MO 0 0 bytes, Last (not sent whole)"),
        "{text}"
    );
}

/// Every message of RFC 5040 and RFC 7306, both startup frames, and bytes that are neither.
#[test]
fn every_message_in_words() {
    let (mut recorder, now) = recorder();
    let enhanced = |model| Enhanced {
        model,
        ird: 4,
        ord: 16,
    };
    let peer_to_peer = Some(enhanced(Model::PeerToPeer(RtrKinds::ALL)));
    recorder.startup_sent(now, &startup(Startup::Request, false, 2, peer_to_peer), 30);
    let client_server = Some(enhanced(Model::ClientServer));
    recorder.startup_received(now, &startup(Startup::Reply, false, 2, client_server));
    recorder.startup_received(now, &startup(Startup::Reply, true, 1, None));
    recorder.startup_received(now, b"HTTP/1.1 400 Bad Request");
    recorder.startup_received(now, b"SSH-2");
    let mut stream = Stream::new(StreamConfig { ird: 4, ord: 4 });
    let invalidate = SendKind {
        solicited: false,
        invalidate: Some(STag(0x1a2b)),
    };
    let solicited = SendKind {
        solicited: true,
        invalidate: None,
    };
    let read = uwarp_rdmap::ReadRequestHeader {
        sink_stag: STag(7),
        sink_to: TaggedOffset(0x70),
        len: 4096,
        source_stag: STag(8),
        source_to: TaggedOffset(0x80),
    };
    let add = AtomicOp::FetchAdd { add: 5, mask: 0 };
    let swap = AtomicOp::CompareSwap {
        compare: 1,
        compare_mask: u64::MAX,
        swap: 2,
        swap_mask: u64::MAX,
    };
    let mut end = 30;
    let mut send = |mut message: uwarp_rdmap::OutMessage| {
        let mut header = [0; MAX_HEADER];
        while let Some(segment) = message.next_segment(128, &mut header) {
            let len = segment.header_len + segment.len as usize;
            end += len as u64;
            recorder.sent(now, &header[..segment.header_len], len, end);
        }
        (header, end)
    };
    send(stream.begin_send(SendKind::default(), 200));
    send(stream.begin_send(invalidate, 0));
    send(stream.begin_send(solicited, 1));
    let (write, _) = send(stream.begin_write(STag(0x1a2b), TaggedOffset(0x40), 64));
    send(stream.begin_read(read).unwrap());
    send(stream.begin_atomic(STag(9), TaggedOffset(8), add).unwrap());
    send(stream.begin_atomic(STag(9), TaggedOffset(8), swap).unwrap());
    send(stream.begin_immediate(*b"8 octets", false));
    let fault = uwarp_ddp::TaggedFault::AccessRights;
    let error = StreamError::Access(AccessError {
        opcode: Opcode::Write,
        fault,
        stag: STag(0x1a2b),
        to: TaggedOffset(0x40),
        len: 64,
    });
    let terminate = Stream::terminate_for(&error, Some((&write, 78))).unwrap();
    let (_, end) = send(stream.begin_terminate(&terminate).unwrap());
    // Answers, another version, an unknown opcode, a wrong queue, bytes without a frame.
    recorder.received(
        now,
        &[0xC1, 0x42, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0x70],
        4110,
    );
    let mut answer = [0; 30];
    answer[..2].copy_from_slice(&[0x41, 0x4B]);
    (answer[9], answer[13], answer[21], answer[29]) = (3, 1, 2, 6);
    recorder.received(now, &answer, 30);
    recorder.received(now, &[0x42; 18], 18);
    recorder.received(
        now,
        &[0x41, 0x4D, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0],
        20,
    );
    recorder.received(now, &[0x41], 1);
    recorder.damaged(now, &[0xAB; 500]);
    insta::assert_snapshot!(recorder.record(end, Peer::Rfc));
}

//! Tests for peers that are Linux siw: FPDUs right after its Reply, the FPDU that it misses, and
//! its Terminate Messages.

use crate::mem::RemoteBuffer;
use std::time::Duration;

use super::wire::{SEND, WRITE, segments};
use super::*;
use crate::connection::LlpOrder;
use crate::event::{AsyncEvent, ConnectionEvent};
use uwarp_oracle::crc32c;
use uwarp_rdmap::Peer;

const DELAY: Duration = Duration::from_millis(200);

/// Returns an initiator that awaits the Reply.
fn initiator(settings: &Settings, model: Model) -> End {
    asking(settings, model).0
}

/// Returns an initiator that awaits the Reply, and the bytes of its Request.
fn asking(settings: &Settings, model: Model) -> (End, Vec<u8>) {
    let mut end = End::new(&Memory::new(), settings);
    let config = InitiatorConfig {
        model,
        ..initiator_config(settings)
    };
    assert!(end.conn.start_initiator(config, true).unwrap());
    end.conn.emss = 1448;
    end.conn.tcp_connected();
    let request = end.bytes();
    assert!(!request.is_empty());
    (end, request)
}

/// Returns a Reply as siw sends it: with the flags of the Request, and IRD and ORD from `depths`.
fn reply(crc: bool, depths: [u16; 2]) -> Vec<u8> {
    let flags = if crc { 0x50 } else { 0x10 };
    let mut bytes = b"MPA ID Rep Frame".to_vec();
    bytes.extend([flags, 2, 0, 4]);
    bytes.extend(depths.map(u16::to_be_bytes).concat());
    bytes
}

/// Returns an FPDU as siw sends it. Without a CRC, the CRC field is zero.
fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    let check = if crc {
        crc32c(&bytes).to_le_bytes()
    } else {
        [0; 4]
    };
    bytes.extend(check);
    bytes
}

fn untagged(control: [u8; 2], qn: u32, msn: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = control.to_vec();
    for field in [0, qn, msn, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(payload);
    bytes
}

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged([0x41, 0x43], 0, msn, payload)
}

fn terminate(header: &[u8]) -> Vec<u8> {
    untagged([0x41, 0x47], 2, 1, header)
}

fn established(end: &End) -> usize {
    let is = |event: &&ConnectionEvent| {
        matches!(
            event,
            ConnectionEvent::Async(AsyncEvent::Established { .. })
        )
    };
    end.conn.events.iter().filter(is).count()
}

#[test]
fn fpdus_right_behind_the_reply_are_taken_however_they_are_cut() {
    // 5044-7.1.2-15 requires a responder to wait for the initiator's first FPDU. siw does not.
    let pool = BufferPool::default();
    for crc in [false, true] {
        for peer in [Peer::Rfc, Peer::Siw] {
            let settings = Settings {
                crc,
                peer,
                ..Settings::default()
            };
            for model in [Model::ClientServer, Model::PeerToPeer(RtrKinds::ALL)] {
                let mut bytes = reply(crc, [4, 4]);
                if model != Model::ClientServer {
                    bytes[20] |= 0x80; // A: peer-to-peer
                    bytes[22] |= 0x80; // C: a Write as RTR indication
                }
                bytes.extend(fpdu(&send(1, b"early"), crc));
                bytes.extend(fpdu(&send(2, &[0x5A; 100]), crc));
                // The bytes arrive in one part, in two parts or one by one.
                let mut cuts: Vec<Vec<usize>> = (1..bytes.len()).map(|cut| vec![cut]).collect();
                cuts.push(Vec::new());
                cuts.push((1..bytes.len()).collect());
                for cut in cuts {
                    let mut end = initiator(&settings, model);
                    end.post_receives(2);
                    let mut from = 0;
                    for to in cut.into_iter().chain([bytes.len()]) {
                        end.deliver(&bytes[from..to], &pool);
                        from = to;
                    }
                    let taken: Vec<(u64, u32)> = end
                        .completions()
                        .iter()
                        .map(|done| (done.wr_id, done.byte_len))
                        .collect();
                    assert_eq!(taken, [(0, 5), (1, 100)]);
                    assert_eq!((established(&end), end.conn.state), (1, QpState::Rts));
                    assert!(end.conn.end.is_none());
                    // Our first FPDU is still the RTR indication (6581-5-01).
                    end.conn.set_now(end.conn.now + DELAY);
                    end.conn
                        .post_send(&SendWr::send_inline(9, b"late"))
                        .unwrap();
                    let (sent, _) = segments(&end.bytes(), false);
                    let opcodes: Vec<u8> = sent.iter().map(|segment| segment.opcode).collect();
                    match model {
                        Model::ClientServer => assert_eq!(opcodes, [SEND]),
                        Model::PeerToPeer(_) => assert_eq!(opcodes, [WRITE, SEND]),
                    }
                }
            }
        }
    }
}

#[test]
fn the_first_fpdu_waits_as_long_as_siw_needs() {
    let pool = BufferPool::default();
    for (peer, setting, delay) in [
        (Peer::Rfc, None, Duration::ZERO),
        (Peer::Siw, None, DELAY),
        (Peer::Siw, Some(Duration::ZERO), Duration::ZERO),
        (
            Peer::Rfc,
            Some(Duration::from_secs(1)),
            Duration::from_secs(1),
        ),
    ] {
        let settings = Settings {
            peer,
            first_fpdu_delay: setting,
            ..Settings::default()
        };
        let mut end = initiator(&settings, Model::ClientServer);
        let connected = end.conn.now + Duration::from_millis(5);
        end.conn.set_now(connected);
        end.deliver(&reply(true, [4, 4]), &pool);
        // The connection is reported as established at once.
        assert_eq!(established(&end), 1);
        end.conn.post_send(&SendWr::send_inline(1, b"one")).unwrap();
        if !delay.is_zero() {
            let due = connected + delay;
            assert_eq!(end.conn.deadline(), Some(due));
            for early in [connected, due - Duration::from_nanos(1)] {
                end.conn.set_now(early);
                assert!(end.bytes().is_empty());
                assert!(end.completions().is_empty());
            }
            end.conn.set_now(due);
        }
        assert_eq!(end.conn.deadline(), None);
        assert_eq!(segments(&end.bytes(), false).0.len(), 1);
        assert_eq!(end.completions().len(), 1);
        // Only the first FPDU waits.
        end.conn.post_send(&SendWr::send_inline(2, b"two")).unwrap();
        assert_eq!(segments(&end.bytes(), false).0.len(), 1);
    }
}

#[test]
fn a_responder_does_not_wait() {
    // An initiator that is siw is ready once it has sent its first FPDU.
    let settings = Settings {
        peer: Peer::Siw,
        ..Settings::default()
    };
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&settings, &memory);
    server
        .conn
        .post_send(&SendWr::send_inline(1, b"answer"))
        .unwrap();
    server.post_receives(1);
    client
        .conn
        .post_send(&SendWr::send_inline(2, b"question"))
        .unwrap();
    client.conn.set_now(client.conn.now + DELAY);
    server.deliver(&client.bytes(), &pool);
    assert_eq!(segments(&server.bytes(), false).0.len(), 1);
}

/// Returns a client, and a responder that has received no FPDU from it.
fn responder(settings: &Settings, model: Model) -> (End, End, BufferPool) {
    let (mut client, request) = asking(&Settings::default(), model);
    let mut server = accept(settings, &Memory::new(), &request);
    let pool = BufferPool::default();
    client.deliver(&server.bytes(), &pool);
    assert_eq!(client.conn.state, QpState::Rts);
    (client, server, pool)
}

#[test]
fn a_responder_may_send_first_only_when_it_is_told_so_and_not_before_siw_is_ready() {
    for (peer, send_first, delay) in [
        (Peer::Siw, true, Some(DELAY)),
        (Peer::Rfc, true, Some(Duration::ZERO)),
        // 5044-7.1.2-15: the responder waits for the initiator's first FPDU without limit.
        (Peer::Siw, false, None),
        (Peer::Rfc, false, None),
    ] {
        let settings = Settings {
            peer,
            send_first,
            ..Settings::default()
        };
        let (mut client, mut server, pool) = responder(&settings, Model::ClientServer);
        client.post_receives(1);
        let accepted = server.conn.now;
        server
            .conn
            .post_send(&SendWr::send_inline(1, b"first"))
            .unwrap();
        let due = accepted + delay.unwrap_or(Duration::from_secs(3600));
        if delay != Some(Duration::ZERO) {
            server.conn.set_now(due - Duration::from_nanos(1));
            assert!(server.bytes().is_empty());
            assert_eq!(server.conn.deadline(), delay.map(|_| due));
        }
        server.conn.set_now(due);
        let sent = server.bytes();
        assert_eq!(sent.is_empty(), delay.is_none());
        assert_eq!(server.conn.deadline(), None);
        client.deliver(&sent, &pool);
        assert_eq!(client.completions().len(), usize::from(delay.is_some()));
    }
}

#[test]
fn a_hold_that_ends_during_a_close_leaves_the_close_its_time_limit() {
    let settings = Settings {
        send_first: true,
        first_fpdu_delay: Some(Duration::from_millis(10)),
        ..Settings::default()
    };
    let (_client, mut server, _pool) = responder(&settings, Model::ClientServer);
    let empty = SendWr::read(1, &[], RemoteBuffer::at(0, 0x100));
    server.conn.post_send(&empty).unwrap();
    assert!(server.conn.disconnect());
    let due = server.conn.timers.get(Timer::Hold).unwrap();
    server.conn.set_now(due);
    assert!(server.conn.timers.get(Timer::Stage).is_some());
}

#[test]
fn a_responder_that_may_send_first_does_not_wait_when_the_initiator_has_sent() {
    let settings = Settings {
        peer: Peer::Siw,
        send_first: true,
        ..Settings::default()
    };
    let (mut client, mut server, pool) = responder(&settings, Model::ClientServer);
    server.post_receives(1);
    server
        .conn
        .post_send(&SendWr::send_inline(1, b"answer"))
        .unwrap();
    client
        .conn
        .post_send(&SendWr::send_inline(2, b"question"))
        .unwrap();
    server.deliver(&client.bytes(), &pool);
    assert_eq!(server.conn.deadline(), None);
    assert_eq!(segments(&server.bytes(), false).0.len(), 1);
    assert_eq!(established(&server), 1);
}

#[test]
fn in_the_peer_to_peer_model_a_responder_waits_for_the_indication_in_any_case() {
    // RFC 6581 section 9.2: the initiator sends the RTR indication without a request of its
    // program.
    let settings = Settings {
        send_first: true,
        ..Settings::default()
    };
    let (mut client, mut server, pool) = responder(&settings, Model::PeerToPeer(RtrKinds::ALL));
    server
        .conn
        .post_send(&SendWr::send_inline(1, b"first"))
        .unwrap();
    assert!(server.bytes().is_empty());
    server.deliver(&client.bytes(), &pool);
    assert_eq!(segments(&server.bytes(), false).0.len(), 1);
}

#[test]
fn what_waits_is_sent_before_a_close_and_a_terminate_does_not_wait() {
    let pool = BufferPool::default();
    let settings = Settings {
        peer: Peer::Siw,
        ..Settings::default()
    };
    let mut end = initiator(&settings, Model::ClientServer);
    end.deliver(&reply(true, [4, 4]), &pool);
    end.conn.post_send(&SendWr::send_inline(1, b"one")).unwrap();
    assert!(end.conn.disconnect());
    assert!(end.bytes().is_empty());
    assert_eq!(end.conn.llp_order(), LlpOrder::Keep);
    end.conn.set_now(end.conn.now + DELAY);
    assert_eq!(segments(&end.bytes(), false).0.len(), 1);
    assert_eq!(end.conn.llp_order(), LlpOrder::Fin);

    let mut end = initiator(&settings, Model::ClientServer);
    end.deliver(&reply(true, [4, 4]), &pool);
    end.deliver(&fpdu(&[0xFF; 18], true), &pool);
    assert_eq!(segments(&end.bytes(), false).0.len(), 1);
    assert!(matches!(
        end.conn.end,
        Some(EndReason::TerminateSent {
            terminate: Some(_),
            ..
        })
    ));
}

#[test]
fn a_terminate_of_siw_is_told_in_the_right_words() {
    let pool = BufferPool::default();
    for (peer, header, words) in [
        (
            Peer::Siw,
            &[0x20, 0x06, 0x00, 0][..],
            "remote operation error: the peer ended the connection: unexpected opcode (RDMAP remote operation error, \
             0/2/06); sent in the layout of Linux siw; do not use this operation with that peer, \
             whose stack does not know it (atomics and Immediate Data are RFC 7306, which siw lacks)",
        ),
        (
            Peer::Rfc,
            &[0x20, 0x06, 0x00, 0],
            "startup failed: the peer ended the connection: IRD too small for what the other side wants (LLP error, \
             MPA, 2/0/06); from Linux siw it would mean: unexpected opcode (RDMAP remote operation error, 0/2/06); if \
             the peer is Linux siw, select it in the settings (`Peer::Siw`, `--peer siw`), because its codes have \
             other meanings",
        ),
        // Only siw sends this code, so it is read with siw's meaning even without a peer profile.
        (
            Peer::Rfc,
            &[0x02, 0x02, 0x00, 0],
            "damaged stream: the peer ended the connection: CRC error (LLP error, MPA, 2/0/02); sent in the layout of \
             Linux siw; look for a middlebox or adapter that changes TCP payload; connect again to continue",
        ),
    ] {
        let settings = Settings {
            crc: false,
            peer,
            ..Settings::default()
        };
        let mut end = initiator(&settings, Model::ClientServer);
        end.deliver(&reply(false, [4, 4]), &pool);
        end.deliver(&fpdu(&terminate(header), false), &pool);
        assert_eq!(end.conn.end.as_ref().unwrap().to_string(), words);
    }
}

#[test]
fn the_read_that_siw_refuses_gets_the_blame_by_the_meaning_of_its_code() {
    // The peer received more Reads than its IRD. The code is 0/2/07 from siw, and 1/2/02 by the
    // RFCs.
    let pool = BufferPool::default();
    let settings = Settings {
        crc: false,
        first_fpdu_delay: Some(Duration::ZERO),
        peer: Peer::Siw,
        ..Settings::default()
    };
    let mut end = initiator(&settings, Model::ClientServer);
    end.deliver(&reply(false, [4, 4]), &pool);
    let sges = [Sge {
        addr: end.memory.open.to_base(),
        len: 8,
        lkey: end.memory.open.stag().0,
    }];
    end.conn
        .post_send(&SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 0x100)))
        .unwrap();
    let sent = end.bytes();
    let mut header = vec![0x20, 0x07, 0x03, 0, 0, 28];
    header.extend(&sent[2..20]);
    end.deliver(&fpdu(&terminate(&header), false), &pool);
    let done: Vec<(u64, Status)> = end
        .completions()
        .iter()
        .map(|done| (done.wr_id, done.status))
        .collect();
    assert_eq!(done, [(1, Status::RemoteOperation)]);
    let words = end.conn.end.as_ref().unwrap().to_string();
    assert!(
        words.contains("more RDMA Reads were outstanding than its IRD"),
        "{words}"
    );
}

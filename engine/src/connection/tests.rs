//! Tests of connection objects without any I/O: two are driven against each other, or one is fed
//! with damaged bytes.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use uwarp_mpa::{
    Accept, Deframer, FpduSegments, InitiatorConfig, Model, Responder, ResponderConfig, Revision,
    RtrKinds, Step,
};
use uwarp_rdmap::Terminate;

use super::post::PostErrorKind;
use super::receive_queue::ReceiveQueue;
use super::{BufferPool, LlpOrder, Stage};
use crate::completion::{Completion, QueueOfRing, Ring, Status};
use crate::connection::SrqInner;
use crate::event::EndReason;
use crate::llp::LlpError;
use crate::mem::{Access, Backing, Buffer, Region, RegionSpec, RemoteBuffer, Sge};
use crate::policy::transfer::PARTS_PER_CALL;
use crate::settings::OnNoReceive;
use crate::state::QpState;
use crate::timers::Timer;
use crate::wr::{RecvWr, SendWr};
use ends::*;

mod changing;
mod emitted;
mod ends;
mod events;
mod extensions;
mod in_place;
mod placed_writes;
mod read_elements;
mod receive_fast_path;
mod receives;
mod send_fast_path;
mod siw;
mod starving;
mod unreliable;
mod wire;
mod written;

type Connection = super::Connection<QueueOfRing>;

impl End {
    /// Makes the connection take its receives from a new SRQ with `depth` places.
    fn share(&mut self, depth: usize) -> Arc<SrqInner> {
        let table = Arc::clone(&self.memory.table);
        let srq = Arc::new(SrqInner::new(1, 1, table, depth, 4, false));
        let ctx = Arc::get_mut(&mut self.conn.ctx).expect("the only reference");
        ctx.recv_cq = self.cq.attach(Arc::clone(srq.freed()));
        self.conn.rq = ReceiveQueue::shared(Arc::clone(&srq), ctx.qp_num);
        srq
    }
}

#[test]
fn all_operations_complete_in_order_between_two_ends() {
    for (crc, markers) in [(true, false), (false, false), (true, true), (false, true)] {
        let settings = Settings {
            crc,
            markers,
            ..Settings::default()
        };
        let memory = Memory::new();
        let (mut client, mut server, pool) = connected(&settings, &memory);
        server.post_receives(3);
        post_work(&mut client, &memory);
        pump(&mut client, &mut server, &pool);
        let done: Vec<(u64, Status)> = client
            .completions()
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect();
        assert_eq!(
            done,
            (0..7)
                .map(|wr_id| (wr_id, Status::Success))
                .collect::<Vec<_>>()
        );
        let received: Vec<(u64, u32, bool)> = server
            .completions()
            .iter()
            .map(|c| (c.wr_id, c.byte_len, c.solicited))
            .collect();
        assert_eq!(received, [(0, 100, false), (1, 6, false), (2, 256, true)]);
        assert!(memory.canaries_are_alive());
    }
}

#[test]
fn fpdus_framed_after_a_change_of_emss_fit_the_new_one() {
    for markers in [false, true] {
        let settings = Settings {
            markers,
            ..Settings::default()
        };
        let memory = Memory::new();
        let (mut client, mut server, pool) = connected(&settings, &memory);
        for emss in [1460, 900, 301, 1441, 536] {
            assert!(client.conn.wants_emss(false), "nothing is framed");
            client.conn.set_emss(emss);
            server.post_receives(3);
            post_work(&mut client, &memory);
            client.conn.fill();
            assert!(!client.conn.wants_emss(false), "a batch is not finished");
            let offered = client.conn.tx.fpdu_ends();
            let starts = std::iter::once(offered.base()).chain(offered.ends().iter().copied());
            let lens = starts.zip(offered.ends()).map(|(start, end)| end - start);
            let longest = lens.max().unwrap();
            assert!(longest <= emss as u64, "{longest} in EMSS {emss}");
            assert!(longest > emss as u64 - 40, "a Write of 4096 fills {emss}");
            pump(&mut client, &mut server, &pool);
            assert_eq!(client.completions().len(), 7);
            assert_eq!(server.completions().len(), 3);
        }
    }
}

#[test]
fn fpdus_go_over_as_many_segments_as_is_set_and_the_other_end_takes_them() {
    for (markers, segments) in [(false, 2), (true, 2), (false, 5), (true, 5), (false, 506)] {
        let ours = Settings {
            fpdu_segments: FpduSegments::new(segments).unwrap(),
            ..Settings::default()
        };
        // The other side requests Markers and has default settings.
        let theirs = Settings {
            markers,
            ..Settings::default()
        };
        let memory = Memory::new();
        let (mut client, mut server, pool) =
            connected_of(&Memory::new(), [&ours, &theirs], &memory);
        for emss in [1460, 300, 301, 536] {
            client.conn.set_emss(emss);
            server.post_receives(3);
            post_work(&mut client, &memory);
            client.conn.fill();
            let offered = client.conn.fpdu_ends();
            assert!(offered.may_go_over_segments());
            let starts = std::iter::once(offered.base()).chain(offered.ends().iter().copied());
            let lens = starts.zip(offered.ends()).map(|(start, end)| end - start);
            let longest = lens.max().unwrap() as usize;
            let room = emss * usize::from(segments);
            assert!(longest <= room, "{longest} in {segments} of {emss}");
            // The longest message is a Write of 4096 bytes.
            let full = room.min(4096);
            assert!(longest + 64 > full, "{longest} in {segments} of {emss}");
            pump(&mut client, &mut server, &pool);
            assert_eq!(client.completions().len(), 7);
            assert_eq!(server.completions().len(), 3);
        }
        assert!(memory.canaries_are_alive());
        assert!(!server.conn.fpdu_ends().may_go_over_segments());
    }
}

#[test]
fn an_emss_that_is_costly_to_ask_for_is_asked_for_now_and_then() {
    let memory = Memory::new();
    let (client, _server, _pool) = connected(&Settings::default(), &memory);
    assert!(client.conn.wants_emss(false));
    assert!(!client.conn.wants_emss(true));
}

#[test]
fn an_abort_between_two_addresses_ends_the_attempts() {
    let settings = Settings::default();
    let mut end = End::new(&Memory::new(), &settings);
    let config = || initiator_config(&settings);
    assert!(end.conn.start_initiator(config(), true).unwrap());
    end.conn.set_more_addresses(true);
    let addr = "192.0.2.1:7".parse().unwrap();
    end.conn.not_connected(LlpError::Unreachable { addr });
    assert_eq!(end.conn.state, QpState::Connecting);
    end.conn.abort();
    assert!(matches!(end.conn.end, Some(EndReason::Aborted)));
    assert!(!end.conn.start_initiator(config(), true).unwrap());
}

/// Returns a connection in each stage, with the name of the stage.
fn stages() -> Vec<(&'static str, End)> {
    let settings = Settings::default();
    let memory = Memory::new();
    let fresh = || End::new(&memory, &settings);
    let config = || initiator_config(&settings);
    let mut tcp_connect = fresh();
    assert!(tcp_connect.conn.start_initiator(config(), true).unwrap());
    // TCP was refused, and another address or a retry is possible.
    let addr = "192.0.2.2:7174".parse().unwrap();
    let mut failed = fresh();
    assert!(failed.conn.start_initiator(config(), true).unwrap());
    failed.conn.set_more_addresses(true);
    failed.conn.not_connected(LlpError::Unreachable { addr });
    let patient = || {
        let mut settings = Settings::default();
        settings.timeouts.refused = Duration::from_secs(1);
        let mut end = End::new(&memory, &settings);
        assert!(end.conn.start_initiator(config(), true).unwrap());
        end.conn.lost(LlpError::Refused { addr });
        assert!(end.conn.redials_at().is_some());
        end
    };
    let redial_waits = patient();
    let mut redials = patient();
    redials.conn.redial_due();
    let mut await_reply = fresh();
    assert!(await_reply.conn.start_initiator(config(), true).unwrap());
    await_reply.conn.tcp_connected();
    let initiator = connected(&settings, &memory).0;
    let responder = connected(&settings, &memory).1;
    let mut closing = connected(&settings, &memory).0;
    assert!(closing.conn.disconnect());
    let mut fin_sent = connected(&settings, &memory).0;
    assert!(fin_sent.conn.disconnect());
    fin_sent.conn.fin_sent();
    let mut half_closed = connected(&settings, &memory).0;
    half_closed.conn.peer_fin(false);
    let (_, mut terminated, pool) = connected(&settings, &memory);
    terminated.deliver(&[0xFF; 64], &pool);
    vec![
        ("detached", fresh()),
        ("TCP connects", tcp_connect),
        ("TCP failed", failed),
        ("redial waits", redial_waits),
        ("redials", redials),
        ("awaits the Reply", await_reply),
        ("open, initiator", initiator),
        ("open, responder", responder),
        ("closes", closing),
        ("FIN sent", fin_sent),
        ("peer has closed", half_closed),
        ("Terminate", terminated),
    ]
}

#[test]
fn stage_table() {
    use std::fmt::Write;
    type Act = fn(&mut Connection);
    let events: [(&str, Act); 11] = [
        ("redial due", |conn| conn.redial_due()),
        ("redialed", |conn| conn.redialed()),
        ("TCP connected", |conn| conn.tcp_connected()),
        ("peer's FIN", |conn| conn.peer_fin(false)),
        ("peer's FIN, mid FPDU", |conn| conn.peer_fin(true)),
        ("reset", |conn| {
            conn.lost(crate::llp::LlpError::Reset {
                addr: "192.0.2.2:7174".parse().unwrap(),
            });
        }),
        ("deadline", |conn| {
            let limit = conn.ctx.settings.timeouts.close;
            conn.set_now(conn.now + limit);
            conn.timers.clear(Timer::Stage);
            conn.stage_timed_out();
        }),
        ("disconnect", |conn| {
            assert!(conn.disconnect() || conn.state == QpState::Idle);
        }),
        ("FIN sent", |conn| {
            if conn.fin.wanted {
                conn.fin_sent();
            }
        }),
        ("abort", |conn| conn.abort()),
        ("reset of the QP", |conn| {
            assert_eq!(conn.reset(), conn.state == QpState::Idle);
        }),
    ];
    let mut table = String::new();
    for (event, act) in events {
        writeln!(table, "{event}").unwrap();
        for (stage, mut end) in stages() {
            act(&mut end.conn);
            let (state, order) = (end.conn.state, end.conn.llp_order());
            let reason = end
                .conn
                .end
                .as_ref()
                .map_or("-".to_owned(), ToString::to_string);
            writeln!(
                table,
                "    {stage:16} -> {:10} {:9} {reason}",
                state.to_string(),
                format!("{order:?}")
            )
            .unwrap();
        }
    }
    insta::assert_snapshot!(table);
}

/// Found by the simulator: a dead host does not reset the connection, so there is no reason to try
/// revision 1.
#[test]
fn a_peer_that_vanishes_before_its_reply_has_not_refused_our_request() {
    let settings = Settings {
        retry_with_revision_1: true,
        ..Settings::default()
    };
    let addr = "192.0.2.2:7174".parse().unwrap();
    let mut end = End::new(&Memory::new(), &settings);
    let config = initiator_config(&settings);
    assert!(end.conn.start_initiator(config, true).unwrap());
    end.conn.tcp_connected();
    let error = crate::llp::LlpError::TimedOut { addr };
    end.conn.lost(error);
    assert!(matches!(end.conn.end, Some(EndReason::LlpLost { error: lost }) if lost == error));
    assert!(end.conn.llp_order() != LlpOrder::Reconnect && end.conn.state == QpState::Error);
}

#[test]
fn a_responder_sends_nothing_before_the_first_fpdu() {
    // 5044-7.1.2-15
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    server
        .conn
        .post_send(&SendWr::send_inline(1, b"early"))
        .unwrap();
    assert!(server.bytes().is_empty());
    client.post_receives(1);
    client
        .conn
        .post_send(&SendWr::write_inline(2, b"", RemoteBuffer::at(0, 0)))
        .unwrap();
    pump(&mut client, &mut server, &pool);
    assert_eq!(
        client
            .completions()
            .iter()
            .map(|c| c.byte_len)
            .collect::<Vec<_>>(),
        [0, 5]
    );
}

#[test]
fn a_damaged_first_fpdu_ends_the_connection_without_a_terminate() {
    // 5044-7.1.2-15 forbids the responder to send anything, including the Terminate.
    let memory = Memory::new();
    let (mut client, mut server, pool) = connected(&Settings::default(), &memory);
    client
        .conn
        .post_send(&SendWr::send_inline(1, b"hello"))
        .unwrap();
    let mut bytes = client.bytes();
    bytes[22] ^= 1;
    server.deliver(&bytes, &pool);
    assert!(server.bytes().is_empty());
    assert!(matches!(
        server.conn.end,
        Some(EndReason::TerminateSent {
            terminate: None,
            ..
        })
    ));
    assert_eq!(server.conn.state, QpState::Terminate);
}

/// Bytes that a client has sent: its MPA Request and its FPDUs.
struct Recording {
    request: Vec<u8>,
    stream: Vec<u8>,
}

/// Records the bytes that a client sends to a server with this memory.
fn record(settings: &Settings, memory: &Arc<Memory>) -> Recording {
    let pool = BufferPool::default();
    let mut client = End::new(&Memory::new(), settings);
    assert!(
        client
            .conn
            .start_initiator(initiator_config(settings), true)
            .unwrap()
    );
    client.conn.emss = 1460;
    client.conn.tcp_connected();
    let request = client.bytes();
    let mut server = accept(settings, memory, &request);
    server.post_receives(3);
    client.deliver(&server.bytes(), &pool);
    post_work(&mut client, memory);
    let mut stream = Vec::new();
    loop {
        let bytes = client.bytes();
        server.deliver(&bytes, &pool);
        stream.extend_from_slice(&bytes);
        let back = server.bytes();
        client.deliver(&back, &pool);
        if bytes.is_empty() && back.is_empty() {
            return Recording { request, stream };
        }
    }
}

/// Returns the Terminate at the end of a server's bytes, if there is one.
fn last_terminate(bytes: &[u8], end: &End) -> Option<Terminate> {
    let negotiated = end.conn.negotiated.as_ref().unwrap();
    let mut deframer = Deframer::new(negotiated.crc, negotiated.tx_markers);
    let (mut at, mut last) = (0, None);
    while let Ok(Step::Fpdu(ulpdu)) = deframer.next(&bytes[at..]) {
        at += ulpdu.wire_len();
        let mut scratch = [0; 70];
        let head = ulpdu.head(&mut scratch);
        last = (head[1] & 0x0F == 7)
            .then(|| Terminate::parse(&head[18..]))
            .flatten();
    }
    assert_eq!(at, bytes.len(), "the server sends whole FPDUs");
    last
}

/// Feeds a damaged stream to a new server and checks the invariants.
fn survives(settings: &Settings, memory: &Arc<Memory>, recording: &Recording, damaged: &[u8]) {
    let pool = BufferPool::default();
    let mut server = accept(settings, memory, &recording.request);
    server.post_receives(3);
    let reply = server.bytes();
    assert!(!reply.is_empty());
    server.deliver(damaged, &pool);
    let answer = server.bytes();
    assert!(
        memory.canaries_are_alive(),
        "a byte outside of the registered regions was written"
    );
    match &server.conn.end {
        None => assert_eq!(server.conn.state, QpState::Rts),
        Some(EndReason::TerminateSent {
            terminate: Some(terminate),
            ..
        }) => {
            assert_eq!(last_terminate(&answer, &server).as_ref(), Some(terminate));
        }
        Some(EndReason::TerminateSent {
            terminate: None, ..
        }) => assert!(answer.is_empty()),
        Some(EndReason::TerminateReceived { .. }) => {}
        Some(other) => panic!("unexpected end: {other}"),
    }
    if server.conn.end.is_some() {
        assert_eq!(server.conn.state, QpState::Terminate);
        assert!(matches!(server.conn.stage, Stage::Open(_)));
        let flushed = server.completions();
        assert_eq!(
            flushed.len(),
            3,
            "every receive completes, delivered or flushed"
        );
    }
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let switches = (any::<bool>(), any::<bool>(), any::<bool>());
    switches.prop_map(|(crc, markers, send_in_place)| Settings {
        crc,
        markers,
        send_in_place,
        ..Settings::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Without a CRC, damage reaches DDP and RDMAP; with a CRC, it ends at MPA.
    #[test]
    fn any_mutation_of_a_valid_stream_ends_in_a_typed_error_and_writes_nothing_outside(
        settings in any_settings(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let memory = Memory::new();
        let recording = record(&settings, &memory);
        let mut damaged = recording.stream.clone();
        for (index, flip) in flips {
            let at = index.index(damaged.len());
            damaged[at] ^= flip;
        }
        if let Some(cut) = cut {
            let at = cut.index(damaged.len());
            damaged.remove(at);
        }
        survives(&settings, &memory, &recording, &damaged);
    }

    /// Damages only the headers of the first segments, so that every field is hit.
    #[test]
    fn any_mutation_of_a_header_ends_in_a_typed_error_and_writes_nothing_outside(
        at in 0usize..180,
        flip in 1u8..,
    ) {
        let settings = Settings { crc: false, ..Settings::default() };
        let memory = Memory::new();
        let recording = record(&settings, &memory);
        let mut damaged = recording.stream.clone();
        damaged[at] ^= flip;
        survives(&settings, &memory, &recording, &damaged);
    }
}

//! Tests of a message without a receive, on a connection that holds such messages. The message
//! waits for a receive or for its time limit, and later messages wait with it.
//!
//! Time advances only when a test advances it.

use crate::mem::RemoteBuffer;
use std::time::Duration;

use crate::timers::Timer;
use uwarp_rdmap::TerminateCode;

use super::*;
use crate::cause::Who;
use crate::completion::WcOpcode;
use crate::event::{AsyncEvent, ConnectionEvent};
use crate::settings::OnNoReceive;

const BOUND: Duration = Duration::from_millis(100);

fn holding() -> Settings {
    Settings {
        on_no_receive: OnNoReceive::Hold(BOUND),
        ..Settings::default()
    }
}

impl End {
    /// Handles the waiting message again, as a turn without new bytes does.
    fn look_again(&mut self) {
        self.conn.receive(&mut self.rx);
    }

    /// Advances the time.
    fn later(&mut self, by: Duration) {
        let now = self.conn.now + by;
        self.conn.set_now(now);
    }
}

/// Returns a client, and a server that holds messages and has its own receive queue.
fn pair(settings: &Settings) -> (End, End, BufferPool, Arc<Memory>) {
    let memory = Memory::new();
    let (client, server, pool) = connected(settings, &memory);
    (client, server, pool, memory)
}

#[test]
fn a_send_without_a_receive_waits_with_all_behind_it_and_goes_on_in_order() {
    for (crc, markers) in [(true, false), (true, true), (false, true)] {
        let settings = Settings {
            crc,
            markers,
            ..holding()
        };
        let (mut client, mut server, pool, memory) = pair(&settings);
        post_work(&mut client, &memory);
        server.post_receives(1);
        // The Read Request after the second Send is not answered.
        pump(&mut client, &mut server, &pool);
        assert!(server.conn.is_starving() && !server.conn.wants_bytes());
        assert_eq!(server.numbers(), [(0, Status::Success)]);
        assert!(!server.rx.filled().is_empty());
        let before = server.rx.filled().len();
        server.look_again();
        assert_eq!(
            server.rx.filled().len(),
            before,
            "the message stays in the buffer"
        );
        // Posts one receive for each of the other two messages.
        for _ in 0..2 {
            assert!(server.conn.is_starving());
            server.post_receives(1);
            server.look_again();
            pump(&mut client, &mut server, &pool);
            assert_eq!(server.numbers(), [(0, Status::Success)]);
        }
        assert!(!server.conn.is_starving() && server.rx.filled().is_empty());
        let done: Vec<(u64, Status)> = (0..7).map(|wr_id| (wr_id, Status::Success)).collect();
        assert_eq!(client.numbers(), done);
        assert!(memory.canaries_are_alive());
    }
}

#[test]
fn without_a_receive_in_time_the_connection_ends_as_without_a_hold() {
    let (mut client, mut server, pool, _memory) = pair(&holding());
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    pump(&mut client, &mut server, &pool);
    let until = server.conn.deadline();
    assert_eq!(until, Some(server.conn.now + BOUND));
    server.later(BOUND - Duration::from_nanos(1));
    server.look_again();
    assert!(server.conn.is_starving());
    assert_eq!(
        server.conn.deadline(),
        until,
        "another check does not extend the wait"
    );
    server.later(Duration::from_nanos(1));
    server.look_again();
    assert_eq!(server.conn.state, QpState::Terminate);
    let Some(EndReason::TerminateSent {
        terminate, cause, ..
    }) = &server.conn.end
    else {
        panic!("{:?}", server.conn.end);
    };
    assert_eq!(cause.who(), Who::Program);
    assert_eq!(
        cause.to_string(),
        "no receive posted: the peer's Send number 1 was held for 100 ms, and no receive was posted for it in that \
         time; post receives earlier, or let messages wait longer (`OnNoReceive::Hold` in the settings or for the \
         queue pair)"
    );
    let terminate = terminate.as_ref().unwrap();
    // DDP, untagged buffer, invalid MSN: no buffer available.
    assert_eq!(
        (terminate.layer(), terminate.etype(), terminate.code()),
        (1, 2, 2)
    );
    assert!(server.conn.wants_bytes(), "the rest is read and dropped");
    pump(&mut client, &mut server, &pool);
    assert!(matches!(
        client.conn.end,
        Some(EndReason::TerminateReceived { .. })
    ));
}

#[test]
fn when_the_peer_has_closed_a_message_waits_for_a_while_more_and_the_cause_says_so() {
    const MORE: Duration = Duration::from_millis(30);
    let mut settings = holding();
    settings.timeouts.hold_after_close = MORE;
    let (mut client, mut server, pool, _memory) = pair(&settings);
    for wr_id in 0..2 {
        client.conn.post_send(&SendWr::send(wr_id, &[])).unwrap();
    }
    pump(&mut client, &mut server, &pool);
    server.later(Duration::from_millis(20));
    let until = server.conn.now + MORE;
    server.conn.closed_on_hold();
    assert_eq!(server.conn.deadline(), Some(until));
    server.later(Duration::from_millis(10));
    server.conn.closed_on_hold();
    assert_eq!(
        server.conn.deadline(),
        Some(until),
        "another check does not extend the wait"
    );
    // The next message starts a new wait, which is limited again when the close is detected again.
    server.post_receives(1);
    server.look_again();
    assert_eq!(server.conn.deadline(), Some(server.conn.now + BOUND));
    server.later(BOUND - Duration::from_millis(20));
    let until = server.conn.deadline();
    server.conn.closed_on_hold();
    assert_eq!(
        server.conn.deadline(),
        until,
        "an earlier end of the wait stays"
    );
    server.later(Duration::from_millis(20));
    server.look_again();
    let cause = server.conn.end.as_ref().unwrap().cause();
    assert!(
        cause.to_string().contains("was held for 100 ms, and"),
        "{cause}"
    );

    let (mut client, mut server, pool, _memory) = pair(&settings);
    client.conn.post_send(&SendWr::send(0, &[])).unwrap();
    pump(&mut client, &mut server, &pool);
    server.later(Duration::from_millis(20));
    server.conn.closed_on_hold();
    server.later(MORE);
    server.look_again();
    assert_eq!(server.conn.state, QpState::Terminate);
    let cause = server.conn.end.as_ref().unwrap().cause();
    assert_eq!(
        cause.to_string(),
        "no receive posted: the peer's Send number 1 was held for 50 ms, the peer closed the connection meanwhile, and \
         no receive was posted for it; post receives earlier: before the peer sends, or at least before it closes"
    );
}

#[test]
fn a_hold_of_no_time_is_no_hold() {
    let settings = Settings {
        on_no_receive: OnNoReceive::Hold(Duration::ZERO),
        ..Settings::default()
    };
    let (mut client, mut server, pool, _memory) = pair(&settings);
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    pump(&mut client, &mut server, &pool);
    assert_eq!(server.conn.state, QpState::Terminate);
    let cause = server.conn.end.as_ref().unwrap().cause();
    assert_eq!(
        cause.to_string(),
        "no receive posted: the peer's Send number 1 arrived, and no receive is posted for it; post receives before the \
         peer sends, and agree with it on their number"
    );
}

#[test]
fn every_message_that_waits_has_the_whole_time() {
    let (mut client, mut server, pool, _memory) = pair(&holding());
    for wr_id in 0..3 {
        client.conn.post_send(&SendWr::send(wr_id, &[])).unwrap();
    }
    pump(&mut client, &mut server, &pool);
    for _ in 0..3 {
        server.later(BOUND - Duration::from_millis(1));
        server.look_again();
        assert_eq!(server.conn.state, QpState::Rts);
        assert_eq!(
            server.conn.deadline(),
            Some(server.conn.now + Duration::from_millis(1))
        );
        server.post_receives(1);
        server.look_again();
    }
    assert!(!server.conn.is_starving());
    assert_eq!(server.conn.deadline(), None);
    assert_eq!(server.numbers().len(), 3);
}

#[test]
fn writes_and_reads_in_front_of_the_message_are_done_and_own_sends_go_on() {
    let (mut client, mut server, pool, memory) = pair(&holding());
    let (open, rkey) = (memory.open.to_base(), memory.open.stag().0);
    let sges = client.source(8);
    for wr in [
        SendWr::write_inline(1, b"in front", RemoteBuffer::at(open, rkey)),
        SendWr::read(2, &sges, RemoteBuffer::at(open, rkey)),
        SendWr::send(3, &[]),
        SendWr::write_inline(4, b"from aft", RemoteBuffer::at(open, rkey)),
    ] {
        client.conn.post_send(&wr).unwrap();
    }
    client.post_receives(1);
    pump(&mut client, &mut server, &pool);
    assert!(server.conn.is_starving());
    server.conn.post_send(&SendWr::send(9, &[])).unwrap();
    pump(&mut client, &mut server, &pool);
    assert_eq!(server.numbers(), [(9, Status::Success)]);
    let mut bytes = [0; 8];
    memory.buffer.read_at(OPEN, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in front", "the Write after it waits too");
    client.memory.buffer.read_at(OPEN, &mut bytes).unwrap();
    assert_eq!(&bytes, b"in front", "the Read before it is answered");
    server.post_receives(1);
    server.look_again();
    memory.buffer.read_at(OPEN, &mut bytes).unwrap();
    assert_eq!(&bytes, b"from aft");
}

#[test]
fn a_message_that_has_its_receive_does_not_wait_between_its_segments() {
    let (mut client, mut server, pool, memory) = pair(&holding());
    client.conn.set_emss(300);
    let sges = client.source(256);
    let bytes = {
        client.conn.post_send(&SendWr::send(1, &sges)).unwrap();
        client.conn.post_send(&SendWr::send(2, &sges)).unwrap();
        client.conn.set_emss(100);
        client.bytes()
    };
    server.post_receives(1);
    // The bytes arrive one by one, so that the state can be checked between any two.
    for byte in bytes.chunks(1) {
        assert!(!server.conn.is_starving());
        server.deliver(byte, &pool);
        if server.cq.len() == 1 {
            break;
        }
    }
    assert_eq!(server.numbers(), [(0, Status::Success)]);
    assert!(memory.canaries_are_alive());
}

#[test]
fn on_hold_the_own_end_of_the_connection_flushes_and_forgets_the_message() {
    type Ending = fn(&mut End);
    let endings: [(&str, Ending, QpState); 3] = [
        ("abort", |end| end.conn.abort(), QpState::Error),
        (
            "reset by the peer",
            |end| {
                let addr = "192.0.2.1:1".parse().unwrap();
                end.conn.lost(crate::llp::LlpError::Reset { addr });
            },
            QpState::Error,
        ),
        (
            "closing takes too long",
            |end| {
                end.conn.disconnect();
                assert!(end.conn.is_starving(), "a close does not end a hold");
                while let Some(until) = end.conn.timers.get(Timer::Stage) {
                    end.conn.set_now(until);
                    end.conn.timers.set(Timer::Receive, until + BOUND);
                    assert!(end.conn.timers.take_due(Timer::Stage, until));
                    end.conn.stage_timed_out();
                }
            },
            QpState::Error,
        ),
    ];
    for (name, ending, state) in endings {
        let (mut client, mut server, pool, _memory) = pair(&holding());
        client.conn.post_send(&SendWr::send(1, &[])).unwrap();
        pump(&mut client, &mut server, &pool);
        assert!(server.conn.is_starving(), "{name}");
        ending(&mut server);
        assert_eq!(server.conn.state, state, "{name}");
        assert!(!server.conn.is_starving(), "{name}");
        assert_eq!(server.conn.deadline(), None, "{name}");
        assert_eq!(server.numbers(), [], "{name}");
    }
}

#[test]
fn the_rtr_send_needs_no_receive_and_does_not_wait() {
    let memory = Memory::new();
    let settings = holding();
    let pool = BufferPool::default();
    let mut client = End::new(&Memory::new(), &settings);
    let config = InitiatorConfig {
        model: Model::PeerToPeer(RtrKinds {
            send: true,
            ..RtrKinds::NONE
        }),
        ..initiator_config(&settings)
    };
    client.conn.start_initiator(config, true).unwrap();
    client.conn.emss = 1460;
    client.conn.tcp_connected();
    let request = client.bytes();
    let mut server = accept(&settings, &memory, &request);
    let reply = server.bytes();
    client.deliver(&reply, &pool);
    pump(&mut client, &mut server, &pool);
    assert!(!server.conn.is_starving());
    assert!(matches!(
        server.conn.events[..],
        [
            ConnectionEvent::StartupDone,
            ConnectionEvent::Async(AsyncEvent::Established { .. })
        ]
    ));
    // An empty Send that is no RTR indication waits like any other.
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    pump(&mut client, &mut server, &pool);
    assert!(server.conn.is_starving());
}

#[test]
fn a_first_message_that_waits_establishes_the_connection_once() {
    let (mut client, mut server, pool, _memory) = pair(&holding());
    client.conn.post_send(&SendWr::send(1, &[])).unwrap();
    pump(&mut client, &mut server, &pool);
    server.look_again();
    server.post_receives(1);
    server.look_again();
    assert_eq!(server.numbers(), [(0, Status::Success)]);
    assert!(matches!(
        server.conn.events[..],
        [
            ConnectionEvent::StartupDone,
            ConnectionEvent::Async(AsyncEvent::Established { .. })
        ]
    ));
}

/// Returns requests with Immediate Data, which take a receive of the peer.
fn immediates(server: &Memory) -> [SendWr<'static>; 4] {
    let (to, rkey) = (server.open.to_base(), server.open.stag().0);
    let with_write = |wr_id| {
        SendWr::write_with_immediate_inline(
            wr_id,
            b"octets",
            RemoteBuffer::at(to, rkey),
            *b"imm data",
        )
    };
    [
        SendWr::immediate(1, *b"imm data"),
        SendWr::immediate(2, *b"imm data").solicited(),
        with_write(3),
        with_write(4).solicited(),
    ]
}

/// 7306-6.3-02: Immediate Data takes a receive like a Send, so it waits for one like a Send.
#[test]
fn immediate_data_without_a_receive_waits_and_is_delivered_when_one_is_posted() {
    for of_srq in [false, true] {
        let (mut client, mut server, pool, memory) = pair(&holding());
        let srq = of_srq.then(|| server.share(8));
        let wrs = immediates(&memory);
        for wr in &wrs {
            client.conn.post_send(wr).unwrap();
        }
        pump(&mut client, &mut server, &pool);
        assert_eq!(client.completions().len(), wrs.len());
        for wr in &wrs {
            assert!(server.conn.is_starving());
            assert_eq!(
                server.conn.deadline(),
                Some(server.conn.now + BOUND),
                "each message has the whole time"
            );
            server.later(BOUND - Duration::from_nanos(1));
            server.look_again();
            assert_eq!(server.numbers(), []);
            let receive = RecvWr::new(wr.wr_id(), &[]);
            match &srq {
                Some(srq) => srq.post(&[receive]).unwrap(),
                None => server.conn.post_recv(&receive).unwrap(),
            }
            server.look_again();
            let done = server.completions();
            let [done] = &done[..] else {
                panic!("{done:?}")
            };
            assert_eq!(
                (done.wr_id, done.opcode, done.immediate),
                (wr.wr_id(), WcOpcode::RecvImmediate, Some(*b"imm data"))
            );
            assert_eq!(done.solicited, wr.wr_id() % 2 == 0);
        }
        assert!(!server.conn.is_starving() && server.rx.filled().is_empty());
        assert_eq!(server.conn.deadline(), None);
        assert!(memory.canaries_are_alive());
    }
}

#[test]
fn the_write_in_front_of_immediate_data_that_waits_is_placed() {
    let (mut client, mut server, pool, memory) = pair(&holding());
    let [.., with_write, _] = immediates(&memory);
    client.conn.post_send(&with_write).unwrap();
    pump(&mut client, &mut server, &pool);
    assert!(server.conn.is_starving());
    let mut bytes = [0; 6];
    memory.buffer.read_at(OPEN, &mut bytes).unwrap();
    assert_eq!(&bytes, b"octets");
}

#[test]
fn immediate_data_without_a_receive_in_time_ends_the_connection() {
    for of_srq in [false, true] {
        for nth in 0..4 {
            let (mut client, mut server, pool, memory) = pair(&holding());
            let srq = of_srq.then(|| server.share(8));
            client.conn.post_send(&immediates(&memory)[nth]).unwrap();
            pump(&mut client, &mut server, &pool);
            server.later(BOUND - Duration::from_nanos(1));
            server.look_again();
            assert_eq!(server.conn.state, QpState::Rts);
            server.later(Duration::from_nanos(1));
            server.look_again();
            assert_eq!(server.conn.state, QpState::Terminate);
            let Some(EndReason::TerminateSent { terminate, .. }) = &server.conn.end else {
                panic!("{:?}", server.conn.end);
            };
            // DDP, untagged buffer, invalid MSN: no buffer available.
            let reason = terminate.as_ref().map(Terminate::reason);
            let code = TerminateCode {
                layer: 1,
                etype: 2,
                code: 2,
            };
            assert_eq!(reason, Some(code));
            // A receive that is posted now is too late. An SRQ keeps it for other QPs.
            let late = RecvWr::new(9, &[]);
            match &srq {
                Some(srq) => srq.post(&[late]).unwrap(),
                None => server.conn.post_recv(&late).unwrap(),
            }
            server.look_again();
            let flushed = [(9, Status::WrFlush)];
            let expected = if of_srq { &[][..] } else { &flushed };
            assert_eq!(server.numbers(), expected);
        }
    }
}

//! Events that a connection records for its driver, in their order.

use super::{End, LlpError, Memory, Settings, accept, connected, initiator_config, pump};
use crate::connection::BufferPool;
use crate::event::{AsyncEvent, ConnectionEvent, EndReason};
use crate::state::QpState;
use crate::wr::SendWr;

/// Takes the events, as a driver does after a turn. Returns their names.
fn take(end: &mut End) -> Vec<&'static str> {
    let name = |event| match event {
        ConnectionEvent::StartupDone => "startup done",
        ConnectionEvent::Released => "released",
        ConnectionEvent::Async(AsyncEvent::Established { .. }) => "established",
        ConnectionEvent::Async(AsyncEvent::Ended { reason, .. }) => match reason.is_orderly() {
            true => "ended",
            false => "failed",
        },
        ConnectionEvent::Async(event) => panic!("{event:?}"),
    };
    end.conn.events.drain(..).map(name).collect()
}

#[test]
fn a_responder_has_done_startup_before_its_connection_is_established() {
    let (mut client, mut server, pool) = connected(&Settings::default(), &Memory::new());
    assert_eq!(take(&mut client), ["established", "startup done"]);
    assert_eq!(take(&mut server), ["startup done"]);
    server.post_receives(1);
    client.conn.post_send(&SendWr::send_inline(1, b"")).unwrap();
    pump(&mut client, &mut server, &pool);
    assert_eq!(take(&mut server), ["established"]);
    assert!(take(&mut client).is_empty());
}

#[test]
fn a_connection_is_released_after_its_end_and_an_attempt_that_is_repeated_is_not() {
    let (mut client, mut server, _pool) = connected(&Settings::default(), &Memory::new());
    client.conn.events.clear();
    server.conn.events.clear();
    assert!(client.conn.disconnect());
    client.conn.fin_sent();
    server.conn.peer_fin(false);
    assert_eq!(take(&mut server), ["ended"]);
    server.conn.fin_sent();
    client.conn.peer_fin(false);
    for end in [&mut client, &mut server] {
        assert_eq!(end.conn.state, QpState::Error);
        end.conn.llp_released();
    }
    assert_eq!(take(&mut client), ["ended", "released"]);
    assert_eq!(take(&mut server), ["released"]);

    let mut end = End::new(&Memory::new(), &Settings::default());
    let config = || initiator_config(&Settings::default());
    let addr = "192.0.2.1:7".parse().unwrap();
    assert!(end.conn.start_initiator(config(), true).unwrap());
    end.conn.set_more_addresses(true);
    end.conn.not_connected(LlpError::Unreachable { addr });
    end.conn.llp_released();
    assert!(take(&mut end).is_empty());
    assert!(end.conn.start_initiator(config(), true).unwrap());
    end.conn.not_connected(LlpError::Unreachable { addr });
    end.conn.llp_released();
    assert_eq!(take(&mut end), ["failed", "released"]);
}

#[test]
fn a_reply_that_is_refused_ends_the_connection_before_startup_is_done() {
    let (settings, pool) = (Settings::default(), BufferPool::default());
    let mut client = End::new(&Memory::new(), &settings);
    let config = initiator_config(&settings);
    let most = config.max_ird;
    assert!(client.conn.start_initiator(config, false).unwrap());
    client.conn.tcp_connected();
    let request = client.bytes();
    let mut reply = accept(&settings, &Memory::new(), &request).bytes();
    // Makes the ORD of the enhanced Reply larger than the IRD that the client can grant.
    let [.., high, low] = &mut reply[..] else {
        panic!("no enhanced Reply: {reply:?}");
    };
    [*high, *low] = ((u16::from(*high) & 0xC0) << 8 | (most + 1)).to_be_bytes();
    client.deliver(&reply, &pool);
    assert!(client.conn.negotiated.is_some() && !client.conn.established);
    assert!(matches!(
        client.conn.end,
        Some(EndReason::TerminateSent { .. })
    ));
    assert_eq!(take(&mut client), ["failed"]);
}

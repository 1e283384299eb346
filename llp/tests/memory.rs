//! smoltcp over the in-memory link.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use uwarp_llp::smol::{
    Clock, Congestion, FaultSettings, ManualClock, MemoryNetwork, MemorySettings,
};
use uwarp_llp::{Llp, LlpError, Network, Piece, Recv, SendHints};

const MTUS: [usize; 4] = [576, 1500, 9000, 65535];

/// The clock does not advance, so that no timer ever fires. A transfer then ends only if no packet
/// and no wake-up is lost.
fn frozen(mtu: usize) -> MemorySettings {
    MemorySettings::default()
        .mtu(mtu)
        .clock(Arc::new(ManualClock::new()))
}

fn pair(settings: &MemorySettings) -> (MemoryNetwork, MemoryNetwork) {
    MemoryNetwork::pair(settings).unwrap()
}

fn second(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 2], port))
}

#[test]
fn random_data_crosses_at_every_mtu() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        random_data_crosses_in_random_pieces(&a, &b, second(0), 600_000);
    }
}

#[test]
fn random_data_crosses_over_ipv6() {
    let (a, b) = pair(&frozen(1500));
    let at = "[2001:db8::2]:0".parse().unwrap();
    random_data_crosses_in_random_pieces(&a, &b, at, 200_000);
}

#[test]
fn random_data_crosses_with_checksums_and_congestion_control_and_delayed_acks() {
    for congestion in [Congestion::Reno, Congestion::Cubic] {
        let settings = MemorySettings::default()
            .congestion(congestion)
            .checksums(true)
            .ack_delay(Some(Duration::from_millis(1)));
        let (a, b) = pair(&settings);
        random_data_crosses_in_random_pieces(&a, &b, second(0), 300_000);
    }
}

#[test]
fn random_data_crosses_through_tiny_buffers() {
    for mtu in [576, 65535] {
        let small = frozen(mtu).receive_buffer(2048).send_buffer(3000);
        let (a, b) = pair(&small);
        random_data_crosses_in_random_pieces(&a, &b, second(0), 100_000);
    }
}

#[test]
fn a_host_reaches_itself() {
    let (a, _b) = pair(&frozen(1500));
    random_data_crosses_in_random_pieces(&a, &a, "192.0.2.1:0".parse().unwrap(), 100_000);
}

#[test]
fn nobody_listens() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        nobody_listens_is_refused(&a, second(7));
        nobody_listens_is_refused(&b, "192.0.2.1:9".parse().unwrap());
    }
}

#[test]
fn abort_resets() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        an_abort_is_a_reset_at_the_peer(&a, &b, second(0));
    }
}

#[test]
fn fin_with_data_in_flight() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        a_fin_comes_after_all_bytes_and_leaves_the_other_direction_open(&a, &b, second(0));
    }
}

#[test]
fn flushed() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        flushed_waits_for_the_peers_acknowledgement(&a, &b, second(0));
    }
}

#[test]
fn unacknowledged() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        unacknowledged_counts_what_the_peer_has_not_taken(&a, &b, second(0));
    }
}

#[test]
fn lost_without_reading() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        a_reset_and_a_fin_are_told_apart_without_reading(&a, &b, second(0));
    }
}

#[test]
fn two_threads_send_16_mib_both_ways_at_once() {
    for mtu in MTUS {
        let (a, b) = pair(&frozen(mtu));
        both_directions_at_once_from_two_threads(&a, &b, second(0), 16 << 20);
    }
}

#[test]
fn ping_pong_of_two_threads_needs_no_timer() {
    for mtu in [576, 65535] {
        let (a, b) = pair(&frozen(mtu));
        small_messages_go_there_and_back(&a, &b, second(0), 2_000);
    }
}

#[test]
fn two_hundred_connections_come_through_one_listener_at_once() {
    let (a, b) = pair(&frozen(1500));
    let (mut clients, mut servers) = connected_at_once(&a, &b, second(7174), 200);
    for (number, client) in clients.iter_mut().enumerate() {
        let bytes = (number as u64).to_be_bytes();
        assert_eq!(
            client.try_send(&[Piece::from(&bytes)], SendHints::NONE),
            Ok(8)
        );
    }
    for server in &mut servers {
        let mut bytes = [0; 8];
        assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Data(8)));
        let number = u64::from_be_bytes(bytes) as usize;
        assert_eq!(server.peer_addr(), clients[number].local_addr());
    }
}

#[test]
fn connections_beyond_the_backlog_come_again_and_are_taken() {
    let (a, b) = pair(&MemorySettings::default());
    let mut listener = b.listen(second(7174), 2).unwrap();
    let mut clients: Vec<_> = (0..5)
        .map(|_| a.connect(None, second(7174)).unwrap())
        .collect();
    let mut servers = Vec::new();
    loop {
        listener.clear_readiness();
        while let Some(server) = listener.try_accept().unwrap() {
            servers.push(server);
        }
        for client in &mut clients {
            client.clear_readiness();
            client.drive();
            client.connect_progress().unwrap();
        }
        if servers.len() == 5 {
            break;
        }
        let mut waits: Vec<_> = clients
            .iter()
            .map(|c| Wait::connection(&**c, false))
            .collect();
        waits.push(Wait::listener(&*listener));
        wait(&waits);
    }
}

#[test]
fn emss_is_what_a_segment_carries() {
    for (mtu, v4) in [(576, 536), (1500, 1460), (9000, 8960), (65535, 65495)] {
        let (a, b) = pair(&frozen(mtu));
        let (client, server) = connected(&a, &b, second(0));
        assert_eq!((client.emss(), server.emss()), (v4, v4));
    }
    let (a, b) = pair(&frozen(1500));
    let (client, server) = connected(&a, &b, "[2001:db8::2]:0".parse().unwrap());
    assert_eq!((client.emss(), server.emss()), (1440, 1440));
}

#[test]
fn data_that_came_with_the_handshake_wakes_the_new_owner() {
    let (a, b) = pair(&frozen(1500));
    let mut listener = b.listen(second(0), 4).unwrap();
    let mut client = a.connect(None, listener.local_addr()).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    assert!(client.connect_progress().unwrap());
    assert_eq!(
        client.try_send(&[Piece::from(b"early")], SendHints::NONE),
        Ok(5)
    );
    let mut server = listener.try_accept().unwrap().unwrap();
    wait(&[Wait::connection(&*server, false)]);
    server.clear_readiness();
    let mut bytes = [0; 8];
    assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Data(5)));
    assert_eq!(&bytes[..5], b"early");
}

#[test]
fn a_client_that_gives_up_in_the_handshake_is_never_accepted() {
    let (a, b) = pair(&frozen(1500));
    let mut listener = b.listen(second(0), 4).unwrap();
    let mut client = a.connect(None, listener.local_addr()).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    client.abort();
    assert!(listener.try_accept().unwrap().is_none());
    assert!(listener.deadline().is_none(), "nothing is left of it");
}

#[test]
fn a_listener_that_goes_away_refuses_those_who_wait() {
    let (a, b) = pair(&frozen(1500));
    let mut listener = b.listen(second(7), 4).unwrap();
    let mut first = a.connect(None, second(7)).unwrap();
    assert!(listener.try_accept().unwrap().is_none());
    let mut second_client = a.connect(None, second(7)).unwrap();
    drop(listener);
    let mut late = a.connect(None, second(7)).unwrap();
    assert_eq!(
        failed_attempt(&mut *late),
        LlpError::Refused { addr: second(7) }
    );
    // The SYNs of these clients were answered, so their handshakes were complete on their side.
    for client in [&mut first, &mut second_client] {
        let reset = LlpError::Reset { addr: second(7) };
        assert!(client.connect_progress() == Err(reset) || client.lost() == Some(reset));
    }
    assert!(b.listen(second(7), 4).is_ok(), "the port is free again");
}

#[test]
fn a_connection_dropped_by_its_owner_resets_the_peer() {
    let (a, b) = pair(&frozen(1500));
    let (client, mut server) = connected(&a, &b, second(0));
    drop(client);
    assert_eq!(
        server.try_recv(&mut [0; 1]),
        Err(LlpError::Reset {
            addr: server.peer_addr()
        })
    );
}

#[test]
fn a_connection_dropped_when_flushed_still_lets_the_peer_close_in_order() {
    let (a, b) = pair(&frozen(1500));
    let (mut client, mut server) = connected(&a, &b, second(0));
    assert_eq!(
        client.try_send(&[Piece::from(b"last words")], SendHints::NONE),
        Ok(10)
    );
    client.shutdown().unwrap();
    let mut bytes = [0; 16];
    assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Data(10)));
    assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Closed));
    assert!(client.flushed());
    drop(client);
    server.shutdown().unwrap();
    assert!(server.flushed());
    assert_eq!(server.try_recv(&mut bytes), Ok(Recv::Closed));
}

#[test]
fn bytes_that_nobody_read_survive_the_end_of_time_wait() {
    let clock = Arc::new(ManualClock::new());
    let clock_of_hosts: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let (a, b) = pair(&MemorySettings::default().clock(clock_of_hosts));
    let (mut client, mut server) = connected(&a, &b, second(0));
    client.shutdown().unwrap();
    assert_eq!(server.try_recv(&mut [0; 1]), Ok(Recv::Closed));
    assert_eq!(
        server.try_send(&[Piece::from(b"late reader")], SendHints::NONE),
        Ok(11)
    );
    server.shutdown().unwrap();
    client.drive();
    server.drive();
    client.drive();
    assert!(server.flushed());
    clock.advance(Duration::from_secs(60));
    client.drive();
    assert_eq!(client.deadline(), None);
    let mut bytes = [0; 32];
    assert_eq!(client.try_recv(&mut bytes), Ok(Recv::Data(11)));
    assert_eq!(client.try_recv(&mut bytes), Ok(Recv::Closed));
    assert!(client.flushed());
}

#[test]
fn a_silent_host_is_timed_out() {
    let settings = MemorySettings::default()
        .connect_timeout(Duration::from_millis(20))
        .faults(Some(FaultSettings::default().loss(1.0)));
    let (a, b) = pair(&settings);
    let _listener = b.listen(second(7), 4).unwrap();
    let mut client = a.connect(None, second(7)).unwrap();
    assert_eq!(
        failed_attempt(&mut *client),
        LlpError::TimedOut { addr: second(7) }
    );
}

#[test]
fn addresses_that_nobody_has_are_named() {
    let (a, b) = pair(&frozen(1500));
    let nobody: SocketAddr = "192.0.2.3:7".parse().unwrap();
    assert_eq!(
        a.connect(None, nobody).err(),
        Some(LlpError::Unreachable { addr: nobody })
    );
    let unavailable = Some(LlpError::AddressUnavailable { addr: nobody });
    assert_eq!(a.listen(nobody, 1).err(), unavailable);
    assert_eq!(a.connect(Some(nobody), second(7)).err(), unavailable);
    let listener = b.listen("0.0.0.0:7".parse().unwrap(), 1).unwrap();
    let in_use = LlpError::AddressInUse { addr: second(7) };
    assert_eq!(b.listen(second(7), 1).err(), Some(in_use));
    drop(listener);
    let local: SocketAddr = "192.0.2.1:1000".parse().unwrap();
    let _first = a.connect(Some(local), second(7)).unwrap();
    let in_use = LlpError::AddressInUse { addr: local };
    assert_eq!(a.connect(Some(local), second(7)).err(), Some(in_use));
}

#[test]
fn settings_out_of_range_are_refused_in_words() {
    for settings in [
        MemorySettings::default().mtu(575),
        MemorySettings::default().mtu(65536),
        MemorySettings::default().receive_buffer(0),
        MemorySettings::default().send_buffer(2 << 30),
        MemorySettings::default().inbox(0),
    ] {
        let error = MemoryNetwork::pair(&settings).err().unwrap();
        assert!(
            error
                .to_string()
                .starts_with("cannot make an in-memory network"),
            "{error}"
        );
    }
}

#[test]
fn a_small_mtu_has_no_ipv6() {
    let (a, _b) = pair(&frozen(1279));
    let to: SocketAddr = "[2001:db8::2]:7".parse().unwrap();
    assert_eq!(
        a.connect(None, to).err(),
        Some(LlpError::Unreachable { addr: to })
    );
}

#[test]
fn a_tiny_inbox_holds_the_sender_back_and_loses_nothing() {
    for inbox in [1, 2, 7] {
        let (a, b) = pair(&frozen(1500).inbox(inbox));
        random_data_crosses_in_random_pieces(&a, &b, second(0), 200_000);
        both_directions_at_once_from_two_threads(&a, &b, second(0), 1 << 20);
    }
}

#[test]
fn a_reset_gets_through_to_a_full_inbox() {
    let (a, b) = pair(&frozen(1500).inbox(1));
    let (mut client, mut server) = connected(&a, &b, second(0));
    assert_eq!(
        client.try_send(&[Piece::from(&vec![1; 10_000])], SendHints::NONE),
        Ok(10_000)
    );
    client.abort();
    let reset = LlpError::Reset {
        addr: server.peer_addr(),
    };
    while server
        .try_recv(&mut [0; 4096])
        .inspect_err(|error| assert_eq!(*error, reset))
        .is_ok()
    {}
}

#[test]
fn any_number_of_small_sends_waits_for_a_reader_who_comes_late() {
    let (a, b) = pair(&frozen(1500));
    let (mut client, server) = connected(&a, &b, second(0));
    let mut sent = 0;
    while client
        .try_send(&[Piece::from(&[sent as u8; 3])], SendHints::NONE)
        .unwrap()
        == 3
    {
        sent += 1;
    }
    assert!(sent > 10_000, "{sent}");
    let mut reader = End::new(server, Vec::new(), 1).bulk();
    reader.finish = false;
    // The last message may have been accepted in part, so only complete messages are read.
    while reader.got.len() < 3 * sent {
        client.clear_readiness();
        client.drive();
        reader.step().unwrap();
        if reader.got.len() < 3 * sent {
            wait(&[Wait::connection(&*client, false), reader.waiting()]);
        }
    }
    for (number, bytes) in reader.got.chunks_exact(3).enumerate().take(sent) {
        assert_eq!(bytes, [number as u8; 3]);
    }
}

#[test]
fn the_port_of_an_ended_client_is_free() {
    let (a, b) = pair(&frozen(1500));
    the_port_of_a_client_that_has_closed_can_be_listened_at(&a, &b, second(0));
}

#[test]
fn describe_names_the_link_and_its_mtu() {
    assert_eq!(
        pair(&frozen(9000)).0.describe(),
        "smoltcp over memory, MTU 9000"
    );
}

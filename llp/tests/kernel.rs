//! The kernel's TCP on the loopback interface.

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use common::*;
use socket2::{Domain, Socket, Type};
use uwarp_llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_llp::{LlpError, Network, Piece, Recv, SendHints};

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

fn network() -> KernelNetwork {
    KernelNetwork::default()
}

#[test]
fn random_data_crosses() {
    random_data_crosses_in_random_pieces(&network(), &network(), loopback(), 600_000);
}

#[test]
fn random_data_crosses_over_ipv6() {
    let at: SocketAddr = "[::1]:0".parse().unwrap();
    if std::net::TcpListener::bind(at).is_err() {
        return; // this machine has no IPv6
    }
    random_data_crosses_in_random_pieces(&network(), &network(), at, 200_000);
}

#[test]
fn an_ipv6_listener_shows_ipv4_peers_as_such() {
    let at: SocketAddr = "[::]:0".parse().unwrap();
    let Ok(mut listener) = network().listen(at, 4) else {
        return; // this machine has no IPv6
    };
    let to = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().port()));
    let mut client = network().connect(None, to).unwrap();
    let server = accept_and_connect(&mut *listener, &mut *client);
    assert_eq!(server.peer_addr(), client.local_addr());
    assert_eq!(server.local_addr(), to);
}

#[test]
fn a_peer_that_never_reads_makes_the_kernel_hold_a_mebibyte_and_its_window() {
    const RECEIVE_BUFFER: usize = 64 << 10;
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.set_recv_buffer_size(RECEIVE_BUFFER).unwrap();
    listener.bind(&loopback().into()).unwrap();
    listener.listen(1).unwrap();
    let to = listener.local_addr().unwrap().as_socket().unwrap();
    let mut client = network().connect(None, to).unwrap();
    let (_never_reads, _) = listener.accept().unwrap();
    while !client.connect_progress().unwrap() {}

    let source = vec![7; 256 << 10];
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut blocked = 0;
    // The kernel fills the peer's window between the sends.
    while blocked < 20 {
        assert!(Instant::now() < deadline, "the kernel still takes bytes");
        let sent = client.try_send(&[Piece::from(&source[..])], SendHints::NONE);
        if sent.unwrap() > 0 {
            blocked = 0;
            continue;
        }
        blocked += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    // The kernel doubles the size of a receive buffer, and exceeds the bound by up to a segment.
    let held = client.unacknowledged();
    let most = (1 << 20) + 2 * RECEIVE_BUFFER + (64 << 10);
    assert!((1 << 19..=most).contains(&held), "{held} bytes are held");
}

#[test]
fn nobody_listens() {
    // The port is bound but has no listener, so that no other test listens there.
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound.bind(&loopback().into()).unwrap();
    let free = bound.local_addr().unwrap().as_socket().unwrap();
    nobody_listens_is_refused(&network(), free);
}

#[test]
fn abort_resets() {
    an_abort_is_a_reset_at_the_peer(&network(), &network(), loopback());
}

#[test]
fn fin_with_data_in_flight() {
    a_fin_comes_after_all_bytes_and_leaves_the_other_direction_open(
        &network(),
        &network(),
        loopback(),
    );
}

#[test]
fn flushed() {
    flushed_waits_for_the_peers_acknowledgement(&network(), &network(), loopback());
}

#[test]
fn unacknowledged() {
    unacknowledged_counts_what_the_peer_has_not_taken(&network(), &network(), loopback());
}

#[test]
fn lost_without_reading() {
    a_reset_and_a_fin_are_told_apart_without_reading(&network(), &network(), loopback());
}

#[test]
fn two_threads() {
    both_directions_at_once_from_two_threads(&network(), &network(), loopback(), 8 << 20);
}

#[test]
fn ping_pong() {
    small_messages_go_there_and_back(&network(), &network(), loopback(), 500);
}

#[test]
fn more_pieces_than_one_call_of_the_kernel_takes_are_all_sent() {
    let (mut a, b) = connected(&network(), &network(), loopback());
    let data = Random(3).bytes(5_000);
    let mut pieces: Vec<_> = data.chunks(1).map(Piece::from).collect();
    pieces.insert(2_000, Piece::from(b""));
    let mut got = End::new(b, Vec::new(), 2);
    got.finish = false;
    let mut sent = 0;
    while sent < data.len() {
        // A call may accept a part of the pieces, so the rest is determined by counting bytes.
        let from = pieces.iter().scan(0, |at, piece| {
            let start = *at;
            *at += piece.len();
            Some((start, *piece))
        });
        let rest: Vec<_> = from
            .filter(|(start, _)| *start >= sent)
            .map(|(_, piece)| piece)
            .collect();
        sent += a.try_send(&rest, SendHints::NONE).unwrap();
        got.step().unwrap();
    }
    while got.got.len() < data.len() {
        got.step().unwrap();
        if got.got.len() < data.len() {
            wait(&[got.waiting()]);
        }
    }
    assert_eq!(got.got, data);
}

#[test]
fn emss_leaves_the_options_out_of_the_segment() {
    let (a, b) = connected(&network(), &network(), loopback());
    // The upper limit is the loopback MTU of 64 KiB less at least 40 bytes of headers.
    for end in [&a, &b] {
        assert!((536..=65_496).contains(&end.emss()), "{}", end.emss());
    }
}

#[test]
fn an_empty_buffer_or_no_pieces_do_nothing() {
    let (mut a, mut b) = connected(&network(), &network(), loopback());
    assert_eq!(a.try_send(&[], SendHints::NONE), Ok(0));
    assert_eq!(a.try_send(&[Piece::from(b"")], SendHints::NONE), Ok(0));
    assert_eq!(b.try_recv(&mut []), Ok(Recv::WouldBlock));
}

#[test]
fn a_used_address_is_named() {
    let listener = network().listen(loopback(), 1).unwrap();
    let addr = listener.local_addr();
    assert_eq!(
        network().listen(addr, 1).err(),
        Some(LlpError::AddressInUse { addr })
    );
}

#[test]
fn an_address_of_another_machine_is_named() {
    let addr = SocketAddr::from(([192, 0, 2, 77], 0));
    assert_eq!(
        network().listen(addr, 1).err(),
        Some(LlpError::AddressUnavailable { addr })
    );
}

#[test]
fn a_port_can_be_listened_at_again_at_once() {
    let mut listener = network().listen(loopback(), 1).unwrap();
    let addr = listener.local_addr();
    let mut client = network().connect(None, addr).unwrap();
    let server = accept_and_connect(&mut *listener, &mut *client);
    // The server closes first, so that its end of the connection enters TIME-WAIT.
    drop((server, listener, client));
    assert!(network().listen(addr, 1).is_ok());
}

#[test]
fn the_port_of_an_ended_client_is_free() {
    the_port_of_a_client_that_has_closed_can_be_listened_at(&network(), &network(), loopback());
}

#[test]
fn a_second_connection_between_the_same_addresses_is_refused_by_its_own_address() {
    let mut listener = network().listen(loopback(), 8).unwrap();
    let to = listener.local_addr();
    let mut client = network().connect(None, to).unwrap();
    let _server = accept_and_connect(&mut *listener, &mut *client);
    let addr = client.local_addr();
    let error = network().connect(Some(addr), to).err().unwrap();
    assert_eq!(error, LlpError::AddressInUse { addr });
    assert!(
        error.to_string().contains("ended within the last minute"),
        "{error}"
    );
}

#[test]
fn settings_reach_the_sockets_and_an_unknown_algorithm_is_an_error() {
    let settings = KernelSettings::default()
        .congestion(Some("reno".to_owned()))
        .keepalive(Some(Duration::from_secs(30)))
        .user_timeout(Some(Duration::from_secs(30)));
    let network = KernelNetwork::new(settings, None);
    assert_eq!(network.describe(), "kernel TCP, reno");
    connected(&network, &network, loopback());
    let settings = KernelSettings::default().congestion(Some("no-such".to_owned()));
    let error = KernelNetwork::new(settings, None)
        .listen(loopback(), 1)
        .err()
        .unwrap();
    assert!(error.to_string().contains("congestion control"), "{error}");
}

/// Returns the name of the system's congestion control if it is BBR, which is replaced within a
/// host. Otherwise prints why the test is skipped, and returns `None`.
fn replaced_control() -> Option<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let name = String::from_utf8(socket.tcp_congestion().unwrap()).unwrap();
    let name = name.trim_end_matches('\0').to_owned();
    let is_bbr = name.starts_with("bbr");
    if !is_bbr {
        eprintln!("SKIPPED: the system's congestion control is {name}, which may be loss-based");
    }
    is_bbr.then_some(name)
}

#[test]
fn both_ends_of_a_connection_within_this_host_have_a_control_that_is_loss_based() {
    if replaced_control().is_none() {
        return;
    }
    let (mut client, mut server) = connected(&network(), &network(), loopback());
    for llp in [&mut client, &mut server] {
        assert_eq!(llp.congestion_control().as_deref(), Some("reno"));
        let sent = llp.try_send(&[Piece::from(b"FPDU")], SendHints::NONE);
        assert_eq!(sent.unwrap(), 4);
        assert_eq!(llp.congestion_control().as_deref(), Some("reno"));
    }
}

#[test]
fn so_has_one_that_is_taken_over() {
    if replaced_control().is_none() {
        return;
    }
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let llp = network().adopt(stream).unwrap();
    assert_eq!(llp.congestion_control().as_deref(), Some("reno"));
}

#[test]
fn a_control_that_was_asked_for_is_kept_within_a_host() {
    let Some(system) = replaced_control() else {
        return;
    };
    let settings = KernelSettings::default().congestion(Some(system.clone()));
    let network = KernelNetwork::new(settings, None);
    let (client, server) = connected(&network, &network, loopback());
    for llp in [client, server] {
        assert_eq!(llp.congestion_control(), Some(system.clone()));
    }
}

/// The listener does not set the options of an accepted socket, and queries its address only for a
/// wildcard. Each system call counts when many connections arrive at once.
#[test]
fn what_is_accepted_has_the_listeners_options_and_its_own_address() {
    for at in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
        let at: SocketAddr = at.parse().unwrap();
        let Ok(mut listener) = network().listen(at, 4) else {
            continue; // this machine has no IPv6
        };
        let mut to = listener.local_addr();
        if to.ip().is_unspecified() {
            to.set_ip(loopback().ip());
        }
        let mut client = network().connect(None, to).unwrap();
        let server = accept_and_connect(&mut *listener, &mut *client);
        assert_eq!(
            (server.local_addr(), server.peer_addr()),
            (to, client.local_addr())
        );
        let socket = socket2::Socket::from(server.fd().try_clone_to_owned().unwrap());
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.nonblocking().unwrap());
    }
}

/// A keep-alive sets SO_KEEPALIVE, the three options of `tcp(7)`, and the user timeout. Without the
/// user timeout, the kernel would retransmit bytes in flight for a quarter of an hour.
#[test]
fn a_keepalive_sets_the_options_of_the_socket_on_both_ends() {
    use uwarp_llp::Keepalive;
    let network = KernelNetwork::default();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut llp = network
        .connect(None, listener.local_addr().unwrap())
        .unwrap();
    let keepalive = Keepalive {
        idle: Duration::from_millis(61_500),
        interval: Duration::from_secs(7),
        probes: 5,
    };
    let (stream, _) = listener.accept().unwrap();
    let mut adopted = network.adopt(stream).unwrap();
    for llp in [&mut llp, &mut adopted] {
        llp.set_keepalive(keepalive).unwrap();
        let fd = llp.fd().try_clone_to_owned().unwrap();
        let socket = socket2::Socket::from(fd);
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            socket.tcp_keepalive_time().unwrap(),
            Duration::from_secs(62)
        );
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            Duration::from_secs(7)
        );
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 5);
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(keepalive.patience())
        );
    }
    let never = Keepalive {
        probes: 0,
        ..keepalive
    };
    let error = llp.set_keepalive(never).unwrap_err();
    assert!(matches!(error, LlpError::Misuse { .. }), "{error}");
}

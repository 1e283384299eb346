//! Queue pairs as objects: creation, attributes, state transitions, and end.

#[path = "../common/mod.rs"]
mod common;

mod close;
mod device;
mod events;
mod flush;
mod keepalive;
mod made;
mod modify;
mod reuse;

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use common::*;
use uwarp_verbs::*;

/// Creates a side for a raw peer: MPA revision 1, no CRC.
fn side() -> Side {
    Side::new(
        Device::tcp_with(raw_settings(), None).unwrap(),
        QpCaps::default(),
        64,
    )
}

/// Creates a side that is connected to a raw peer.
fn with_peer() -> (Side, TcpStream) {
    let a = side();
    let peer = raw_peer(&a.qp);
    (a, peer.stream)
}

/// Reads as the raw peer until the connection ends. Returns the kind of end and the bytes received
/// before it.
fn seen(stream: &mut TcpStream) -> (&'static str, Vec<u8>) {
    let mut bytes = Vec::new();
    let end = match stream.read_to_end(&mut bytes) {
        Ok(_) => "FIN",
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => "RST",
        Err(error) => panic!("{error}"),
    };
    (end, bytes)
}

/// Resets a connection by closing its stream.
fn cut(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Moves the QP of a side to a state.
#[track_caller]
fn to(side: &Side, state: QpState) {
    side.qp.modify(&QpModify::new().state(state)).unwrap();
}

//! Packets that a capture file contains for each kind of network.

mod common;

use std::net::SocketAddr;

use common::*;
use uwarp_capture::Capture;
use uwarp_llp::kernel::{KernelNetwork, KernelSettings};
use uwarp_llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_llp::{Network, Piece, Recv, SendHints};
use uwarp_testkit::MemoryFile;

/// Returns how often the file contains these bytes.
fn count(file: &MemoryFile, bytes: &[u8]) -> usize {
    let file = file.bytes();
    let windows = file.windows(bytes.len());
    windows.filter(|window| *window == bytes).count()
}

fn capture() -> (MemoryFile, Capture) {
    let file = MemoryFile::default();
    let capture = Capture::to_writer(Box::new(file.clone())).unwrap();
    (file, capture)
}

fn exchange(client: &dyn Network, server: &dyn Network, at: SocketAddr) {
    let (mut a, mut b) = connected(client, server, at);
    assert_eq!(
        a.try_send(
            &[Piece::from(b"there it "), Piece::from(b"goes")],
            SendHints::NONE
        ),
        Ok(13)
    );
    let mut bytes = [0; 64];
    while b.try_recv(&mut bytes).unwrap() == Recv::WouldBlock {
        wait(&[Wait::connection(&*b, false)]);
        b.clear_readiness();
    }
    assert_eq!(
        b.try_send(&[Piece::from(b"and back it comes")], SendHints::NONE),
        Ok(17)
    );
    while a.try_recv(&mut bytes).unwrap() == Recv::WouldBlock {
        wait(&[Wait::connection(&*a, false)]);
        a.clear_readiness();
    }
    a.shutdown().unwrap();
    while b.try_recv(&mut bytes).unwrap() != Recv::Closed {
        wait(&[Wait::connection(&*b, false)]);
        b.clear_readiness();
    }
    b.abort();
}

#[test]
fn every_packet_of_the_memory_link_is_recorded_once() {
    let (file, capture) = capture();
    let settings = MemorySettings::default().capture(Some(capture.clone()));
    let (a, b) = MemoryNetwork::pair(&settings).unwrap();
    exchange(&a, &b, SocketAddr::from(([192, 0, 2, 2], 7174)));
    assert_eq!(capture.error(), None);
    assert_eq!(count(&file, b"there it goes"), 1);
    assert_eq!(count(&file, b"and back it comes"), 1);
}

#[test]
fn a_kernel_connection_with_both_ends_here_is_recorded_once() {
    let (file, capture) = capture();
    let network = KernelNetwork::new(KernelSettings::default(), Some(&capture));
    exchange(&network, &network, SocketAddr::from(([127, 0, 0, 1], 0)));
    drop(network);
    assert_eq!(capture.error(), None);
    assert_eq!(count(&file, b"there it goes"), 1);
    assert_eq!(count(&file, b"and back it comes"), 1);
}

#[test]
fn one_recorded_end_shows_both_directions() {
    let (file, capture) = capture();
    let recorded = KernelNetwork::new(KernelSettings::default(), Some(&capture));
    exchange(
        &recorded,
        &KernelNetwork::default(),
        SocketAddr::from(([127, 0, 0, 1], 0)),
    );
    assert_eq!(count(&file, b"there it goes"), 1);
    assert_eq!(count(&file, b"and back it comes"), 1);
}

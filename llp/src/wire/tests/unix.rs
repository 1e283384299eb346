//! Tests of the wire that carries Ethernet frames in Unix datagrams.

use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::frames::*;
use crate::smol::Packet;
use crate::wire::unix::UnixWire;
use crate::wire::{AttachError, HEADER, OpenError, Received, Wire};

/// Directory of one test. Dropping the value removes the directory with its contents.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uwarp-unix-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn open(local: &Path, remote: &Path) -> Result<UnixWire, OpenError> {
    UnixWire::open(local, remote, None, None)
}

#[track_caller]
fn refused(local: &Path) -> AttachError {
    match open(local, Path::new("@nobody")).map(|wire| wire.describe()) {
        Err(OpenError::Attach(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn passes(from: &UnixWire, to: &UnixWire, data: &[u8]) {
    let header = header(to.mac(), from.mac(), 0x88b5);
    assert!(from.send(&header, data).unwrap());
    receive(to, |frame| {
        assert_eq!(frame.header, header);
        assert_eq!(frame.packet, data);
        assert_eq!(frame.received, Received::Frame);
        Some(())
    });
}

#[test]
fn a_pair_carries_frames_of_any_size_both_ways() {
    let (one, other) = UnixWire::pair();
    assert_ne!(one.mac(), other.mac());
    for len in [0, 1, 46, 1500, 1501, 65_535] {
        let data: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        passes(&one, &other, &data);
        passes(&other, &one, &data);
    }
    assert!(next(&one, &mut Packet::new(10)).unwrap().is_none());
}

#[test]
fn a_full_queue_says_so_and_takes_frames_again_once_one_was_read() {
    let (one, other) = UnixWire::pair();
    let full = (0..1_000_000)
        .take_while(|_| one.send(&[0; HEADER], &[7; 1000]).unwrap())
        .count();
    assert!((1..1_000_000).contains(&full), "{full}");
    assert!(!one.send(&[0; HEADER], &[7; 1000]).unwrap());
    let mut packet = Packet::new(1500);
    let read = (0..).take_while(|_| next(&other, &mut packet).unwrap().is_some());
    assert_eq!(read.count(), full, "frames were lost or sent twice");
    assert!(one.send(&[0; HEADER], &[7; 1000]).unwrap());
}

#[test]
fn an_other_end_that_is_gone_loses_frames() {
    let (one, other) = UnixWire::pair();
    drop(other);
    assert!(one.send(&[0; HEADER], b"to nobody").unwrap());
    assert!(next(&one, &mut Packet::new(10)).unwrap().is_none());
}

#[test]
fn the_other_end_may_appear_later_vanish_and_come_back() {
    let directory = Directory::new();
    let (a, b) = (directory.path("a"), directory.path("b"));
    let one = open(&a, &b).unwrap();
    assert!(one.send(&[0; HEADER], b"nobody is there yet").unwrap());
    for _ in 0..2 {
        let other = open(&b, &a).unwrap();
        passes(&one, &other, b"to the other end");
        passes(&other, &one, b"and back");
        drop(other);
        assert!(one.send(&[0; HEADER], b"nobody is there any more").unwrap());
    }
    let name = format!("Unix datagrams {} -> {}", a.display(), b.display());
    assert_eq!(one.describe(), name);
}

#[test]
fn a_dead_socket_of_the_other_end_loses_frames() {
    let directory = Directory::new();
    let (a, b) = (directory.path("a"), directory.path("b"));
    let one = open(&a, &b).unwrap();
    drop(UnixDatagram::bind(&b).unwrap());
    assert!(b.exists());
    assert!(one.send(&[0; HEADER], b"to a dead socket").unwrap());
    std::fs::remove_file(&b).unwrap();
    std::fs::write(&b, "").unwrap();
    assert!(one.send(&[0; HEADER], b"to a file").unwrap());
}

#[test]
fn an_other_end_of_the_wrong_type_is_an_error() {
    let directory = Directory::new();
    let (a, b) = (directory.path("a"), directory.path("b"));
    let one = open(&a, &b).unwrap();
    let _stream = UnixListener::bind(&b).unwrap();
    let error = one.send(&[0; HEADER], b"").unwrap_err();
    assert!(
        error.to_string().contains("not one for datagrams"),
        "{error}"
    );
}

#[test]
fn the_socket_file_of_a_dead_process_is_replaced_and_ours_is_removed() {
    let directory = Directory::new();
    let a = directory.path("a");
    drop(UnixDatagram::bind(&a).unwrap());
    let wire = open(&a, &directory.path("b")).unwrap();
    drop(wire);
    assert!(!a.exists());
}

#[test]
fn a_file_that_has_taken_the_place_of_ours_is_left() {
    let directory = Directory::new();
    let a = directory.path("a");
    let wire = open(&a, &directory.path("b")).unwrap();
    // The rename keeps the inode in use, so that the new file has another inode.
    std::fs::rename(&a, directory.path("moved")).unwrap();
    std::fs::write(&a, "of another program").unwrap();
    drop(wire);
    assert!(a.exists());
}

#[test]
fn a_living_owner_a_file_and_a_missing_directory_are_told_apart() {
    let directory = Directory::new();
    let a = directory.path("a");
    let _live = UnixDatagram::bind(&a).unwrap();
    assert_eq!(refused(&a), AttachError::SocketInUse);
    let stream = directory.path("stream");
    let _listener = UnixListener::bind(&stream).unwrap();
    assert_eq!(refused(&stream), AttachError::SocketInUse);
    let file = directory.path("file");
    std::fs::write(&file, "precious").unwrap();
    assert_eq!(refused(&file), AttachError::NotSocket);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    assert_eq!(refused(&directory.path("none/x")), AttachError::NoDirectory);
    assert_eq!(refused(Path::new("")), AttachError::PathLength);
    assert_eq!(refused(Path::new("@")), AttachError::PathLength);
    assert_eq!(
        refused(Path::new(&"x".repeat(108))),
        AttachError::PathLength
    );
}

#[test]
fn abstract_names_work_and_have_one_owner() {
    let name = |end: &str| PathBuf::from(format!("@uwarp-test-{}-{end}", std::process::id()));
    let (a, b) = (name("a"), name("b"));
    let (one, other) = (open(&a, &b).unwrap(), open(&b, &a).unwrap());
    passes(&one, &other, b"by name");
    assert_eq!(refused(&a), AttachError::SocketInUse);
    drop(one);
    open(&a, &b).unwrap();
}

#[test]
fn datagrams_that_are_no_frames_are_passed_over() {
    let directory = Directory::new();
    let (a, b) = (directory.path("a"), directory.path("b"));
    let wire = open(&a, &b).unwrap();
    let sender = UnixDatagram::unbound().unwrap();
    let mut packet = Packet::new(1500);
    for len in [0, 13, HEADER + 65_537, 100_000] {
        sender.send_to(&vec![1; len], &a).unwrap();
        wait_readable(&wire);
        assert!(next(&wire, &mut packet).unwrap().is_none(), "{len}");
    }
    sender.send_to(&[1; 14], &a).unwrap();
    assert!(receive(&wire, |frame| Some(frame.packet)).is_empty());
}

#[test]
fn mac_and_mtu_are_what_was_asked_for() {
    let directory = Directory::new();
    let (a, b) = (directory.path("a"), directory.path("b"));
    let wire = UnixWire::open(&a, &b, Some([2, 0, 0, 0, 0, 1]), Some(9000)).unwrap();
    assert_eq!((wire.mac(), wire.mtu()), ([2, 0, 0, 0, 0, 1], 9000));
    drop(wire);
    assert_eq!(open(&a, &b).unwrap().mtu(), 1500);
}

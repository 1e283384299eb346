//! Kinds of memory that a region can have, and the addresses that peers use.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use uwarp_verbs::{Buffer, MapError, RegisterError, RemoteBuffer};

use super::*;
use crate::program::this_program;

/// Creates an unlinked file with this content.
fn file(name: &str, content: &[u8]) -> File {
    let path = std::env::temp_dir().join(format!("uwarp-{}-{name}", std::process::id()));
    std::fs::write(&path, content).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

#[test]
fn peers_and_sges_count_from_the_iova() {
    for iova in [0, 8, 0x7fff_0000_0000, u64::MAX - 1000] {
        let (a, b) = pair(Wire::Kernel);
        let source = a.pd.region().iova(iova).vec(pattern(1, 1000)).unwrap();
        let target =
            b.pd.region()
                .access(all())
                .iova(iova)
                .vec(vec![0; 1000])
                .unwrap();
        assert_eq!((source.addr(), target.remote().addr), (iova, iova));
        let sges = [source.sge(100, 900)];
        a.qp.post_send(&SendWr::write(
            1,
            &sges,
            RemoteBuffer::at(iova + 100, target.rkey()),
        ))
        .unwrap();
        a.send_cq.success(1);
        bell(&a, &b);
        assert_eq!(content(&target)[100..], pattern(1, 1000)[100..]);
        // The byte before the iova is out of bounds, wherever the memory is.
        let before = iova.wrapping_sub(1);
        a.qp.post_send(&SendWr::write_inline(
            2,
            b"x",
            RemoteBuffer::at(before, target.rkey()),
        ))
        .unwrap();
        let reason = b.wait_end().to_string();
        assert!(
            reason.contains("base or bounds") || reason.contains("wrap"),
            "{reason}"
        );
    }
}

#[test]
fn a_part_of_a_buffer_is_a_region_of_its_own() {
    let (a, b) = pair(Wire::Kernel);
    let buffer = Arc::new(Buffer::from(pattern(1, 100)));
    let part =
        b.pd.region()
            .access(all())
            .part(Arc::clone(&buffer), 10..20)
            .unwrap();
    assert_eq!((part.addr(), part.len()), (buffer.addr() + 10, 10));
    assert_eq!(content(&part), pattern(1, 100)[10..20]);
    let write = |bytes: &'static [u8]| {
        SendWr::write_inline(1, bytes, RemoteBuffer::at(part.addr(), part.rkey()))
    };
    a.qp.post_send(&write(b"0123456789")).unwrap();
    a.send_cq.success(1);
    bell(&a, &b);
    let mut whole = vec![0; 100];
    buffer.read_at(0, &mut whole).unwrap();
    let wanted = [
        &pattern(1, 100)[..10],
        b"0123456789",
        &pattern(1, 100)[20..],
    ]
    .concat();
    assert_eq!(whole, wanted);
    for (range, outside) in [(90..101, true), (101..101, true), (5..5, false)] {
        let error = b.pd.region().part(Arc::clone(&buffer), range).unwrap_err();
        assert_eq!(
            matches!(error, RegisterError::OutOfRange(_)),
            outside,
            "{error}"
        );
    }
    // The next byte is out of bounds, although the buffer contains it.
    a.qp.post_send(&write(b"0123456789x")).unwrap();
    let reason = b.wait_end().to_string();
    assert!(reason.contains("base or bounds"), "{reason}");
}

#[test]
fn memory_of_the_program_may_have_another_address_too() {
    let (a, b) = pair(Wire::Kernel);
    let mut memory = vec![0_u64; 16];
    let base = NonNull::new(memory.as_mut_ptr().cast()).unwrap();
    // SAFETY: the vector is neither moved nor accessed before the region is deregistered.
    #[expect(unsafe_code, reason = "memory of the program")]
    let region = unsafe { b.pd.region().access(all()).zero_based().in_place(base, 128) }.unwrap();
    a.qp.post_send(&SendWr::write_inline(
        1,
        &7_u64.to_ne_bytes(),
        RemoteBuffer::at(8, region.rkey()),
    ))
    .unwrap();
    a.send_cq.success(1);
    bell(&a, &b);
    region.deregister().unwrap();
    assert_eq!(memory[..3], [0, 7, 0]);
}

#[test]
fn a_write_into_a_mapped_file_is_in_the_file_and_a_read_comes_out_of_it() {
    for wire in Wire::BOTH {
        let (a, b) = pair(wire);
        let file = file("mapped", &pattern(5, 3 * 4096));
        let region =
            b.pd.region()
                .access(all())
                .zero_based()
                .file(&file, 4096..12_288)
                .unwrap();
        a.qp.post_send(&SendWr::write_inline(
            1,
            b"into the file",
            RemoteBuffer::at(1, region.rkey()),
        ))
        .unwrap();
        a.send_cq.success(1);
        bell(&a, &b);
        let mut expected = pattern(5, 3 * 4096);
        expected[4097..4110].copy_from_slice(b"into the file");
        let mut got = vec![0; 3 * 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut got, 0).unwrap();
        assert_eq!(got, expected);
        let sink = a.blank(8192);
        a.qp.post_send(&SendWr::read(
            2,
            &[sink.sge(0, 8192)],
            RemoteBuffer::at(0, region.rkey()),
        ))
        .unwrap();
        a.send_cq.success(2);
        assert_eq!(content(&sink), expected[4096..]);
    }
}

#[test]
fn files_that_cannot_be_registered_say_why() {
    let (a, _b) = pair(Wire::Kernel);
    let file = file("refused", &[0; 5000]);
    let register = |range| a.pd.region().access(all()).file(&file, range).unwrap_err();
    let len = 5001;
    let beyond = MapError::BeyondEnd {
        offset: 0,
        len,
        size: 5000,
    };
    assert_eq!(register(0..5001), RegisterError::Map(beyond));
    assert!(matches!(
        register(3..10),
        RegisterError::Map(MapError::OffsetNotOnPage { .. })
    ));
    assert_eq!(register(0..0), RegisterError::Map(MapError::Empty));
    let constant = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    let error =
        a.pd.region()
            .access(all())
            .file(&constant, 0..5000)
            .unwrap_err();
    assert_eq!(error, RegisterError::ReadOnly { access: all() });
    assert!(
        error
            .to_string()
            .contains("open the file for reading and writing"),
        "{error}"
    );
    let mut region =
        a.pd.region()
            .access(Access::REMOTE_READ)
            .file(&constant, 0..5000)
            .unwrap();
    assert!(region.write_at(0, b"x").is_err());
    assert!(region.reregister().access(all()).apply().is_err());
}

#[test]
fn one_buffer_may_be_registered_twice_with_rights_of_each() {
    let (a, b) = pair(Wire::Kernel);
    let buffer = Arc::new(Buffer::zeroed(100).unwrap());
    let inbox =
        b.pd.region()
            .access(all())
            .zero_based()
            .buffer(Arc::clone(&buffer))
            .unwrap();
    let view =
        b.pd.region()
            .access(Access::REMOTE_READ)
            .buffer(Arc::clone(&buffer))
            .unwrap();
    a.qp.post_send(&SendWr::write_inline(
        1,
        b"both",
        RemoteBuffer::at(0, inbox.rkey()),
    ))
    .unwrap();
    a.send_cq.success(1);
    let sink = a.blank(4);
    let remote = view.remote();
    a.qp.post_send(&SendWr::read(
        2,
        &[sink.sge(0, 4)],
        RemoteBuffer::at(remote.addr, remote.rkey),
    ))
    .unwrap();
    a.send_cq.success(2);
    assert_eq!(content(&sink), b"both");
    let mut own = [0; 4];
    buffer.read_at(0, &mut own).unwrap();
    assert_eq!(&own, b"both");
}

/// Environment variable that makes this program act as the other process. Its value is the path of
/// the memory to map.
const OTHER: &str = "UWARP_TEST_SHARED_MEMORY";

#[test]
fn another_process_sees_what_a_peer_writes_and_the_peer_reads_what_that_writes() {
    if let Ok(path) = std::env::var(OTHER) {
        let memory = File::options().read(true).write(true).open(path).unwrap();
        let buffer = Buffer::map_file(&memory, 0, 4096).unwrap();
        let mut got = [0; 9];
        buffer.read_at(0, &mut got).unwrap();
        assert_eq!(&got, b"by a peer");
        buffer.write_at(100, b"by another process").unwrap();
        return;
    }
    let (a, b) = pair(Wire::Kernel);
    let region =
        b.pd.region()
            .access(all())
            .zero_based()
            .shared("inbox", 4096)
            .unwrap();
    a.qp.post_send(&SendWr::write_inline(
        1,
        b"by a peer",
        RemoteBuffer::at(0, region.rkey()),
    ))
    .unwrap();
    a.send_cq.success(1);
    bell(&a, &b);
    let fd = region.buffer().and_then(Buffer::as_fd).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let name =
        "backed::another_process_sees_what_a_peer_writes_and_the_peer_reads_what_that_writes";
    let other = this_program()
        .args(["--exact", name])
        .env(OTHER, path)
        .output()
        .unwrap();
    assert!(other.status.success(), "{other:?}");
    let sink = a.blank(18);
    a.qp.post_send(&SendWr::read(
        2,
        &[sink.sge(0, 18)],
        RemoteBuffer::at(100, region.rkey()),
    ))
    .unwrap();
    a.send_cq.success(2);
    assert_eq!(content(&sink), b"by another process");
}

#[test]
fn a_peer_writes_mutable_bytes_which_come_back() {
    let (a, b) = pair(Wire::Kernel);
    let bytes = BytesMut::from(&b"page 1, page 2"[..]);
    let at = bytes.as_ptr();
    let inbox = Arc::new(Buffer::from(bytes));
    let region = b.pd.region().access(all());
    let region = region.buffer(Arc::clone(&inbox)).unwrap();
    let to = region.remote().slice(5, 1).unwrap();
    a.qp.post_send(&SendWr::write_inline(1, b"7", to)).unwrap();
    a.send_cq.success(1);
    bell(&a, &b);
    region.deregister().unwrap();
    let bytes = BytesMut::from(Arc::into_inner(inbox).unwrap());
    assert_eq!((bytes.as_ptr(), &bytes[..]), (at, &b"page 7, page 2"[..]));
}

#[test]
fn a_peer_reads_shared_bytes_and_nobody_writes_them() {
    let (a, b) = pair(Wire::Kernel);
    let bytes = Bytes::from_static(b"the same for all");
    let buffer = Arc::new(Buffer::from(bytes.clone()));
    let region = |access| b.pd.region().access(access).buffer(Arc::clone(&buffer));
    let access = all();
    let refused = region(access).unwrap_err();
    assert_eq!(refused, RegisterError::ReadOnly { access });
    let source = region(Access::REMOTE_READ).unwrap();
    assert!(source.write_at(0, b"T").is_err());
    let sink = a.blank(4);
    let from = source.remote().slice(4, 4).unwrap();
    let sges = [sink.sge(0, 4)];
    a.qp.post_send(&SendWr::read(1, &sges, from)).unwrap();
    a.send_cq.success(1);
    assert_eq!(content(&sink), b"same");
    assert_eq!(&bytes[..], b"the same for all");
}

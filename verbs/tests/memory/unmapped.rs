//! Memory that the program unmaps, or whose file it truncates, before it deregisters it.
#![expect(unsafe_code, reason = "memory of the program, which vanishes")]

use std::ffi::c_void;
use std::fs::File;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use uwarp_verbs::{MemoryRegion, RecvWr, Status};

use super::*;
use crate::common::Side;

const LEN: usize = 256 * 1024;

fn rights() -> Access {
    all() | Access::REMOTE_ATOMIC
}

/// Registers memory in place, and unmaps it.
fn vanished(side: &Side) -> MemoryRegion {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping. Only the library uses it, which has to survive that it vanishes.
    unsafe {
        let base = mmap_anonymous(
            std::ptr::null_mut(),
            LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
        .unwrap();
        let region = in_place(side, base);
        munmap(base, LEN).unwrap();
        // Nothing else may be mapped there meanwhile.
        let hole = mmap_anonymous(base, LEN, ProtFlags::empty(), flags).unwrap();
        assert_eq!(hole, base);
        region
    }
}

/// # Safety
/// The contract of `in_place`, which the tests break.
unsafe fn in_place(side: &Side, base: *mut c_void) -> MemoryRegion {
    let base = NonNull::new(base.cast()).unwrap();
    let builder = side.pd.region().access(rights());
    // SAFETY: guaranteed by the caller.
    unsafe { builder.in_place(base, LEN) }.unwrap()
}

/// Both ends fail: `b` with a cause that names its memory, `a` by a Terminate.
fn ends(a: &Side, b: &Side, by: &str) {
    let cause = b.wait_end().to_string();
    assert!(cause.contains("is not mapped any more"), "{cause}");
    assert!(cause.contains(by), "{cause}");
    let told = a.wait_end().to_string();
    assert!(told.contains("local catastrophic error"), "{told}");
}

#[test]
fn a_write_to_memory_that_is_gone_ends_the_connection() {
    for wire in Wire::BOTH {
        for len in [1, 8, 1000, 100_000] {
            let (a, b) = pair(wire);
            let target = vanished(&b);
            let source = a.filled(1, len);
            let sges = [source.sge(0, len as u32)];
            a.qp.post_send(&SendWr::write(1, &sges, target.remote()))
                .unwrap();
            ends(&a, &b, "an RDMA Write of the peer");
        }
    }
}

#[test]
fn a_read_of_memory_that_is_gone_ends_the_connection() {
    for wire in Wire::BOTH {
        for len in [8_u32, 5000, 100_000] {
            let (a, b) = pair(wire);
            let source = vanished(&b);
            let sink = a.blank(len as usize);
            let sges = [sink.sge(0, len)];
            a.qp.post_send(&SendWr::read(1, &sges, source.remote()))
                .unwrap();
            ends(&a, &b, "an RDMA Read of the peer");
        }
    }
}

#[test]
fn an_atomic_on_memory_that_is_gone_ends_the_connection() {
    for compare in [false, true] {
        let (a, b) = pair(Wire::Kernel);
        let word = vanished(&b);
        let sink = a.blank(8);
        let sges = [sink.sge(0, 8)];
        let wr = match compare {
            false => SendWr::fetch_add(1, &sges, word.remote(), 1),
            true => SendWr::compare_swap(1, &sges, word.remote(), 0, 1),
        };
        a.qp.post_send(&wr).unwrap();
        ends(&a, &b, "an atomic operation of the peer");
    }
}

#[test]
fn a_receive_whose_memory_is_gone_fails_with_a_protection_error() {
    for len in [8, 100_000] {
        let (a, b) = pair(Wire::Kernel);
        let target = vanished(&b);
        let sges = [target.sge(0, LEN as u32)];
        b.qp.post_recv(&RecvWr::new(7, &sges)).unwrap();
        let source = a.filled(1, len);
        a.qp.post_send(&SendWr::send(1, &[source.sge(0, len as u32)]))
            .unwrap();
        let completion = b.recv_cq.next();
        assert_eq!(
            (completion.wr_id, completion.status),
            (7, Status::LocalProtection)
        );
        ends(&a, &b, "a Send of the peer");
    }
}

#[test]
fn a_send_whose_memory_is_gone_fails_with_a_protection_error() {
    for len in [8, 5000, 100_000] {
        let (a, b) = pair(Wire::Kernel);
        let source = vanished(&a);
        let sges = [source.sge(0, len)];
        let sink = b.blank(LEN);
        b.qp.post_recv(&RecvWr::new(7, &[sink.sge(0, LEN as u32)]))
            .unwrap();
        a.qp.post_send(&SendWr::send(1, &sges)).unwrap();
        let completion = a.send_cq.next();
        assert_eq!(
            (completion.wr_id, completion.status),
            (1, Status::LocalProtection)
        );
        ends(&b, &a, "a posted work request");
    }
}

/// Without a CRC the kernel reads the memory in place, in the middle of an FPDU. The rest of the
/// FPDU is lost, so the connection is reset and not terminated.
#[test]
fn memory_that_the_kernel_reads_in_place_and_is_gone_resets_the_connection() {
    let mut setup = common::Setup::new(Wire::Kernel);
    for settings in &mut setup.settings {
        settings.crc = false;
    }
    let (a, b) = setup.connected();
    let source = vanished(&a);
    let sink = b.blank(LEN);
    b.qp.post_recv(&RecvWr::new(7, &[sink.sge(0, LEN as u32)]))
        .unwrap();
    a.qp.post_send(&SendWr::send(1, &[source.sge(0, 100_000)]))
        .unwrap();
    let completion = a.send_cq.next();
    assert_eq!(completion.status, Status::LocalProtection);
    let cause = a.wait_end().to_string();
    assert!(cause.contains("is not mapped any more"), "{cause}");
    assert_eq!(b.recv_cq.next().status, Status::WrFlush);
}

#[test]
fn a_write_to_a_file_that_became_shorter_ends_the_connection() {
    let path = std::env::temp_dir().join(format!("uwarp-{}-shorter", std::process::id()));
    std::fs::write(&path, vec![0; LEN]).unwrap();
    let file: File = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let (a, b) = pair(Wire::Kernel);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: as for `vanished`.
    let target = unsafe {
        let base = mmap(
            std::ptr::null_mut(),
            LEN,
            protection,
            MapFlags::SHARED,
            &file,
            0,
        )
        .unwrap();
        in_place(&b, base)
    };
    file.set_len(0).unwrap();
    a.qp.post_send(&SendWr::write_inline(1, b"12345678", target.remote()))
        .unwrap();
    ends(&a, &b, "an RDMA Write of the peer");
}

/// A fault of other code still ends the process by SIGSEGV, after a connection survived one.
#[test]
fn a_fault_elsewhere_still_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const CHILD: &str = "UWARP_TEST_FAULTS";
    if std::env::var_os(CHILD).is_some() {
        let (a, b) = pair(Wire::Kernel);
        let target = vanished(&b);
        a.qp.post_send(&SendWr::write_inline(1, b"1", target.remote()))
            .unwrap();
        ends(&a, &b, "an RDMA Write of the peer");
        eprintln!("survived");
        // SAFETY: it is not: the access has to fault.
        unsafe { std::ptr::without_provenance_mut::<u8>(16).write_volatile(1) };
        unreachable!("the access faults");
    }
    let output = program::this_program()
        .args([
            "unmapped::a_fault_elsewhere_still_ends_the_process",
            "--exact",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("survived"), "{said}");
    assert_eq!(output.status.signal(), Some(11), "{said}");
}

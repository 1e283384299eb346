//! Limits that a device reports (`ibv_devinfo -v`): each one can be reached, and one more is
//! refused.

use super::*;
use crate::{errno, query, srq};

fn told(side: &Side) -> ibv_device_attr {
    // SAFETY: all bytes may be zero: the structure has only numbers and characters.
    let mut attr: ibv_device_attr = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for a structure.
    let failed = unsafe { query::query_device(side.context, &raw mut attr) };
    assert_eq!(failed, 0);
    attr
}

/// Returns the limit of inline data in bytes, for which `ibv_device_attr` has no field.
fn inline(side: &Side) -> u32 {
    // SAFETY: the test passes an open context.
    let context = unsafe { Context::of(side.context) };
    context.device().query().max_inline_data
}

fn number(limit: c_int) -> u32 {
    u32::try_from(limit).unwrap()
}

/// Asserts that a call returned an object if `expected` is true, and otherwise failed with
/// `EINVAL`.
#[track_caller]
fn assert_created<T>(pointer: *mut T, expected: bool, what: &str) {
    assert_eq!(!pointer.is_null(), expected, "{what}");
    if !expected {
        assert_eq!(errno::get(), libc::EINVAL, "{what}");
    }
}

/// Limit of a queue pair: its name, its value, and its field in `ibv_qp_cap`.
type Cap = (&'static str, u32, fn(&mut ibv_qp_cap) -> &mut u32);

#[test]
fn queue_pairs_are_as_large_as_the_device_says_and_no_larger() {
    let side = Side::new();
    let attr = told(&side);
    let (requests, elements) = (number(attr.max_qp_wr), number(attr.max_sge));
    let inline = inline(&side);
    let limits: [Cap; 5] = [
        ("max_send_wr", requests, |cap| &mut cap.max_send_wr),
        ("max_recv_wr", requests, |cap| &mut cap.max_recv_wr),
        ("max_send_sge", elements, |cap| &mut cap.max_send_sge),
        ("max_recv_sge", elements, |cap| &mut cap.max_recv_sge),
        ("max_inline_data", inline, |cap| &mut cap.max_inline_data),
    ];
    for (name, limit, field) in limits {
        for (wanted, expected) in [(limit, true), (limit + 1, false)] {
            let mut with = side.attr();
            *field(&mut with.cap) = wanted;
            // SAFETY: the test passes existing objects.
            let qp = unsafe { qp::create_qp(side.pd, &raw mut with) };
            assert_created(qp, expected, name);
            if expected {
                assert_eq!(*field(&mut with.cap), wanted, "{name}");
                end_qp(qp);
            }
        }
    }
    side.end();
}

#[test]
fn a_request_takes_as_many_elements_and_inline_bytes_as_the_device_says() {
    let (here, there) = (Side::new(), Side::new());
    let elements = number(told(&here).max_sge);
    let inline = inline(&here);
    let mut with = here.attr();
    (with.cap.max_send_sge, with.cap.max_inline_data) = (elements, inline);
    // SAFETY: the test passes existing objects.
    let qp = unsafe { qp::create_qp(here.pd, &raw mut with) };
    let peer = there.qp();
    let (mut own, mut lent) = ([7_u8; 1024], [0_u8; 1024]);
    let (local, remote) = (here.mr(&mut own, ALL), there.mr(&mut lent, ALL));
    connect(qp, peer);
    for (more, expected) in [(0, 0), (1, libc::EINVAL)] {
        let mut list: Vec<_> = (0..elements + more)
            .map(|at| sge(local, at.into(), 1))
            .collect();
        let mut write = rdma_wr(1, IBV_WR_RDMA_WRITE, &mut list, remote);
        assert_eq!(post_send(qp, &mut write).0, expected);
        let mut list = [sge(local, 0, inline + more)];
        let mut write = rdma_wr(2, IBV_WR_RDMA_WRITE, &mut list, remote);
        write.send_flags |= IBV_SEND_INLINE;
        assert_eq!(post_send(qp, &mut write).0, expected);
    }
    for done in here.poll(2) {
        assert_eq!(done.status, IBV_WC_SUCCESS);
    }
    end_qp(qp);
    end_qp(peer);
    end_mr(local);
    end_mr(remote);
    here.end();
    there.end();
}

#[test]
fn completion_and_shared_receive_queues_are_as_large_as_the_device_says_and_no_larger() {
    let side = Side::new();
    let attr = told(&side);
    let none = ptr::null_mut();
    for (wanted, expected) in [(attr.max_cqe, true), (attr.max_cqe + 1, false)] {
        // SAFETY: the test passes an open context.
        let cq = unsafe { cq::create_cq(side.context, wanted, none, none.cast(), 0) };
        assert_created(cq, expected, "max_cqe");
        if expected {
            // SAFETY: the test passes a queue that is not used any more.
            assert_eq!(unsafe { ((*cq).cqe, cq::destroy_cq(cq)) }, (wanted, 0));
        }
    }
    let (most, elements) = (number(attr.max_srq_wr), number(attr.max_srq_sge));
    for (max_wr, max_sge, expected) in [
        (most, 1, true),
        (most + 1, 1, false),
        (1, elements, true),
        (1, elements + 1, false),
    ] {
        // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
        let mut with: ibv_srq_init_attr = unsafe { mem::zeroed() };
        (with.attr.max_wr, with.attr.max_sge) = (max_wr, max_sge);
        // SAFETY: the test passes an existing domain.
        let shared = unsafe { srq::create_srq(side.pd, &raw mut with) };
        assert_created(shared, expected, "max_srq_wr, max_srq_sge");
        if expected {
            // SAFETY: the test passes a queue that is not used any more.
            assert_eq!(unsafe { srq::destroy_srq(shared) }, 0);
        }
    }
    side.end();
}

#[test]
fn each_entry_of_the_gid_table_names_the_interface_of_its_address() {
    let side = Side::new();
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut table: [ibv_gid_entry; 80] = unsafe { mem::zeroed() };
    let (room, size) = (table.len(), size_of::<ibv_gid_entry>());
    // SAFETY: the test passes an open context, and memory for this many entries.
    let got = unsafe { query::query_gid_table(side.context, table.as_mut_ptr(), room, 0, size) };
    let table = &table[..usize::try_from(got).unwrap()];
    assert!(!table.is_empty());
    for (index, entry) in (0..).zip(table) {
        assert_ne!(entry.ndev_ifindex, 0, "entry {index}");
        // SAFETY: all bytes may be zero: the structure has only numbers.
        let mut one: ibv_gid_entry = unsafe { mem::zeroed() };
        // SAFETY: the test passes an open context, and memory for an entry.
        let errno = unsafe { query::query_gid_ex(side.context, 1, index, &raw mut one, 0, size) };
        assert_eq!((errno, one.ndev_ifindex), (0, entry.ndev_ifindex));
        // SAFETY: an entry of RoCE has the bytes of its GID in `raw`.
        assert_eq!(unsafe { one.gid.raw }, unsafe { entry.gid.raw });
    }
    side.end();
}

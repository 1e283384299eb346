//! Handles: the numbers in the structures by which the kernel finds the objects of a command.

use super::*;
use crate::qp::modify;
use crate::{ah, errno, mw, srq};

/// Calls `command` while the handle is another one.
fn with_changed<R>(handle: *mut u32, command: impl FnOnce() -> R) -> R {
    // SAFETY: the test passes a field of an existing object.
    unsafe { *handle ^= 0xDEAD_BEEF };
    errno::set(0);
    let result = command();
    // SAFETY: as above; a command with a changed handle destroys nothing.
    unsafe { *handle ^= 0xDEAD_BEEF };
    result
}

/// Checks that a command with a changed handle returns `ENOENT`, also as `errno`.
#[track_caller]
fn unknown(handle: *mut u32, command: impl FnOnce() -> c_int) {
    let result = with_changed(handle, command);
    assert_eq!((result, errno::get()), (libc::ENOENT, libc::ENOENT));
}

/// Checks that nothing is created from an object with a changed handle.
#[track_caller]
fn no_base<T>(handle: *mut u32, create: impl FnOnce() -> *mut T) {
    assert!(with_changed(handle, create).is_null());
    assert_eq!(errno::get(), libc::ENOENT);
}

/// Returns the pointer to the handle of an existing object.
macro_rules! handle {
    ($object:expr) => {{
        let object = $object;
        &raw mut (*object).handle
    }};
}

/// Returns the way from the first GID of the device to the same GID.
fn to_itself(side: &Side) -> ibv_ah_attr {
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut attr: ibv_ah_attr = unsafe { mem::zeroed() };
    (attr.is_global, attr.port_num) = (1, 1);
    // SAFETY: the test passes an open context.
    attr.grh.dgid.raw = unsafe { Context::of(side.context) }.gids()[0].gid.0;
    attr
}

fn srq_attr() -> ibv_srq_init_attr {
    ibv_srq_init_attr {
        srq_context: ptr::null_mut(),
        attr: ibv_srq_attr {
            max_wr: 8,
            max_sge: 1,
            srq_limit: 0,
        },
    }
}

#[test]
fn a_command_on_an_object_with_a_changed_handle_fails_and_changes_nothing() {
    let side = Side::new();
    let mut memory = [0_u8; 8];
    let mr = side.mr(&mut memory, ALL);
    let qp = side.qp_in_reset();
    // SAFETY: the test passes an existing domain.
    let window = unsafe { mw::alloc_mw(side.pd, IBV_MW_TYPE_1) };
    // SAFETY: the test passes an existing domain.
    let shared = unsafe { srq::create_srq(side.pd, &mut srq_attr()) };
    // SAFETY: the test passes an existing domain.
    let way = unsafe { ah::create_ah(side.pd, &mut to_itself(&side)) };
    assert!(!way.is_null());
    // SAFETY: all bytes may be zero: the structures have only numbers and pointers.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { mem::zeroed() };
    (attr.qp_state, attr.port_num) = (IBV_QPS_INIT, 1);
    let to_init = (IBV_QP_STATE | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS).cast_signed();
    let mut sizes = srq_attr().attr;
    // SAFETY: the test passes existing objects, and memory for structures. The commands that would
    // destroy an object fail.
    unsafe {
        unknown(handle!(mr), || mr::dereg_mr(mr));
        unknown(handle!(way), || ah::destroy_ah(way));
        unknown(handle!(window), || mw::dealloc_mw(window));
        unknown(handle!(qp), || {
            modify::modify_qp(qp, &raw mut attr, to_init)
        });
        unknown(handle!(qp), || {
            modify::query_qp(qp, &raw mut attr, to_init, &raw mut init)
        });
        unknown(handle!(qp), || qp::destroy_qp(qp));
        unknown(handle!(shared), || {
            let mask = IBV_SRQ_LIMIT.cast_signed();
            srq::modify_srq(shared, &raw mut sizes, mask)
        });
        unknown(handle!(shared), || srq::query_srq(shared, &raw mut sizes));
        unknown(handle!(shared), || srq::destroy_srq(shared));
        unknown(handle!(side.cq), || cq::resize_cq(side.cq, 64));
        unknown(handle!(side.cq), || cq::destroy_cq(side.cq));
        unknown(handle!(side.pd), || pd::dealloc_pd(side.pd));
        // The state is still RESET.
        assert_eq!(
            modify::query_qp(qp, &raw mut attr, to_init, &raw mut init),
            0
        );
        assert_eq!(attr.qp_state, IBV_QPS_RESET);
        assert_eq!(mw::dealloc_mw(window), 0);
        assert_eq!(ah::destroy_ah(way), 0);
        assert_eq!(srq::destroy_srq(shared), 0);
    }
    end_qp(qp);
    end_mr(mr);
    side.end();
}

#[test]
fn a_domain_is_one_of_its_context_only() {
    let (side, other) = (Side::new(), Side::new());
    // SAFETY: the test passes an existing domain, and changes the structure back.
    unsafe {
        (*side.pd).context = other.context;
        assert_eq!(pd::dealloc_pd(side.pd), libc::ENOENT);
        (*side.pd).context = side.context;
    }
    other.end();
    side.end();
}

#[test]
fn nothing_is_created_from_an_object_with_a_changed_handle() {
    let side = Side::new();
    // SAFETY: the test passes an open context.
    let other = unsafe { cq::create_cq(side.context, 8, ptr::null_mut(), ptr::null_mut(), 0) };
    // SAFETY: the test passes an existing domain.
    let shared = unsafe { srq::create_srq(side.pd, &mut srq_attr()) };
    let mut memory = [0_u8; 8];
    let at = memory.as_mut_ptr().cast::<c_void>();
    // SAFETY: the test passes existing objects, and nothing is created.
    unsafe {
        no_base(handle!(side.pd), || mr::reg_mr(side.pd, at, 8, ALL));
        let mut way = to_itself(&side);
        no_base(handle!(side.pd), || ah::create_ah(side.pd, &raw mut way));
        no_base(handle!(side.pd), || mw::alloc_mw(side.pd, IBV_MW_TYPE_2));
        no_base(handle!(side.pd), || {
            srq::create_srq(side.pd, &mut srq_attr())
        });
        no_base(handle!(side.pd), || {
            qp::create_qp(side.pd, &mut side.attr())
        });
        let mut attr = side.attr();
        attr.send_cq = other;
        no_base(handle!(other), || qp::create_qp(side.pd, &raw mut attr));
        let mut attr = side.attr();
        attr.recv_cq = other;
        no_base(handle!(other), || qp::create_qp(side.pd, &raw mut attr));
        let mut attr = side.attr();
        attr.srq = shared;
        no_base(handle!(shared), || qp::create_qp(side.pd, &raw mut attr));
        assert_eq!(srq::destroy_srq(shared), 0);
        assert_eq!(cq::destroy_cq(other), 0);
    }
    side.end();
}

#[test]
fn a_region_keeps_its_handle_when_it_is_registered_again() {
    let side = Side::new();
    let mut memory = [0_u8; 8];
    let mr = side.mr(&mut memory, ALL);
    // SAFETY: the test passes existing objects.
    unsafe {
        let handle = (*mr).handle;
        let change = IBV_REREG_MR_CHANGE_PD.cast_signed();
        let again = || mr::rereg_mr(mr, change, side.pd, ptr::null_mut(), 0, 0);
        assert_ne!(with_changed(handle!(side.pd), again), 0);
        assert_eq!(errno::get(), libc::ENOENT);
        assert_ne!(with_changed(handle!(mr), again), 0);
        assert_eq!(errno::get(), libc::ENOENT);
        assert_eq!(again(), 0);
        assert_eq!((*mr).handle, handle);
    }
    end_mr(mr);
    side.end();
}

//! Tests of regions with an address of their own (`ibv_reg_mr_iova`). Peers and scatter/gather
//! elements use this address instead of the address of the memory.

use super::*;
use crate::errno;

const IOVA: u64 = 0x10_0000;

/// Call with which a region is registered.
#[derive(Clone, Copy, Debug)]
enum From {
    /// `ibv_reg_mr_iova`
    Iova,
    /// `ibv_reg_mr_iova2`, with an optional access flag, as the macro in the headers calls it
    Iova2,
    /// `ibv_reg_mr` with `IBV_ACCESS_ZERO_BASED`
    Zero,
}

/// Registers a region. Returns it with the address by which peers reach its first byte.
fn region(side: &Side, memory: &mut [u8], from: From) -> (*mut ibv_mr, u64) {
    let (at, len) = (memory.as_mut_ptr().cast::<c_void>(), memory.len());
    // SAFETY: the test passes an existing domain, and memory that outlives the region.
    let made = unsafe {
        match from {
            From::Iova => (mr::reg_mr_iova(side.pd, at, len, IOVA, ALL), IOVA),
            From::Iova2 => {
                let access = ALL.cast_unsigned() | IBV_ACCESS_RELAXED_ORDERING;
                (mr::reg_mr_iova2(side.pd, at, len, IOVA, access), IOVA)
            }
            From::Zero => {
                let access = ALL | IBV_ACCESS_ZERO_BASED.cast_signed();
                (mr::reg_mr(side.pd, at, len, access), 0)
            }
        }
    };
    assert!(!made.0.is_null());
    // SAFETY: the test passes an existing region. The structure `ibv_mr` has the real address of
    // the memory.
    let shown = unsafe { ((*made.0).addr, (*made.0).length) };
    assert_eq!(shown, (at, len));
    made
}

/// Connects two new queue pairs, and posts a request for `len` bytes at an address `to.0` of the
/// peer's region `to.1`. Returns both queue pairs and the peer's other objects.
fn at(
    (here, local): (&Side, *mut ibv_mr),
    opcode: ibv_wr_opcode,
    to: (u64, *mut ibv_mr),
    len: u32,
) -> (*mut ibv_qp, *mut ibv_qp, Side) {
    let there = Side::new();
    // SAFETY: the test passes an existing region. The queue pair is created in its domain.
    let pd = unsafe { (*to.1).pd };
    let mut attr = there.attr();
    let qp = here.qp();
    // SAFETY: the test passes existing objects.
    let peer = unsafe { qp::create_qp(pd, &raw mut attr) };
    connect(qp, peer);
    let mut list = [sge(local, 0, len)];
    let mut wr = rdma_wr(1, opcode, &mut list, to.1);
    wr.wr.rdma.remote_addr = to.0;
    assert_eq!(post_send(qp, &mut wr).0, 0);
    (qp, peer, there)
}

/// Returns the status of a Read, which has its own connection.
fn read(here: (&Side, *mut ibv_mr), from: u64, remote: *mut ibv_mr, len: u32) -> ibv_wc_status {
    let (qp, peer, there) = at(here, IBV_WR_RDMA_READ, (from, remote), len);
    let status = here.0.poll(1)[0].status;
    end_qp(qp);
    end_qp(peer);
    there.end();
    status
}

/// Posts a Write that the peer refuses, and checks the event that the peer gets.
fn refused_write(here: (&Side, *mut ibv_mr), side: &Side, to: u64, remote: *mut ibv_mr, len: u32) {
    let (qp, peer, there) = at(here, IBV_WR_RDMA_WRITE, (to, remote), len);
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    let mut event: ibv_async_event = unsafe { mem::zeroed() };
    // SAFETY: the test passes an open context, and memory for an event, which belongs to a queue
    // pair.
    unsafe {
        let got = crate::events::get_async_event(side.context, &raw mut event);
        assert_eq!((got, event.event_type), (0, IBV_EVENT_QP_ACCESS_ERR));
        assert_eq!(event.element.qp, peer);
        crate::events::ack_async_event(&raw mut event);
    }
    here.0.poll(1);
    end_qp(qp);
    end_qp(peer);
    there.end();
}

#[test]
fn a_peer_reaches_a_region_by_the_addresses_that_it_was_given_and_by_no_others() {
    for from in [From::Iova, From::Iova2, From::Zero] {
        let (here, lender) = (Side::new(), Side::new());
        let (mut own, mut lent) = (*b"01234567abcdefgh", *b"ABCDEFGHIJKLMNOP");
        let virtual_address = lent.as_ptr().expose_provenance() as u64;
        let local = here.mr(&mut own, ALL);
        let (remote, first) = region(&lender, &mut lent, from);
        let ours = (&here, local);

        // A Write reaches the last 8 of 16 bytes. The requests below go beyond the region and are
        // refused.
        let (qp, peer, there) = at(ours, IBV_WR_RDMA_WRITE, (first + 8, remote), 8);
        assert_eq!(here.poll(1)[0].status, IBV_WC_SUCCESS);
        end_qp(qp);
        end_qp(peer);
        there.end();
        assert_eq!(read(ours, first, remote, 16), IBV_WC_SUCCESS, "{from:?}");
        for outside in [first + 9, first.wrapping_sub(1), virtual_address] {
            assert_eq!(
                read(ours, outside, remote, 8),
                IBV_WC_REM_ACCESS_ERR,
                "{from:?} {outside:#x}"
            );
            refused_write(ours, &lender, outside, remote, 8);
        }
        end_mr(local);
        end_mr(remote);
        assert_eq!(&own, b"ABCDEFGH01234567");
        assert_eq!(&lent, b"ABCDEFGH01234567");
        here.end();
        lender.end();
    }
}

#[test]
fn a_region_of_no_bytes_allows_no_access_but_those_of_no_bytes() {
    let (here, there) = (Side::new(), Side::new());
    let (mut own, mut lent) = ([0_u8; 8], [7_u8; 8]);
    let local = here.mr(&mut own, ALL);
    let remote = there.mr(&mut lent[..0], ALL);
    // SAFETY: the test passes existing regions, and memory that exists until the end.
    unsafe {
        assert_eq!((*remote).length, 0);
        let (at, all) = ((*remote).addr, IBV_REREG_MR_CHANGE_TRANSLATION);
        let again = |len| mr::rereg_mr(remote, all.cast_signed(), ptr::null_mut(), at, len, 0);
        assert_eq!((again(8), again(0)), (0, 0));
    }
    for (length, status) in [(0, IBV_WC_SUCCESS), (1, IBV_WC_REM_ACCESS_ERR)] {
        for opcode in [IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE] {
            let (qp, peer) = (here.qp(), there.qp());
            connect(qp, peer);
            let mut list = [sge(local, 0, length)];
            let mut wr = rdma_wr(1, opcode, &mut list, remote);
            assert_eq!(post_send(qp, &mut wr).0, 0);
            let done = here.poll(1)[0].status;
            match opcode {
                // It is complete when TCP has taken it.
                IBV_WR_RDMA_WRITE => assert_eq!(done, IBV_WC_SUCCESS),
                _ => assert_eq!(done, status, "{length}"),
            }
            end_qp(qp);
            end_qp(peer);
        }
    }
    // Nor is it memory of a request of this side.
    let empty = here.mr(&mut own[..0], ALL);
    let (qp, peer) = (here.qp(), there.qp());
    connect(qp, peer);
    let mut list = [sge(empty, 0, 1)];
    let mut send = send_wr(2, IBV_WR_SEND, &mut list);
    assert_eq!(post_send(qp, &mut send).0, 0);
    assert_eq!(here.poll(1)[0].status, IBV_WC_LOC_PROT_ERR);
    end_qp(qp);
    end_qp(peer);
    end_mr(local);
    end_mr(empty);
    end_mr(remote);
    assert_eq!((own, lent), ([0; 8], [7; 8]));
    here.end();
    there.end();
}

#[test]
fn elements_of_requests_count_from_there_too() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let (mut own, mut to) = (*b"01234567", [0_u8; 8]);
    let (source, first) = region(&here, &mut own, From::Iova);
    let (sink, begin) = region(&there, &mut to, From::Zero);
    let element = |mr: *mut ibv_mr, addr, length| ibv_sge {
        addr,
        length,
        // SAFETY: the test passes an existing region.
        lkey: unsafe { (*mr).lkey },
    };
    post_recv(peer, 7, &mut [element(sink, begin + 4, 4)]);
    connect(qp, peer);
    let mut list = [element(source, first + 2, 4)];
    let mut send = send_wr(1, IBV_WR_SEND, &mut list);
    assert_eq!(post_send(qp, &mut send).0, 0);
    assert_eq!(kind(&here.poll(1)[0]).0, IBV_WC_SUCCESS);
    assert_eq!(kind(&there.poll(1)[0]), (IBV_WC_SUCCESS, IBV_WC_RECV, 7));
    // The real address of the memory is not valid.
    let mut list = [sge(source, 0, 4)];
    let mut send = send_wr(2, IBV_WR_SEND, &mut list);
    assert_eq!(post_send(qp, &mut send).0, 0);
    assert_eq!(here.poll(1)[0].status, IBV_WC_LOC_PROT_ERR);
    end_qp(qp);
    end_qp(peer);
    end_mr(source);
    end_mr(sink);
    assert_eq!(&to, b"\0\0\0\x002345");
    here.end();
    there.end();
}

#[test]
fn addresses_that_go_beyond_the_last_there_is_are_refused() {
    let (side, mut memory) = (Side::new(), [0_u8; 16]);
    let at: *mut c_void = memory.as_mut_ptr().cast();
    // SAFETY: the test passes an existing domain, and memory.
    let register = |iova| unsafe { mr::reg_mr_iova(side.pd, at, 16, iova, ALL) };
    assert!(register(u64::MAX - 7).is_null());
    assert_eq!(errno::get(), libc::EINVAL);
    let last = register(u64::MAX - 16);
    assert!(!last.is_null());
    end_mr(last);
    side.end();
}

#[test]
fn a_region_registered_anew_keeps_its_addresses_unless_it_gets_other_memory() {
    let (here, lender) = (Side::new(), Side::new());
    let (mut own, mut lent, mut other) = ([0_u8; 8], *b"first___", *b"second__");
    let local = here.mr(&mut own, ALL);
    let (remote, first) = region(&lender, &mut lent, From::Iova);
    let ours = (&here, local);
    let rereg = |flags: ibv_rereg_mr_flags, at: *mut c_void, access| {
        let flags = flags.cast_signed();
        // SAFETY: the test passes an existing region, and memory.
        unsafe { mr::rereg_mr(remote, flags, ptr::null_mut(), at, 8, access) }
    };
    assert_eq!(rereg(IBV_REREG_MR_CHANGE_ACCESS, ptr::null_mut(), 5), 0);
    assert_eq!(read(ours, first, remote, 8), IBV_WC_SUCCESS);
    // As with the kernel's `ibv_rereg_mr`, peers reach the new memory by its real addresses.
    let at = other.as_mut_ptr();
    let there = at.expose_provenance() as u64;
    assert_eq!(rereg(IBV_REREG_MR_CHANGE_TRANSLATION, at.cast(), 0), 0);
    assert_eq!(read(ours, first, remote, 8), IBV_WC_REM_ACCESS_ERR);
    assert_eq!(read(ours, there, remote, 8), IBV_WC_SUCCESS);
    end_mr(local);
    end_mr(remote);
    assert_eq!(&own, b"second__");
    here.end();
    lender.end();
}

/// A Write of a peer to memory that is not writable would crash this process.
#[test]
fn a_region_over_memory_for_reading_does_not_become_one_for_writing() {
    if madvise_is_emulated("MADV_POPULATE_WRITE") {
        return;
    }
    const PAGE: usize = 4096;
    let (side, mut memory) = (Side::new(), [0_u8; 8]);
    // SAFETY: the call maps new memory.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), PAGE, libc::PROT_READ, flags, -1, 0)
    };
    assert_ne!(page, libc::MAP_FAILED);
    let rereg = |mr, flags: ibv_rereg_mr_flags, access| {
        let flags = flags.cast_signed();
        // SAFETY: the test passes an existing region, and memory that the call checks.
        let failed = unsafe { mr::rereg_mr(mr, flags, ptr::null_mut(), page, 8, access) };
        assert_ne!(failed, 0);
        assert_eq!(errno::get(), libc::EFAULT);
    };
    // SAFETY: as above.
    let reads = unsafe { mr::reg_mr(side.pd, page, PAGE, 0) };
    assert!(!reads.is_null());
    rereg(reads, IBV_REREG_MR_CHANGE_ACCESS, ALL);
    let writes = side.mr(&mut memory, ALL);
    rereg(writes, IBV_REREG_MR_CHANGE_TRANSLATION, 0);
    end_mr(reads);
    end_mr(writes);
    // SAFETY: the page is not used any more.
    assert_eq!(unsafe { libc::munmap(page, PAGE) }, 0);
    side.end();
}

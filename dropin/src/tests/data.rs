//! Tests of the data path: lists, inline data, one-sided requests, errors.

use core::array;

use super::*;
use crate::srq;

#[test]
fn a_list_of_requests_arrives_in_order_with_inline_data_and_bytes_of_several_elements() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let mut from = *b"abcdefghijklmnop";
    let mut to = [0; 32];
    let (source, sink) = (here.mr(&mut from, 0), there.mr(&mut to, ALL));
    for wr_id in 0..3 {
        post_recv(peer, wr_id, &mut [sge(sink, wr_id * 8, 8)]);
    }
    connect(qp, peer);
    let mut scattered = [sge(source, 4, 2), sge(source, 10, 3)];
    let inline = *b"inl";
    let mut inline = [ibv_sge {
        addr: inline.as_ptr().expose_provenance() as u64,
        length: 3,
        lkey: 0,
    }];
    let mut last = send_wr(3, IBV_WR_SEND, &mut []);
    let mut middle = send_wr(2, IBV_WR_SEND, &mut inline);
    middle.send_flags = IBV_SEND_INLINE;
    middle.next = &raw mut last;
    let mut first = send_wr(1, IBV_WR_SEND, &mut scattered);
    first.next = &raw mut middle;
    assert_eq!(post_send(qp, &mut first), (0, ptr::null_mut()));
    let got = there.poll(3);
    let lengths: Vec<_> = got.iter().map(|wc| wc.byte_len).collect();
    assert_eq!(lengths, [5, 3, 0]);
    let recv = |wr_id| (IBV_WC_SUCCESS, IBV_WC_RECV, wr_id);
    let kinds: Vec<_> = got.iter().map(kind).collect();
    assert_eq!(kinds, [recv(0), recv(1), recv(2)]);
    // SAFETY: the test passes an existing queue pair.
    assert!(got.iter().all(|wc| wc.qp_num == unsafe { (*peer).qp_num }));
    // The second request is unsignaled.
    let sent: Vec<_> = here.poll(2).iter().map(kind).collect();
    let send = |wr_id| (IBV_WC_SUCCESS, IBV_WC_SEND, wr_id);
    assert_eq!(sent, [send(1), send(3)]);
    end_qp(qp);
    end_qp(peer);
    end_mr(source);
    end_mr(sink);
    assert_eq!(&to[..13], b"efklm\0\0\0inl\0\0");
    here.end();
    there.end();
}

#[test]
fn a_list_that_is_longer_than_what_is_posted_at_once_arrives_whole() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let mut to = [0; 20];
    let sink = there.mr(&mut to, ALL);
    let mut lists: Vec<_> = (0..20).map(|at| [sge(sink, at, 1)]).collect();
    let mut receives: Vec<_> = (0..)
        .zip(&mut lists)
        .map(|(id, list)| recv_wr(id, list))
        .collect();
    for at in 0..19 {
        receives[at].next = &raw mut receives[at + 1];
    }
    let mut bad = ptr::null_mut();
    // SAFETY: the test passes an existing queue pair, and a list.
    let errno = unsafe { crate::qp::post::post_recv(peer, &raw mut receives[0], &raw mut bad) };
    assert_eq!(errno, 0);
    connect(qp, peer);
    let bytes: Vec<u8> = (1..=20).collect();
    let mut lists: Vec<_> = bytes
        .iter()
        .map(|byte| {
            [ibv_sge {
                addr: ptr::from_ref(byte).expose_provenance() as u64,
                length: 1,
                lkey: 0,
            }]
        })
        .collect();
    let mut sends: Vec<_> = (0..)
        .zip(&mut lists)
        .map(|(id, list)| send_wr(id, IBV_WR_SEND, list))
        .collect();
    for at in 0..20 {
        sends[at].send_flags |= IBV_SEND_INLINE;
        sends[at].next = match at {
            19 => ptr::null_mut(),
            at => &raw mut sends[at + 1],
        };
    }
    assert_eq!(post_send(qp, &mut sends[0]), (0, ptr::null_mut()));
    there.poll(20);
    here.poll(20);
    end_qp(qp);
    end_qp(peer);
    end_mr(sink);
    assert_eq!(to.to_vec(), bytes);
    here.end();
    there.end();
}

/// A value at offset 1 of a packed structure, so it may be unaligned.
#[repr(C, packed)]
struct Packed<T>(u8, T);

#[test]
fn requests_and_elements_in_packed_structures_are_taken_as_any() {
    const EACH: usize = 2;
    const COUNT: usize = 18;
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let mut from: [u8; COUNT * EACH] = array::from_fn(|at| at as u8);
    let mut to = [0; COUNT * EACH];
    let (source, sink) = (here.mr(&mut from, 0), there.mr(&mut to, ALL));
    let lists = |mr| {
        let elements = |at| array::from_fn(|of| sge(mr, (at * EACH + of) as u64, 1));
        (0..COUNT)
            .map(|at| Packed(0, elements(at)))
            .collect::<Vec<Packed<[ibv_sge; EACH]>>>()
    };
    let (mut taken, mut given) = (lists(sink), lists(source));
    let is_aligned =
        |list: &Packed<[ibv_sge; EACH]>| (&raw const list.1).cast::<ibv_sge>().is_aligned();
    assert!(!taken.iter().all(is_aligned) && !given.iter().all(is_aligned));
    let mut receives: Vec<_> = (0..COUNT)
        .map(|at| {
            let mut wr = recv_wr(at as u64, &mut []);
            (wr.sg_list, wr.num_sge) = ((&raw mut taken[at].1).cast(), EACH as c_int);
            Packed(0, wr)
        })
        .collect();
    let mut sends: Vec<_> = (0..COUNT)
        .map(|at| {
            let mut wr = send_wr(at as u64, IBV_WR_SEND, &mut []);
            (wr.sg_list, wr.num_sge) = ((&raw mut given[at].1).cast(), EACH as c_int);
            Packed(0, wr)
        })
        .collect();
    for at in 1..COUNT {
        let (receive, send) = (&raw mut receives[at].1, &raw mut sends[at].1);
        receives[at - 1].1.next = receive;
        sends[at - 1].1.next = send;
    }
    let (receive, send) = (&raw mut receives[0].1, &raw mut sends[0].1);
    let mut bad = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the test passes existing queue pairs, and lists.
    let errno = unsafe {
        let errno = crate::qp::post::post_recv(peer, receive, &raw mut bad.0);
        connect(qp, peer);
        (errno, crate::qp::post::post_send(qp, send, &raw mut bad.1))
    };
    assert_eq!(errno, (0, 0));
    there.poll(COUNT);
    here.poll(COUNT);
    assert_eq!(to, from);

    // A request with more elements than fit is refused; the request before it is posted.
    let mut many = Packed(0, [sge(source, 0, 1); 65]);
    let mut refused = send_wr(1, IBV_WR_SEND, &mut []);
    (refused.sg_list, refused.num_sge) = ((&raw mut many.1).cast(), 65);
    let mut first = send_wr(0, IBV_WR_RDMA_WRITE, &mut []);
    first.next = &raw mut refused;
    let expected = (libc::EINVAL, &raw mut refused);
    assert_eq!(post_send(qp, &mut first), expected);
    assert_eq!(kind(&here.poll(1)[0]).2, 0);
    let mut refused = recv_wr(1, &mut []);
    (refused.sg_list, refused.num_sge) = ((&raw mut many.1).cast(), 65);
    let mut first = recv_wr(0, &mut []);
    first.next = &raw mut refused;
    // SAFETY: the test passes an existing queue pair, and a list.
    let errno = unsafe { crate::qp::post::post_recv(peer, &raw mut first, &raw mut bad.0) };
    assert_eq!((errno, bad.0), (libc::EINVAL, &raw mut refused));
    end_qp(qp);
    end_qp(peer);
    end_mr(source);
    end_mr(sink);
    here.end();
    there.end();
}

#[test]
fn one_sided_requests_move_bytes_and_immediate_data_is_four_bytes_in_network_order() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let (mut own, mut lent) = (*b"01234567abcdefgh", [0_u8; 16]);
    let (local, remote) = (here.mr(&mut own, ALL), there.mr(&mut lent, ALL));
    post_recv(peer, 40, &mut []);
    connect(qp, peer);
    let mut list = [sge(local, 0, 8)];
    let mut write = rdma_wr(1, IBV_WR_RDMA_WRITE_WITH_IMM, &mut list, remote);
    write.__bindgen_anon_1.imm_data = 0x0102_0304_u32.to_be();
    assert_eq!(post_send(qp, &mut write).0, 0);
    let got = there.poll(1)[0];
    assert_eq!(kind(&got), (IBV_WC_SUCCESS, IBV_WC_RECV_RDMA_WITH_IMM, 40));
    assert_eq!((got.wc_flags, got.byte_len), (IBV_WC_WITH_IMM, 8));
    assert_eq!(
        // SAFETY: the flag shows that this field is set.
        unsafe { got.__bindgen_anon_1.imm_data },
        0x0102_0304_u32.to_be()
    );
    let mut list = [sge(local, 8, 8)];
    let mut read = rdma_wr(2, IBV_WR_RDMA_READ, &mut list, remote);
    assert_eq!(post_send(qp, &mut read).0, 0);
    let done: Vec<_> = here.poll(2).iter().map(kind).collect();
    let ok = |opcode, wr_id| (IBV_WC_SUCCESS, opcode, wr_id);
    assert_eq!(done, [ok(IBV_WC_RDMA_WRITE, 1), ok(IBV_WC_RDMA_READ, 2)]);
    let mut list = [sge(local, 0, 8)];
    let mut add = rdma_wr(3, IBV_WR_ATOMIC_FETCH_AND_ADD, &mut list, remote);
    // SAFETY: the test passes an existing region.
    let there_is = unsafe { &*remote };
    add.wr.atomic.remote_addr = there_is.addr.addr() as u64 + 8;
    add.wr.atomic.rkey = there_is.rkey;
    add.wr.atomic.compare_add = 5;
    assert_eq!(post_send(qp, &mut add).0, 0);
    let mut list = [sge(local, 0, 8)];
    let mut swap = rdma_wr(4, IBV_WR_ATOMIC_CMP_AND_SWP, &mut list, remote);
    swap.wr.atomic = add_of(&add);
    swap.wr.atomic.compare_add = 5;
    swap.wr.atomic.swap = 77;
    assert_eq!(post_send(qp, &mut swap).0, 0);
    let done: Vec<_> = here.poll(2).iter().map(kind).collect();
    assert_eq!(done, [ok(IBV_WC_FETCH_ADD, 3), ok(IBV_WC_COMP_SWAP, 4)]);
    end_qp(qp);
    end_qp(peer);
    end_mr(local);
    end_mr(remote);
    assert_eq!(
        (&own[8..], &lent[..8]),
        (&b"01234567"[..], &b"01234567"[..])
    );
    assert_eq!(own[..8], 5_u64.to_ne_bytes());
    assert_eq!(lent[8..], 77_u64.to_ne_bytes());
    here.end();
    there.end();
}

/// Posts a request that the peer refuses, and returns the completion's status. `wr` is made from an
/// element of `len` bytes and the peer's region.
fn refused(
    (here, there): (Side, Side),
    len: u32,
    wr: impl FnOnce(&mut [ibv_sge], *mut ibv_mr) -> ibv_send_wr,
) -> ibv_wc_status {
    let (qp, peer) = (here.qp(), there.qp());
    let (mut own, mut lent) = (vec![0_u8; len as usize], [7_u8; 32]);
    let (local, remote) = (here.mr(&mut own, ALL), there.mr(&mut lent, ALL));
    post_recv(peer, 1, &mut [sge(remote, 0, 8)]);
    connect(qp, peer);
    let mut list = [sge(local, 0, len)];
    let mut wr = wr(&mut list, remote);
    assert_eq!(post_send(qp, &mut wr).0, 0);
    let status = here.poll(1)[0].status;
    end_qp(qp);
    end_qp(peer);
    end_mr(local);
    end_mr(remote);
    assert_eq!(lent, [7; 32]);
    here.end();
    there.end();
    status
}

/// The NAK "invalid request" of InfiniBand. On iWARP the peer sends a Terminate, which says more.
#[test]
fn what_a_responder_calls_an_invalid_request_is_one_on_roce_only() {
    let unaligned = |list: &mut [ibv_sge], remote: *mut ibv_mr| {
        let mut wr = rdma_wr(3, IBV_WR_ATOMIC_FETCH_AND_ADD, list, remote);
        // SAFETY: the test passes an existing region.
        let remote = unsafe { &*remote };
        wr.wr.atomic.remote_addr = (remote.addr.addr() as u64).next_multiple_of(8) + 1;
        wr.wr.atomic.rkey = remote.rkey;
        wr.wr.atomic.compare_add = 5;
        wr
    };
    let too_long = |list: &mut [ibv_sge], _| send_wr(3, IBV_WR_SEND, list);
    let roce = || (Side::new(), Side::new());
    let iwarp = || (Side::iwarp(), Side::iwarp());
    assert_eq!(refused(roce(), 8, unaligned), IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(refused(iwarp(), 8, unaligned), IBV_WC_REM_OP_ERR);
    // More than the sockets take, so that the Send is not complete before the peer refuses it.
    let len = 64 << 20;
    assert_eq!(refused(roce(), len, too_long), IBV_WC_REM_INV_REQ_ERR);
    assert_eq!(refused(iwarp(), len, too_long), IBV_WC_REM_OP_ERR);
}

fn add_of(wr: &ibv_send_wr) -> ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
    // SAFETY: the request is an atomic one, so this field of the union is set.
    unsafe { wr.wr.atomic }
}

#[test]
fn what_iwarp_has_not_and_what_is_wrong_is_refused_where_it_stands_in_the_list() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let mut early = send_wr(0, IBV_WR_SEND, &mut []);
    let at = &raw mut early;
    assert_eq!(post_send(qp, &mut early), (libc::EINVAL, at));
    connect(qp, peer);
    let refused = |opcode| {
        let mut second = send_wr(2, opcode, &mut []);
        let at = &raw mut second;
        let mut first = send_wr(1, IBV_WR_RDMA_WRITE, &mut []);
        first.next = at;
        let (errno, bad) = post_send(qp, &mut first);
        assert_eq!(bad, at);
        // The request before the refused one was posted.
        assert_eq!(kind(&here.poll(1)[0]).2, 1);
        errno
    };
    assert_eq!(refused(IBV_WR_SEND_WITH_IMM), libc::EOPNOTSUPP);
    assert_eq!(refused(IBV_WR_TSO), libc::EINVAL);
    assert_eq!(refused(99), libc::EINVAL);
    let mut three = send_wr(3, IBV_WR_SEND, &mut []);
    three.num_sge = -1;
    assert_eq!(post_send(qp, &mut three).0, libc::EINVAL);
    let long = [0_u8; 4096];
    let mut list = [ibv_sge {
        addr: long.as_ptr().expose_provenance() as u64,
        length: 4096,
        lkey: 0,
    }];
    let mut inline = send_wr(3, IBV_WR_SEND, &mut list);
    inline.send_flags = IBV_SEND_INLINE;
    assert_eq!(post_send(qp, &mut inline).0, libc::EINVAL);
    end_qp(qp);
    end_qp(peer);
    here.end();
    there.end();
}

#[test]
fn a_full_queue_says_enomem_and_takes_more_when_completions_were_polled() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    connect(qp, peer);
    let mut write = send_wr(1, IBV_WR_RDMA_WRITE, &mut []);
    let mut post = || post_send(qp, &mut write).0;
    for _ in 0..20 {
        assert_eq!(post(), 0);
    }
    assert_eq!(post(), libc::ENOMEM);
    here.poll(20);
    assert_eq!(post(), 0);
    here.poll(1);
    end_qp(qp);
    end_qp(peer);
    here.end();
    there.end();
}

#[test]
fn an_access_that_the_peer_refuses_completes_with_the_status_of_libibverbs() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer) = (here.qp(), there.qp());
    let (mut own, mut lent) = ([0_u8; 8], [0_u8; 8]);
    let (local, remote) = (here.mr(&mut own, ALL), there.mr(&mut lent, 0));
    post_recv(peer, 50, &mut []);
    connect(qp, peer);
    let mut list = [sge(local, 0, 8)];
    let mut read = rdma_wr(1, IBV_WR_RDMA_READ, &mut list, remote);
    assert_eq!(post_send(qp, &mut read).0, 0);
    assert_eq!(here.poll(1)[0].status, IBV_WC_REM_ACCESS_ERR);
    assert_eq!(there.poll(1)[0].status, IBV_WC_WR_FLUSH_ERR);
    // Both sides have printed their warning. SAFETY: the queue pairs exist.
    assert!(unsafe { !qp::of(qp).end_warning.claim() && !qp::of(peer).end_warning.claim() });
    let mut event: ibv_async_event = unsafe_zeroed();
    assert_eq!(
        // SAFETY: the test passes an open context, and memory for an event.
        unsafe { crate::events::get_async_event(there.context, &raw mut event) },
        0
    );
    assert_eq!(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    // SAFETY: the type shows that this field is set.
    assert_eq!(unsafe { event.element.qp }, peer);
    // SAFETY: the test passes the event that was just taken.
    unsafe { crate::events::ack_async_event(&raw mut event) };
    end_qp(qp);
    end_qp(peer);
    end_mr(local);
    end_mr(remote);
    here.end();
    there.end();
}

fn unsafe_zeroed() -> ibv_async_event {
    // SAFETY: all bytes may be zero: the structure has only numbers and pointers.
    unsafe { mem::zeroed() }
}

#[test]
fn a_wrong_key_or_range_is_taken_and_completes_in_error() {
    for (lkey, length) in [(Some(0x1234_5678), 8), (None, 9)] {
        let (here, there) = (Side::new(), Side::new());
        let (qp, peer) = (here.qp(), there.qp());
        let (mut own, mut lent) = ([0_u8; 8], [0_u8; 8]);
        let (local, remote) = (here.mr(&mut own, ALL), there.mr(&mut lent, ALL));
        connect(qp, peer);
        let (mut right, mut wrong) = (
            [sge(local, 0, 8)],
            [sge(local, 0, 4), sge(local, 0, length)],
        );
        wrong[1].lkey = lkey.unwrap_or(wrong[1].lkey);
        let mut last = rdma_wr(3, IBV_WR_RDMA_WRITE, &mut [], remote);
        let mut middle = rdma_wr(2, IBV_WR_RDMA_WRITE, &mut wrong, remote);
        let mut first = rdma_wr(1, IBV_WR_RDMA_WRITE, &mut right, remote);
        // All three are in one list: the request before the wrong one must complete.
        first.next = &raw mut middle;
        middle.next = &raw mut last;
        assert_eq!(post_send(qp, &mut first), (0, ptr::null_mut()));
        let done: Vec<_> = here
            .poll(3)
            .iter()
            .map(|wc| (wc.wr_id, wc.status))
            .collect();
        assert_eq!(
            done,
            [
                (1, IBV_WC_SUCCESS),
                (2, IBV_WC_LOC_PROT_ERR),
                (3, IBV_WC_WR_FLUSH_ERR)
            ]
        );
        end_qp(qp);
        end_qp(peer);
        end_mr(local);
        end_mr(remote);
        here.end();
        there.end();
    }
}

/// A receive is checked when a message reaches its memory, both in a queue pair's own queue and in
/// a shared one.
#[test]
fn a_receive_with_a_wrong_key_or_range_is_taken_and_fails_when_a_message_reaches_that_memory() {
    for shared in [false, true] {
        for (lkey, length) in [(Some(0x1234_5678), 8), (None, 9)] {
            let (here, there) = (Side::new(), Side::new());
            let mut attr = there.attr();
            let mut wanted = ibv_srq_init_attr {
                srq_context: ptr::null_mut(),
                attr: ibv_srq_attr {
                    max_wr: 8,
                    max_sge: 2,
                    srq_limit: 0,
                },
            };
            if shared {
                // SAFETY: the test passes a domain, and a structure.
                attr.srq = unsafe { srq::create_srq(there.pd, &raw mut wanted) };
            }
            // SAFETY: the test passes existing objects.
            let peer = unsafe { qp::create_qp(there.pd, &raw mut attr) };
            let qp = here.qp();
            let (mut own, mut lent) = (*b"received", [0_u8; 8]);
            let (local, remote) = (here.mr(&mut own, ALL), there.mr(&mut lent, ALL));
            connect(qp, peer);
            for wr_id in 1..=4 {
                let mut list = [sge(remote, 0, 4), sge(remote, 4, 4)];
                if wr_id > 1 {
                    (list[1].lkey, list[1].length) = (lkey.unwrap_or(list[1].lkey), length);
                }
                let (mut wr, mut bad) = (recv_wr(wr_id, &mut list), ptr::null_mut());
                // SAFETY: the test passes an existing queue, and a request.
                let errno = unsafe {
                    match shared {
                        true => srq::post_srq_recv(attr.srq, &raw mut wr, &raw mut bad),
                        false => crate::qp::post::post_recv(peer, &raw mut wr, &raw mut bad),
                    }
                };
                assert_eq!((errno, bad), (0, ptr::null_mut()));
            }
            // Receive 1 is valid; the second element of the others is wrong. Message 2 does not
            // reach that element, message 3 does, and receive 4 gets no message.
            for (wr_id, length) in [(1, 8), (2, 4), (3, 5)] {
                let mut list = [sge(local, 0, length)];
                let mut send = send_wr(wr_id, IBV_WR_SEND, &mut list);
                assert_eq!(post_send(qp, &mut send).0, 0);
            }
            let got = there.poll(if shared { 3 } else { 4 });
            let got: Vec<_> = got.iter().map(|wc| (wc.wr_id, wc.status)).collect();
            let right = [
                (1, IBV_WC_SUCCESS),
                (2, IBV_WC_SUCCESS),
                (3, IBV_WC_LOC_PROT_ERR),
                (4, IBV_WC_WR_FLUSH_ERR),
            ];
            assert_eq!(got, right[..got.len()]);
            assert_eq!(&lent, b"received");
            here.poll(3);
            end_qp(qp);
            end_qp(peer);
            if shared {
                // SAFETY: the test passes a queue that is not used any more.
                assert_eq!(unsafe { srq::destroy_srq(attr.srq) }, 0);
            }
            end_mr(local);
            end_mr(remote);
            here.end();
            there.end();
        }
    }
}

/// Destroying a queue pair removes its completions from the completion queue, as drivers of RNICs
/// do. A program may free the objects of its `wr_id`s together with the queue pair, so it must not
/// see the completions later.
#[test]
fn completions_of_a_queue_pair_that_was_destroyed_are_not_polled() {
    let (here, there) = (Side::new(), Side::new());
    let (qp, peer, other) = (here.qp(), there.qp(), here.qp());
    let far = there.qp();
    connect(qp, peer);
    connect(other, far);
    for (qp, wr_id) in [(qp, 1), (other, 2)] {
        post_recv(qp, wr_id + 10, &mut []);
        let mut write = send_wr(wr_id, IBV_WR_RDMA_WRITE, &mut []);
        assert_eq!(post_send(qp, &mut write).0, 0);
    }
    end_qp(qp);
    assert_eq!(kind(&here.poll(1)[0]).2, 2);
    end_qp(other);
    // SAFETY: all bytes may be zero: the structure has only numbers.
    let mut none: ibv_wc = unsafe { mem::zeroed() };
    // SAFETY: the test passes memory for one completion.
    assert_eq!(unsafe { cq::poll_cq(here.cq, 1, &raw mut none) }, 0);
    end_qp(peer);
    end_qp(far);
    here.end();
    there.end();
}

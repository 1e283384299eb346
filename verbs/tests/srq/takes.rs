//! Assignment of an SRQ's receives to messages, and the events and completions of the SRQ.

use super::*;

#[test]
fn qps_of_one_srq_take_its_receives_in_the_order_of_their_messages() {
    for wire in Wire::BOTH {
        let s = shared(wire, 3, 16);
        s.post_empty(0..6);
        for (wr_id, client) in [(0, 1), (1, 0), (2, 0), (3, 2), (4, 1)] {
            s.send(client);
            let completion = s.recv_cq.success(wr_id);
            assert_eq!(completion.qp_num, s.servers[client].qp_num());
            assert_eq!(completion.opcode, WcOpcode::Recv);
        }
        assert_eq!(s.srq.posted(), 1);
    }
}

#[test]
fn payloads_lie_in_the_receives_that_the_completions_name() {
    for wire in Wire::BOTH {
        let s = shared(wire, 2, 16);
        const LEN: usize = 100_000;
        let buffers: Vec<_> = (0..4).map(|_| s.b.blank(LEN)).collect();
        for (wr_id, buffer) in (0..).zip(&buffers) {
            let sges = [buffer.sge(0, LEN as u32)];
            s.srq.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
        }
        let sources: Vec<_> = (0..2).map(|seed| s.a.filled(seed, LEN)).collect();
        // Both clients send at once, several segments each. The messages may overtake each other,
        // but must not mix.
        for round in 0..2 {
            for (client, source) in s.clients.iter().zip(&sources) {
                let sges = [source.sge(0, LEN as u32 - round)];
                client.post_send(&SendWr::send(9, &sges)).unwrap();
            }
        }
        let mut seen = Vec::new();
        for _ in 0..4 {
            let completion = s.recv_cq.next();
            assert_eq!(completion.status, Status::Success);
            let from = s
                .servers
                .iter()
                .position(|qp| qp.qp_num() == completion.qp_num)
                .unwrap();
            let len = completion.byte_len as usize;
            let expected = &content(&sources[from])[..len];
            let buffer = &buffers[completion.wr_id as usize];
            placed_only(buffer, 0, expected, "a receive of an SRQ");
            seen.push((from, len));
        }
        seen.sort_unstable();
        assert_eq!(
            seen,
            [(0, LEN - 1), (0, LEN), (1, LEN - 1), (1, LEN)],
            "each message once"
        );
        s.a.send_cq.successes([9; 4]);
    }
}

/// As with Linux siw, the receives are checked against the domain of the SRQ.
#[test]
fn qps_of_several_domains_take_from_one_srq_whose_domain_has_the_memory() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let common::Ends { a, b, listener, .. } = setup.unconnected();
        let attr = SrqAttr::default().max_wr(4);
        let srq = b.pd.create_srq(attr).unwrap();
        let other = b.device.alloc_pd().unwrap();
        let (near, far) = (b.blank(8), other.register(vec![0; 8], Access::LOCAL_WRITE));
        let far = [far.unwrap().sge(0, 8)];
        let error = srq.post_recv(&RecvWr::new(9, &far)).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::Memory(_)), "{error:?}");
        let servers =
            [&b.pd, &other].map(|pd| pd.qp().srq(&srq).build(&b.send_cq, &b.recv_cq).unwrap());
        for (number, server) in (1..).zip(&servers) {
            let client = a.another_qp();
            join(&listener, &client, server, &setup.connect, &setup.accept);
            let sges = [near.sge(0, 8)];
            srq.post_recv(&RecvWr::new(number, &sges)).unwrap();
            let bytes = [number as u8; 8];
            client.post_send(&SendWr::send_inline(1, &bytes)).unwrap();
            let completion = b.recv_cq.success(number);
            assert_eq!(completion.qp_num, server.qp_num());
            placed_only(&near, 0, &bytes, "a receive of an SRQ");
        }
    }
}

#[test]
fn an_empty_srq_is_no_receive_posted() {
    for wire in Wire::BOTH {
        let s = shared(wire, 2, 16);
        s.clients[0].post_send(&SendWr::send(1, &[])).unwrap();
        assert!(s.servers[0].wait_closed(LIMIT));
        let reason = s.servers[0].end_reason().unwrap();
        assert!(matches!(reason, EndReason::TerminateSent { .. }));
        assert!(
            reason.to_string().contains("no receive is posted"),
            "{reason}"
        );
        // The other QP of the SRQ keeps working.
        s.post_empty([1]);
        s.clients[1].post_send(&SendWr::send(2, &[])).unwrap();
        assert_eq!(s.recv_cq.success(1).qp_num, s.servers[1].qp_num());
        assert_eq!(s.servers[1].state(), QpState::Rts);
    }
}

#[test]
fn the_receive_queue_of_a_qp_with_an_srq_takes_nothing_and_says_where_to_post() {
    let s = shared(Wire::MEMORY, 1, 16);
    let error = s.servers[0].post_recv(&RecvWr::new(1, &[])).unwrap_err();
    let srq_num = s.srq.srq_num();
    assert_eq!(error.kind, PostErrorKind::HasSrq { srq_num });
    assert!(error.to_string().contains("Srq::post_recv"), "{error}");
    assert_eq!(s.servers[0].srq().map(Srq::srq_num), Some(srq_num));
    assert!(s.clients[0].srq().is_none());
}

#[test]
fn the_limit_is_told_when_a_message_leaves_fewer_receives_and_once() {
    for wire in Wire::BOTH {
        let s = shared(wire, 2, 16);
        s.post_empty(0..6);
        s.srq.modify(SrqModify::default().limit(Some(4))).unwrap();
        for (wr_id, client) in [(0, 0), (1, 1), (2, 0), (3, 1)] {
            s.send(client);
            s.recv_cq.success(wr_id);
        }
        let number = s.srq.srq_num();
        let event = s.queue_event();
        assert!(
            matches!(event, AsyncEvent::SrqLimitReached { srq_num } if srq_num == number),
            "{event:?}"
        );
        // Further posts and messages raise no event, because the limit must be armed again.
        s.post_empty(6..12);
        for wr_id in 4..12 {
            s.send(0);
            s.recv_cq.success(wr_id);
        }
        assert!(s.b.device.poll_event().is_none());
        assert_eq!(s.srq.query().limit, 0);
    }
}

#[test]
fn the_receive_of_a_message_that_is_too_long_completes_with_the_fault() {
    for wire in Wire::BOTH {
        let s = shared(wire, 1, 16);
        let buffer = s.b.blank(64);
        for wr_id in 1..3 {
            let sges = [buffer.sge(0, 64)];
            s.srq.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
        }
        let source = s.a.filled(1, 65);
        s.clients[0]
            .post_send(&SendWr::send(1, &[source.sge(0, 65)]))
            .unwrap();
        let completion = s.recv_cq.next();
        assert_eq!(
            (completion.wr_id, completion.status, completion.qp_num),
            (1, Status::LocalLength, s.servers[0].qp_num())
        );
        assert!(s.servers[0].wait_closed(LIMIT));
        s.recv_cq.assert_empty();
        assert_eq!(s.srq.posted(), 1);
        placed_only(&buffer, 0, &[], "too long");
    }
}

#[test]
fn a_region_deregistered_under_a_posted_receive_ends_the_qp_that_takes_it_alone() {
    for wire in Wire::BOTH {
        let s = shared(wire, 2, 16);
        let (gone, good) = (s.b.blank(64), s.b.blank(64));
        for (wr_id, region) in [(1, &gone), (2, &good)] {
            let sges = [region.sge(0, 64)];
            s.srq.post_recv(&RecvWr::new(wr_id, &sges)).unwrap();
        }
        gone.deregister().unwrap();
        let bytes = pattern(1, 64);
        s.clients[0]
            .post_send(&SendWr::send_inline(1, &bytes))
            .unwrap();
        let completion = s.recv_cq.next();
        assert_eq!(
            (completion.wr_id, completion.status),
            (1, Status::LocalProtection)
        );
        assert!(s.servers[0].wait_closed(LIMIT));
        s.clients[1]
            .post_send(&SendWr::send_inline(1, &bytes))
            .unwrap();
        assert_eq!(s.recv_cq.success(2).qp_num, s.servers[1].qp_num());
        same(&content(&good), &bytes, "the other receive");
    }
}

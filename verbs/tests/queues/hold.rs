//! Messages that arrive before their receive is posted and wait for it, over real connections.

use super::*;

use std::io::Write;
use std::time::Duration;

use uwarp_oracle::{Crc, Untagged, fpdu};

/// Hold time that exceeds the duration of any test.
const LONG: OnNoReceive = OnNoReceive::Hold(Duration::from_secs(600));

/// Connects two sides, of which the second has this policy for messages without a receive.
fn holding(wire: Wire, what: OnNoReceive) -> (Side, Side) {
    let mut setup = Setup::new(wire);
    setup.settings[1].on_no_receive = what;
    setup.connected()
}

#[test]
fn a_receive_that_is_posted_late_gets_the_message_that_waited() {
    for wire in Wire::BOTH {
        let (a, b) = holding(wire, LONG);
        for wr_id in 0..20 {
            a.qp.post_send(&SendWr::send_inline(wr_id, b"waits"))
                .unwrap();
        }
        a.send_cq.successes(0..20);
        for wr_id in 0..20 {
            let region = b.blank(8);
            b.post_whole(wr_id, &region);
            assert_eq!(b.recv_cq.success(wr_id).byte_len, 5);
        }
        b.recv_cq.assert_empty();
        both_ways(&a, &b);
    }
}

#[test]
fn more_than_the_network_holds_waits_and_nothing_is_lost() {
    const LEN: usize = 1 << 20;
    for wire in Wire::BOTH {
        let (a, b) = holding(wire, LONG);
        let source = a.filled(1, LEN);
        for wr_id in 0..16 {
            let sges = [source.sge(0, LEN as u32)];
            a.qp.post_send(&SendWr::send(wr_id, &sges)).unwrap();
        }
        let sink = b.blank(LEN);
        for wr_id in 0..16 {
            b.post_whole(wr_id, &sink);
            assert_eq!(b.recv_cq.success(wr_id).byte_len as usize, LEN);
            common::same(&common::content(&sink), &common::content(&source), "a Send");
        }
        a.send_cq.successes(0..16);
    }
}

#[test]
fn own_sends_go_on_while_the_peers_message_waits() {
    for wire in Wire::BOTH {
        let (a, b) = holding(wire, LONG);
        // The responder may send after the initiator's first message.
        common::bell(&a, &b);
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        a.send_cq.success(1);
        for wr_id in 0..10 {
            a.post_empty(wr_id);
            b.qp.post_send(&SendWr::send(wr_id, &[])).unwrap();
            b.send_cq.success(wr_id);
            a.recv_cq.success(wr_id);
        }
        b.post_empty(2);
        b.recv_cq.success(2);
    }
}

#[test]
fn without_a_receive_in_time_the_connection_ends_with_a_terminate() {
    for wire in Wire::BOTH {
        let (a, b) = holding(wire, OnNoReceive::Hold(Duration::from_millis(20)));
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        let reason = b.wait_end();
        assert!(matches!(reason, EndReason::TerminateSent { .. }));
        assert!(
            reason
                .to_string()
                .contains("was held for 20 ms, and no receive was posted for it"),
            "{reason}"
        );
        assert!(matches!(a.wait_end(), EndReason::TerminateReceived { .. }));
    }
}

#[test]
fn a_qp_may_hold_where_its_device_does_not() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let holds =
            b.pd.qp()
                .on_no_receive(LONG)
                .build(&b.send_cq, &b.recv_cq)
                .unwrap();
        join(&ends.listener, &a.qp, &holds, &setup.connect, &setup.accept);
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        a.send_cq.success(1);
        holds.post_recv(&RecvWr::new(3, &[])).unwrap();
        b.recv_cq.success(3);
    }
}

#[test]
fn a_post_to_the_srq_has_the_connections_go_on_that_wait_for_it() {
    for wire in Wire::BOTH {
        let setup = Setup::new(wire);
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let srq = b.pd.create_srq(SrqAttr::default()).unwrap();
        let pairs: Vec<(Qp, Qp)> = (0..5)
            .map(|_| {
                let client = a.another_qp();
                let server =
                    b.pd.qp()
                        .srq(&srq)
                        .on_no_receive(LONG)
                        .build(&b.send_cq, &b.recv_cq)
                        .unwrap();
                join(
                    &ends.listener,
                    &client,
                    &server,
                    &setup.connect,
                    &setup.accept,
                );
                client.post_send(&SendWr::send(1, &[])).unwrap();
                (client, server)
            })
            .collect();
        a.send_cq.successes([1; 5]);
        let mut served = Vec::new();
        for wr_id in 0..5 {
            srq.post_recv(&RecvWr::new(wr_id, &[])).unwrap();
            served.push(b.recv_cq.success(wr_id).qp_num);
        }
        served.sort_unstable();
        let mut numbers: Vec<u32> = pairs.iter().map(|(_, server)| server.qp_num()).collect();
        numbers.sort_unstable();
        assert_eq!(served, numbers, "each once");
    }
}

/// Returns four requests with Immediate Data, each with different bytes.
fn immediates(target: &MemoryRegion) -> [SendWr<'static>; 4] {
    let remote = target.remote();
    let write = |wr_id, imm| {
        SendWr::write_with_immediate_inline(
            wr_id,
            b"octets",
            RemoteBuffer::at(remote.addr, remote.rkey),
            imm,
        )
    };
    [
        SendWr::immediate(0, [0; 8]),
        SendWr::immediate(1, [1; 8]).solicited(),
        write(2, [2; 8]),
        write(3, [3; 8]).solicited(),
    ]
}

/// Checks the completion of a receive for one of [`immediates`].
#[track_caller]
fn assert_immediate(done: &Completion, nth: u8) {
    assert_eq!(
        (done.opcode, done.immediate, done.byte_len, done.solicited),
        (WcOpcode::RecvImmediate, Some([nth; 8]), 0, nth % 2 == 1)
    );
}

#[test]
fn immediate_data_that_arrives_without_a_receive_is_delivered_when_one_is_posted() {
    for wire in Wire::BOTH {
        let (a, b) = holding(wire, LONG);
        let target = b.blank(16);
        for wr in immediates(&target) {
            a.qp.post_send(&wr).unwrap();
        }
        a.send_cq.successes(0..4);
        for nth in 0..4 {
            b.recv_cq.assert_empty();
            b.post_empty(nth);
            assert_immediate(&b.recv_cq.success(nth), nth as u8);
        }
        placed_only(&target, 0, b"octets", "the Writes in front");
        both_ways(&a, &b);
    }
}

#[test]
fn immediate_data_without_a_receive_in_time_ends_the_connection_with_a_terminate() {
    for wire in Wire::BOTH {
        for nth in 0..4 {
            let (a, b) = holding(wire, OnNoReceive::Hold(Duration::from_millis(20)));
            let target = b.blank(16);
            a.qp.post_send(&immediates(&target)[nth]).unwrap();
            let reason = b.wait_end();
            assert!(matches!(reason, EndReason::TerminateSent { .. }));
            let words = reason.to_string();
            assert!(
                words.contains("no receive was posted for it in that time"),
                "{words}"
            );
            assert!(matches!(a.wait_end(), EndReason::TerminateReceived { .. }));
        }
    }
}

/// Connects a second QP with an SRQ that holds messages.
fn holding_for_srq(ends: &common::Ends, srq: &Srq, what: OnNoReceive) -> Qp {
    let b = &ends.b;
    let builder = b.pd.qp().srq(srq).on_no_receive(what);
    let server = builder.build(&b.send_cq, &b.recv_cq).unwrap();
    let setup = &ends.setup;
    join(
        &ends.listener,
        &ends.a.qp,
        &server,
        &setup.connect,
        &setup.accept,
    );
    server
}

#[test]
fn immediate_data_waits_for_a_receive_of_an_srq_as_well() {
    for wire in Wire::BOTH {
        let ends = Setup::new(wire).unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let srq = b.pd.create_srq(SrqAttr::default()).unwrap();
        let _server = holding_for_srq(&ends, &srq, LONG);
        let target = b.blank(16);
        for wr in immediates(&target) {
            a.qp.post_send(&wr).unwrap();
        }
        a.send_cq.successes(0..4);
        for nth in 0..4 {
            b.recv_cq.assert_empty();
            srq.post_recv(&RecvWr::new(nth, &[])).unwrap();
            assert_immediate(&b.recv_cq.success(nth), nth as u8);
        }
    }
}

#[test]
fn immediate_data_without_a_receive_of_the_srq_in_time_ends_that_connection_alone() {
    for wire in Wire::BOTH {
        let ends = Setup::new(wire).unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let srq = b.pd.create_srq(SrqAttr::default()).unwrap();
        let server = holding_for_srq(&ends, &srq, OnNoReceive::Hold(Duration::from_millis(20)));
        a.qp.post_send(&SendWr::immediate(1, [1; 8])).unwrap();
        assert!(server.wait_closed(LIMIT));
        let words = server.end_reason().unwrap().to_string();
        assert!(
            words.contains("no receive was posted for it in that time"),
            "{words}"
        );
        // The receive is posted too late for this QP, and stays available to other QPs of the SRQ.
        srq.post_recv(&RecvWr::new(5, &[])).unwrap();
        a.wait_end();
        assert!(a.qp.reset());
        a.send_cq.success(1);
        let _another = holding_for_srq(&ends, &srq, LONG);
        a.qp.post_send(&SendWr::immediate(2, [2; 8])).unwrap();
        assert_immediate(&b.recv_cq.success(5), 2);
    }
}

/// Returns an FPDU with an empty Send, without CRC and Markers.
fn empty_send() -> Vec<u8> {
    fpdu(&Untagged::send(1).bytes(), Crc::Zero)
}

#[test]
fn a_reset_is_noticed_at_once_while_a_message_waits() {
    let mut settings = raw_settings();
    settings.on_no_receive = LONG;
    let device = uwarp_verbs::Device::tcp_with(settings, None).unwrap();
    let a = Side::new(device, QpCaps::default(), 16);
    let mut peer = raw_peer(&a.qp);
    peer.stream.write_all(&empty_send()).unwrap();
    // Nothing is polled here. The background holds the message and detects the reset.
    rustix::net::sockopt::set_socket_linger(&peer.stream, Some(Duration::ZERO)).unwrap();
    drop(peer);
    assert!(matches!(a.wait_end(), EndReason::LlpLost { .. }));
    a.recv_cq.assert_empty();
}

#[test]
fn a_fin_behind_a_message_that_waits_is_seen_when_the_message_has_its_receive() {
    for wire in Wire::BOTH {
        let (a, b) = holding(wire, LONG);
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        a.send_cq.success(1);
        a.qp.disconnect();
        b.post_empty(7);
        b.post_empty(8);
        b.recv_cq.success(7);
        b.recv_cq.flushed(8);
        assert!(matches!(b.wait_end(), EndReason::PeerDisconnect));
        assert!(matches!(a.wait_end(), EndReason::LocalDisconnect));
    }
}

#[test]
fn a_peer_that_closes_behind_a_message_that_waits_is_not_waited_for_as_long() {
    for wire in Wire::BOTH {
        let mut setup = Setup::new(wire);
        setup.settings[1].on_no_receive = LONG;
        setup.settings[1].timeouts.hold_after_close = Duration::from_millis(50);
        // The peer waits for an answer to its FIN longer than any test lasts.
        setup.settings[0].timeouts.close = Duration::from_secs(600);
        let (a, b) = setup.connected();
        a.qp.post_send(&SendWr::send(1, &[])).unwrap();
        a.send_cq.success(1);
        a.qp.disconnect();
        let reason = b.wait_end();
        assert!(matches!(reason, EndReason::TerminateSent { .. }));
        let said = reason.to_string();
        assert!(
            said.contains("the peer closed the connection meanwhile, and no receive was posted"),
            "{said}"
        );
        assert!(a.qp.wait_closed(LIMIT));
    }
}

#[test]
fn a_qp_that_is_dropped_or_aborted_on_hold_ends_at_once() {
    for wire in Wire::BOTH {
        for drops in [false, true] {
            let (a, b) = holding(wire, LONG);
            a.qp.post_send(&SendWr::send(1, &[])).unwrap();
            a.send_cq.success(1);
            if drops {
                drop(b.qp);
            } else {
                b.qp.abort();
                assert_eq!(b.qp.state(), QpState::Error);
            }
            assert!(a.qp.wait_closed(LIMIT));
        }
    }
}

//! Startup from the MPA Request to the Reply: private data, rejects, refusals, addresses.

use super::*;

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

#[test]
fn private_data_goes_both_ways_up_to_its_limit() {
    // 5044-7.1.1-i04.
    for wire in Wire::BOTH {
        for (rev, limit) in REVISIONS {
            for (ours, theirs) in [(0, 0), (1, 0), (0, 1), (77, 5), (limit, limit)] {
                let mut setup = revision(wire, rev);
                setup.connect.private_data = pattern(1, ours);
                setup.accept.private_data = pattern(2, theirs);
                let ends = setup.unconnected();
                assert_eq!(
                    ends.join().private_data,
                    pattern(2, theirs),
                    "{wire:?} {rev:?}"
                );
                assert_eq!(
                    ends.a.qp.connection().unwrap().private_data,
                    pattern(2, theirs)
                );
                assert_eq!(
                    ends.b.qp.connection().unwrap().private_data,
                    pattern(1, ours)
                );
                both_ways(&ends.a, &ends.b);
            }
        }
    }
}

#[test]
fn the_request_shows_who_asks_and_what_for() {
    // 5044-7.1.1-i04, 6581-9.1-01.
    for wire in Wire::BOTH {
        for (rev, _) in REVISIONS {
            let mut setup = revision(wire, rev);
            setup.connect = ConnectOptions::default()
                .private_data(b"who".to_vec())
                .ird(3)
                .ord(5);
            let ends = setup.unconnected();
            std::thread::scope(|scope| {
                let connecting = scope.spawn(|| {
                    ends.a
                        .qp
                        .connect(ends.listener.local_addr(), &setup.connect)
                });
                let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
                assert_eq!(request.private_data(), b"who");
                assert_eq!(request.revision(), rev);
                assert_eq!(request.ird_ord(), (rev == Revision::Two).then_some((3, 5)));
                assert!(!request.is_peer_to_peer());
                assert_eq!(request.local_addr(), ends.listener.local_addr());
                let peer = request.peer_addr();
                request.accept(&ends.b.qp, &setup.accept).unwrap();
                connecting.join().unwrap().unwrap();
                let (at_a, at_b) = (
                    ends.a.qp.connection().unwrap(),
                    ends.b.qp.connection().unwrap(),
                );
                assert_eq!((at_a.local, at_a.peer), (peer, ends.listener.local_addr()));
                assert_eq!((at_b.local, at_b.peer), (ends.listener.local_addr(), peer));
            });
        }
    }
}

#[test]
fn one_byte_of_private_data_too_many_is_an_error_of_the_caller() {
    for (rev, limit) in REVISIONS {
        let mut setup = revision(Wire::MEMORY, rev);
        setup.connect.private_data = vec![0; limit + 1];
        let ends = setup.unconnected();
        let error = ends
            .a
            .qp
            .connect(ends.listener.local_addr(), &setup.connect)
            .unwrap_err();
        assert!(matches!(error, ConnectError::Options(_)), "{error:?}");
        let said = error.to_string();
        assert!(
            said.contains(&format!("{} bytes", limit + 1))
                && said.contains(&format!("at most {limit}")),
            "{said}"
        );
        // Nothing was sent, and the QP can still connect.
        assert_eq!(ends.a.qp.state(), QpState::Idle);
        join(
            &ends.listener,
            &ends.a.qp,
            &ends.b.qp,
            &Default::default(),
            &setup.accept,
        );
        both_ways(&ends.a, &ends.b);
    }
}

#[test]
fn an_answer_with_too_much_private_data_rejects() {
    for (rev, limit) in REVISIONS {
        for accept in [true, false] {
            let ends = revision(Wire::MEMORY, rev).unconnected();
            std::thread::scope(|scope| {
                let connecting = scope.spawn(|| {
                    ends.a
                        .qp
                        .connect(ends.listener.local_addr(), &Default::default())
                });
                let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
                let private_data = vec![1; limit + 1];
                let error = if accept {
                    request
                        .accept(
                            &ends.b.qp,
                            &AcceptOptions::default().private_data(private_data),
                        )
                        .unwrap_err()
                } else {
                    request.reject(&private_data).unwrap_err()
                };
                assert!(matches!(error, AcceptError::Options(_)), "{error:?}");
                assert!(
                    error.to_string().contains(&format!("at most {limit}")),
                    "{error}"
                );
                let error = connecting.join().unwrap().unwrap_err();
                assert!(
                    matches!(&error, ConnectError::Rejected { private_data, .. } if private_data.is_empty()),
                    "{error:?}"
                );
                assert_eq!(ends.b.qp.state(), QpState::Idle);
            });
        }
    }
}

#[test]
fn a_rejected_connection_brings_the_private_data_of_the_reject() {
    for wire in Wire::BOTH {
        for (rev, limit) in REVISIONS {
            for len in [0, 13, limit] {
                let ends = revision(wire, rev).unconnected();
                std::thread::scope(|scope| {
                    let connecting = scope.spawn(|| {
                        ends.a
                            .qp
                            .connect(ends.listener.local_addr(), &Default::default())
                    });
                    let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
                    ends.a.post_empty(1);
                    request.reject(&pattern(3, len)).unwrap();
                    let error = connecting.join().unwrap().unwrap_err();
                    let ConnectError::Rejected {
                        addr, private_data, ..
                    } = &error
                    else {
                        panic!("{error:?}")
                    };
                    assert_eq!(
                        (*addr, private_data),
                        (ends.listener.local_addr(), &pattern(3, len))
                    );
                    let said = error.to_string();
                    assert!(said.contains("rejected"), "{said}");
                    assert_eq!(said.contains(&format!("{len} bytes")), len > 0, "{said}");
                    ends.a.recv_cq.flushed(1);
                    assert!(matches!(
                        ends.a.ended_event(),
                        (_, EndReason::Rejected { .. })
                    ));
                    assert_eq!(ends.a.qp.state(), QpState::Error);
                });
            }
        }
    }
}

#[test]
fn a_request_that_is_dropped_is_rejected_and_so_are_those_of_a_listener_that_is_dropped() {
    for wire in Wire::BOTH {
        for drop_listener in [false, true] {
            let common::Ends { a, b, listener, .. } = Setup::new(wire).unconnected();
            let addr = listener.local_addr();
            std::thread::scope(|scope| {
                let connecting = scope.spawn(|| a.qp.connect(addr, &Default::default()));
                if drop_listener {
                    // The listener's descriptor is readable, because a request is pending.
                    let mut fds = [rustix::event::PollFd::new(
                        &listener,
                        rustix::event::PollFlags::IN,
                    )];
                    let limit = rustix::event::Timespec {
                        tv_sec: LIMIT.as_secs() as i64,
                        tv_nsec: 0,
                    };
                    assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1);
                    drop(listener);
                } else {
                    drop(listener.wait_request(Some(LIMIT)).unwrap());
                }
                let error = connecting.join().unwrap().unwrap_err();
                assert!(
                    matches!(&error, ConnectError::Rejected { private_data, .. } if private_data.is_empty()),
                    "{error:?}"
                );
            });
            drop(b);
        }
    }
}

#[test]
fn where_nothing_listens_the_error_says_so() {
    let ends = Setup::new(Wire::Kernel).unconnected();
    // The address is bound, so that no other test can listen there.
    let bound = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    bound
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    let port = bound.local_addr().unwrap().as_socket().unwrap();
    let memory = Setup::new(Wire::MEMORY).unconnected();
    for (side, addr) in [(&ends.a, port), (&memory.a, "192.0.2.2:1".parse().unwrap())] {
        side.post_empty(1);
        let error = side.qp.connect(addr, &Default::default()).unwrap_err();
        assert!(
            matches!(&error, ConnectError::Llp { error: LlpError::Refused { addr: to } } if *to == addr),
            "{error:?}"
        );
        assert!(
            error
                .to_string()
                .contains(&format!("nothing listens at {addr}")),
            "{error}"
        );
        side.recv_cq.flushed(1);
        assert!(matches!(
            side.qp.end_reason(),
            Some(EndReason::ConnectFailed { .. })
        ));
        // The same QP can be reset and then connect to a listener.
        assert!(side.qp.reset());
    }
    ends.join();
    memory.join();
    both_ways(&ends.a, &ends.b);
    both_ways(&memory.a, &memory.b);
}

#[test]
fn an_address_that_the_network_does_not_have_is_unreachable() {
    let ends = Setup::new(Wire::MEMORY).unconnected();
    let error = ends
        .a
        .qp
        .connect("192.0.2.99:7174", &Default::default())
        .unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::Llp {
                error: LlpError::Unreachable { .. }
            }
        ),
        "{error:?}"
    );
    assert_eq!(ends.a.qp.state(), QpState::Error);
}

#[test]
fn a_taken_address_and_a_foreign_one_cannot_be_listened_at() {
    for wire in Wire::BOTH {
        let ends = Setup::new(wire).unconnected();
        let error = ends
            .b
            .device
            .listen(ends.listener.local_addr())
            .unwrap_err();
        assert!(error.to_string().contains("in use"), "{error}");
        let error = ends
            .b
            .device
            .listen("198.51.100.7:1234".parse().unwrap())
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("is not an address of this machine"),
            "{error}"
        );
    }
}

#[test]
fn both_families_of_addresses_work_and_so_does_a_port_of_the_systems_choice() {
    let setup = Setup::new(Wire::MEMORY);
    let ends = setup.unconnected();
    let listener = ends
        .b
        .device
        .listen("[2001:db8::2]:0".parse().unwrap())
        .unwrap();
    assert_ne!(listener.local_addr().port(), 0);
    let connect = ConnectOptions::default().local(Some("[2001:db8::1]:4444".parse().unwrap()));
    join(&listener, &ends.a.qp, &ends.b.qp, &connect, &setup.accept);
    assert_eq!(
        ends.b.qp.connection().unwrap().peer,
        "[2001:db8::1]:4444".parse().unwrap()
    );
    exchange(&ends.a, &ends.b);
}

#[test]
fn a_qp_that_has_a_connection_takes_no_other_one() {
    let setup = Setup::new(Wire::MEMORY);
    let ends = setup.unconnected();
    ends.join();
    let error = ends
        .a
        .qp
        .connect(ends.listener.local_addr(), &setup.connect)
        .unwrap_err();
    assert!(
        matches!(
            error,
            ConnectError::QpInUse {
                state: QpState::Rts
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("state RTS"), "{error}");
    // An accept with this QP rejects the peer.
    let other = ends.a.another_qp();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| other.connect(ends.listener.local_addr(), &setup.connect));
        let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
        let error = request.accept(&ends.b.qp, &setup.accept).unwrap_err();
        assert!(
            matches!(
                error,
                AcceptError::QpInUse {
                    state: QpState::Rts
                }
            ),
            "{error:?}"
        );
        assert!(matches!(
            connecting.join().unwrap(),
            Err(ConnectError::Rejected { .. })
        ));
    });
    assert!(!ends.a.qp.reset(), "a QP in use cannot be reset");
    both_ways(&ends.a, &ends.b);
}

#[test]
fn a_connect_that_waits_for_the_decision_can_be_called_off() {
    for wire in Wire::BOTH {
        let ends = Setup::new(wire).unconnected();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| {
                ends.a
                    .qp
                    .connect(ends.listener.local_addr(), &Default::default())
            });
            let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
            ends.a.qp.disconnect();
            let error = connecting.join().unwrap().unwrap_err();
            let ConnectError::Ended { reason, .. } = &error else {
                panic!("{error:?}")
            };
            assert!(matches!(**reason, EndReason::LocalDisconnect), "{error:?}");
            // The accept may succeed or fail, because the peer has closed.
            if request.accept(&ends.b.qp, &Default::default()).is_ok() {
                ends.b.wait_end();
            }
        });
    }
}

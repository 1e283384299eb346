//! Requests and sizes that are refused, and the words of the errors.

use super::*;

/// Each request is refused for another reason, and its error message must contain the given words.
#[test]
fn a_request_that_cannot_be_posted_says_why_in_words() {
    let (a, b) = pair(Wire::MEMORY);
    let region = a.filled(1, 100);
    let sge = region.sge(0, 10);
    let (key, base) = (region.lkey(), region.addr());
    let gone = a.blank(10);
    let stale = gone.sge(0, 10);
    gone.deregister().unwrap();
    let foreign = a
        .device
        .alloc_pd()
        .unwrap()
        .register(vec![0; 10], Access::LOCAL_WRITE)
        .unwrap();
    let other_qp = a.another_qp();
    let bound =
        a.pd.register_for(&other_qp, vec![0; 10], Access::LOCAL_WRITE)
            .unwrap();
    let read_only = a.pd.register(vec![0; 10], Access::REMOTE_READ).unwrap();
    let wrong_key = Sge {
        lkey: key ^ 1,
        ..sge
    };

    let invalid = |lkey| LocalFaultKind::InvalidKey { lkey };
    let outside = |addr, len| LocalFaultKind::OutOfBounds {
        lkey: key,
        addr,
        len,
    };
    let faults = [
        (
            stale,
            invalid(stale.lkey),
            "never registered, deregistered or invalidated",
        ),
        (wrong_key, invalid(key ^ 1), "names no valid memory region"),
        (Sge { lkey: 0, ..sge }, invalid(0), "0x00000000"),
        (
            foreign.sge(0, 1),
            LocalFaultKind::NotAssociated {
                lkey: foreign.lkey(),
            },
            "another protection domain",
        ),
        (
            bound.sge(0, 1),
            LocalFaultKind::NotAssociated { lkey: bound.lkey() },
            "queue pair",
        ),
        (
            region.sge(91, 10),
            outside(base + 91, 10),
            "not inside the memory",
        ),
        (
            region.sge(101, 1),
            outside(base + 101, 1),
            "not inside the memory",
        ),
        (
            Sge {
                addr: base - 1,
                ..sge
            },
            outside(base - 1, 10),
            "10 bytes at",
        ),
        (
            Sge {
                addr: u64::MAX,
                ..sge
            },
            outside(u64::MAX, 10),
            "0xffffffffffffffff",
        ),
    ];
    for (bad, kind, words) in faults {
        let sges = [sge, bad];
        for posted in [
            a.qp.post_send(&SendWr::send(1, &sges)),
            a.qp.post_recv(&RecvWr::new(1, &sges)),
        ] {
            let error = posted.unwrap_err();
            let PostErrorKind::Memory(fault) = error.kind else {
                panic!("{error:?}")
            };
            assert_eq!((error.index, fault.index, fault.kind), (0, 1, kind));
            let said = error.to_string();
            assert!(said.contains(words), "{said}");
            assert!(
                said.contains("work request 0") && said.contains("element 1"),
                "{said}"
            );
        }
    }

    let not_writable = LocalFaultKind::NotWritable {
        lkey: read_only.lkey(),
    };
    for posted in [
        a.qp.post_recv(&RecvWr::new(1, &[read_only.sge(0, 1)])),
        a.qp.post_send(&SendWr::read(
            1,
            &[read_only.sge(0, 1)],
            RemoteBuffer::at(0, 0),
        )),
    ] {
        let error = posted.unwrap_err();
        let PostErrorKind::Memory(fault) = error.kind else {
            panic!("{error:?}")
        };
        assert_eq!(fault.kind, not_writable);
        assert!(
            error.to_string().contains("not registered for local write"),
            "{error}"
        );
    }

    let five = [sge; 5];
    let huge = [
        Sge {
            len: u32::MAX,
            ..sge
        },
        Sge { len: 1, ..sge },
    ];
    let long = [0; 257];
    let kinds = [
        (
            a.qp.post_send(&SendWr::send(1, &five)),
            PostErrorKind::TooManySges { got: 5, max: 4 },
            "takes at most 4",
        ),
        (
            a.qp.post_recv(&RecvWr::new(1, &five)),
            PostErrorKind::TooManySges { got: 5, max: 4 },
            "5 scatter/gather",
        ),
        (
            a.qp.post_send(&SendWr::read(1, &five, RemoteBuffer::at(0, 0))),
            PostErrorKind::TooManySges { got: 5, max: 4 },
            "takes at most 4",
        ),
        (
            a.qp.post_send(&SendWr::send_inline(1, &long)),
            PostErrorKind::InlineTooLong { got: 257, max: 256 },
            "257 bytes of inline data",
        ),
        (
            a.qp.post_send(&SendWr::write_inline(1, &long, RemoteBuffer::at(0, 0))),
            PostErrorKind::InlineTooLong { got: 257, max: 256 },
            "takes at most 256",
        ),
        (
            a.qp.post_send(&SendWr::send(1, &huge)),
            // 5041-5.2-03
            PostErrorKind::MessageTooLong { got: 1 << 32 },
            "at most 2^32 - 1",
        ),
        (
            a.qp.post_recv(&RecvWr::new(1, &huge)),
            PostErrorKind::MessageTooLong { got: 1 << 32 },
            "4294967296 bytes",
        ),
    ];
    for (posted, kind, words) in kinds {
        let error = posted.unwrap_err();
        assert_eq!(error.kind, kind);
        assert!(error.to_string().contains(words), "{error}");
    }

    // Nothing was posted, and the connection is not affected.
    a.send_cq.assert_empty();
    a.recv_cq.assert_empty();
    both_ways(&a, &b);
}

#[test]
fn a_request_beyond_its_remote_buffer_is_refused_and_the_connection_stands() {
    let (a, b) = pair(Wire::MEMORY);
    let (source, target) = (a.filled(1, 100), b.blank(64));
    let (local, word) = ([source.sge(0, 33)], [source.sge(0, 8)]);
    let half = target.remote().slice(32, 32).unwrap();
    let beyond = |got, room| PostErrorKind::BeyondRemote { got, room };
    for (request, kind) in [
        (SendWr::write(1, &local, half), beyond(33, 32)),
        (SendWr::read(1, &local, half), beyond(33, 32)),
        (SendWr::write_inline(1, &[0; 33], half), beyond(33, 32)),
        (
            SendWr::write_with_immediate(1, &local, half, [0; 8]),
            beyond(33, 32),
        ),
        (
            SendWr::fetch_add(1, &word, half.slice(0, 7).unwrap(), 1),
            beyond(8, 7),
        ),
        (
            SendWr::swap(1, &word, half.slice(31, 1).unwrap(), 1),
            beyond(8, 1),
        ),
    ] {
        assert_eq!(a.qp.post_send(&request).unwrap_err().kind, kind);
    }
    // These requests are exactly as long as the buffer, or empty.
    a.qp.post_send(&SendWr::write(2, &local[..0], half.slice(32, 0).unwrap()))
        .unwrap();
    a.send_cq.success(2);
    a.qp.post_send(&SendWr::write(3, &[source.sge(0, 32)], half))
        .unwrap();
    a.send_cq.success(3);
    both_ways(&a, &b);
    assert_eq!(content(&target)[32..], content(&source)[..32]);
}

#[test]
fn elements_before_a_refused_one_are_posted_and_none_after_it() {
    let (a, b) = pair(Wire::MEMORY);
    let (source, sink) = (a.filled(1, 100), b.blank(100));
    let good = [[sink.sge(0, 10)], [sink.sge(10, 10)]];
    let bad = [sink.sge(95, 10)];
    let list = [
        RecvWr::new(1, &good[0]),
        RecvWr::new(2, &good[1]),
        RecvWr::new(3, &bad),
        RecvWr::new(4, &good[0]),
    ];
    let error = b.qp.post_recv_list(&list).unwrap_err();
    assert_eq!(error.index, 2);
    assert!(
        error
            .to_string()
            .starts_with("work request 2 of the list was not posted: "),
        "{error}"
    );

    let good = [source.sge(0, 10)];
    let bad = [source.sge(95, 10)];
    let list = [
        SendWr::send(1, &good),
        SendWr::send(2, &good),
        SendWr::send(3, &bad),
        SendWr::send(4, &good),
    ];
    let error = a.qp.post_send_list(&list).unwrap_err();
    assert_eq!(error.index, 2);
    a.send_cq.successes([1, 2]);
    b.recv_cq.successes([1, 2]);
    a.send_cq.assert_empty();
    // Receives 3 and 4 were not posted, so the next one is this empty receive.
    bell(&a, &b);
    assert_eq!(
        content(&sink)[..20],
        [&pattern(1, 10)[..], &pattern(1, 10)].concat()
    );
}

#[test]
fn a_full_receive_queue_says_how_much_it_holds() {
    let caps = QpCaps::default().max_recv_wr(3);
    let (a, b) = Setup {
        caps,
        ..Setup::new(Wire::MEMORY)
    }
    .connected();
    let wrs: Vec<RecvWr<'_>> = (0..5).map(|i| RecvWr::new(i, &[])).collect();
    let error = b.qp.post_recv_list(&wrs).unwrap_err();
    assert_eq!(
        (error.index, error.kind),
        (3, PostErrorKind::RecvQueueFull { depth: 3 })
    );
    assert!(
        error
            .to_string()
            .contains("create the QP with a larger max_recv_wr"),
        "{error}"
    );
    // An arriving Send makes room for exactly one receive.
    a.qp.post_send(&SendWr::send(1, &[])).unwrap();
    b.recv_cq.success(0);
    b.post_empty(3);
    assert_eq!(
        b.qp.post_recv(&wrs[4]).unwrap_err().kind,
        PostErrorKind::RecvQueueFull { depth: 3 }
    );
}

#[test]
fn a_full_send_queue_says_how_much_it_holds() {
    // A responder may not send before the initiator, so its requests stay in the queue.
    let caps = QpCaps::default().max_send_wr(3);
    let (a, b) = Setup {
        caps,
        ..Setup::new(Wire::MEMORY)
    }
    .connected();
    let wrs: Vec<SendWr<'_>> = (0..5)
        .map(|i| SendWr::write(i, &[], RemoteBuffer::at(0, 0)))
        .collect();
    let error = b.qp.post_send_list(&wrs).unwrap_err();
    assert_eq!(
        (error.index, error.kind),
        (3, PostErrorKind::SendQueueFull { depth: 3 })
    );
    assert!(
        error
            .to_string()
            .contains("create the QP with a larger max_send_wr"),
        "{error}"
    );
    b.send_cq.assert_empty();
    bell(&a, &b);
    b.send_cq.successes([0, 1, 2]);
    b.qp.post_send_list(&wrs[3..]).unwrap();
    b.send_cq.successes([3, 4]);
}

#[test]
fn queues_of_no_length_take_nothing() {
    let caps = QpCaps::default()
        .max_send_wr(0)
        .max_recv_wr(0)
        .max_send_sge(0)
        .max_recv_sge(0)
        .max_inline_data(0);
    let setup = Setup {
        caps,
        ..Setup::new(Wire::MEMORY)
    };
    let (a, _b) = setup.connected();
    assert_eq!(
        a.qp.post_send(&SendWr::send(1, &[])).unwrap_err().kind,
        PostErrorKind::SendQueueFull { depth: 0 }
    );
    assert_eq!(
        a.qp.post_recv(&RecvWr::new(1, &[])).unwrap_err().kind,
        PostErrorKind::RecvQueueFull { depth: 0 }
    );
}

#[test]
fn sizes_and_limits_that_a_device_does_not_have_are_errors_with_names() {
    let mut settings = Settings::default();
    settings.limits.max_cq = 2;
    settings.limits.max_qp = 1;
    settings.limits.max_cqe = 100;
    settings.limits.max_mr = 1;
    let device = Device::tcp_with(settings, None).unwrap();
    for depth in [0, 101] {
        let error = device.create_cq(depth).unwrap_err();
        assert!(
            matches!(
                error,
                DeviceError::Size {
                    what: "the depth of the CQ",
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains("allows 1 to 100"), "{error}");
    }
    let cq = device.create_cq(100).unwrap();
    assert_eq!(cq.capacity(), 100);
    let second = device.create_cq(1).unwrap();
    let error = device.create_cq(1).unwrap_err();
    assert!(
        matches!(
            error,
            DeviceError::Limit {
                what: "CQs",
                limit: 2
            }
        ),
        "{error:?}"
    );
    drop(second);
    drop(device.create_cq(1).unwrap());

    let pd = device.alloc_pd().unwrap();
    let deep = QpCaps::default().max_send_wr(1 << 20);
    let error = pd.create_qp(&cq, &cq, deep).unwrap_err();
    assert!(
        matches!(
            error,
            DeviceError::Size {
                what: "max_send_wr",
                ..
            }
        ),
        "{error:?}"
    );
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let error = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap_err();
    assert!(
        matches!(
            error,
            DeviceError::Limit {
                what: "QPs",
                limit: 1
            }
        ),
        "{error:?}"
    );
    drop(qp);
    drop(pd.create_qp(&cq, &cq, QpCaps::default()).unwrap());

    let region = pd.register(vec![0; 1], Access::NONE).unwrap();
    let error = pd.register(vec![0; 1], Access::NONE).unwrap_err();
    assert!(
        error.to_string().contains("already holds 1 memory regions"),
        "{error}"
    );
    drop(region);
    drop(pd.register(vec![0; 1], Access::NONE).unwrap());
    assert!(
        pd.register(Vec::new(), Access::NONE)
            .unwrap_err()
            .to_string()
            .contains("0 bytes")
    );
    let error = pd.register(vec![0; 1], Access::REMOTE_WRITE).unwrap_err();
    assert!(error.to_string().contains("need local write"), "{error}");

    let other = Device::tcp().unwrap();
    let error = other
        .alloc_pd()
        .unwrap()
        .create_qp(&cq, &cq, QpCaps::default())
        .unwrap_err();
    assert!(
        matches!(error, DeviceError::OtherDevice { .. }),
        "{error:?}"
    );
}

/// Returns two setups without Reads: in one the ORD of this side is 0, in the other the IRD of the
/// peer.
fn without_reads() -> [Setup; 2] {
    [true, false].map(|ours| {
        let mut setup = Setup::new(Wire::MEMORY);
        if ours {
            setup.connect.ord = 0;
        } else {
            setup.accept.ird = 0;
            setup.settings[1].limits.max_ird = 0;
        }
        setup
    })
}

#[test]
fn without_ord_a_read_is_refused_at_post_and_the_connection_goes_on() {
    for setup in without_reads() {
        let (a, b) = setup.connected();
        let sink = a.blank(8);
        let sges = [sink.sge(0, 8)];
        for len in [0, 1] {
            let read = SendWr::read(1, &sges[..len], RemoteBuffer::at(0x1000, 1));
            let error = a.qp.post_send(&read).unwrap_err();
            assert_eq!(error.kind, PostErrorKind::NoReads);
            let words = error.to_string();
            assert!(
                words.contains("ORD is 0") && words.contains("IRD is above 0"),
                "{words}"
            );
        }
        a.send_cq.assert_empty();
        both_ways(&a, &b);
    }
}

/// When the Read is posted, this side does not know yet that Reads are impossible.
#[test]
fn a_read_posted_while_connecting_fails_where_then_there_are_none() {
    for setup in without_reads() {
        let ends = setup.unconnected();
        let (a, b) = (&ends.a, &ends.b);
        let sink = a.blank(8);
        let sges = [sink.sge(0, 8)];
        std::thread::scope(|scope| {
            let connecting =
                scope.spawn(|| a.qp.connect(ends.listener.local_addr(), &setup.connect));
            let request = ends.listener.wait_request(Some(LIMIT)).unwrap();
            let read = SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 1));
            a.qp.post_send_list(&[read, SendWr::send(2, &[])]).unwrap();
            request.accept(&b.qp, &setup.accept).unwrap();
            let _ = connecting.join().unwrap();
        });
        let done = a.send_cq.next();
        assert_eq!((done.wr_id, done.status), (1, Status::LocalQpOperation));
        let words = done.cause.unwrap().to_string();
        assert!(words.contains("ORD is 0"), "{words}");
        a.send_cq.flushed(2);
        let words = a.wait_end().to_string();
        assert!(words.contains("ORD is 0"), "{words}");
    }
}

//! Runs plans against a server in the same process, over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use uwarp_perf::{
    ATOMIC_SIZE, Atomic, Client, Event, Figures, PerfError, Plan, Row, Server, Test, Until,
    Waiting, run,
};
use uwarp_verbs::{AcceptOptions, Access, ConnectOptions, Device, QpCaps, RecvWr, WcOpcode};

const ALL: [Test; 10] = [
    Test::WriteImmBandwidth,
    Test::WriteImmLatency,
    Test::AtomicBandwidth,
    Test::AtomicLatency,
    Test::WriteBandwidth,
    Test::ReadBandwidth,
    Test::SendBandwidth,
    Test::WriteLatency,
    Test::ReadLatency,
    Test::SendLatency,
];

/// Starts a server for one client. Its thread returns the number of rows that the server reported.
fn server() -> (SocketAddr, JoinHandle<Result<usize, PerfError>>) {
    let device = Device::tcp().unwrap();
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = server.local_addr();
    let serving = move || {
        let mut rows = 0;
        server.serve_one(|event| rows += usize::from(matches!(event, Event::Row(_))))?;
        Ok(rows)
    };
    (addr, thread::spawn(serving))
}

/// Runs a plan. Returns its rows, and the number of rows that the server reported.
fn played(plan: &Plan) -> (Vec<Row>, usize) {
    let (addr, serving) = server();
    let results = run(&Device::tcp().unwrap(), addr, plan, |_| {}).unwrap();
    (results.rows, serving.join().unwrap().unwrap())
}

/// Returns the sizes for a test: the size of an atomic operation for atomics, otherwise
/// `of_others`.
fn sizes(test: Test, of_others: &[u32]) -> &[u32] {
    if test.is_atomic() {
        &[ATOMIC_SIZE]
    } else {
        of_others
    }
}

/// Creates a plan with few messages, because with more polling threads than processors each message
/// takes a time slice of the scheduler.
fn small(test: Test, sizes: &[u32]) -> Plan {
    let (iterations, warm_up) = if test.is_latency() { (8, 1) } else { (150, 10) };
    let mut plan = Plan::new(test, sizes);
    (plan.iterations, plan.warm_up) = (iterations, warm_up);
    plan
}

#[test]
fn each_test_measures_each_size() {
    for test in ALL {
        let sizes = sizes(test, &[1, 64, 5_000, 100_000]);
        let plan = small(test, sizes);
        let (rows, _) = played(&plan);
        assert_eq!(Vec::from_iter(rows.iter().map(|row| row.size)), sizes);
        for row in rows {
            assert_eq!(
                (row.messages, row.opposite.is_none()),
                (plan.iterations, true),
                "{test:?}"
            );
            assert!(row.seconds > 0.0 && row.cpu >= 0.0);
            match row.figures {
                Figures::Latency(latency) => {
                    assert!(test.is_latency());
                    let rising = [
                        latency.min,
                        latency.p50,
                        latency.p99,
                        latency.p999,
                        latency.max,
                    ];
                    assert!(rising.is_sorted() && rising[0] > 0.0, "{rising:?}");
                }
                Figures::Bandwidth(bandwidth) => {
                    assert!(!test.is_latency());
                    assert!(bandwidth.peak >= Some(bandwidth.average) && bandwidth.average > 0.0);
                }
            }
        }
    }
}

#[test]
fn each_test_waits_in_each_way_that_it_has() {
    for test in ALL {
        for waiting in [Waiting::Block, Waiting::Channel, Waiting::Memory] {
            let mut plan = small(test, &[8]);
            plan.waiting = waiting;
            if waiting == Waiting::Memory {
                // Each message waits until the background thread runs, because the waiting side
                // makes no call.
                (plan.iterations, plan.warm_up) = (5, 1);
            }
            if plan.check().is_ok() {
                let (rows, _) = played(&plan);
                assert_eq!(rows[0].messages, plan.iterations, "{test:?} {waiting:?}");
            }
        }
    }
}

#[test]
fn lists_inline_data_shallow_queues_and_many_qps_change_nothing() {
    for test in [
        Test::WriteBandwidth,
        Test::ReadBandwidth,
        Test::SendBandwidth,
        Test::WriteImmBandwidth,
        Test::AtomicBandwidth,
    ] {
        let mut plan = small(test, sizes(test, &[64, 65]));
        plan.qps = 3;
        plan.tx_depth = 7;
        plan.rx_depth = 5;
        plan.post_list = 4;
        plan.inline = 64;
        plan.cq_moderation = 1_000;
        let (rows, told) = played(&plan);
        assert_eq!(
            rows.iter().map(|row| row.messages).max(),
            Some(3 * 150),
            "{test:?}"
        );
        assert_eq!(told, 0);
    }
    let mut plan = small(Test::WriteLatency, &[64]);
    plan.inline = 64;
    plan.tx_depth = 1;
    assert_eq!(played(&plan).0[0].messages, plan.iterations);
}

#[test]
fn both_sides_send_when_they_are_told_to() {
    for test in [
        Test::WriteBandwidth,
        Test::ReadBandwidth,
        Test::SendBandwidth,
        Test::WriteImmBandwidth,
        Test::AtomicBandwidth,
    ] {
        let mut plan = small(test, sizes(test, &[4_096]));
        plan.bidirectional = true;
        plan.qps = 2;
        let (rows, told) = played(&plan);
        let opposite = rows[0].opposite.as_ref().unwrap();
        assert_eq!(
            (rows[0].messages, opposite.messages, told),
            (300, 300, 1),
            "{test:?}"
        );
    }
}

#[test]
fn a_target_that_sleeps_is_read_and_written() {
    for test in [
        Test::WriteBandwidth,
        Test::ReadBandwidth,
        Test::WriteLatency,
        Test::ReadLatency,
        Test::AtomicBandwidth,
        Test::AtomicLatency,
    ] {
        let mut plan = small(test, sizes(test, &[10_000]));
        plan.target_sleeps = true;
        assert_eq!(played(&plan).0[0].messages, plan.iterations, "{test:?}");
    }
}

#[test]
fn a_measurement_by_time_has_as_many_messages_as_went() {
    let both = [Test::SendBandwidth, Test::WriteLatency].map(|test| {
        let mut plan = small(test, &[64]);
        plan.until = Until::Seconds(0.25);
        thread::spawn(move || played(&plan))
    });
    for played in both {
        let row = &played.join().unwrap().0[0];
        assert!(row.messages > 0 && row.seconds >= 0.25, "{row:?}");
    }
}

#[test]
fn both_atomic_operations_are_measured() {
    for atomic in [Atomic::FetchAdd, Atomic::CompareSwap] {
        let mut plan = small(Test::AtomicBandwidth, &[ATOMIC_SIZE]);
        plan.atomic = atomic;
        assert_eq!(played(&plan).0[0].messages, plan.iterations, "{atomic:?}");
    }
}

#[test]
fn all_qps_take_their_receives_from_one_shared_queue() {
    for test in [Test::SendBandwidth, Test::WriteImmBandwidth] {
        for bidirectional in [false, true] {
            let mut plan = small(test, &[64, 20_000]);
            plan.srq = true;
            plan.qps = 4;
            plan.rx_depth = 8;
            plan.bidirectional = bidirectional;
            let (rows, _) = played(&plan);
            assert_eq!(rows[1].messages, 4 * 150, "{test:?}");
        }
    }
    let mut plan = small(Test::SendLatency, &[8]);
    plan.srq = true;
    assert_eq!(played(&plan).0[0].messages, plan.iterations);
}

#[test]
fn what_is_within_the_margins_is_not_measured() {
    for test in [Test::WriteBandwidth, Test::ReadLatency] {
        let mut plan = small(test, &[64]);
        plan.until = Until::Seconds(2.0);
        plan.margin = 0.25;
        let began = Instant::now();
        let (rows, _) = played(&plan);
        let row = &rows[0];
        assert!(row.messages > 0, "{test:?}");
        // Subtracts only one margin. On a busy machine, the completion that ends the measurement
        // may arrive after the second margin has begun.
        let most = began.elapsed().as_secs_f64() - plan.margin;
        assert!(row.seconds > 0.0 && row.seconds <= most, "{row:?}");
    }
}

#[test]
fn the_peak_and_the_single_times_are_there_when_they_are_asked_for() {
    let mut plan = small(Test::WriteBandwidth, &[64]);
    plan.peak = false;
    let (rows, _) = played(&plan);
    let Figures::Bandwidth(bandwidth) = &rows[0].figures else {
        panic!("{rows:?}")
    };
    assert_eq!(bandwidth.peak, None);
    assert!(rows[0].samples.is_empty());

    let mut plan = small(Test::SendLatency, &[64]);
    plan.samples = true;
    let (rows, _) = played(&plan);
    assert_eq!(rows[0].samples.len() as u64, plan.iterations);
    let Figures::Latency(latency) = &rows[0].figures else {
        panic!("{rows:?}")
    };
    let longest = rows[0].samples.iter().copied().fold(0.0, f64::max);
    assert!((longest - latency.max).abs() <= latency.max / 100.0);
}

#[test]
fn a_client_may_measure_a_size_again() {
    let (addr, serving) = server();
    let plan = small(Test::WriteBandwidth, &[64]);
    let device = Device::tcp().unwrap();
    let client = Client::connect(&device, Some(([127, 0, 0, 1], 0).into()), addr, &plan).unwrap();
    for _ in 0..3 {
        assert_eq!(client.measure(64).unwrap().messages, plan.iterations);
    }
    client.end().unwrap();
    serving.join().unwrap().unwrap();
}

#[test]
fn loopback_has_both_families_with_one_port() {
    let device = Device::tcp().unwrap();
    let server = Server::listen_on_loopback(&device, 0).unwrap();
    let addrs = Vec::from_iter(server.local_addrs());
    assert!(addrs.iter().all(|addr| addr.ip().is_loopback()));
    assert!(addrs.iter().all(|addr| addr.port() == addrs[0].port()));
    let serving = thread::spawn({
        let count = addrs.len();
        move || (0..count).try_for_each(|_| server.serve_one(|_| {}))
    });
    for addr in addrs {
        let plan = small(Test::SendBandwidth, &[64]);
        run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    }
    serving.join().unwrap().unwrap();
}

/// First bytes of perftest 4.5 (version 6.06), from its client and from its server.
const OF_PERFTEST: [u8; 16] = *b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";

fn is_perftest(error: &PerfError) -> bool {
    matches!(error, PerfError::Perftest { version: Some(version), .. } if version == "6.06")
}

#[test]
fn a_server_of_perftest_over_tcp_is_named() {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = fake.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream.write_all(&OF_PERFTEST).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let plan = small(Test::WriteBandwidth, &[64]);
    let error = run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap_err();
    assert!(is_perftest(&error), "{error}");
    serving.join().unwrap();
}

#[test]
fn a_client_of_perftest_over_tcp_is_named_and_the_server_goes_on() {
    let device = Device::tcp().unwrap();
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = server.local_addr();
    let (tell, told) = mpsc::channel();
    let serving = thread::spawn(move || {
        server.serve_one(|event| {
            if let Event::ForeignConnection(error) = event {
                tell.send(is_perftest(error)).unwrap();
            }
        })
    });
    for first in [&OF_PERFTEST[..], b"GET / HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.write_all(first).unwrap();
        assert_eq!(told.recv().unwrap(), first == OF_PERFTEST);
    }
    let plan = small(Test::WriteBandwidth, &[64]);
    run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    serving.join().unwrap().unwrap();
}

/// One silent connection blocked the server for a minute before, and then ended it.
#[test]
fn silent_and_closed_connections_do_not_delay_a_client() {
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = server.local_addr();
    let (tell, told) = mpsc::channel();
    let serving = thread::spawn(move || {
        server.serve_one(|event| {
            if let Event::ForeignConnection(error) = event {
                tell.send(error.to_string()).unwrap();
            }
        })
    });
    let connect = || {
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        qp.connect(addr, &ConnectOptions::default()).unwrap();
        qp
    };
    // More than the server keeps: the newest displace the oldest.
    let silent: Vec<_> = (0..100).map(|_| connect()).collect();
    drop(connect());
    told.recv().unwrap();
    let plan = small(Test::WriteBandwidth, &[64]);
    run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    serving.join().unwrap().unwrap();
    drop(silent);
}

#[test]
fn a_plan_beyond_the_memory_of_the_server_is_declined_before_anything_is_allocated() {
    let device = Device::tcp().unwrap();
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = server.local_addr();
    let serving = thread::spawn(move || {
        let mut declined = Vec::new();
        let served = server.serve_one(|event| {
            if let Event::ForeignConnection(error) = event {
                declined.push(error.to_string());
            }
        });
        served.map(|()| declined)
    });
    let declined = |change: fn(&mut uwarp_perf::Plan)| {
        let mut plan = small(Test::ReadBandwidth, &[1 << 30]);
        change(&mut plan);
        let error = run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap_err();
        assert!(error.to_string().contains("--max-memory"), "{error}");
    };
    declined(|plan| plan.qps = 7);
    // The queues alone would take gigabytes.
    declined(|plan| {
        plan.sizes = vec![1];
        (plan.qps, plan.tx_depth) = (1_024, 32_768);
    });
    let plan = small(Test::WriteBandwidth, &[64]);
    run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    let declined = serving.join().unwrap().unwrap();
    assert_eq!(declined.len(), 2, "{declined:?}");
    assert!(
        declined.iter().all(|why| why.contains("bytes of memory")),
        "{declined:?}"
    );
}

/// With `-R`, perftest sends only its 16 bytes until it knows the other version.
#[test]
fn perftest_over_rdma_cm_is_named_both_ways() {
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let qp = || pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();

    let listening = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listening.local_addr();
    let (tell, told) = mpsc::channel();
    let serving = thread::spawn(move || {
        listening.serve_one(|event| {
            if let Event::ForeignConnection(error) = event {
                tell.send(is_perftest(error)).unwrap();
            }
        })
    });
    let client = qp();
    client.connect(addr, &ConnectOptions::default()).unwrap();
    client
        .post_send(&uwarp_verbs::SendWr::send_inline(0, &OF_PERFTEST))
        .unwrap();
    assert!(told.recv().unwrap());
    // The server continues, as it does after a perftest client over TCP.
    let plan = small(Test::WriteBandwidth, &[64]);
    run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    serving.join().unwrap().unwrap();

    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let plan = small(Test::WriteBandwidth, &[64]);
    let running = thread::spawn(move || run(&Device::tcp().unwrap(), addr, &plan, |_| {}));
    let server = qp();
    let inbox = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap();
    let sges = [inbox.sge(0, 64)];
    server.post_recv(&RecvWr::new(0, &sges)).unwrap();
    let request = listener.wait_request(None).unwrap();
    request.accept(&server, &AcceptOptions::default()).unwrap();
    // As in perftest, the server sends only after the client.
    while !cq.wait(None).is_some_and(|completion| {
        completion.qp_num == server.qp_num() && completion.opcode == WcOpcode::Recv
    }) {}
    server
        .post_send(&uwarp_verbs::SendWr::send_inline(0, &OF_PERFTEST))
        .unwrap();
    let error = running.join().unwrap().unwrap_err();
    assert!(is_perftest(&error), "{error}");
}

#[test]
fn a_plan_that_makes_no_sense_does_not_reach_the_server() {
    let mut plan = small(Test::WriteBandwidth, &[1]);
    plan.qps = 0;
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let refused = run(&Device::tcp().unwrap(), nowhere, &plan, |_| {});
    assert!(matches!(refused, Err(PerfError::Plan(_))));
}

#[test]
fn a_server_that_cannot_says_why() {
    let (addr, serving) = server();
    let mut plan = small(Test::WriteBandwidth, &[1]);
    plan.qps = 65_536;
    plan.tx_depth = 32_768;
    let refused = run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap_err();
    assert!(matches!(refused, PerfError::Declined { .. }), "{refused}");
    assert!(refused.to_string().contains("--max-memory"), "{refused}");
    // The server still serves a client that asks for less.
    let plan = small(Test::WriteBandwidth, &[64]);
    run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    serving.join().unwrap().unwrap();
}

#[test]
fn a_peer_that_is_something_else_is_named_and_the_server_goes_on() {
    let device = Device::tcp().unwrap();
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = server.local_addr();
    let (tell, told) = mpsc::channel();
    let serving = thread::spawn(move || {
        server.serve_one(|event| {
            if let Event::ForeignConnection(error) = event {
                let is_protocol = matches!(error, PerfError::Protocol { .. });
                tell.send((is_protocol, error.to_string())).unwrap();
            }
        })
    });
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    qp.connect(addr, &ConnectOptions::default()).unwrap();
    qp.post_send(&uwarp_verbs::SendWr::send_inline(0, b"hello"))
        .unwrap();
    let (is_protocol, error) = told.recv().unwrap();
    assert!(is_protocol, "{error}");
    let plan = small(Test::WriteBandwidth, &[64]);
    run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap();
    serving.join().unwrap().unwrap();
}

/// The duration ends before the first message completes, because 32 MiB take more than a
/// millisecond. The first completion starts the measurement, and no later completion ends it.
#[test]
fn margins_that_leave_no_message_are_an_error_of_the_client_alone() {
    for bidirectional in [false, true] {
        let mut plan = Plan::new(Test::ReadBandwidth, &[32 << 20]);
        plan.until = Until::Seconds(0.001);
        plan.margin = 0.000_499;
        plan.warm_up = 0;
        (plan.tx_depth, plan.cq_moderation) = (1, 1);
        plan.bidirectional = bidirectional;
        let (addr, serving) = server();
        let error = run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap_err();
        assert!(
            matches!(error, PerfError::NothingMeasured { size, .. } if size == 32 << 20),
            "{error}"
        );
        serving.join().unwrap().unwrap();
    }
}

#[test]
fn a_client_without_the_token_of_the_server_is_declined_and_does_not_delay_one_with_it() {
    let device = Device::tcp().unwrap();
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let server = server.token(Some("secret".to_owned()));
    let addr = server.local_addr();
    let serving = thread::spawn(move || {
        let mut declined = 0;
        let served = server.serve_one(|event| {
            declined += u32::from(matches!(event, Event::ForeignConnection(_)));
        });
        served.map(|()| declined)
    });
    let plan = small(Test::WriteBandwidth, &[64]);
    let device = Device::tcp().unwrap();
    for wrong in [None, Some(""), Some("secre"), Some("secret2")] {
        let refused = Client::connect_with(&device, None, addr, &plan, wrong);
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("token"), "{error}");
    }
    let client = Client::connect_with(&device, None, addr, &plan, Some("secret")).unwrap();
    client.measure(64).unwrap();
    client.end().unwrap();
    assert_eq!(serving.join().unwrap().unwrap(), 4);
}

#[test]
fn an_empty_token_does_not_admit_a_client_without_one() {
    let device = Device::tcp().unwrap();
    let server = Server::listen(&device, "127.0.0.1:0".parse().unwrap()).unwrap();
    let server = server.token(Some(String::new()));
    let addr = server.local_addr();
    // It serves nobody, so it runs until the end of the tests.
    thread::spawn(move || server.serve_one(|_| {}));
    let plan = small(Test::WriteBandwidth, &[64]);
    for empty in [None, Some("")] {
        let refused = Client::connect_with(&device, None, addr, &plan, empty);
        let error = refused.err().unwrap().to_string();
        assert!(error.contains("token"), "{error}");
    }
}

//! Plans against a server in the same process, over loopback.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use uwarp_perf::{Event, Figures, PerfError, Plan, Row, Server, Test, Until, Waiting, run};
use uwarp_verbs::{ConnectOptions, Device, QpCaps};

const ALL: [Test; 6] = [
    Test::WriteBandwidth,
    Test::ReadBandwidth,
    Test::SendBandwidth,
    Test::WriteLatency,
    Test::ReadLatency,
    Test::SendLatency,
];

/// A server for one client, and how many rows of its own it told.
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

/// The rows of a plan, and how many the server told.
fn played(plan: &Plan) -> (Vec<Row>, usize) {
    let (addr, serving) = server();
    let results = run(&Device::tcp().unwrap(), addr, plan, |_| {}).unwrap();
    (results.rows, serving.join().unwrap().unwrap())
}

/// Few messages by turns: where more threads poll than there are processors, each is a turn of the scheduler.
fn small(test: Test, sizes: &[u32]) -> Plan {
    let (iterations, warm_up) = if test.is_latency() { (8, 1) } else { (150, 10) };
    Plan {
        iterations,
        warm_up,
        ..Plan::new(test, sizes)
    }
}

#[test]
fn each_test_measures_each_size() {
    for test in ALL {
        let plan = small(test, &[1, 64, 5_000, 100_000]);
        let (rows, _) = played(&plan);
        assert_eq!(
            Vec::from_iter(rows.iter().map(|row| row.size)),
            [1, 64, 5_000, 100_000]
        );
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
                    assert!(bandwidth.peak >= bandwidth.average && bandwidth.average > 0.0);
                }
            }
        }
    }
}

#[test]
fn each_test_waits_in_each_way_that_it_has() {
    for test in ALL {
        for waiting in [Waiting::Block, Waiting::Channel, Waiting::Memory] {
            let mut plan = Plan {
                waiting,
                ..small(test, &[8])
            };
            if waiting == Waiting::Memory {
                // Each waits for a turn of the background thread beside one that looks and makes no call.
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
    ] {
        let plan = Plan {
            qps: 3,
            tx_depth: 7,
            rx_depth: 5,
            post_list: 4,
            inline: 64,
            cq_moderation: 1_000,
            ..small(test, &[64, 65])
        };
        let (rows, told) = played(&plan);
        assert_eq!(
            rows.iter().map(|row| row.messages).max(),
            Some(3 * 150),
            "{test:?}"
        );
        assert_eq!(told, 0);
    }
    let plan = Plan {
        inline: 64,
        tx_depth: 1,
        ..small(Test::WriteLatency, &[64])
    };
    assert_eq!(played(&plan).0[0].messages, plan.iterations);
}

#[test]
fn both_sides_send_when_they_are_told_to() {
    for test in [
        Test::WriteBandwidth,
        Test::ReadBandwidth,
        Test::SendBandwidth,
    ] {
        let plan = Plan {
            bidirectional: true,
            qps: 2,
            ..small(test, &[4_096])
        };
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
    ] {
        let plan = Plan {
            target_sleeps: true,
            ..small(test, &[10_000])
        };
        assert_eq!(played(&plan).0[0].messages, plan.iterations, "{test:?}");
    }
}

#[test]
fn a_measurement_by_time_has_as_many_messages_as_went() {
    let both = [Test::SendBandwidth, Test::WriteLatency].map(|test| {
        let plan = Plan {
            until: Until::Seconds(0.25),
            ..small(test, &[64])
        };
        thread::spawn(move || played(&plan))
    });
    for played in both {
        let row = &played.join().unwrap().0[0];
        assert!(row.messages > 0 && row.seconds >= 0.25, "{row:?}");
    }
}

#[test]
fn a_plan_that_makes_no_sense_does_not_reach_the_server() {
    let plan = Plan {
        qps: 0,
        ..small(Test::WriteBandwidth, &[1])
    };
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let refused = run(&Device::tcp().unwrap(), nowhere, &plan, |_| {});
    assert!(matches!(refused, Err(PerfError::Plan(_))));
}

#[test]
fn a_server_that_cannot_says_why() {
    let (addr, serving) = server();
    let plan = Plan {
        qps: 65_536,
        tx_depth: 32_768,
        ..small(Test::WriteBandwidth, &[1])
    };
    let refused = run(&Device::tcp().unwrap(), addr, &plan, |_| {}).unwrap_err();
    assert!(matches!(refused, PerfError::Declined { .. }), "{refused}");
    assert!(
        refused.to_string().contains("65536") || refused.to_string().contains("CQ"),
        "{refused}"
    );
    assert!(serving.join().unwrap().is_err());
}

#[test]
fn a_peer_that_is_something_else_is_told_so() {
    let (addr, serving) = server();
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(8).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    qp.connect(addr, &ConnectOptions::default()).unwrap();
    qp.post_send(&uwarp_verbs::SendWr::send_inline(0, b"hello"))
        .unwrap();
    let error = serving.join().unwrap().unwrap_err();
    assert!(matches!(error, PerfError::Protocol { .. }), "{error}");
}

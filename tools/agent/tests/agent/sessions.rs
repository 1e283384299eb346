//! Controllers connect and disconnect without an effect on others.

use serde_json::{Value, json};

use crate::controller::{Connected, Controller, PATIENCE, agent, connect};

#[test]
fn numbers_are_each_controllers_own() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    assert_eq!(a.ok("reg", json!({"len": 8}))["mr"], 0);
    b.refused("dereg", json!({"mr": 0}));
    assert_eq!(b.ok("reg", json!({"len": 8}))["mr"], 0);
    a.ok("dereg", json!({"mr": 0}));
    b.ok("peek", json!({"mr": 0}));
}

/// If a controller vanishes in the middle of a transfer, only its own objects end.
#[test]
fn a_controller_that_vanishes_ends_its_connections_and_no_others() {
    let agent = agent();
    let (mut gone, mut peer) = (Controller::new(&agent), Controller::new(&agent));
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let lost = connect(&mut gone, &mut peer, &json!({}));
    let kept = connect(&mut a, &mut b, &json!({}));
    let lent = peer.ok("reg", json!({"len": 1 << 20, "access": "lw,rr,rw"}));
    gone.ok("reg", json!({"len": 1 << 20}));
    for op in ["write", "read"] {
        let post = json!({"conn": lost.active, "op": op, "sge": "0:0+1048576", "count": 8,
            "raddr": lent["addr"], "rkey": lent["rkey"], "signal": "none"});
        gone.ok("post", post);
    }
    let port = gone.ok("listen", json!({}))["port"].clone();
    drop(gone);
    let end = peer.event("disconnected", &lost.passive);
    assert!(end["cause"].is_string(), "{end}");
    peer.ok("reset", json!({}));

    // The listener of the vanished controller has ended as well.
    let conn = a.ok("open", json!({"addr": "127.0.0.1", "port": port}))["conn"].clone();
    a.event("ready", &conn);
    a.ok("connect", json!({"conn": conn}));
    assert_eq!(a.event("rejected", &conn)["status"], -111);

    b.ok("recv", json!({"conn": kept.passive, "wr_id": 1}));
    a.ok(
        "post",
        json!({"conn": kept.active, "op": "send", "wr_id": 1}),
    );
    b.success(&kept.passive, 1);
    a.success(&kept.active, 1);
    wait_for(&agent, 3);
}

fn wait_for(agent: &uwarp_agent::Agent, controllers: usize) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while agent.controllers() != controllers {
        assert!(std::time::Instant::now() < deadline);
        std::thread::yield_now();
    }
}

#[test]
fn a_reset_frees_everything() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let srq = a.ok("srq", json!({}))["srq"].clone();
    let Connected { active, passive } = connect(&mut b, &mut a, &json!({"recv_sge": 1}));
    a.ok("reg", json!({"len": 4096, "access": "lw,mw"}));
    a.ok("bind", json!({"conn": passive, "mr": 0, "access": "rw"}));
    let full = a.refused("reg", json!({"len": 1 << 30}));
    assert!(full["error"].as_str().unwrap().contains("4096 are in use"));
    a.ok("reset", json!({}));
    b.event("disconnected", &active);
    for (name, members) in [
        ("query_qp", json!({"conn": passive})),
        ("srq_query", json!({"srq": srq})),
        ("dereg", json!({"mr": 0})),
        ("unbind", json!({"mw": 0})),
    ] {
        a.refused(name, members);
    }
    let full = a.refused("reg", json!({"len": (1 << 30) + 1}));
    assert!(full["error"].as_str().unwrap().contains("and 0 are in use"));
    connect(&mut b, &mut a, &json!({}));
}

#[test]
fn exit_is_answered_and_ends_only_the_controller_that_said_it() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    a.ok("exit", json!({}));
    assert_eq!(a.line(), None);
    b.ok("query", json!({}));
}

#[test]
fn the_end_of_the_agent_ends_its_controllers() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    connect(&mut a, &mut b, &json!({}));
    let rdma = agent.rdma_addr().unwrap();
    agent.stop();
    while a.line().is_some() {}
    while b.line().is_some() {}
    // Both ports are free again.
    std::net::TcpListener::bind(rdma).unwrap();
}

#[test]
fn one_controller_too_many_is_told_so() {
    let agent = agent();
    let mut controllers: Vec<_> = (0..64).map(|_| Controller::new(&agent)).collect();
    for controller in &mut controllers {
        controller.ok("query", json!({}));
    }
    let mut late = Controller::silent(&agent);
    let told: Value = late.line().unwrap();
    assert_eq!(
        told["error"],
        "the agent already has 64 controllers, the limit"
    );
    assert_eq!(late.line(), None);
    controllers[63].ok("query", json!({}));
    controllers.truncate(63);
    wait_for(&agent, 63);
    Controller::new(&agent).ok("query", json!({}));
}

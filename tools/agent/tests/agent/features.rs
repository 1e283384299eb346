//! Features that only this agent has, and the beginning and end of connections.

use serde_json::{Value, json};
use uwarp_verbs::{Revision, Settings};

use crate::controller::{Connected, Controller, agent, agent_with, connect};

#[test]
fn query_tells_what_the_device_was_told() {
    let usual = agent();
    let answer = Controller::new(&usual).ok("query", json!({}));
    for (key, value) in [
        ("device", json!("uwarp0")),
        ("transport", json!(1)),
        ("port", json!("PORT_ACTIVE")),
        ("markers", json!(false)),
        ("crc", json!(true)),
        ("mpa", json!(2)),
        ("rfc7306", json!(true)),
        ("private_data_max", json!(508)),
        ("ird_max", json!(128)),
        ("windows", json!(true)),
        ("scoped_regions", json!(true)),
        ("peer_to_peer", json!(true)),
        ("rdma_port", json!(usual.rdma_addr().unwrap().port())),
    ] {
        assert_eq!(answer[key], value, "{key}: {answer}");
    }
    let other = agent_with(
        Settings::default()
            .markers(true)
            .crc(false)
            .revision(Revision::One)
            .accept_revision(Revision::One),
    );
    let (mut a, mut b) = (Controller::new(&other), Controller::new(&other));
    let answer = a.ok("query", json!({}));
    let keys = ["markers", "crc", "mpa", "private_data_max", "peer_to_peer"];
    let told: Vec<&Value> = keys.iter().map(|key| &answer[key]).collect();
    assert_eq!(json!(told), json!([true, false, 1, 512, false]));

    let Connected { active, .. } = connect(&mut a, &mut b, &json!({}));
    let agreed = a.ok("query_qp", json!({"conn": active}));
    assert_eq!((&agreed["mpa"], &agreed["crc"]), (&json!(1), &json!(false)));
    assert_eq!(
        (&agreed["markers_sent"], &agreed["markers_received"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        (&agreed["state"], &agreed["send_wr"]),
        (&json!("rts"), &json!(64))
    );
}

/// Makes `a` connect to `b`. Returns the number of the connection at `a`, and the request event at
/// `b`.
fn request(a: &mut Controller, b: &mut Controller, connect: Value) -> (Value, Value) {
    let port = b.ok("listen", json!({}))["port"].clone();
    let conn = a.ok("open", json!({"addr": "127.0.0.1", "port": port}))["conn"].clone();
    a.event("ready", &conn);
    let mut members = connect;
    members["conn"] = conn.clone();
    a.ok("connect", members);
    let request = b.wait("a request", |line| line["ev"] == "connect_request");
    (conn, request)
}

#[test]
fn private_data_ird_and_ord_travel_both_ways() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let members = json!({"data": "00ff", "ird": 3, "ord": 5, "peer_to_peer": true});
    let (conn, request) = request(&mut a, &mut b, members);
    assert_eq!(request["data"], "00ff", "{request}");
    assert_eq!((&request["ird"], &request["ord"]), (&json!(5), &json!(3)));
    assert_eq!(request["peer_to_peer"], true);
    let long = "ab".repeat(509);
    let refused = b.refused("accept", json!({"conn": request["conn"], "data": long}));
    assert_eq!(refused["error"], "rdma_accept");
    assert_eq!(a.event("rejected", &conn)["status"], -111);
}

#[test]
fn a_reject_has_its_words_and_the_second_try_is_accepted() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let (conn, first) = request(&mut a, &mut b, json!({}));
    b.ok("reject", json!({"conn": first["conn"], "data": "6e6f"}));
    let rejected = a.event("rejected", &conn);
    assert_eq!(
        (&rejected["data"], &rejected["status"]),
        (&json!("6e6f"), &json!(-111))
    );
    assert!(rejected["cause"].is_string());
    a.ok("modify", json!({"conn": conn, "state": "reset"}));
    a.ok("connect", json!({"conn": conn, "ord": 2}));
    let second = b.wait("a request", |line| line["ev"] == "connect_request");
    assert_ne!(second["conn"], first["conn"]);
    b.ok("accept", json!({"conn": second["conn"], "data": "79"}));
    let established = a.event("established", &conn);
    assert_eq!(
        (&established["data"], &established["ord"]),
        (&json!("79"), &json!(2))
    );
}

#[test]
fn completions_come_before_the_end_of_their_connection() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({}));
    b.ok("recv", json!({"conn": passive, "count": 20}));
    a.ok("disconnect", json!({"conn": active}));
    assert!(a.event("disconnected", &active)["cause"].is_string());
    let end = b.event("disconnected", &passive);
    assert_eq!(end["status"], 0);
    let flushed: Vec<_> = b
        .unread()
        .iter()
        .filter(|line| line.get("wc").is_some())
        .collect();
    assert_eq!(flushed.len(), 20);
    assert!(
        flushed
            .iter()
            .all(|line| line["st"] == 5 && line["cause"].is_string())
    );
    b.ok("destroy", json!({"conn": passive}));
    b.refused("query_qp", json!({"conn": passive}));
}

#[test]
fn rights_of_a_qp_can_be_taken_away() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({"access": "rr"}));
    let lent = b.ok("reg", json!({"len": 8, "access": "lw,rr"}));
    a.ok("reg", json!({"len": 8}));
    let read = |wr_id: u64| json!({"conn": active, "op": "read", "wr_id": wr_id, "sge": "0:0+8", "raddr": lent["addr"], "rkey": lent["rkey"]});
    a.ok("post", read(1));
    a.success(&active, 1);
    b.ok("modify_access", json!({"conn": passive, "access": "rw"}));
    a.ok("post", read(2));
    let refused = a.completion(&active, 2);
    assert_eq!(refused["status"], "rem_access_err", "{refused}");
    assert!(refused["cause"].is_string());
}

#[test]
fn a_message_without_a_receive_waits_as_long_as_it_was_told() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let Connected { active, passive } = connect(&mut a, &mut b, &json!({"hold_ms": 60_000}));
    a.ok("post", json!({"conn": active, "op": "send", "wr_id": 1}));
    a.success(&active, 1);
    b.ok("recv", json!({"conn": passive, "wr_id": 2}));
    b.success(&passive, 2);
    b.refused("listen", json!({"hold_ms": 60_001}));
}

#[test]
fn a_shared_receive_queue_tells_when_it_runs_low() {
    let agent = agent();
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    let srq = b.ok("srq", json!({"max_wr": 8, "sge": 1}))["srq"].clone();
    let port = b.ok("listen", json!({"auto": true, "srq": srq}))["port"].clone();
    let conn = a.ok("open", json!({"addr": "127.0.0.1", "port": port}))["conn"].clone();
    a.event("ready", &conn);
    a.ok("connect", json!({"conn": conn}));
    a.event("established", &conn);
    b.ok("srq_recv", json!({"srq": srq, "count": 2, "wr_id": 7}));
    b.ok("srq_modify", json!({"srq": srq, "limit": 2}));
    assert_eq!(b.ok("srq_query", json!({"srq": srq}))["limit"], 2);
    a.ok("post", json!({"conn": conn, "op": "send"}));
    let low = b.wait("the limit", |line| line["type"] == 15);
    assert_eq!(low["srq"], srq);
    let busy = b.refused("srq_destroy", json!({"srq": srq}));
    assert_eq!(busy["errno"], 16);
    let received = b.wait("the receive", |line| line["wr_id"] == 7);
    b.ok("destroy", json!({"conn": received["wc"]}));
    b.ok("srq_destroy", json!({"srq": srq}));
    assert!(
        a.unread().iter().all(|line| line["type"] != 15),
        "{:?}",
        a.unread()
    );
}

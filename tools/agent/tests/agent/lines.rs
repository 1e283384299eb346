//! Invalid lines and commands are refused, and do not disturb other controllers.

use serde_json::json;

use crate::controller::{Controller, agent};

#[test]
fn a_line_that_is_no_object_is_refused_without_an_id_and_closes() {
    let agent = agent();
    let mut other = Controller::new(&agent);
    for line in [
        &b"nonsense"[..],
        b"{}{}",
        b"[1]",
        b"{\"id\":{}}",
        b"{\"id\":1,\"id\":2}",
        b"{\"id\":-1}",
        b"{\"id\":1.5}",
        b"\xff\xfe",
        b"\0",
        b"{\"id\":1,\"cmd\":\"query\"",
    ] {
        let mut controller = Controller::new(&agent);
        controller.ok("query", json!({}));
        let answer = controller.answer_to(line);
        assert_eq!(answer["ok"], json!(false), "{answer}");
        assert!(answer.get("id").is_none() && answer["error"].is_string());
        assert_eq!(controller.line(), None);
    }
    other.ok("query", json!({}));
}

#[test]
fn a_command_that_makes_no_sense_is_refused_in_words() {
    let agent = agent();
    let mut controller = Controller::new(&agent);
    for (name, members, why) in [
        ("", json!({}), "there is no command ''"),
        ("Query", json!({}), "there is no command 'Query'"),
        (
            "query",
            json!({"x": 1}),
            "this command has no 'x'; it takes: id cmd",
        ),
        (
            "reg",
            json!({}),
            "len: 1 and more, skew: below a page (4096)",
        ),
        ("reg", json!({"len": "many"}), "len: a number was expected"),
        (
            "reg",
            json!({"len": 8, "access": "rx"}),
            "access: 'rx' is none of lw rw rr ra mw",
        ),
        ("reg", json!({"len": 8, "pd": 8}), "pd: 0 to 7 was expected"),
        (
            "reg",
            json!({"len": (1u64 << 30) + 1}),
            "all regions of a controller have at most 1 GiB, and 0 are in use",
        ),
        (
            "reg",
            json!({"len": 8, "conn": 3}),
            "there is no connection 3",
        ),
        ("dereg", json!({"mr": 9}), "there is no region 9"),
        ("accept", json!({"conn": 0}), "there is no connection 0"),
        (
            "connect",
            json!({"conn": 0, "ird": 16384}),
            "ird: 0 to 16383 was expected",
        ),
        ("open", json!({"port": 7}), "addr: an address was expected"),
        (
            "open",
            json!({"addr": "localhost", "port": 7}),
            "addr: an IP address was expected, got 'localhost'",
        ),
        (
            "listen",
            json!({"notify": "some"}),
            "notify: all, solicited or none was expected",
        ),
        (
            "unlisten",
            json!({}),
            "there is no listener 18446744073709551615",
        ),
        (
            "srq_query",
            json!({"srq": 1}),
            "there is no shared receive queue 1",
        ),
        ("unbind", json!({"mw": 1}), "there is no window 1"),
    ] {
        let answer = controller.refused(name, members);
        assert_eq!(answer["error"], json!(why), "{answer}");
    }
}

#[test]
fn a_refusal_of_the_library_has_the_name_of_the_call_a_number_and_words() {
    let agent = agent();
    let mut controller = Controller::new(&agent);
    let answer = controller.refused("reg", json!({"len": 8, "access": "rw"}));
    assert_eq!(
        (&answer["error"], &answer["errno"]),
        (&json!("ibv_reg_mr"), &json!(22))
    );
    let text = answer["text"].as_str().unwrap();
    assert!(text.contains("need local write as well"), "{text}");

    let port = controller.ok("listen", json!({}))["port"].clone();
    let answer = controller.refused("listen", json!({"port": port}));
    assert_eq!(
        (&answer["error"], &answer["errno"]),
        (&json!("rdma_bind_addr"), &json!(98))
    );
}

#[test]
fn a_line_that_is_too_long_is_refused_and_closes() {
    let agent = agent();
    let mut controller = Controller::new(&agent);
    let longest = format!("{:65534}}}", "{\"id\":5,\"cmd\":\"query\"");
    assert_eq!(longest.len(), 65_535);
    assert_eq!(controller.answer_to(longest.as_bytes())["ok"], json!(true));
    // Without an end of line: the agent has then read everything, so TCP does not reset.
    controller.write(&[b' '; 65_536]);
    let answer = controller.line().unwrap();
    assert_eq!(answer["error"], json!("a line is longer than 65535 bytes"));
    assert_eq!(controller.line(), None);
}

#[test]
fn a_controller_that_reads_nothing_holds_up_only_itself() {
    let agent = agent();
    let (mut deaf, mut other) = (Controller::new(&agent), Controller::new(&agent));
    deaf.ok("reg", json!({"len": 4096}));
    // The answers exceed the buffers of TCP and the limit of the queue, so later commands wait.
    let line = b"{\"cmd\":\"peek\",\"mr\":0}\n".repeat(2000);
    deaf.write(&line);
    other.ok("reg", json!({"len": 4096}));
    // The commands are executed when the controller reads.
    for _ in 0..2000 {
        let answer = deaf.line().unwrap();
        assert_eq!(answer["data"].as_str().unwrap().len(), 8192);
    }
    deaf.ok("query", json!({}));
}

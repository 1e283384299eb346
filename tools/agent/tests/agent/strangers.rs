//! Strangers at the control port: web pages, silent connections, and controllers without the token.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use serde_json::json;
use uwarp_agent::{Agent, Options, ServeError, serve};
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{Device, Settings};

use crate::controller::{Controller, agent};

fn device() -> Device {
    Device::open(Arc::new(KernelNetwork::default()), Settings::default()).unwrap()
}

fn agent_with(change: impl FnOnce(&mut Options)) -> Agent {
    let mut options = Options::default();
    options.listen_ip = [127, 0, 0, 1].into();
    change(&mut options);
    serve(
        &device(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
        options,
    )
    .unwrap()
}

const POST: &[u8] = b"POST / HTTP/1.1\r\nHost: 127.0.0.1:7175\r\nContent-Type: text/plain\r\n\r\n\
    {\"id\":1,\"cmd\":\"reg\",\"len\":4096}\n";

#[test]
fn a_post_of_a_web_page_runs_no_command() {
    for token in [None, Some("secret".to_owned())] {
        let agent = agent_with(|options| options.token = token);
        let mut page = Controller::silent(&agent);
        page.write(POST);
        let hello = page.line().unwrap();
        assert_eq!(hello["hello"], "uwarp-agent");
        let refused = page.line().unwrap();
        assert_eq!(refused["ok"], json!(false), "{refused}");
        assert_eq!(page.line(), None, "the connection is closed");
    }
}

#[test]
fn a_command_without_the_token_is_refused_and_closes() {
    let agent = agent_with(|options| options.token = Some("secret".to_owned()));
    for (line, why) in [
        (
            json!({"id": 1, "cmd": "query"}),
            "the first command must be 'token'",
        ),
        (json!({"id": 1, "cmd": "token"}), "the token is wrong"),
        (
            json!({"id": 1, "cmd": "token", "token": "secreT"}),
            "the token is wrong",
        ),
        (
            json!({"id": 1, "cmd": "token", "token": "secret1"}),
            "the token is wrong",
        ),
        (
            json!({"id": 1, "cmd": "token", "token": 7}),
            "token: a string was expected",
        ),
    ] {
        let mut stranger = Controller::silent(&agent);
        assert_eq!(stranger.line().unwrap()["token"], json!(true));
        let refused = stranger.answer_to(line.to_string().as_bytes());
        assert_eq!(refused["ok"], json!(false), "{line}");
        assert!(
            refused["error"].as_str().unwrap().contains(why),
            "{refused}"
        );
        assert_eq!(stranger.line(), None, "{line}");
    }
    let mut controller = Controller::silent(&agent);
    controller.line();
    controller.ok("token", json!({"token": "secret"}));
    controller.ok("query", json!({}));
}

#[test]
fn silent_connections_give_way_to_a_controller() {
    let agent = agent();
    let mut working = Controller::new(&agent);
    working.ok("query", json!({}));
    let mut silent: Vec<_> = (0..200).map(|_| Controller::silent(&agent)).collect();
    let mut late = Controller::new(&agent);
    late.ok("query", json!({}));
    working.ok("query", json!({}));
    // The oldest of the silent ones was closed after its greeting.
    let oldest = &mut silent[0];
    while oldest.line().is_some() {}
}

/// 16 controllers of 1 GiB each could take 16 GiB before.
#[test]
fn all_controllers_share_one_bound_of_memory() {
    let agent = agent_with(|options| options.max_memory = 64 << 20);
    let (mut a, mut b) = (Controller::new(&agent), Controller::new(&agent));
    a.ok("reg", json!({"len": 40 << 20}));
    let refused = b.refused("reg", json!({"len": 40 << 20}));
    let why = refused["error"].as_str().unwrap();
    assert!(
        why.starts_with("all controllers together have 67108864 bytes"),
        "{why}"
    );
    b.ok("reg", json!({"len": 1 << 20}));
    a.ok("reset", json!({}));
    b.ok("reg", json!({"len": 40 << 20}));
    b.refused("srq", json!({"max_wr": 262_144}));
    b.ok("reset", json!({}));
    let srq = b.ok("srq", json!({}))["srq"].clone();
    b.refused("srq_modify", json!({"srq": srq, "max_wr": 1_000_000_000}));

    // Queues count, too: those of requests at a listener as well.
    let port = b.ok("listen", json!({"recv_wr": 32_768, "send_wr": 32_768}))["port"].clone();
    let mut opened = 0;
    let why = loop {
        let conn = a.ok(
            "open",
            json!({"addr": "127.0.0.1", "port": port, "send_wr": 32_768,
            "recv_wr": 32_768}),
        )["conn"]
            .clone();
        let event = a.wait("ready or failed", |line| {
            line["conn"] == conn && (line["ev"] == "ready" || line["ev"] == "failed")
        });
        if event["ev"] == "failed" {
            break event["error"].as_str().unwrap().to_owned();
        }
        opened += 1;
        assert!(opened < 100, "a thousand of these would take gigabytes");
    };
    assert!(why.starts_with("all controllers together"), "{why}");
}

#[test]
fn other_hosts_need_a_token() {
    let device = device();
    let listen = || TcpListener::bind("0.0.0.0:0").unwrap();
    let refused = serve(&device, listen(), Options::default()).unwrap_err();
    let ServeError::Unprotected(at) = refused else {
        panic!("{refused}")
    };
    assert_eq!(at.ip(), SocketAddr::from(([0, 0, 0, 0], 0)).ip());
    let mut options = Options::default();
    options.token = Some("secret".to_owned());
    serve(&device, listen(), options).unwrap();
}

//! Sessions in the program of their controller. They use the same protocol as sessions over TCP,
//! but have neither a thread nor a connection.

use serde_json::{Value, json};
use uwarp_agent::LocalSession;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{Device, Progress, Settings};

fn device(seed: Option<u64>) -> Device {
    let settings = Settings::default().progress(Progress::Manual).seed(seed);
    Device::open(std::sync::Arc::new(KernelNetwork::default()), settings).unwrap()
}

fn session(device: &Device) -> LocalSession {
    let mut session = LocalSession::new(device, "127.0.0.1".parse().unwrap()).unwrap();
    let hello = lines(&mut session);
    assert_eq!(hello.len(), 1);
    assert_eq!(hello[0]["hello"], "uwarp-agent");
    session
}

fn lines(session: &mut LocalSession) -> Vec<Value> {
    let mut said = vec![0; 1 << 16];
    let count = session.say(&mut said);
    let said = std::str::from_utf8(&said[..count]).unwrap();
    said.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn a_session_without_a_thread_does_nothing_but_in_its_turns() {
    let device = device(None);
    let mut session = session(&device);
    assert!(!session.turn());
    session.hear(b"{\"id\":1,\"cmd\":\"que");
    assert!(!session.turn());
    session.hear(b"ry\"}\n{\"id\":2,\"cmd\":\"nonsense\"}\n");
    assert!(lines(&mut session).is_empty());
    assert!(session.turn());
    let said = lines(&mut session);
    assert_eq!((&said[0]["id"], &said[0]["ok"]), (&json!(1), &json!(true)));
    assert_eq!((&said[1]["id"], &said[1]["ok"]), (&json!(2), &json!(false)));
    assert!(!session.turn());
    assert!(lines(&mut session).is_empty());
}

/// Two sessions connect, and one sends to the other, in one thread.
#[test]
fn two_sessions_in_one_thread_connect_and_send() {
    let devices = [device(None), device(None)];
    let mut sessions = [session(&devices[0]), session(&devices[1])];
    let mut said = [Vec::new(), Vec::new()];
    let mut told =
        |sessions: &mut [LocalSession; 2], who: usize, is_it: &dyn Fn(&Value) -> bool| {
            loop {
                for (number, session) in sessions.iter_mut().enumerate() {
                    devices[number].progress();
                    session.turn();
                    said[number].extend(lines(session));
                }
                if let Some(at) = said[who].iter().position(is_it) {
                    return said[who].remove(at);
                }
            }
        };
    sessions[1].hear(b"{\"id\":1,\"cmd\":\"listen\",\"auto\":true}\n");
    let port = told(&mut sessions, 1, &|line| line["id"] == 1)["port"].clone();
    let open = json!({"id": 1, "cmd": "open", "addr": "127.0.0.1", "port": port});
    sessions[0].hear(format!("{open}\n").as_bytes());
    let conn = told(&mut sessions, 0, &|line| line["ev"] == "ready")["conn"].clone();
    let connect = json!({"id": 2, "cmd": "connect", "conn": conn});
    sessions[0].hear(format!("{connect}\n").as_bytes());
    told(&mut sessions, 0, &|line| line["ev"] == "established");
    let accepted = told(&mut sessions, 1, &|line| line["ev"] == "established")["conn"].clone();
    let recv = json!({"id": 2, "cmd": "recv", "conn": accepted, "wr_id": 7});
    sessions[1].hear(format!("{recv}\n").as_bytes());
    told(&mut sessions, 1, &|line| line["id"] == 2);
    let send = json!({"id": 3, "cmd": "post", "conn": conn, "op": "send", "wr_id": 8});
    sessions[0].hear(format!("{send}\n").as_bytes());
    let received = told(&mut sessions, 1, &|line| line["wr_id"] == 7);
    assert_eq!(received["status"], "success", "{received}");
    let sent = told(&mut sessions, 0, &|line| line["wr_id"] == 8);
    assert_eq!(sent["status"], "success", "{sent}");
}

/// With a seed, a session uses the same STags and addresses in every run.
#[test]
fn regions_of_a_device_with_a_seed_are_the_same_in_every_run() {
    let run = || {
        let device = device(Some(7));
        let mut session = session(&device);
        session.hear(b"{\"id\":1,\"cmd\":\"reg\",\"len\":5000,\"skew\":3}\n");
        session.hear(b"{\"id\":2,\"cmd\":\"reg\",\"len\":8}\n");
        session.turn();
        let said = lines(&mut session);
        let addr = |line: &Value| line["addr"].as_u64().unwrap();
        assert_eq!((addr(&said[0]) % 4096, addr(&said[1]) % 4096), (3, 0));
        assert!(addr(&said[1]) > addr(&said[0]) + 5000);
        said
    };
    assert_eq!(run(), run());
}

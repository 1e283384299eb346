//! Controller for the tests. It sends lines to an agent and reads the lines of the agent.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use uwarp_agent::{Agent, Options, serve};
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::{Device, Settings};

/// Time limit for a wait. It is reached only if a test hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Starts an agent with an RDMA port, on a new device over kernel TCP and loopback.
pub(crate) fn agent() -> Agent {
    agent_with(Settings::default())
}

pub(crate) fn agent_with(settings: Settings) -> Agent {
    let device = Device::open(Arc::new(KernelNetwork::default()), settings).unwrap();
    agent_on(&device, "127.0.0.1:0".parse().unwrap())
}

/// Starts an agent on this device. Listeners of its controllers use the address of `rdma` as well.
pub(crate) fn agent_on(device: &Device, rdma: SocketAddr) -> Agent {
    let control = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = Options::default();
    options.rdma = Some(rdma);
    options.listen_ip = rdma.ip();
    serve(device, control, options).unwrap()
}

pub(crate) struct Controller {
    to: TcpStream,
    from: BufReader<TcpStream>,
    /// Events and completions that were read during a wait for another line.
    said: VecDeque<Value>,
    next: u64,
}

impl Controller {
    /// Connects to the agent and checks the greeting.
    pub(crate) fn new(agent: &Agent) -> Controller {
        let mut controller = Controller::silent(agent);
        let hello = controller.line().unwrap();
        let wanted = json!({"hello": "uwarp-agent", "protocol": 1, "device": "uwarp0"});
        assert_eq!(hello, wanted);
        controller
    }

    /// Connects to the agent without sending or reading.
    pub(crate) fn silent(agent: &Agent) -> Controller {
        let to = TcpStream::connect(agent.control_addr()).unwrap();
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        to.set_write_timeout(Some(PATIENCE)).unwrap();
        let from = BufReader::new(to.try_clone().unwrap());
        Controller {
            to,
            from,
            said: VecDeque::new(),
            next: 1,
        }
    }

    /// Reads the next line. Returns `None` if the agent has closed the connection.
    pub(crate) fn line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.to.write_all(bytes).unwrap();
    }

    /// Sends a line and returns the next answer.
    pub(crate) fn answer_to(&mut self, line: &[u8]) -> Value {
        self.write(&[line, b"\n"].concat());
        loop {
            let line = self.line().expect("an answer");
            if line.get("ok").is_some() {
                return line;
            }
            self.said.push_back(line);
        }
    }

    /// Sends a command and returns its answer.
    pub(crate) fn command(&mut self, name: &str, mut members: Value) -> Value {
        members["cmd"] = json!(name);
        members["id"] = json!(self.next);
        let answer = self.answer_to(members.to_string().as_bytes());
        assert_eq!(answer["id"], json!(self.next), "{answer}");
        self.next += 1;
        answer
    }

    /// Sends a command that must succeed, and returns its answer.
    #[track_caller]
    pub(crate) fn ok(&mut self, name: &str, members: Value) -> Value {
        let answer = self.command(name, members);
        assert_eq!(answer["ok"], json!(true), "{name}: {answer}");
        answer
    }

    /// Sends a command that must be refused, and returns its answer.
    #[track_caller]
    pub(crate) fn refused(&mut self, name: &str, members: Value) -> Value {
        let answer = self.command(name, members);
        assert_eq!(answer["ok"], json!(false), "{name}: {answer}");
        answer
    }

    /// Waits for the first event or completion for which `is_it` returns true, and returns it.
    /// Others remain queued.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.said.iter().position(&is_it) {
                return self.said.remove(at).unwrap();
            }
            assert!(Instant::now() < deadline, "no {what}: {:?}", self.said);
            let line = self
                .line()
                .unwrap_or_else(|| panic!("closed before {what}"));
            self.said.push_back(line);
        }
    }

    #[track_caller]
    pub(crate) fn event(&mut self, name: &str, conn: &Value) -> Value {
        self.wait(name, |line| line["ev"] == name && line["conn"] == *conn)
    }

    #[track_caller]
    pub(crate) fn completion(&mut self, conn: &Value, wr_id: u64) -> Value {
        let what = format!("completion {wr_id} of {conn}");
        self.wait(&what, |line| line["wc"] == *conn && line["wr_id"] == wr_id)
    }

    #[track_caller]
    pub(crate) fn success(&mut self, conn: &Value, wr_id: u64) -> Value {
        let completion = self.completion(conn, wr_id);
        assert_eq!(completion["status"], "success", "{completion}");
        completion
    }

    /// Returns the events and completions that no test has waited for yet.
    pub(crate) fn unread(&self) -> &VecDeque<Value> {
        &self.said
    }
}

/// Numbers by which two controllers refer to the connection between them.
pub(crate) struct Connected {
    pub(crate) active: Value,
    pub(crate) passive: Value,
}

/// Connects two controllers. `qp` contains members that describe both QPs.
pub(crate) fn connect(active: &mut Controller, passive: &mut Controller, qp: &Value) -> Connected {
    let mut listen = qp.clone();
    listen["auto"] = json!(true);
    let port = passive.ok("listen", listen)["port"].clone();
    let mut open = qp.clone();
    (open["addr"], open["port"]) = (json!("127.0.0.1"), port);
    let conn = active.ok("open", open)["conn"].clone();
    active.event("ready", &conn);
    active.ok("connect", json!({"conn": conn}));
    active.event("established", &conn);
    let request = passive.wait("a request", |line| line["ev"] == "connect_request");
    passive.event("established", &request["conn"]);
    Connected {
        active: conn,
        passive: request["conn"].clone(),
    }
}

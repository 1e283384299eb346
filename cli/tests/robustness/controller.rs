//! The victim's application: a controller of the agent. It accepts every connection, and releases
//! each connection that has ended.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use crate::{PATIENCE, Result};

/// Controller with a connection to the agent.
pub(crate) struct Controller {
    lines: Arc<Lines>,
    answers: Receiver<Value>,
    seen: Arc<Seen>,
    /// Thread that handles the events.
    event_thread: Option<JoinHandle<()>>,
}

/// Counters and causes collected from the events of the controller's connections.
#[derive(Default)]
struct Seen {
    /// Number of connections that have ended.
    ended: AtomicU64,
    /// Completions without an error.
    completions: AtomicU64,
    /// Causes of the ended connections.
    causes: Mutex<Vec<String>>,
}

/// Writing side of the connection to the agent. Each command is written in one piece.
struct Lines(Mutex<TcpStream>);

impl Lines {
    fn write(&self, command: &Value) -> std::io::Result<()> {
        let line = format!("{command}\n");
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(line.as_bytes())
    }
}

/// Registered region of the victim's application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    pub(crate) number: u64,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u64,
}

impl Controller {
    pub(crate) fn connect(to: SocketAddr) -> Result<Controller> {
        let reader = TcpStream::connect(to)?;
        reader.set_nodelay(true)?;
        let lines = Arc::new(Lines(Mutex::new(reader.try_clone()?)));
        let seen = Arc::new(Seen::default());
        let (send, answers) = channel();
        let (writer, sees) = (Arc::clone(&lines), Arc::clone(&seen));
        let event_thread = thread::spawn(move || handle_events(reader, &writer, &send, &sees));
        Ok(Controller {
            lines,
            answers,
            seen,
            event_thread: Some(event_thread),
        })
    }

    /// Sends a command. Returns its answer, or the reason why it was refused.
    pub(crate) fn command(&mut self, mut command: Value) -> Result<Value> {
        command["id"] = json!(1);
        self.lines.write(&command)?;
        let answer = self.answers.recv_timeout(PATIENCE)?;
        if answer["ok"] != json!(true) {
            return Err(format!("the agent refuses {command}: {answer}").into());
        }
        Ok(answer)
    }

    pub(crate) fn register(&mut self, len: u64, access: &str) -> Result<Region> {
        let answer = self.command(json!({"cmd": "reg", "len": len, "access": access}))?;
        let number = |member: &str| answer[member].as_u64().ok_or("a number is missing");
        Ok(Region {
            number: number("mr")?,
            addr: number("addr")?,
            rkey: u32::try_from(number("rkey")?)?,
            len,
        })
    }

    /// Listens on a free port and accepts every connection. Each connection has room for one send
    /// request and one receive.
    pub(crate) fn listen(&mut self) -> Result<SocketAddr> {
        self.listen_at([127, 0, 0, 1].into())
    }

    /// Does the same as [`Controller::listen`] at this address of the agent.
    pub(crate) fn listen_at(&mut self, addr: IpAddr) -> Result<SocketAddr> {
        self.listen_for(addr, "none")
    }

    /// Does the same as [`Controller::listen`], and also requests notifications of completions.
    /// `notify` selects their kind.
    pub(crate) fn listen_with(&mut self, notify: &str) -> Result<SocketAddr> {
        self.listen_for([127, 0, 0, 1].into(), notify)
    }

    fn listen_for(&mut self, addr: IpAddr, notify: &str) -> Result<SocketAddr> {
        let command = json!({"cmd": "listen", "addr": addr, "auto": true, "backlog": 4096,
            "send_wr": 1, "recv_wr": 1, "send_sge": 1, "recv_sge": 1, "notify": notify});
        let answer = self.command(command)?;
        let port = answer["port"].as_u64().ok_or("no port")?;
        Ok(SocketAddr::new(addr, u16::try_from(port)?))
    }

    /// Returns these bytes of a region, in hexadecimal digits.
    pub(crate) fn peek(&mut self, region: Region, off: u64, len: u64) -> Result<String> {
        let peek = json!({"cmd": "peek", "mr": region.number, "off": off, "len": len});
        let answer = self.command(peek)?;
        Ok(answer["data"].as_str().ok_or("no bytes")?.to_owned())
    }

    /// Number of connections that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.seen.ended.load(Ordering::Relaxed)
    }

    /// Number of completions without an error.
    pub(crate) fn completions(&self) -> u64 {
        self.seen.completions.load(Ordering::Relaxed)
    }

    /// Causes of ended connections.
    pub(crate) fn causes(&self) -> Vec<String> {
        let causes = self.seen.causes.lock();
        causes.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Seen {
    fn note(&self, said: &Value) {
        if !said["wc"].is_null() && said["status"] == json!("success") {
            self.completions.fetch_add(1, Ordering::Relaxed);
        }
        if said["ev"] == json!("disconnected") {
            let cause = said["cause"].as_str().unwrap_or_default().to_owned();
            let causes = self.causes.lock();
            causes.unwrap_or_else(PoisonError::into_inner).push(cause);
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let lines = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = lines.shutdown(Shutdown::Both);
        drop(lines);
        if let Some(event_thread) = self.event_thread.take() {
            let _ = event_thread.join();
        }
    }
}

/// Forwards answers, records events, and releases the number of each connection that has ended.
fn handle_events(reader: TcpStream, writer: &Lines, answers: &Sender<Value>, seen: &Seen) {
    for line in BufReader::new(reader)
        .lines()
        .map_while(std::result::Result::ok)
    {
        let Ok(said) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        seen.note(&said);
        let event = said["ev"].as_str();
        if let Some("disconnected" | "connect_error" | "unreachable" | "rejected") = event {
            seen.ended.fetch_add(1, Ordering::Relaxed);
            let destroy = json!({"id": 0, "cmd": "destroy", "conn": said["conn"]});
            if writer.write(&destroy).is_err() {
                return;
            }
        }
        // Answers to this thread's own commands have another id.
        if said["id"] == json!(1) && answers.send(said).is_err() {
            return;
        }
    }
}

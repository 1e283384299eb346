//! The application on the victim: a controller of the agent, which accepts whoever comes and forgets who has gone.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};

use crate::{PATIENCE, Result};

/// A controller with a listener.
pub(crate) struct Controller {
    lines: Arc<Lines>,
    answers: Receiver<Value>,
    ended: Arc<AtomicU64>,
    /// Who answers the events.
    caretaker: Option<JoinHandle<()>>,
}

/// Where commands go, each in one piece.
struct Lines(Mutex<TcpStream>);

impl Lines {
    fn write(&self, command: &Value) -> std::io::Result<()> {
        let line = format!("{command}\n");
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.write_all(line.as_bytes())
    }
}

/// A region of the victim's application.
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
        let ended = Arc::new(AtomicU64::new(0));
        let (send, answers) = channel();
        let (writer, seen) = (Arc::clone(&lines), Arc::clone(&ended));
        let caretaker = thread::spawn(move || take_care(reader, &writer, &send, &seen));
        Ok(Controller {
            lines,
            answers,
            ended,
            caretaker: Some(caretaker),
        })
    }

    /// Gives a command; its answer, or why it was refused.
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

    /// Accepts everybody on a free port, with room for a few Sends of 64 octets each.
    pub(crate) fn listen(&mut self) -> Result<SocketAddr> {
        let command = json!({"cmd": "listen", "addr": "127.0.0.1", "auto": true, "backlog": 4096,
            "send_wr": 1, "recv_wr": 1, "send_sge": 1, "recv_sge": 1, "notify": "none"});
        let answer = self.command(command)?;
        let port = answer["port"].as_u64().ok_or("no port")?;
        Ok(SocketAddr::from(([127, 0, 0, 1], u16::try_from(port)?)))
    }

    /// Connections that have ended so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let lines = self.lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = lines.shutdown(Shutdown::Both);
        drop(lines);
        if let Some(caretaker) = self.caretaker.take() {
            let _ = caretaker.join();
        }
    }
}

/// Passes answers on, and frees the number of each connection that has ended.
fn take_care(reader: TcpStream, writer: &Lines, answers: &Sender<Value>, ended: &AtomicU64) {
    for line in BufReader::new(reader)
        .lines()
        .map_while(std::result::Result::ok)
    {
        let Ok(said) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let event = said["ev"].as_str();
        if let Some("disconnected" | "connect_error" | "unreachable" | "rejected") = event {
            ended.fetch_add(1, Ordering::Relaxed);
            let destroy = json!({"id": 0, "cmd": "destroy", "conn": said["conn"]});
            if writer.write(&destroy).is_err() {
                return;
            }
        }
        // Answers to its own commands have another number.
        if said["id"] == json!(1) && answers.send(said).is_err() {
            return;
        }
    }
}

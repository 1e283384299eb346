//! Typed client for the agent's control channel. docs/agent.md describes the protocol.

mod channel;
mod message;
mod srq;

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use channel::Channel;
pub use message::{Answer, Completion, Event, Listen, Post, QpParams, Region, sge, sges};
pub use srq::SrqNum;

/// Time limit for a command. The agent answers most commands at once, but the machine may be busy,
/// and filling 16 MiB takes a while.
const COMMAND: Duration = Duration::from_secs(60);

/// Source ports of the guest's connections, used one after another. Random ports from the guest's
/// connection manager could include ports that TCP cannot reuse yet.
const SOURCES: std::ops::Range<u16> = 10_000..30_000;

/// Number of a connection in the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conn(pub u64);

/// Number of a listener in the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerNum(pub u64);

/// Client of the agent in the guest.
pub struct Agent {
    channel: Channel,
    next_source: u16,
    /// Name of the RDMA device in the guest.
    pub device: String,
}

impl Agent {
    /// Waits for the agent's greeting.
    pub(crate) fn open(stream: UnixStream, timeout: Duration) -> Result<Agent> {
        let mut channel = Channel::new(stream)?;
        let hello = channel.hello(timeout)?;
        Ok(Agent {
            channel,
            next_source: SOURCES.start,
            device: text(&hello, "device"),
        })
    }

    /// Sends a command unchanged and returns the members of the answer.
    ///
    /// # Errors
    /// The agent refuses the command (the text has its reason), does not answer, or has died.
    pub fn command(&mut self, command: &Value) -> Result<Value> {
        let answer = self.try_command(command)?;
        if answer["ok"] == json!(true) {
            return Ok(answer);
        }
        Err(Failure::new(format!(
            "the agent refuses {command}: {answer}"
        )))
    }

    /// Sends a command as [`command`](Self::command) does, but also returns a refusal.
    ///
    /// # Errors
    /// The agent does not answer, or has died.
    pub fn try_command(&mut self, command: &Value) -> Result<Value> {
        self.channel.command(command, COMMAND)
    }

    /// Sends an invalid line and returns the refusal.
    ///
    /// # Errors
    /// The agent does not answer, or has died.
    pub fn send_invalid(&mut self, line: &[u8]) -> Result<Value> {
        self.channel.send_invalid(line, COMMAND)
    }

    /// Queries the attributes of the device.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn query(&mut self) -> Result<Value> {
        self.command(&json!({"cmd": "query"}))
    }

    /// Ends all connections, listeners and regions, and discards all unread events and completions.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn reset(&mut self) -> Result<()> {
        self.command(&json!({"cmd": "reset"}))?;
        self.channel.forget();
        Ok(())
    }

    /// Registers `len` bytes. `access` is a list of `lw`, `rw`, `rr`, separated by commas.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn reg(&mut self, len: usize, access: &str) -> Result<Region> {
        let answer = self.command(&json!({"cmd": "reg", "len": len, "access": access}))?;
        Ok(Region {
            number: number(&answer, "mr")?,
            addr: number(&answer, "addr")?,
            rkey: u32::try_from(number(&answer, "rkey")?)?,
            len,
        })
    }

    /// Fills a part of a region with the [pattern](crate::pattern()) of `seed`.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn fill(&mut self, region: &Region, off: usize, len: usize, seed: u64) -> Result<()> {
        let mr = region.number;
        self.command(&json!({"cmd": "fill", "mr": mr, "off": off, "len": len, "seed": seed}))?;
        Ok(())
    }

    /// Checks that a part of a region holds the pattern of `seed`, starting with its byte `at`.
    ///
    /// # Errors
    /// Describes the first byte that differs, or fails as [`command`](Self::command).
    pub fn check(
        &mut self,
        region: &Region,
        off: usize,
        len: usize,
        seed: u64,
        at: u64,
    ) -> Result<()> {
        let mr = region.number;
        let answer = self.command(
            &json!({"cmd": "check", "mr": mr, "off": off, "len": len, "seed": seed, "at": at}),
        )?;
        matches(&answer, off, &format!("the pattern of seed {seed}"))
    }

    /// Checks that a part of a region is all zero, as right after registration.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_zero(&mut self, region: &Region, off: usize, len: usize) -> Result<()> {
        let mr = region.number;
        let answer =
            self.command(&json!({"cmd": "check", "mr": mr, "off": off, "len": len, "zero": true}))?;
        matches(&answer, off, "zeros")
    }

    /// Listens on `port` of the guest.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn listen(&mut self, port: u16, options: &Listen) -> Result<ListenerNum> {
        let mut command = json!({"cmd": "listen", "port": port, "auto": options.auto});
        if let Some(addr) = options.addr {
            command["addr"] = json!(addr.to_string());
        }
        options.qp_params.put(&mut command);
        options.answer.put(&mut command);
        let answer = self.command(&command)?;
        Ok(ListenerNum(number(&answer, "listener")?))
    }

    /// Ends a listener.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn unlisten(&mut self, listener: ListenerNum) -> Result<()> {
        self.command(&json!({"cmd": "unlisten", "listener": listener.0}))?;
        Ok(())
    }

    /// Opens a connection to an address, and waits until its QP exists.
    ///
    /// # Errors
    /// Fails if the address is unreachable or the QP cannot be created, or as
    /// [`command`](Self::command).
    pub fn open_conn(&mut self, ip: IpAddr, port: u16, qp_params: &QpParams) -> Result<Conn> {
        let source = self.next_source;
        self.next_source = Some(source + 1)
            .filter(|next| SOURCES.contains(next))
            .unwrap_or(SOURCES.start);
        let mut command = json!({"cmd": "open", "addr": ip.to_string(), "port": port,
            "source_port": source});
        qp_params.put(&mut command);
        let conn = Conn(number(&self.command(&command)?, "conn")?);
        self.event(conn, "ready")?;
        Ok(conn)
    }

    /// Starts to connect. The event `established`, `rejected` or another one follows.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn connect(&mut self, conn: Conn, options: &Answer) -> Result<()> {
        self.answer("connect", conn, options)
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn accept(&mut self, conn: Conn, options: &Answer) -> Result<()> {
        self.answer("accept", conn, options)
    }

    fn answer(&mut self, what: &str, conn: Conn, options: &Answer) -> Result<()> {
        let mut command = json!({"cmd": what, "conn": conn.0});
        options.put(&mut command);
        self.command(&command)?;
        Ok(())
    }

    /// Rejects a request.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn reject(&mut self, conn: Conn, private_data: &[u8]) -> Result<()> {
        let data = message::hex(private_data);
        self.command(&json!({"cmd": "reject", "conn": conn.0, "data": data}))?;
        Ok(())
    }

    /// Starts to disconnect. Events follow.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn disconnect(&mut self, conn: Conn) -> Result<()> {
        self.command(&json!({"cmd": "disconnect", "conn": conn.0}))?;
        Ok(())
    }

    /// Ends a connection and frees its QP.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn destroy(&mut self, conn: Conn) -> Result<()> {
        self.command(&json!({"cmd": "destroy", "conn": conn.0}))?;
        Ok(())
    }

    /// Posts `count` receives, numbered from `wr_id`, with elements that are `stride` bytes apart.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn recv(
        &mut self,
        conn: Conn,
        wr_id: u64,
        sge: &str,
        count: u64,
        stride: u64,
    ) -> Result<()> {
        self.command(
            &json!({"cmd": "recv", "conn": conn.0, "wr_id": wr_id, "sge": sge,
            "count": count, "stride": stride}),
        )?;
        Ok(())
    }

    /// Posts work requests to the send queue.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn post(&mut self, conn: Conn, post: &Post) -> Result<()> {
        self.command(&post.command(conn.0))?;
        Ok(())
    }

    /// Waits for the next event of a connection, which must be `name`. Events of the device stay
    /// queued.
    ///
    /// # Errors
    /// Another event arrives first, or none in time.
    pub fn event(&mut self, conn: Conn, name: &str) -> Result<Event> {
        let line = self.channel.event(
            &format!("event '{name}' of connection {}", conn.0),
            |line| line["conn"] == json!(conn.0) && line.get("ev").is_some(),
        )?;
        let event = Event::parse(&line)?;
        if event.name == name {
            return Ok(event);
        }
        Err(Failure::new(format!(
            "expected the event '{name}' on connection {} of the agent, got: {line}",
            conn.0
        )))
    }

    /// Waits for the next event of the device about the QP of a connection. Returns the description
    /// by libibverbs.
    ///
    /// # Errors
    /// No event arrives in time.
    pub fn device_event(&mut self, conn: Conn) -> Result<String> {
        let what = format!("event of the device about connection {}", conn.0);
        let line = self.channel.event(&what, |line| {
            line["conn"] == json!(conn.0) && line.get("async").is_some()
        })?;
        Ok(text(&line, "async"))
    }

    /// Waits for the next connection request of a listener.
    ///
    /// # Errors
    /// No request arrives in time.
    pub fn request(&mut self, listener: ListenerNum) -> Result<Event> {
        let line = self
            .channel
            .event(&format!("request at listener {}", listener.0), |line| {
                line["listener"] == json!(listener.0)
            })?;
        Event::parse(&line)
    }

    /// Waits for the next completion of a connection.
    ///
    /// # Errors
    /// No completion arrives in time.
    pub fn completion(&mut self, conn: Conn) -> Result<Completion> {
        let line = self
            .channel
            .completion(&format!("completion of connection {}", conn.0), |line| {
                line["wc"] == json!(conn.0)
            })?;
        Completion::parse(&line)
    }

    /// Returns the events and completions that were not read yet.
    pub fn unread(&mut self) -> Vec<String> {
        self.channel.unread()
    }
}

fn matches(answer: &Value, off: usize, what: &str) -> Result<()> {
    if answer["match"] == json!(true) {
        return Ok(());
    }
    let at = number(answer, "off")? + off as u64;
    Err(Failure::new(format!(
        "byte {at} of a region in the guest is {}, but {what} has {} there",
        answer["got"], answer["want"]
    )))
}

pub(crate) fn number(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .ok_or_else(|| Failure::new(format!("the agent said {value}: '{key}' is missing")))
}

pub(crate) fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

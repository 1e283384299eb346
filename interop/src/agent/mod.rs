//! The typed client of the agent's control channel. The protocol is in `docs/agent.md`.

mod channel;
mod message;
mod srq;

use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use channel::Channel;
pub use message::{Answer, Completion, Event, Listen, Post, QpWish, Region, sge, sges};
pub use srq::SrqNum;

/// How long the agent may take for a command: it answers at once, but the machine may be busy, and 16 MiB
/// take a while to fill.
const COMMAND: Duration = Duration::from_secs(60);

/// Ports that the guest connects from, one after the other. Its connection manager would draw them at random, also those
/// that TCP cannot use again yet.
const SOURCES: std::ops::Range<u16> = 10_000..30_000;

/// Number of a connection in the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conn(pub u64);

/// Number of a listener in the agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListenerNum(pub u64);

/// The agent in the guest.
pub struct Agent {
    channel: Channel,
    next_source: u16,
    /// The name of its RDMA device.
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

    /// Sends a command as it is. The members of the answer; a refusal is a failure.
    ///
    /// # Errors
    /// The agent refused (with its words), did not answer, or died.
    pub fn command(&mut self, command: &Value) -> Result<Value> {
        let answer = self.try_command(command)?;
        if answer["ok"] == json!(true) {
            return Ok(answer);
        }
        Err(Failure::new(format!(
            "the agent refuses {command}: {answer}"
        )))
    }

    /// As [`command`](Self::command), for commands whose refusal is of interest.
    ///
    /// # Errors
    /// The agent did not answer, or died.
    pub fn try_command(&mut self, command: &Value) -> Result<Value> {
        self.channel.command(command, COMMAND)
    }

    /// Sends a line that is no command, and takes the refusal.
    ///
    /// # Errors
    /// The agent did not answer, or died.
    pub fn nonsense(&mut self, line: &[u8]) -> Result<Value> {
        self.channel.nonsense(line, COMMAND)
    }

    /// What the device says about itself.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn query(&mut self) -> Result<Value> {
        self.command(&json!({"cmd": "query"}))
    }

    /// Ends all connections, listeners and regions, and forgets what was reported until now.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn reset(&mut self) -> Result<()> {
        self.command(&json!({"cmd": "reset"}))?;
        self.channel.forget();
        Ok(())
    }

    /// Registers `len` bytes. `access`: words of `lw`, `rw`, `rr`, with commas between.
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

    /// Checks that a part of a region holds the pattern of `seed`, from its byte `at` on.
    ///
    /// # Errors
    /// The first byte that is another; and as [`command`](Self::command).
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

    /// Checks that a part of a region is as it was registered: all zero.
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
        options.wish.put(&mut command);
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

    /// Prepares a connection to an address, until its QP is there.
    ///
    /// # Errors
    /// The address cannot be reached, the QP not be made; and as [`command`](Self::command).
    pub fn open_conn(&mut self, ip: IpAddr, port: u16, wish: &QpWish) -> Result<Conn> {
        let source = self.next_source;
        self.next_source = Some(source + 1)
            .filter(|next| SOURCES.contains(next))
            .unwrap_or(SOURCES.start);
        let mut command = json!({"cmd": "open", "addr": ip.to_string(), "port": port,
            "source_port": source});
        wish.put(&mut command);
        let conn = Conn(number(&self.command(&command)?, "conn")?);
        self.event(conn, "ready")?;
        Ok(conn)
    }

    /// Connects; `established`, `rejected` or another event follows.
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

    /// Disconnects.
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

    /// Posts `count` receives, numbered from `wr_id` on, each `stride` bytes further.
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

    /// Posts work to the send queue.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn post(&mut self, conn: Conn, post: &Post) -> Result<()> {
        self.command(&post.command(conn.0))?;
        Ok(())
    }

    /// The next event of a connection, which must be `name`. Events of the device are left.
    ///
    /// # Errors
    /// Another event came (named in the words), or none.
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
            "the event '{name}' was awaited on connection {} of the agent, but this came: {line}",
            conn.0
        )))
    }

    /// The next event of the device about the QP of a connection, in the words of libibverbs.
    ///
    /// # Errors
    /// None came.
    pub fn device_event(&mut self, conn: Conn) -> Result<String> {
        let what = format!("event of the device about connection {}", conn.0);
        let line = self.channel.event(&what, |line| {
            line["conn"] == json!(conn.0) && line.get("async").is_some()
        })?;
        Ok(text(&line, "async"))
    }

    /// The next connection request of a listener.
    ///
    /// # Errors
    /// None came.
    pub fn request(&mut self, listener: ListenerNum) -> Result<Event> {
        let line = self
            .channel
            .event(&format!("request at listener {}", listener.0), |line| {
                line["listener"] == json!(listener.0)
            })?;
        Event::parse(&line)
    }

    /// The next completion of a connection.
    ///
    /// # Errors
    /// None came.
    pub fn completion(&mut self, conn: Conn) -> Result<Completion> {
        let line = self
            .channel
            .completion(&format!("completion of connection {}", conn.0), |line| {
                line["wc"] == json!(conn.0)
            })?;
        Completion::parse(&line)
    }

    /// What the agent has reported and nobody has taken.
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

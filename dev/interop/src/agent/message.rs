//! Parameters of commands to the agent, and messages from it.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{Conn, SrqNum, number, text};
use crate::failure::{Failure, Result};

/// A registered region in the guest.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Number of the region in the agent.
    pub number: u64,
    /// Address of the region (the TO of its first byte).
    pub addr: u64,
    /// STag of the region.
    pub rkey: u32,
    /// Length in bytes.
    pub len: usize,
}

/// Formats one element of a scatter/gather list.
#[must_use]
pub fn sge(region: &Region, off: usize, len: usize) -> String {
    format!("{}:{off}+{len}", region.number)
}

/// Formats a scatter/gather list over one region. `pieces` are offsets and lengths.
#[must_use]
pub fn sges(region: &Region, pieces: &[(usize, usize)]) -> String {
    let elements: Vec<String> = pieces
        .iter()
        .map(|(off, len)| sge(region, *off, *len))
        .collect();
    elements.join(",")
}

/// Parameters of a QP in the guest.
#[derive(Clone, Copy, Debug)]
pub struct QpParams {
    /// Maximum number of work requests in the send queue.
    pub send_wr: u32,
    /// Maximum number of work requests in the receive queue.
    pub recv_wr: u32,
    /// Maximum number of scatter/gather elements of a work request, for both queues.
    pub sge: u32,
    /// Maximum number of bytes of inline data.
    pub inline: u32,
    /// Completions for which the agent requests an event: `all`, `solicited` or `none`.
    pub notify: &'static str,
    /// SRQ from which the QP takes receives; `None` for its own receive queue.
    pub srq: Option<SrqNum>,
}

impl Default for QpParams {
    fn default() -> Self {
        QpParams {
            send_wr: 64,
            recv_wr: 64,
            sge: 4,
            inline: 0,
            notify: "all",
            srq: None,
        }
    }
}

impl QpParams {
    pub(super) fn put(&self, command: &mut Value) {
        command["send_wr"] = json!(self.send_wr);
        command["recv_wr"] = json!(self.recv_wr);
        command["send_sge"] = json!(self.sge);
        command["recv_sge"] = json!(self.sge);
        command["inline"] = json!(self.inline);
        command["notify"] = json!(self.notify);
        if let Some(SrqNum(srq)) = self.srq {
            command["srq"] = json!(srq);
        }
    }
}

/// Parameters of a connect or an accept.
#[derive(Clone, Debug)]
pub struct Answer {
    /// `responder_resources`: number of Reads that the peer may have outstanding.
    pub ird: u8,
    /// `initiator_depth`: number of Reads that the guest may have outstanding.
    pub ord: u8,
    /// Private Data for the peer's application.
    pub private_data: Vec<u8>,
}

impl Default for Answer {
    fn default() -> Self {
        Answer {
            ird: 16,
            ord: 16,
            private_data: Vec::new(),
        }
    }
}

impl Answer {
    pub(super) fn put(&self, command: &mut Value) {
        command["ird"] = json!(self.ird);
        command["ord"] = json!(self.ord);
        command["data"] = json!(hex(&self.private_data));
    }
}

/// Parameters of a listener.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    /// True if the agent accepts every request at once, with `answer`.
    pub auto: bool,
    /// Local address; `None` for all IPv4 addresses.
    pub addr: Option<IpAddr>,
    /// Parameters of the QPs of its connections.
    pub qp_params: QpParams,
    /// Parameters of the accept, if `auto` is set.
    pub answer: Answer,
}

/// Work requests for the send queue of the guest.
#[derive(Clone, Debug)]
pub struct Post {
    /// `send`, `send_inv`, `write`, `read`, or an operation that siw lacks.
    pub op: &'static str,
    /// `wr_id` of the first request. Each further request adds 1.
    pub wr_id: u64,
    /// Scatter/gather list: source of the data, or sink of a Read.
    pub sge: String,
    /// Number of requests, which are posted in one call.
    pub count: u64,
    /// Distance in bytes between the elements of consecutive requests.
    pub stride: u64,
    /// Remote address.
    pub raddr: u64,
    /// Remote STag.
    pub rkey: u32,
    /// Distance in bytes between the remote addresses of consecutive requests.
    pub rstride: u64,
    /// STag that a Send invalidates.
    pub inv: u32,
    /// True to request a solicited event.
    pub solicited: bool,
    /// True to send the data inline.
    pub inline: bool,
    /// Requests that generate a completion of success: `all`, `last` or `none`.
    pub signal: &'static str,
}

impl Post {
    /// Creates one request of this kind.
    #[must_use]
    pub fn new(op: &'static str, wr_id: u64, sge: impl Into<String>) -> Post {
        Post {
            op,
            wr_id,
            sge: sge.into(),
            count: 1,
            stride: 0,
            raddr: 0,
            rkey: 0,
            rstride: 0,
            inv: 0,
            solicited: false,
            inline: false,
            signal: "all",
        }
    }

    /// Sets the remote address and STag.
    #[must_use]
    pub fn remote(self, raddr: u64, rkey: u32) -> Post {
        Post {
            raddr,
            rkey,
            ..self
        }
    }

    /// Builds the command. Leaves out members with default values, which keeps the line short.
    pub(super) fn command(&self, conn: u64) -> Value {
        let mut command = json!({"cmd": "post", "conn": conn, "op": self.op, "wr_id": self.wr_id,
            "sge": self.sge});
        let numbers = [
            ("stride", self.stride),
            ("raddr", self.raddr),
            ("rkey", self.rkey.into()),
            ("rstride", self.rstride),
            ("inv", self.inv.into()),
        ];
        for (key, value) in numbers {
            if value != 0 {
                command[key] = json!(value);
            }
        }
        if self.count != 1 {
            command["count"] = json!(self.count);
        }
        if self.solicited {
            command["se"] = json!(true);
        }
        if self.inline {
            command["inline"] = json!(true);
        }
        if self.signal != "all" {
            command["signal"] = json!(self.signal);
        }
        command
    }
}

/// An event of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Name: `ready`, `connect_request`, `established`, `rejected`, `disconnected` or another.
    pub name: String,
    /// Connection of the event.
    pub conn: Conn,
    /// Status of librdmacm: 0, or a negative errno.
    pub status: i64,
    /// `responder_resources` of a request or an establishment.
    pub ird: u64,
    /// `initiator_depth` of a request or an establishment.
    pub ord: u64,
    /// Private Data of the peer.
    pub private_data: Vec<u8>,
}

impl Event {
    pub(super) fn parse(line: &Value) -> Result<Event> {
        Ok(Event {
            name: text(line, "ev"),
            conn: Conn(number(line, "conn")?),
            status: line["status"].as_i64().unwrap_or(0),
            ird: line["ird"].as_u64().unwrap_or(0),
            ord: line["ord"].as_u64().unwrap_or(0),
            private_data: unhex(&text(line, "data"))?,
        })
    }
}

/// A completion in the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    /// `wr_id` of the work request.
    pub wr_id: u64,
    /// Status: `success`, `wr_flush_err` or another.
    pub status: String,
    /// Operation: `send`, `recv`, `write` or `read`; empty after an error.
    pub op: String,
    /// Length in bytes.
    pub len: u64,
    /// Bits of `ibv_wc_flags`.
    pub flags: u64,
    /// STag that the peer invalidated.
    pub invalidated: Option<u32>,
}

impl Completion {
    pub(super) fn parse(line: &Value) -> Result<Completion> {
        let invalidated = match line["inv"].as_u64() {
            Some(stag) => Some(u32::try_from(stag)?),
            None => None,
        };
        Ok(Completion {
            wr_id: number(line, "wr_id")?,
            status: text(line, "status"),
            op: text(line, "op"),
            len: line["len"].as_u64().unwrap_or(0),
            flags: line["flags"].as_u64().unwrap_or(0),
            invalidated,
        })
    }

    /// Checks that this is a success with the given number and operation.
    ///
    /// # Errors
    /// Describes the completion if it is another one.
    pub fn expect(&self, wr_id: u64, op: &str) -> Result<&Completion> {
        if self.wr_id == wr_id && self.op == op && self.status == "success" {
            return Ok(self);
        }
        Err(Failure::new(format!(
            "expected a completion of {op} {wr_id} in the guest, got: {self:?}"
        )))
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    (0..text.len())
        .step_by(2)
        .map(|at| {
            let digits = text.get(at..at + 2);
            digits
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .ok_or_else(|| Failure::new(format!("'{text}' is not hexadecimal")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_agent_is_an_event_or_a_completion() {
        let line = json!({"ev": "rejected", "conn": 3, "status": -104, "data": "00ff"});
        let event = Event::parse(&line).unwrap();
        assert_eq!((event.name.as_str(), event.status), ("rejected", -104));
        assert_eq!(event.private_data, [0, 255]);
        let line =
            json!({"wc": 3, "wr_id": 9, "st": 0, "status": "success", "op": "recv", "len": 5});
        let completion = Completion::parse(&line).unwrap();
        assert_eq!(completion.expect(9, "recv").unwrap().len, 5);
        assert!(completion.expect(8, "recv").is_err());
        assert!(completion.expect(9, "send").is_err());
    }

    #[test]
    fn a_post_says_only_what_is_not_usual() {
        let post = Post::new("write", 7, "0:0+16").remote(1 << 40, 0x100);
        assert_eq!(
            post.command(2),
            json!({"cmd": "post", "conn": 2, "op": "write", "wr_id": 7, "sge": "0:0+16",
                "raddr": 1_u64 << 40, "rkey": 256})
        );
    }
}

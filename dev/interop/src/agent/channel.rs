//! Control channel to the agent: sends commands, and sorts received lines into answers, events and
//! completions.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::wire::PATIENCE;

pub(super) struct Channel {
    to: UnixStream,
    from: Receiver<String>,
    next: u64,
    events: VecDeque<Value>,
    completions: VecDeque<Value>,
}

impl Channel {
    pub(super) fn new(stream: UnixStream) -> Result<Channel> {
        let (send, from) = channel();
        let lines = BufReader::new(stream.try_clone()?).lines();
        thread::spawn(move || {
            for line in lines.map_while(std::result::Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Channel {
            to: stream,
            from,
            next: 1,
            events: VecDeque::new(),
            completions: VecDeque::new(),
        })
    }

    pub(super) fn hello(&mut self, timeout: Duration) -> Result<Value> {
        let line = self.line(Instant::now() + timeout, "greeting")?;
        if line["hello"].is_string() && line["protocol"] == json!(1) {
            return Ok(line);
        }
        Err(Failure::new(format!(
            "the agent greets with {line}; protocol 1 was expected"
        )))
    }

    fn line(&mut self, deadline: Instant, what: &str) -> Result<Value> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.from.recv_timeout(left) {
            Ok(line) => serde_json::from_str(&line)
                .map_err(|error| Failure::new(format!("the agent said '{line}': {error}"))),
            Err(RecvTimeoutError::Timeout) => Err(Failure::new(format!(
                "no {what} from the agent in time; unread lines: [{}]",
                self.unread().join(", ")
            ))),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::new(format!(
                "the guest ended before the {what} of the agent"
            ))),
        }
    }

    /// Receives one line. Returns an answer, and queues any other line as an event or a completion.
    fn sort(&mut self, deadline: Instant, what: &str) -> Result<Option<Value>> {
        let line = self.line(deadline, what)?;
        if line.get("hello").is_some() {
            return Err(Failure::new(
                "the agent died and was restarted (the guest's console may have the reason)",
            ));
        }
        if line.get("wc").is_some() {
            self.completions.push_back(line);
        } else if line.get("ok").is_some() {
            return Ok(Some(line));
        } else {
            self.events.push_back(line);
        }
        Ok(None)
    }

    pub(super) fn command(&mut self, command: &Value, timeout: Duration) -> Result<Value> {
        let id = self.next;
        self.next += 1;
        let mut command = command.clone();
        command["id"] = json!(id);
        self.to
            .write_all(format!("{command}\n").as_bytes())
            .map_err(|error| Failure::new(format!("the guest is gone: {error}")))?;
        let deadline = Instant::now() + timeout;
        let what = format!("answer to {command}");
        loop {
            match self.sort(deadline, &what)? {
                Some(answer) if answer["id"] == json!(id) => return Ok(answer),
                // A late answer to an earlier command, which timed out.
                Some(answer) if answer["id"].as_u64().is_some_and(|other| other < id) => {}
                Some(answer) => {
                    return Err(Failure::new(format!(
                        "the agent answers {answer} to {command}"
                    )));
                }
                None => {}
            }
        }
    }

    /// Sends a line without an id. Returns the refusal, which has no id either.
    pub(super) fn send_invalid(&mut self, line: &[u8], timeout: Duration) -> Result<Value> {
        let sent = self.to.write_all(&[line, b"\n"].concat());
        sent.map_err(|error| Failure::new(format!("the guest is gone: {error}")))?;
        let deadline = Instant::now() + timeout;
        loop {
            match self.sort(deadline, "refusal")? {
                Some(answer) if answer.get("id").is_none_or(|id| *id == json!(0)) => {
                    return Ok(answer);
                }
                _ => {}
            }
        }
    }

    pub(super) fn event(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        self.wait(what, |channel| take(&mut channel.events, &is_it))
    }

    pub(super) fn completion(
        &mut self,
        what: &str,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        self.wait(what, |channel| take(&mut channel.completions, &is_it))
    }

    fn wait(
        &mut self,
        what: &str,
        mut find: impl FnMut(&mut Channel) -> Option<Value>,
    ) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(line) = find(self) {
                return Ok(line);
            }
            self.sort(deadline, what)?;
        }
    }

    pub(super) fn unread(&mut self) -> Vec<String> {
        let lines = self.events.iter().chain(&self.completions);
        lines.map(ToString::to_string).collect()
    }

    pub(super) fn forget(&mut self) {
        self.events.clear();
        self.completions.clear();
    }
}

/// Removes and returns the first matching line. The others keep their order.
fn take(queue: &mut VecDeque<Value>, is_it: impl Fn(&Value) -> bool) -> Option<Value> {
    let at = queue.iter().position(is_it)?;
    queue.remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a channel whose peer has sent these lines, and the peer.
    fn channel_with(lines: &str) -> (Channel, UnixStream) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(lines.as_bytes()).unwrap();
        (Channel::new(ours).unwrap(), theirs)
    }

    #[test]
    fn events_and_completions_that_come_before_an_answer_are_kept() {
        let (mut channel, _peer) = channel_with(
            "{\"wc\":1,\"wr_id\":5}\n{\"ev\":\"established\",\"conn\":1}\n{\"id\":1,\"ok\":true}\n",
        );
        let answer = channel.command(&json!({"cmd": "x"}), PATIENCE).unwrap();
        assert_eq!(answer["ok"], json!(true));
        assert_eq!(channel.unread().len(), 2);
        let event = channel.event("event", |line| line["conn"] == json!(1));
        assert_eq!(event.unwrap()["ev"], json!("established"));
        assert_eq!(channel.unread().len(), 1);
        channel.forget();
        assert!(channel.unread().is_empty());
    }

    #[test]
    fn an_agent_that_died_is_noticed() {
        let (mut channel, peer) = channel_with("{\"hello\":\"a\",\"protocol\":1}\n");
        channel.hello(PATIENCE).unwrap();
        (&peer)
            .write_all(b"{\"hello\":\"a\",\"protocol\":1}\n")
            .unwrap();
        let error = channel.command(&json!({"cmd": "x"}), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("died"), "{error}");
        drop(peer);
        let error = channel.event("event", |_| true).unwrap_err();
        assert!(error.to_string().contains("ended"), "{error}");
    }
}

//! Shell commands in the guest. `guest/init` describes the protocol.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::base64;
use crate::failure::{Failure, Result};

/// Result of a command that has ended.
#[derive(Clone, Debug)]
pub struct Output {
    /// Exit code. If a signal ended the command, 128 plus the number of the signal.
    pub code: i32,
    /// Output on stdout and stderr in the order of writing.
    pub text: String,
}

type Waiting = Arc<Mutex<Option<HashMap<u64, Sender<Output>>>>>;

/// Channel for shell commands.
pub(crate) struct Shell {
    to: UnixStream,
    waiting: Waiting,
    next: u64,
}

/// Handle of a command that may still be running.
pub(crate) struct Ticket {
    pub(crate) id: u64,
    answer: Receiver<Output>,
}

impl Shell {
    /// Opens the channel on `stream`, and waits until the guest reports that it is ready.
    pub(crate) fn open(stream: UnixStream, ready_within: Duration) -> Result<Shell> {
        let waiting: Waiting = Arc::new(Mutex::new(Some(HashMap::new())));
        let (ready, is_ready) = channel();
        let from = BufReader::new(stream.try_clone()?);
        let answers = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in from.lines().map_while(std::result::Result::ok) {
                if line == "ready" {
                    let _ = ready.send(());
                } else if let Some((id, output)) = parse(&line) {
                    let mut waiting = answers.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(to) = waiting.as_mut().and_then(|waiting| waiting.remove(&id)) {
                        let _ = to.send(output);
                    }
                }
            }
            // The guest is gone. Dropping the senders ends all waits.
            *answers.lock().unwrap_or_else(PoisonError::into_inner) = None;
        });
        is_ready
            .recv_timeout(ready_within)
            .map_err(|_| Failure::new("the guest did not become ready"))?;
        Ok(Shell {
            to: stream,
            waiting,
            next: 1,
        })
    }

    pub(crate) fn start(&mut self, command: &str) -> Result<Ticket> {
        let id = self.next;
        self.next += 1;
        let (send, answer) = channel();
        match &mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(waiting) => waiting.insert(id, send),
            None => return Err(gone()),
        };
        let line = format!("{id} {}\n", base64::encode(command.as_bytes()));
        self.to.write_all(line.as_bytes()).map_err(|_| gone())?;
        Ok(Ticket { id, answer })
    }
}

impl Ticket {
    /// Waits until the command ends. Returns `None` after the timeout.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Option<Output>> {
        match self.answer.recv_timeout(timeout) {
            Ok(output) => Ok(Some(output)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        }
    }
}

fn gone() -> Failure {
    Failure::new("the guest is gone")
}

/// Parses an answer of the form `ID EXITCODE BASE64`.
fn parse(line: &str) -> Option<(u64, Output)> {
    let mut words = line.split(' ');
    let (id, code) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let text = base64::decode(words.next().unwrap_or_default())?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some((id, Output { code, text }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_number_a_code_and_text_that_may_be_empty() {
        let (id, output) = parse("7 2 aGkK").unwrap();
        assert_eq!((id, output.code, output.text.as_str()), (7, 2, "hi\n"));
        assert_eq!(parse("8 0 ").unwrap().1.text, "");
        assert!(parse("ready").is_none());
        assert!(parse("8 0 ?").is_none());
    }
}

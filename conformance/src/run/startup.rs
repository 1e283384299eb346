//! Startup of a connection, until Full Operation begins.

use std::time::Duration;

use serde_json::{Value, json};

use super::frame::keeps;
use super::outcome::{Ending, Who};
use super::player::{Player, Step, Stop};
use crate::agent::number;
use crate::script::{Answer, Setup, Stag, StartupCheck, To, write};
use crate::transport::Got;
use crate::wire::startup::{R, REPLY_KEY, REQUEST_KEY, StartupFrame};
use crate::words::many;

/// Interval at which the suite checks the connection while it waits for an event of the agent.
const ASKED: Duration = Duration::from_millis(20);

impl Player<'_> {
    pub(super) fn establish(&mut self, setup: &Setup) -> Step {
        self.begin(setup)?;
        if self.target_responds {
            self.send_own(setup)?;
            self.expect_startup()?;
        } else {
            self.expect_startup()?;
            self.send_own(setup)?;
        }
        self.connection()?.operate();
        if self
            .connection()?
            .theirs
            .as_ref()
            .is_some_and(|frame| frame.key == REPLY_KEY && frame.flags & R != 0)
        {
            return Err(Stop::Fail {
                expected: "a Reply that accepts".into(),
                received: "a Reply with R=1".into(),
            });
        }
        if self.target_responds {
            self.config.network.pause(self.config.settle);
        }
        if self.target_responds && setup.nudge {
            self.send(&[write(Stag::Is(0), To::Is(0), 0)])?;
        }
        self.established()
    }

    /// Makes a connection and sends the startup frame of the suite on it.
    pub(super) fn propose(&mut self, setup: &Setup) -> Step {
        self.begin(setup)?;
        if !self.target_responds {
            self.expect_startup()?;
        }
        self.send_own(setup)?;
        if !self.target_responds {
            self.connection()?.operate();
        }
        Ok(())
    }

    /// Waits for the event `established` at the application on the target.
    fn established(&mut self) -> Step {
        let Some(conn) = self.connection()?.conn else {
            return Ok(());
        };
        let timeout = self.config.timeout;
        let event = self.agent()?.event(timeout, |event| {
            event["conn"] == json!(conn) && event.get("ev").is_some()
        })?;
        match event {
            Some(event) if event["ev"] == "established" => {
                if !self.target_responds {
                    self.private_data = event["data"].as_str().map(str::to_owned);
                }
                Ok(())
            }
            other => Err(Stop::Fail {
                expected: "that the application has its connection".into(),
                received: other.map_or("nothing".into(), |event| event.to_string()),
            }),
        }
    }

    pub(super) fn send_startup(&mut self, frame: &StartupFrame) -> Step {
        let bytes = frame.bytes();
        self.connection()?.ours = Some(frame.clone());
        self.send_bytes(&bytes, &frame.to_string())
    }

    /// Makes the application accept or reject the pending connection request, if a request reaches
    /// the application.
    fn answer(&mut self) -> Step {
        let Some((setup, listener)) = self.unanswered.take() else {
            return Ok(());
        };
        if matches!(setup.answer, Answer::Never | Answer::Auto) {
            return Ok(());
        }
        let network = self.config.network.clone();
        let deadline = network.now() + self.config.timeout;
        let mut request = None;
        // A target that ends the connection does not pass the request to the application.
        while request.is_none() && network.now() < deadline && !self.connection()?.poll_end() {
            request = self.agent()?.event(ASKED, |event| {
                event["ev"] == "connect_request" && event["listener"] == json!(listener)
            })?;
        }
        let Some(request) = request else {
            // The next bytes on the connection show the reason.
            self.note("no connection request reached the application");
            return Ok(());
        };
        let conn = number(&request, "conn")?;
        self.connection()?.conn = Some(conn);
        self.private_data = request["data"].as_str().map(str::to_owned);
        match &setup.answer {
            Answer::Reject(data) => {
                let members = json!({"conn": conn, "data": hex(data)});
                self.agent()?.command("reject", members)?;
            }
            Answer::Accept | Answer::Never | Answer::Auto => {
                self.pds.insert(conn, setup.pd);
                self.receives_on(conn, setup.receives)?;
                let mut members = answer_members(&setup);
                members["conn"] = json!(conn);
                self.agent()?.command("accept", members)?;
            }
        }
        Ok(())
    }

    pub(super) fn expect_startup(&mut self) -> Step {
        let (expected, key) = if self.target_responds {
            self.answer()?;
            ("an MPA Reply Frame", REPLY_KEY)
        } else {
            ("an MPA Request Frame", REQUEST_KEY)
        };
        let timeout = self.config.timeout;
        let fail = |received: String| {
            Err(Stop::Fail {
                expected: expected.into(),
                received,
            })
        };
        match self.connection()?.startup(timeout) {
            Ok((frame, bytes)) => {
                self.record(Who::Target, frame.to_string(), &bytes);
                if frame.key != key {
                    return fail(format!("a frame with the Key {:02x?}", frame.key));
                }
                self.connection()?.theirs = Some(frame);
                Ok(())
            }
            Err(Ok(got)) => {
                let rest = self.connection()?.rest().to_vec();
                if !rest.is_empty() {
                    self.record(Who::Target, "bytes that are not a startup frame", &rest);
                }
                let (ending, then) = match got {
                    Got::Fin => (Ending::Close, "the end of the TCP connection (FIN)".into()),
                    Got::Reset => (Ending::Reset, "a reset of the TCP connection".into()),
                    Got::Nothing | Got::Bytes(_) => {
                        (Ending::Silence, format!("nothing within {timeout:?}"))
                    }
                };
                self.ending = Some(ending);
                fail(match rest.len() {
                    0 => then,
                    len => format!(
                        "{len} that are not a startup frame, then {then}",
                        len = many(len, "byte")
                    ),
                })
            }
            Err(Err(error)) => Err(error.into()),
        }
    }

    pub(super) fn expect_startup_or_end(&mut self) -> Step {
        match self.expect_startup() {
            Err(Stop::Fail { .. }) if self.connection()?.ended.is_some() => {
                self.note("the target ended the connection instead of sending its startup frame");
                Ok(())
            }
            came => {
                self.connection()?.operate();
                came
            }
        }
    }

    /// Expects that the application received this Private Data from the suite.
    pub(super) fn receives_private_data(&mut self, due: &[u8]) -> Step {
        self.agent()?;
        if self.private_data.is_none()
            && let Some(conn) = self.connection()?.conn
        {
            let timeout = self.config.timeout;
            let event = self.agent()?.event(timeout, |event| {
                event["conn"] == json!(conn)
                    && (event["ev"] == "established" || event["ev"] == "rejected")
            })?;
            self.private_data = event.and_then(|event| event["data"].as_str().map(str::to_owned));
        }
        let told = self.private_data.clone().unwrap_or_default();
        if told == hex(due) {
            return Ok(());
        }
        Err(Stop::Fail {
            expected: format!("the Private Data {} at the application", hex(due)),
            received: format!("the Private Data \"{told}\""),
        })
    }

    pub(super) fn check_startup(&mut self, check: StartupCheck) -> Step {
        if check == StartupCheck::RtrOfBefore {
            return self.sets_rtr_of_before();
        }
        let theirs = self.connection()?.theirs.clone();
        let Some(frame) = theirs else {
            return Err(Stop::Infrastructure("no startup frame came".into()));
        };
        if keeps(&frame, check) {
            return Ok(());
        }
        Err(Stop::Fail {
            expected: format!("in the startup frame: {check}"),
            received: frame.to_string(),
        })
    }
}

pub(super) fn merge(members: &mut Value, more: Value) {
    if let (Value::Object(members), Value::Object(more)) = (members, more) {
        members.extend(more);
    }
}

/// Returns the members of a command that describe a QP.
pub(super) fn qp(setup: &Setup) -> Value {
    json!({
        "pd": setup.pd,
        "recv_wr": setup.receives.0.max(64),
        "send_wr": 256,
    })
}

/// Returns the members of a command that accepts or opens a connection.
pub(super) fn answer_members(setup: &Setup) -> Value {
    json!({
        "ird": setup.ird,
        "ord": setup.ord,
        "data": hex(&setup.private_data),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Steps for enhanced connection setup (RFC 6581). Some also work with targets that do not support
//! it.

use std::time::Duration;

use serde_json::json;

use super::player::{Player, Step, Stop};
use crate::script::{Rtr, Stag, To, answer_read, read_request, send, write};
use crate::wire::segment::opcode;
use crate::wire::startup::{Enhanced, R, REPLY_KEY, S, StartupFrame, reply};

/// Time limit for the target to report the RTR indication to its application. After that, the suite
/// resets the connection.
const LEAVE: Duration = Duration::from_millis(200);

impl Player<'_> {
    /// Expects the startup frame of the target, with enhanced connection data. Skips the case if
    /// the target has no enhanced setup: it omits the data or, as Responder, closes the connection.
    pub(super) fn expect_enhanced(&mut self) -> Step {
        match self.expect_startup() {
            Err(Stop::Fail { .. }) if self.target_responds && self.connection()?.poll_end() => {
                return Err(no_enhanced_setup());
            }
            other => other?,
        }
        if self.enhanced()?.is_some() {
            return Ok(());
        }
        let theirs = self.connection()?.theirs.as_ref();
        match theirs.filter(|frame| frame.flags & S != 0 && frame.rev > 1) {
            Some(frame) => Err(Stop::Fail {
                expected: "four bytes of connection data, because S is set".into(),
                received: frame.to_string(),
            }),
            None => Err(no_enhanced_setup()),
        }
    }

    /// Expects an enhanced Reply to an enhanced Request. A target without enhanced setup may close
    /// the connection instead.
    pub(super) fn expect_enhanced_or_close(&mut self) -> Step {
        match self.expect_startup() {
            Err(Stop::Fail { .. }) if self.connection()?.poll_end() => return Ok(()),
            other => other?,
        }
        match self.enhanced()? {
            Some(_) => Ok(()),
            None => Err(Stop::Fail {
                expected: "an enhanced Reply, or the end of the TCP connection".into(),
                received: "a Reply without enhanced connection data".into(),
            }),
        }
    }

    /// Returns the enhanced connection data in the startup frame of the target.
    pub(super) fn enhanced(&mut self) -> Result<Option<Enhanced>, Stop> {
        let theirs = self.connection()?.theirs.as_ref();
        Ok(theirs.and_then(StartupFrame::enhanced_data))
    }

    /// Sends a Reply that accepts the peer-to-peer model but offers only the RTR indications that
    /// the Request did not offer.
    pub(super) fn reply_other_rtr(&mut self) -> Step {
        let Some(asked) = self.enhanced()? else {
            return Err(no_enhanced_setup());
        };
        let frame = reply().enhanced(Enhanced {
            a: true,
            b: !asked.b,
            c: !asked.c,
            d: !asked.d,
            ird: asked.ord.max(1),
            ord: asked.ird,
        });
        self.send_startup(&frame)
    }

    /// Checks that this Reply sets every RTR indication that the target set in earlier Replies of
    /// the case.
    pub(super) fn sets_rtr_of_before(&mut self) -> Step {
        let all: Vec<u8> = self
            .connections
            .iter()
            .filter_map(|connection| connection.theirs.as_ref())
            .filter_map(StartupFrame::enhanced_data)
            .map(rtr_bits)
            .collect();
        let Some((now, before)) = all.split_last() else {
            return Err(no_enhanced_setup());
        };
        let supported = before.iter().fold(0, |bits, one| bits | one);
        if supported & !now == 0 {
            return Ok(());
        }
        Err(Stop::Fail {
            expected: "all RTR indications that the target sets if it is asked for only one".into(),
            received: format!("B, C, D {now:03b}; it supports {supported:03b}"),
        })
    }

    pub(super) fn accepts(&mut self) -> Result<bool, Stop> {
        let theirs = self.connection()?.theirs.as_ref();
        Ok(theirs.is_some_and(|frame| frame.flags & R == 0))
    }

    pub(super) fn offers(&mut self, rtr: Rtr) -> Result<bool, Stop> {
        let bit = match rtr {
            Rtr::Send => 4,
            Rtr::Write => 2,
            Rtr::Read => 1,
        };
        Ok(self
            .enhanced()?
            .is_some_and(|data| data.a && rtr_bits(data) & bit != 0))
    }

    /// Expects that the first FPDU of the Initiator is an RTR indication that both sides offered.
    /// Answers it if it is a Read.
    pub(super) fn expect_rtr(&mut self) -> Step {
        let expected = "an RTR indication that was negotiated";
        let ours = self.connection()?.ours.as_ref();
        let agreed = ours
            .and_then(StartupFrame::enhanced_data)
            .map_or(0, rtr_bits)
            & self.enhanced()?.map_or(0, rtr_bits);
        let message = self.message(expected)?;
        let (rtr, bit) = match message.first.opcode() {
            opcode::SEND => (Rtr::Send, 4),
            opcode::WRITE => (Rtr::Write, 2),
            opcode::READ_REQUEST => (Rtr::Read, 1),
            _ => (Rtr::Send, 0),
        };
        let is_empty = match rtr {
            Rtr::Read => self.seen_read_request(expected, &message)?.0 == 0,
            Rtr::Send | Rtr::Write => message.payload.is_empty(),
        };
        if agreed & bit == 0 || !is_empty {
            return Err(Stop::Fail {
                expected: expected.into(),
                received: message.first.to_string(),
            });
        }
        if rtr == Rtr::Read {
            let read = self.connection()?.reads.len() - 1;
            self.send(&[answer_read(read, 0)])?;
        }
        Ok(())
    }

    /// Resets a connection that is still open at the end of the case.
    pub(super) fn leave(&mut self, number: usize) {
        self.current = number;
        let connection = &mut self.connections[number];
        if connection.ended.is_some() {
            return;
        }
        // A Responder that still waits for an RTR indication receives one before the reset. Other
        // cases test its reaction to a peer that disconnects earlier.
        let agreed = connection
            .theirs
            .as_ref()
            .filter(|frame| frame.key == REPLY_KEY);
        let waits = agreed
            .and_then(StartupFrame::enhanced_data)
            .filter(|data| data.a);
        if let Some(data) = waits
            && connection.sent.is_empty()
        {
            connection.operate();
            let rtr = match (data.c, data.d) {
                (true, _) => write(Stag::Is(0), To::Is(0), 0),
                (_, true) => read_request(Stag::Is(0), To::Is(0), 0),
                _ => send(0),
            };
            if self.send(&[rtr]).is_ok()
                && let Some(conn) = self.connections[number].conn
                && let Some(agent) = self.agent.as_deref_mut()
            {
                let _ = agent.event(LEAVE, |event| {
                    event["conn"] == json!(conn) && event["ev"] == "established"
                });
            }
        }
        self.connections[number].stream.reset();
    }

    /// Expects `name` as the next event of this connection at the application.
    pub(super) fn event(&mut self, name: &str) -> Step {
        let Some(conn) = self.connection()?.conn else {
            return Err(Stop::Skip("events of the application need an agent".into()));
        };
        let timeout = self.config.timeout;
        let event = self.agent()?.event(timeout, |event| {
            event["conn"] == json!(conn) && event.get("ev").is_some()
        })?;
        match event {
            Some(event) if event["ev"] == name => {
                self.note(format!("event at the application: {event}"));
                Ok(())
            }
            other => Err(Stop::Fail {
                expected: format!("the event {name} at the application"),
                received: other.map_or(format!("nothing within {timeout:?}"), |event| {
                    event.to_string()
                }),
            }),
        }
    }
}

/// Returns B, C and D as the bits 4, 2 and 1.
pub(super) fn rtr_bits(data: Enhanced) -> u8 {
    u8::from(data.b) << 2 | u8::from(data.c) << 1 | u8::from(data.d)
}

fn no_enhanced_setup() -> Stop {
    Stop::Skip("the target does not use enhanced connection setup".into())
}

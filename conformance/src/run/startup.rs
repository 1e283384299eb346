//! From nothing to Full Operation.

use serde_json::{Value, json};

use super::config::Target;
use super::connection::Connection;
use super::outcome::Who;
use super::player::{Player, Step, Stop};
use crate::agent::number;
use crate::script::{Answer, Setup, Stag, StartupCheck, To, write};
use crate::transport::{Got, Stream};
use crate::wire::startup::{
    C, Enhanced, M, R, REPLY_KEY, REQUEST_KEY, S, StartupFrame, reply, request,
};

impl Player<'_> {
    pub(super) fn begin(&mut self, setup: &Setup) -> Step {
        let stream = if self.target_responds {
            self.dial(setup)?
        } else {
            self.be_dialled(setup)?
        };
        let number = self.connections.len();
        self.connections.push(Connection::new(stream, number));
        self.current = number;
        if let Some((_, conn)) = &self.unanswered
            && !self.target_responds
        {
            let conn = *conn;
            self.unanswered = None;
            self.connection()?.conn = Some(conn);
        }
        let (local, peer) = self.connection()?.addresses();
        self.note(format!("connection {number}: {local} to {peer}"));
        Ok(())
    }

    /// The suite connects.
    fn dial(&mut self, setup: &Setup) -> Result<Box<dyn Stream>, Stop> {
        let Target::At(mut to) = self.config.target else {
            return Err(Stop::Skip(
                "the target dials: it takes no connection of the suite".into(),
            ));
        };
        if self.agent.is_some() {
            let mut members = qp(setup);
            members["backlog"] = json!(4);
            let route = self.config.route.clone();
            members["port"] = json!(route.as_ref().map_or(0, |route| route.port()));
            let answer = self.agent()?.command("listen", members)?;
            let port = u16::try_from(number(&answer, "port")?).unwrap_or_default();
            match &route {
                Some(route) => to = route.target(port),
                None => to.set_port(port),
            }
            self.unanswered = Some((setup.clone(), number(&answer, "listener")?));
        }
        let network = self.config.network.clone();
        network
            .connect(to, setup.mss, self.config.timeout)
            .map_err(|error| {
                Stop::Infrastructure(format!(
                    "the target at {to} takes no connection: {error}; is it running?"
                ))
            })
    }

    /// The target connects.
    fn be_dialled(&mut self, setup: &Setup) -> Result<Box<dyn Stream>, Stop> {
        let timeout = self.config.timeout;
        if self.agent.is_none() {
            return self.wait_for_target(setup);
        }
        let peer = match self.config.target {
            Target::At(addr) => addr,
            _ => self
                .config
                .agent
                .unwrap_or_else(|| ([127, 0, 0, 1], 0).into()),
        };
        let network = self.config.network.clone();
        let route = self.config.route.clone();
        let own = route.as_ref().map(|route| route.own());
        let mut listener = network.listen(own, Some(peer), setup.mss)?;
        let mut at = listener.local_addr();
        if let Some(route) = &route {
            at = route.own_for_target(at);
        }
        let mut members = qp(setup);
        members["addr"] = json!(at.ip().to_string());
        members["port"] = json!(at.port());
        let answer = self.agent()?.command("open", members)?;
        let conn = number(&answer, "conn")?;
        let ready = self.agent()?.event(timeout, |event| {
            event["conn"] == json!(conn) && event.get("ev").is_some()
        })?;
        match ready {
            Some(event) if event["ev"] == "ready" => {}
            other => {
                let what = other.map_or("nothing".to_owned(), |event| event.to_string());
                return Err(Stop::Infrastructure(format!(
                    "the application cannot open a connection: {what}"
                )));
            }
        }
        self.pds.insert(conn, setup.pd);
        self.receives_on(conn, setup.receives)?;
        let mut members = answer_members(setup);
        members["conn"] = json!(conn);
        if !setup.rtr.is_empty() {
            members["peer_to_peer"] = json!(true);
        }
        self.agent()?.command("connect", members)?;
        self.unanswered = Some((setup.clone(), conn));
        listener
            .accept(timeout)?
            .ok_or_else(|| Stop::Infrastructure(format!("the target does not connect to {at}")))
    }

    /// Without an agent: whoever connects next is the target.
    fn wait_for_target(&mut self, setup: &Setup) -> Result<Box<dyn Stream>, Stop> {
        if setup.mss.is_some() {
            return Err(Stop::Skip("the MSS cannot be chosen here".into()));
        }
        let timeout = self.config.timeout;
        let Some(listener) = self.listener.as_deref_mut() else {
            return Err(Stop::Skip(
                "nothing can tell the target to connect: it needs an agent".into(),
            ));
        };
        if let Target::Command(command) = &self.config.target {
            self.shim = None;
            let shim = super::shim::Shim::start(command, listener.local_addr());
            self.shim = Some(shim.map_err(|error| {
                Stop::Infrastructure(format!("the command cannot be started: {error}"))
            })?);
        }
        listener.accept(timeout)?.ok_or_else(|| {
            Stop::Infrastructure("the target does not connect to the suite".to_owned())
        })
    }

    /// The frame that the suite sends in this setup.
    fn own_frame(&self, setup: &Setup, base: StartupFrame) -> StartupFrame {
        if let Some(frame) = &setup.frame {
            return frame.clone();
        }
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = bit(setup.crc.unwrap_or(self.config.crc), C)
            | bit(setup.markers.unwrap_or(self.config.markers), M);
        let base = base.flags(flags);
        let enhanced = Enhanced::client_server(16, 16);
        if base.key == REQUEST_KEY && self.config.revision >= 2 {
            return base.enhanced(enhanced);
        }
        base
    }

    pub(super) fn establish(&mut self, setup: &Setup) -> Step {
        self.begin(setup)?;
        if self.target_responds {
            let frame = self.own_frame(setup, request());
            self.send_startup(&frame)?;
            self.expect_startup()?;
        } else {
            self.expect_startup()?;
            let frame = self.own_reply(setup)?;
            self.send_startup(&frame)?;
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
        std::thread::sleep(self.config.settle);
        if self.target_responds && setup.nudge {
            self.send(&[write(Stag::Is(0), To::Is(0), 0)])?;
        }
        self.established()
    }

    /// The Reply that fits the target's Request, if the setup has no other.
    fn own_reply(&mut self, setup: &Setup) -> Result<StartupFrame, Stop> {
        let frame = self.own_frame(setup, reply());
        let theirs = self.connection()?.theirs.clone();
        let Some(asked) = theirs.as_ref().and_then(StartupFrame::enhanced_data) else {
            return Ok(frame);
        };
        if setup.frame.is_some() {
            return Ok(frame);
        }
        let depth = |asked: u16| if asked == 0x3fff { 0x3fff } else { asked };
        Ok(frame.enhanced(Enhanced {
            a: asked.a,
            b: asked.a && asked.b,
            c: asked.a && asked.c,
            d: asked.a && asked.d,
            ird: depth(asked.ord),
            ord: depth(asked.ird),
        }))
    }

    /// Waits until the application on the target has its connection.
    fn established(&mut self) -> Step {
        let Some(conn) = self.connection()?.conn else {
            return Ok(());
        };
        let timeout = self.config.timeout;
        let event = self.agent()?.event(timeout, |event| {
            event["conn"] == json!(conn) && event.get("ev").is_some()
        })?;
        match event {
            Some(event) if event["ev"] == "established" => Ok(()),
            other => Err(Stop::Fail {
                expected: "that the application has its connection".into(),
                received: other.map_or("nothing".into(), |event| event.to_string()),
            }),
        }
    }

    pub(super) fn send_startup(&mut self, frame: &StartupFrame) -> Step {
        let octets = frame.octets();
        self.connection()?.ours = Some(frame.clone());
        self.send_octets(&octets, &describe(frame))
    }

    /// The application accepts or rejects what was asked, if it is asked and has not.
    fn answer(&mut self) -> Step {
        let Some((setup, listener)) = self.unanswered.take() else {
            return Ok(());
        };
        if setup.answer == Answer::Never {
            return Ok(());
        }
        let timeout = self.config.timeout;
        let request = self.agent()?.event(timeout, |event| {
            event["ev"] == "connect_request" && event["listener"] == json!(listener)
        })?;
        let Some(request) = request else {
            // Then what is on the connection tells why.
            self.note("no connection request reached the application");
            return Ok(());
        };
        let conn = number(&request, "conn")?;
        self.connection()?.conn = Some(conn);
        match &setup.answer {
            Answer::Reject(data) => {
                let members = json!({"conn": conn, "data": hex(data)});
                self.agent()?.command("reject", members)?;
            }
            Answer::Accept | Answer::Never => {
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
            Ok((frame, octets)) => {
                self.said(Who::Target, describe(&frame), &octets);
                if frame.key != key {
                    return fail(format!("a frame with the Key {:02x?}", frame.key));
                }
                self.connection()?.theirs = Some(frame);
                Ok(())
            }
            Err(Ok(Got::Fin)) => fail("the end of the TCP connection (FIN)".into()),
            Err(Ok(Got::Reset)) => fail("a reset of the TCP connection".into()),
            Err(Ok(Got::Nothing | Got::Octets(_))) => {
                let rest = self.connection()?.rest().to_vec();
                self.said(Who::Target, "octets", &rest);
                fail(format!(
                    "{} octets, then nothing for {timeout:?}",
                    rest.len()
                ))
            }
            Err(Err(error)) => Err(error.into()),
        }
    }

    pub(super) fn check_startup(&mut self, check: StartupCheck) -> Step {
        let theirs = self.connection()?.theirs.clone();
        let Some(frame) = theirs else {
            return Err(Stop::Infrastructure("no startup frame has come".into()));
        };
        if keeps(&frame, check) {
            return Ok(());
        }
        Err(Stop::Fail {
            expected: format!("in the startup frame: {check:?}"),
            received: describe(&frame),
        })
    }
}

/// Whether a startup frame keeps one rule.
fn keeps(frame: &StartupFrame, check: StartupCheck) -> bool {
    let enhanced = frame.enhanced_data();
    let consumer = match enhanced {
        Some(_) => frame.private_data.get(4..).unwrap_or_default(),
        None => &frame.private_data,
    };
    let rtr = enhanced.map_or(0, |data| {
        u8::from(data.b) << 2 | u8::from(data.c) << 1 | u8::from(data.d)
    });
    let is_request = frame.key == REQUEST_KEY;
    match check {
        StartupCheck::Key => is_request || frame.key == REPLY_KEY,
        StartupCheck::ReservedZero => {
            let reserved = if frame.rev >= 2 { 0x0f } else { 0x1f };
            frame.flags & reserved == 0
        }
        StartupCheck::Rejected(due) => (frame.flags & R != 0) == due,
        StartupCheck::Crc => frame.flags & C != 0,
        StartupCheck::Rev(rev) => frame.rev == rev,
        StartupCheck::RevFitsS => frame.rev == 1 && frame.flags & S == 0 || frame.rev >= 2,
        StartupCheck::Enhanced(due) => (frame.flags & S != 0) == due && enhanced.is_some() == due,
        StartupCheck::PrivateDataWithin512 => frame.private_data.len() <= 512,
        StartupCheck::PrivateData(due) => consumer == due,
        StartupCheck::Depths { ird, ord } => enhanced.is_some_and(|data| {
            ird.is_none_or(|due| due == data.ird) && ord.is_none_or(|due| due == data.ord)
        }),
        StartupCheck::OrdAtMost(most) => enhanced.is_some_and(|data| data.ord <= most),
        StartupCheck::IrdAtLeast(least) => enhanced.is_some_and(|data| data.ird >= least),
        StartupCheck::PeerToPeer(due) => enhanced.is_some_and(|data| data.a == due),
        StartupCheck::NoRtr => rtr == 0,
        StartupCheck::SomeRtr => rtr != 0,
        StartupCheck::RtrAmong(among) => rtr & among != 0,
        StartupCheck::RtrAll(all) => rtr & all == all,
    }
}

/// A startup frame in words.
fn describe(frame: &StartupFrame) -> String {
    let kind = match frame.key {
        REQUEST_KEY => "MPA Request Frame",
        REPLY_KEY => "MPA Reply Frame",
        _ => "a frame with another Key",
    };
    let names = [(M, "M"), (C, "C"), (R, "R"), (S, "S")];
    let flags: Vec<&str> = names
        .iter()
        .filter(|(bit, _)| frame.flags & bit != 0)
        .map(|(_, name)| *name)
        .collect();
    let mut text = format!(
        "{kind}, revision {}, flags {:#04x} ({}), {} octets of Private Data",
        frame.rev,
        frame.flags,
        flags.join(" "),
        frame.private_data.len()
    );
    if let Some(data) = frame.enhanced_data() {
        text.push_str(&format!(", IRD {}, ORD {}", data.ird, data.ord));
        let bits = [(data.a, "A"), (data.b, "B"), (data.c, "C"), (data.d, "D")];
        for (_, name) in bits.iter().filter(|(set, _)| *set) {
            text.push(' ');
            text.push_str(name);
        }
    }
    text
}

/// The members of a QP in a command.
fn qp(setup: &Setup) -> Value {
    json!({
        "pd": setup.pd,
        "recv_wr": setup.receives.0.max(64),
        "send_wr": 256,
    })
}

/// Those of an answer.
fn answer_members(setup: &Setup) -> Value {
    json!({
        "ird": setup.ird,
        "ord": setup.ord,
        "data": hex(&setup.private_data),
    })
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

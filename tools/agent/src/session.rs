//! Session of one controller: the objects that it created, and the handling of its commands and
//! events.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use uwarp_verbs::{CompletionChannel, Device, EventChannel, Pd};

use crate::budget::Budget;
use crate::command;
use crate::control::{Control, InputLine};
use crate::endpoint::Endpoint;
use crate::hub::Membership;
use crate::json::{Fields, Line};
use crate::memory::{Region, Window};
use crate::numbers::Numbers;
use crate::refusal::{Refusal, by};
use crate::srq::SharedQueue;
use crate::token;

const PROTOCOL: u64 = 1;
const MAX_PDS: usize = 8;
/// Address of the first region, if the device has a seed.
const FIRST_PAGE: u64 = 0x7f00_0000_0000;

/// State that all sessions of an agent share.
pub(crate) struct Common {
    pub(crate) device: Device,
    /// Default address for listeners.
    pub(crate) listen_ip: IpAddr,
    /// Default source address for connections.
    pub(crate) source_ip: Option<IpAddr>,
    /// RDMA port of the agent, which belongs to no controller.
    pub(crate) rdma_port: Option<u16>,
    /// Token that controllers have to send.
    pub(crate) token: Option<String>,
    /// Memory of all controllers together.
    pub(crate) memory: Arc<Budget>,
}

/// Session of a controller. Dropping it ends all its objects.
pub(crate) struct Session {
    pub(crate) common: Arc<Common>,
    pub(crate) control: Control,
    pub(crate) membership: Membership,
    pub(crate) cm: EventChannel,
    pub(crate) completions: CompletionChannel,
    pds: [Option<Pd>; MAX_PDS],
    // Fields are dropped in this order. Connections must precede the objects that they use.
    pub(crate) endpoints: Numbers<Endpoint>,
    pub(crate) windows: Numbers<Window>,
    pub(crate) regions: Numbers<Region>,
    pub(crate) srqs: Numbers<SharedQueue>,
    /// Address of the next region, if the device has a seed.
    pub(crate) next_page: u64,
    /// True if the controller may send commands: it has sent the token, or needs none.
    is_admitted: bool,
    /// True after the controller has sent `exit`, or a line that ends the session.
    pub(crate) leaving: bool,
}

impl Session {
    /// Creates a session and queues its greeting.
    pub(crate) fn new(common: Arc<Common>, membership: Membership) -> io::Result<Session> {
        let is_admitted = common.token.is_none();
        let mut session = Session {
            control: Control::new(Arc::clone(&common.memory)),
            common,
            membership,
            cm: EventChannel::new()?,
            completions: CompletionChannel::new()?,
            pds: Default::default(),
            endpoints: Numbers::new(1024, "connection or listener", "connections and listeners"),
            windows: Numbers::new(1024, "window", "windows"),
            regions: Numbers::new(1024, "region", "regions"),
            srqs: Numbers::new(8, "shared receive queue", "shared receive queues"),
            next_page: FIRST_PAGE,
            is_admitted,
            leaving: false,
        };
        session.greet();
        Ok(session)
    }

    fn greet(&mut self) {
        let mut line = Line::new();
        line.text("hello", "uwarp-agent");
        line.number("protocol", PROTOCOL);
        line.text("device", self.common.device.name());
        if !self.is_admitted {
            line.flag("token", true);
        }
        self.write(line);
    }

    /// Returns true if the session has to end: the controller has sent `exit` or a line that is no
    /// command, its connection has ended, another took its place, or the agent stops.
    pub(crate) fn is_over(&self) -> bool {
        self.leaving || self.control.is_over() || self.membership.is_stopping()
    }

    /// Handles all pending events and commands without waiting. Returns false if there was nothing
    /// to do.
    pub(crate) fn turn(&mut self) -> bool {
        let mut busy = self.take_cm_events();
        busy |= self.take_completion_events();
        for event in self.membership.take() {
            busy = true;
            if self.is_admitted {
                self.report_device_event(&event);
            }
        }
        busy | self.take_commands()
    }

    fn take_commands(&mut self) -> bool {
        let mut busy = false;
        while !self.leaving {
            match self.control.next() {
                None => break,
                Some(InputLine::Line(line)) => self.execute(&line),
                Some(InputLine::TooLong) => {
                    let why = "a line is longer than 65535 bytes";
                    self.refuse_and_end(Line::new(), Refusal::agent(why));
                }
            }
            busy = true;
        }
        busy
    }

    /// Executes the command in a line and queues its answer.
    fn execute(&mut self, line: &[u8]) {
        let mut answer = Line::new();
        let fields = match Fields::parse(line) {
            Ok(fields) => fields,
            Err(refusal) => return self.refuse_and_end(answer, refusal),
        };
        let id = match fields.number("id", 0) {
            Ok(id) => id,
            Err(refusal) => return self.refuse_and_end(answer, refusal),
        };
        answer.number("id", id);
        if let Err(refusal) = self.admit(&fields) {
            return self.refuse_and_end(answer, refusal);
        }
        let mark = answer.mark();
        answer.flag("ok", true);
        let result = command::run(self, &fields, &mut answer);
        if result.is_err() {
            answer.back_to(mark);
        }
        self.answer(answer, result);
    }

    /// Refuses a line and ends the session. The sender of a line that is no command is no
    /// controller: for example, a web page can make a browser send a request with a body of
    /// commands.
    fn refuse_and_end(&mut self, answer: Line, refusal: Refusal) {
        self.answer(answer, Err(refusal));
        self.leaving = true;
    }

    /// Checks the token if the controller has not sent it yet.
    fn admit(&mut self, fields: &Fields) -> Result<(), Refusal> {
        if let Some(wanted) = self.common.token.as_ref().filter(|_| !self.is_admitted) {
            if fields.text("cmd", "")? != "token" {
                let why = "the first command must be 'token', with the token of the agent";
                return Err(Refusal::agent(why));
            }
            if !token::same(fields.text("token", "")?, wanted) {
                return Err(Refusal::agent("the token is wrong"));
            }
            self.is_admitted = true;
        }
        self.membership.prove();
        Ok(())
    }

    fn answer(&mut self, mut line: Line, result: Result<(), Refusal>) {
        if let Err(refusal) = result {
            line.flag("ok", false);
            refusal.write(&mut line);
        }
        self.write(line);
    }

    pub(crate) fn write(&mut self, line: Line) {
        self.control.write(&line.finish());
    }

    /// Returns the protection domain with this number. It is created on first use.
    pub(crate) fn pd(&mut self, number: u64) -> Result<Pd, Refusal> {
        let slot = usize::try_from(number)
            .ok()
            .and_then(|number| self.pds.get_mut(number));
        let Some(slot) = slot else {
            let last = MAX_PDS - 1;
            return Err(Refusal::agent(format!("pd: 0 to {last} was expected")));
        };
        if let Some(pd) = slot {
            return Ok(pd.clone());
        }
        let pd = self.common.device.alloc_pd().map_err(by("ibv_alloc_pd"))?;
        Ok(slot.insert(pd).clone())
    }

    /// Removes all objects that commands have created. Connections are removed before listeners,
    /// because some may still be pending at a listener. They are also removed before the shared
    /// receive queues and windows that they use.
    pub(crate) fn reset(&mut self) {
        self.endpoints.clear(Endpoint::is_connection);
        self.endpoints.clear(|_| true);
        self.srqs.clear(|_| true);
        self.windows.clear(|_| true);
        self.regions.clear(|_| true);
    }
}

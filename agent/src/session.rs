//! One controller: what it has made, and the loop that serves it.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use uwarp_verbs::{CompletionChannel, Device, EventChannel, Pd, Srq};

use crate::command;
use crate::control::{Control, Incoming};
use crate::endpoint::Endpoint;
use crate::hub::Membership;
use crate::json::{Fields, Line};
use crate::memory::{Region, Window};
use crate::numbers::Numbers;
use crate::refusal::{Refusal, by};

const PROTOCOL: u64 = 1;
const MAX_PDS: usize = 8;
/// Time for a controller to take the last words before its connection is closed.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What is the same for all controllers of an agent.
pub(crate) struct Common {
    pub(crate) device: Device,
    /// Where listeners listen unless they are told.
    pub(crate) listen_ip: IpAddr,
    /// Where connections come from unless they are told.
    pub(crate) source_ip: Option<IpAddr>,
    /// The port that belongs to no controller.
    pub(crate) rdma_port: Option<u16>,
}

/// One controller with all that is its own. Dropping it ends everything.
pub(crate) struct Session {
    pub(crate) common: Arc<Common>,
    pub(crate) control: Control,
    membership: Membership,
    pub(crate) cm: EventChannel,
    pub(crate) completions: CompletionChannel,
    pds: [Option<Pd>; MAX_PDS],
    // In the order in which they have to go: connections, then what they used.
    pub(crate) endpoints: Numbers<Endpoint>,
    pub(crate) windows: Numbers<Window>,
    pub(crate) regions: Numbers<Region>,
    pub(crate) srqs: Numbers<Srq>,
    /// The controller wants no more.
    pub(crate) leaving: bool,
}

impl Session {
    pub(crate) fn new(
        common: Arc<Common>,
        stream: TcpStream,
        membership: Membership,
    ) -> io::Result<Session> {
        Ok(Session {
            common,
            control: Control::new(stream)?,
            membership,
            cm: EventChannel::new()?,
            completions: CompletionChannel::new()?,
            pds: Default::default(),
            endpoints: Numbers::new(1024, "connection or listener", "connections and listeners"),
            windows: Numbers::new(1024, "window", "windows"),
            regions: Numbers::new(1024, "region", "regions"),
            srqs: Numbers::new(8, "shared receive queue", "shared receive queues"),
            leaving: false,
        })
    }

    /// Serves the controller until it leaves.
    pub(crate) fn run(&mut self) {
        self.greet();
        while !self.leaving && !self.control.is_over() && !self.membership.is_stopping() {
            if let Err(error) = self.turn() {
                tracing::error!(%error, "waiting for a controller failed; it is given up");
                break;
            }
        }
        self.reset();
        self.control.flush(LAST_WORDS);
    }

    fn greet(&mut self) {
        let mut line = Line::new();
        line.text("hello", "uwarp-agent");
        line.number("protocol", PROTOCOL);
        line.text("device", self.common.device.name());
        self.write(line);
    }

    /// Waits until something happens, and takes all that has.
    fn turn(&mut self) -> io::Result<()> {
        let mailbox = Arc::clone(&self.membership.mailbox);
        let mut set = [
            PollFd::new(&self.cm, PollFlags::IN),
            PollFd::new(&self.completions, PollFlags::IN),
            PollFd::new(&mailbox.wake, PollFlags::IN),
            self.control.interest(),
        ];
        match poll(&mut set, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let [cm, completions, mail, control] = set.map(|fd| !fd.revents().is_empty());
        if cm {
            self.take_cm_events();
        }
        if completions {
            self.take_completion_events();
        }
        if mail {
            mailbox.wake.clear();
            for event in mailbox.take() {
                self.report_device_event(&event);
            }
        }
        if control {
            self.control.turn();
        }
        // Also those that waited for room.
        self.take_commands();
        Ok(())
    }

    fn take_commands(&mut self) {
        while !self.leaving {
            match self.control.next() {
                None => break,
                Some(Incoming::Line(line)) => self.obey(&line),
                Some(Incoming::TooLong) => {
                    let why = "a line is longer than 65535 octets";
                    self.answer(Line::new(), Err(Refusal::agent(why)));
                }
            }
        }
    }

    /// One line, and its answer.
    fn obey(&mut self, line: &[u8]) {
        let mut answer = Line::new();
        let fields = match Fields::parse(line) {
            Ok(fields) => fields,
            Err(refusal) => return self.answer(answer, Err(refusal)),
        };
        let id = match fields.number("id", 0) {
            Ok(id) => id,
            Err(refusal) => return self.answer(answer, Err(refusal)),
        };
        answer.number("id", id);
        let mark = answer.mark();
        answer.flag("ok", true);
        let result = command::run(self, &fields, &mut answer);
        if result.is_err() {
            answer.back_to(mark);
        }
        self.answer(answer, result);
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

    /// The protection domain of that number, made on first use.
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

    /// Ends everything that commands have made. Connections first: a listener may have some that wait for it, and
    /// shared receive queues and windows are theirs.
    pub(crate) fn reset(&mut self) {
        self.endpoints.clear(Endpoint::is_connection);
        self.endpoints.clear(|_| true);
        self.srqs.clear(|_| true);
        self.windows.clear(|_| true);
        self.regions.clear(|_| true);
    }
}

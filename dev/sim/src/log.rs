//! Log of the steps of a run, for replays.

use std::time::Duration;

use crate::packet;

/// Level of detail of the log, which is written to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Logs nothing.
    Off,
    /// Logs operations of programs, their results, and network faults.
    Events,
    /// Logs every packet as well.
    Packets,
}

impl Log {
    pub(crate) fn event(self, now: Duration, text: impl FnOnce() -> String) {
        if self != Log::Off {
            println!("{:>14.6} ms  {}", now.as_secs_f64() * 1e3, text());
        }
    }

    pub(crate) fn packet(self, now: Duration, what: &str, bytes: &[u8]) {
        if self == Log::Packets {
            self.event(now, || format!("    {} {what}", packet::describe(bytes)));
        }
    }
}

//! What happens in a run, step by step, for who replays it.

use std::time::Duration;

use crate::packet;

/// Where events go: nowhere, or to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// Nobody looks.
    Off,
    /// What programs do and what comes of it, and what befalls the network.
    Events,
    /// Every packet as well.
    Packets,
}

impl Log {
    pub(crate) fn event(self, now: Duration, text: impl FnOnce() -> String) {
        if self != Log::Off {
            println!("{:>14.6} ms  {}", now.as_secs_f64() * 1e3, text());
        }
    }

    pub(crate) fn packet(self, now: Duration, what: &str, octets: &[u8]) {
        if self == Log::Packets {
            self.event(now, || format!("    {} {what}", packet::describe(octets)));
        }
    }
}

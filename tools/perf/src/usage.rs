//! Processor time of this process and of the whole machine.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

/// Processor time that was used until a given moment.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Time of all threads of this process, user and system, in nanoseconds.
    own: u64,
    machine: Option<Machine>,
}

/// Ticks of all processors of the machine since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Machine {
    all: u64,
    idle: u64,
}

/// Processor time used during a measurement.
#[derive(Clone, Copy)]
pub(crate) struct Used {
    /// Time of this process, in seconds.
    pub(crate) own: f64,
    /// Busy time of the machine, in percent of all its processors; `None` if the kernel does not
    /// report it, or no tick passed.
    pub(crate) machine: Option<f64>,
}

impl Used {
    /// Processor time of this process in nanoseconds.
    pub(crate) fn nanos(self) -> u64 {
        (self.own * 1e9) as u64
    }
}

impl Usage {
    pub(crate) fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").ok();
        Usage {
            own: own(),
            machine: stat.and_then(|stat| Machine::of(&stat)),
        }
    }

    /// Returns the processor time used between `self` and now.
    pub(crate) fn until_now(self) -> Used {
        let now = Usage::now();
        let machine = self.machine.zip(now.machine);
        Used {
            own: (now.own - self.own) as f64 / 1e9,
            machine: machine.and_then(|(from, to)| from.busy_until(to)),
        }
    }
}

fn own() -> u64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

impl Machine {
    /// Parses the first line of `/proc/stat`, with the ticks for user, nice, system, idle, iowait
    /// and others (`proc_stat(5)`).
    fn of(stat: &str) -> Option<Self> {
        let fields = stat.lines().next()?.strip_prefix("cpu ")?;
        // The last two of the ten fields (time in guests) are already included in user and nice.
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .take(8)
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        let idle = ticks.get(3)? + ticks.get(4).unwrap_or(&0);
        let all = ticks.iter().sum();
        Some(Machine { all, idle })
    }

    fn busy_until(self, to: Machine) -> Option<f64> {
        let all = to.all.checked_sub(self.all).filter(|all| *all > 0)?;
        let idle = to.idle.saturating_sub(self.idle).min(all);
        Some((all - idle) as f64 / all as f64 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_busy_where_it_is_neither_idle_nor_waits_for_a_disk() {
        let from = Machine::of("cpu  100 10 40 1000 50 0 0 0 70 0\ncpu0 1 2 3").unwrap();
        assert_eq!(
            from,
            Machine {
                all: 1200,
                idle: 1050
            }
        );
        let to = Machine::of("cpu  125 10 40 1060 65 0 0 0 70 0\n").unwrap();
        assert_eq!(from.busy_until(to), Some(25.0));
        assert_eq!(from.busy_until(from), None);
        for wrong in ["", "cpu", "cpu  a b c d", "intr 5"] {
            assert_eq!(Machine::of(wrong), None, "{wrong}");
        }
    }
}

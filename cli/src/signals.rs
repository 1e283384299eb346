//! What a signal that ends the command must not leave behind.

use std::ffi::c_int;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use uwarp_verbs::llp::remove_socket_files;

use crate::output::notice;

/// From now on SIGINT, SIGTERM and SIGHUP remove the socket files of this process before they end it
/// as they always do. Those that the parent has set to be ignored, as `nohup` does, stay so.
pub(crate) fn remove_socket_files_on_signals() {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let ours: Vec<c_int> = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| ignored & mask(*signal) == 0)
        .collect();
    let started = Signals::new(ours).and_then(|mut signals| {
        let wait = move || {
            for signal in signals.forever() {
                remove_socket_files();
                let _ = emulate_default_handler(signal);
            }
        };
        let name = "uwarp-signals".to_owned();
        std::thread::Builder::new().name(name).spawn(wait)
    });
    if let Err(error) = started {
        notice(format_args!(
            "uwarp: a signal that ends this command would leave its socket file behind: {error}"
        ));
    }
}

/// The bit of a signal in a set of signals.
const fn mask(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// The set of ignored signals in `/proc/PID/status`: `proc_pid_status(5)`.
fn ignored(status: &str) -> u64 {
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ignored_signals_are_read_from_the_status_of_the_process() {
        let status = "Name:\tuwarp\nSigBlk:\t0000000000000004\nSigIgn:\t0000000000001003\n";
        assert_eq!(ignored(status), mask(SIGHUP) | mask(SIGINT) | 1 << 12);
        assert_eq!(ignored(""), 0);
    }
}

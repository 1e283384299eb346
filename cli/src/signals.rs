//! What a signal that ends the command must not leave behind.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use uwarp_verbs::llp::remove_socket_files;

use crate::output::notice;

/// The command ends by itself when it is asked to by SIGINT or SIGTERM.
static ENDS_IN_GOOD_ORDER: AtomicBool = AtomicBool::new(false);

/// From now on SIGINT, SIGTERM and SIGHUP remove the socket files of this process before they end it
/// as they always do. Those that the parent has set to be ignored, as `nohup` does, stay so.
pub(crate) fn remove_socket_files_on_signals() {
    let ours = not_ignored(&[SIGINT, SIGTERM, SIGHUP]);
    let started = Signals::new(ours).and_then(|mut signals| {
        let wait = move || {
            for signal in signals.forever() {
                if signal != SIGHUP && ENDS_IN_GOOD_ORDER.load(Ordering::Acquire) {
                    continue;
                }
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

/// From now on a write without a reader is an error, and does not end this process, as it is when a
/// Rust program begins.
pub(crate) fn ignore_broken_pipes() {
    // Without it, the signal ends this process, which is as quiet.
    let _ = flag::register(SIGPIPE, Arc::default());
}

/// From now on SIGINT and SIGTERM do not end this process: the first one is told by the receiver, for the command to end
/// in good order. Those that the parent has set to be ignored stay so.
pub(crate) fn asked_to_end() -> io::Result<Receiver<()>> {
    let mut signals = Signals::new(not_ignored(&[SIGINT, SIGTERM]))?;
    let (tell, told) = channel();
    let wait = move || {
        for _ in signals.forever() {
            // Nobody listens any more when it is ending already.
            let _ = tell.send(());
        }
    };
    let name = "uwarp-signals".to_owned();
    std::thread::Builder::new().name(name).spawn(wait)?;
    ENDS_IN_GOOD_ORDER.store(true, Ordering::Release);
    Ok(told)
}

/// From now on the first SIGINT or SIGTERM sets what is returned, for the command to end in good order, and the next one
/// ends it as it always does. Those that the parent has set to be ignored stay so.
pub(crate) fn asked_to_stop() -> io::Result<Arc<AtomicBool>> {
    let told = asked_to_end()?;
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    let wait = move || {
        for () in told {
            if set.swap(true, Ordering::Relaxed) {
                remove_socket_files();
                let _ = emulate_default_handler(SIGINT);
            }
            notice("what is under way ends, then comes the report; once more ends at once");
        }
    };
    let name = "uwarp-stop".to_owned();
    std::thread::Builder::new().name(name).spawn(wait)?;
    Ok(stop)
}

/// Those of the signals that the parent has not set to be ignored.
fn not_ignored(signals: &[c_int]) -> Vec<c_int> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let ours = signals.iter().copied();
    ours.filter(|signal| ignored & mask(*signal) == 0).collect()
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

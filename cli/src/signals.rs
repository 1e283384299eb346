//! Signal handlers that remove the socket files when a signal ends the command.

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

/// True if the command handles SIGINT and SIGTERM itself and ends gracefully.
static ENDS_ORDERLY: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT, SIGTERM and SIGHUP remove the socket files of this process before they end the
/// process. A signal that the parent process has set to be ignored, as `nohup` does, stays ignored.
pub(crate) fn remove_socket_files_on_signals() {
    let ours = not_ignored(&[SIGINT, SIGTERM, SIGHUP]);
    let started = Signals::new(ours).and_then(|mut signals| {
        let wait = move || {
            for signal in signals.forever() {
                if signal != SIGHUP && ENDS_ORDERLY.load(Ordering::Acquire) {
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
            "uwarp: a signal that ends this command would leave its socket file in place: {error}"
        ));
    }
}

/// Makes writes to a closed pipe return an error instead of ending this process. Rust starts a
/// program in this state. A failed `exec` ends the state, and this function restores it.
pub(crate) fn ignore_broken_pipes() {
    // If this fails, a write to a closed pipe ends the process. The message is lost in either case.
    let _ = flag::register(SIGPIPE, Arc::default());
}

/// Makes SIGINT and SIGTERM send a message to the returned receiver instead of ending this process.
/// The caller then ends the command gracefully. A signal that the parent process has set to be
/// ignored stays ignored.
pub(crate) fn catch_end_signals() -> io::Result<Receiver<()>> {
    let mut signals = Signals::new(not_ignored(&[SIGINT, SIGTERM]))?;
    let (sender, requests) = channel();
    let wait = move || {
        for _ in signals.forever() {
            // This fails if the command is already ending, because it has then dropped the
            // receiver.
            let _ = sender.send(());
        }
    };
    let name = "uwarp-signals".to_owned();
    std::thread::Builder::new().name(name).spawn(wait)?;
    ENDS_ORDERLY.store(true, Ordering::Release);
    Ok(requests)
}

/// Makes the first SIGINT or SIGTERM set the returned flag, so that the command can end gracefully.
/// The next such signal ends the process at once. A signal that the parent process has set to be
/// ignored stays ignored.
pub(crate) fn catch_stop_signals() -> io::Result<Arc<AtomicBool>> {
    let requests = catch_end_signals()?;
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    let wait = move || {
        for () in requests {
            if set.swap(true, Ordering::Relaxed) {
                remove_socket_files();
                let _ = emulate_default_handler(SIGINT);
            }
            notice(
                "finishing what is under way, then reporting; press Ctrl-C again to end at once",
            );
        }
    };
    let name = "uwarp-stop".to_owned();
    std::thread::Builder::new().name(name).spawn(wait)?;
    Ok(stop)
}

/// Returns `signals` without those that the parent process has set to be ignored.
fn not_ignored(signals: &[c_int]) -> Vec<c_int> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored(&status));
    let ours = signals.iter().copied();
    ours.filter(|signal| ignored & mask(*signal) == 0).collect()
}

/// Returns the bit of a signal in a set of signals.
const fn mask(signal: c_int) -> u64 {
    1 << (signal - 1)
}

/// Returns the set of ignored signals from the text of `/proc/PID/status` (`proc_pid_status(5)`).
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

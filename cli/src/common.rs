//! Options that every command takes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use uwarp_verbs::Settings;
use uwarp_verbs::capture::{Capture, CaptureOptions};
use uwarp_verbs::messages;
use uwarp_verbs::options::Chosen;

use crate::failure::{Failure, Report};
use crate::options::{chosen, of_devices, options_of_table};
use crate::output::{Output, end_quietly, notice};

/// Options of the commands that open a device, without the device itself.
#[derive(Clone, Debug)]
pub(crate) struct Common(Chosen);

options_of_table!(Common, of_devices(|name| name != "device"), chosen);

impl Common {
    /// Returns the device settings that these options select.
    pub(crate) fn settings(&self) -> Settings {
        self.0.settings.clone()
    }

    /// Returns the destination of text: stderr if the capture goes to stdout, otherwise stdout.
    pub(crate) fn output(&self) -> Output {
        match &self.0.pcap {
            Some(path) if path == Path::new("-") => Output::Stderr,
            _ => Output::Stdout,
        }
    }

    /// Opens the capture, if the options request one.
    pub(crate) fn capture(&self) -> Result<Option<Recording>, Failure> {
        let Some(path) = &self.0.pcap else {
            return Ok(None);
        };
        let is_stdout = path == Path::new("-");
        if is_stdout {
            watch_reader();
        }
        let told = Arc::new(AtomicBool::new(false));
        let (name, was_told) = (path.display().to_string(), Arc::clone(&told));
        let options = CaptureOptions::default()
            .spawn(|name, run| uwarp_verbs::llp::thread::spawn(name, run).map(drop))
            .on_problem(move |what| {
                // The command is about to end because of its reader: see `watch_reader`.
                if is_stdout && is_reader_gone(Some(&NOW)) {
                    return;
                }
                let text = format!("uwarp: --pcap {name}: {what}; all traffic goes on\n");
                if messages::print(None, &text).unwrap_or(false) {
                    was_told.store(true, Ordering::Relaxed);
                }
            });
        let capture = options.create(path).map_err(|error| {
            if is_stdout {
                exit_if_reader_gone(Some(&NOW));
            }
            Report::new(format!(
                "the capture file {} cannot be created: {error}",
                path.display()
            ))
            .advice("use an existing directory that you may write to")
        })?;
        Ok(Some(Recording {
            path: path.clone(),
            capture,
            told,
        }))
    }
}

/// Timeout of a `poll` that returns immediately.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Ends the command when the reader closes stdout. The library, which writes the capture there,
/// would continue without a reader.
fn watch_reader() {
    let name = "uwarp-stdout".to_owned();
    let watch = || exit_if_reader_gone(None);
    if let Err(error) = std::thread::Builder::new().name(name).spawn(watch) {
        notice(format_args!(
            "uwarp: this command will not end by itself when the reader of its capture closes stdout: {error}"
        ));
    }
}

/// Ends the command if the reader closes stdout within `most`. Returns after this time otherwise.
fn exit_if_reader_gone(most: Option<&Timespec>) {
    if is_reader_gone(most) {
        end_quietly();
    }
}

/// Returns true if the reader closes stdout within `most`.
fn is_reader_gone(most: Option<&Timespec>) -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    while poll(&mut fds, most) == Err(Errno::INTR) {}
    // A closed pipe reports ERR, a closed socket HUP.
    let gone = PollFlags::ERR | PollFlags::HUP;
    fds[0].revents().intersects(gone)
}

/// Time without progress after which the end of a command does not wait for the reader of its
/// capture.
const PATIENCE: Duration = Duration::from_secs(5);

/// Capture file that is being written.
pub(crate) struct Recording {
    path: PathBuf,
    pub(crate) capture: Capture,
    /// The problem of the capture has been reported when it happened.
    told: Arc<AtomicBool>,
}

impl Recording {
    /// Waits for the reader of the capture. Ends the command if the capture goes to stdout and its
    /// reader is gone. Fails if the capture is incomplete.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        let is_taken = self.capture.finish(PATIENCE);
        if self.path == Path::new("-") {
            exit_if_reader_gone(Some(&NOW));
        }
        let what = match (self.capture.error(), self.capture.dropped()) {
            (Some(_), _) if self.told.load(Ordering::Relaxed) => return Err(Failure::Reported),
            (Some(error), _) => error,
            (None, 0) if is_taken => return Ok(()),
            (None, 0) => "its reader did not take the end of it".to_owned(),
            (None, 1) => "1 packet was dropped, because its reader was too slow".to_owned(),
            (None, lost) => format!("{lost} packets were dropped, because its reader was too slow"),
        };
        let path = self.path.display();
        let what = format!("the capture {path} is incomplete: {what}; all traffic went on");
        Err(Report::new(what).into())
    }
}

/// Combines the result of a command with that of its capture. An error of the command takes
/// precedence.
pub(crate) fn finish(
    result: Result<(), Failure>,
    recording: Option<&Recording>,
) -> Result<(), Failure> {
    let recorded = recording.map_or(Ok(()), Recording::finish);
    result.and(recorded)
}

/// Parses a number of bytes of memory. K, M or G after the number stand for KiB, MiB, GiB.
pub(crate) fn memory_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "expected a number of bytes, as in 4096, 512M or 2G".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use uwarp_verbs::{FpduSegments, Peer, Revision};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        common: Common,
    }

    fn settings(args: &str) -> Settings {
        let words = std::iter::once("command").chain(args.split_whitespace());
        Command::try_parse_from(words).unwrap().common.settings()
    }

    #[test]
    fn what_is_asked_for_reaches_the_device() {
        let usual = settings("");
        assert!(usual.crc && !usual.markers && !usual.send_in_place);
        assert_eq!(usual.fpdu_segments, FpduSegments::ONE);
        assert_eq!(usual.revision, Revision::Two);
        let other = settings(
            "--crc off --markers on --fpdu-segments 45 --send-in-place --mpa 1 --peer siw",
        );
        assert!(!other.crc && other.markers && other.send_in_place);
        assert_eq!(other.fpdu_segments.get(), 45);
        assert_eq!(
            (other.revision, other.accept_revision),
            (Revision::One, Revision::One)
        );
        assert_eq!(other.peer, Peer::Siw);
    }
}

//! The options that every command takes.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use uwarp_verbs::capture::Capture;
use uwarp_verbs::environment::{FLAG_VALUES, flag};
use uwarp_verbs::{FpduSegments, Peer, Revision, Settings};

use crate::failure::{Failure, Report};
use crate::output::{Output, end_quietly, notice};

/// Options of every command.
#[derive(Args, Debug)]
#[command(next_help_heading = "Protocol and capture")]
pub(crate) struct Common {
    /// Write everything that passes on the wire to FILE in pcapng format; `-` is stdout
    #[arg(long, value_name = "FILE", env = "UWARP_PCAP", hide_env_values = true)]
    pcap: Option<PathBuf>,
    /// CRC32C on every FPDU; it is used when either side wants it
    #[arg(
        long,
        value_enum,
        default_value = "on",
        env = "UWARP_CRC",
        hide_env_values = true
    )]
    crc: Switch,
    /// Ask the peer to put Markers into what it sends
    #[arg(
        long,
        value_enum,
        default_value = "off",
        env = "UWARP_MARKERS",
        hide_env_values = true
    )]
    markers: Switch,
    /// Over how many TCP segments an FPDU that is sent may go, 1 to 506. More than 1 gives FPDU alignment (RFC 5044
    /// section 4.5) up for fewer, longer FPDUs, where segments are cut below TCP; 506: as many as there is room
    /// for. Some adapters refuse such FPDUs (docs/links.md)
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t,
        env = "UWARP_FPDU_SEGMENTS",
        hide_env_values = true
    )]
    fpdu_segments: FpduSegments,
    /// Send payloads of 8 KiB and more with a CRC from where they lie, without a copy. They have to stay unchanged until
    /// the request completes. Up to 12 % faster at 64 KiB, up to 6 % slower at 1 MiB (docs/performance.md)
    #[arg(
        long,
        env = "UWARP_SEND_IN_PLACE",
        hide_env_values = true,
        value_parser = on_or_off
    )]
    send_in_place: bool,
    /// MPA revision: 2 is RFC 6581; 1 is RFC 5044 alone, also as a server
    #[arg(
        long,
        value_enum,
        default_value = "2",
        env = "UWARP_MPA",
        hide_env_values = true
    )]
    mpa: Mpa,
    /// Who the peer is: `siw` (the Linux driver) reads its Terminate Messages by its own layout, states IRD as a
    /// power of two, refuses private data it cannot take, and holds the first FPDU back for 200 ms
    #[arg(
        long,
        value_enum,
        default_value = "rfc",
        env = "UWARP_PEER",
        hide_env_values = true
    )]
    peer: PeerName,
}

/// The value of a variable, in the words that the drop-in library takes, too.
fn on_or_off(value: &str) -> Result<bool, String> {
    flag(value).ok_or_else(|| format!("expected {FLAG_VALUES}"))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Mpa {
    #[value(name = "1")]
    One,
    #[value(name = "2")]
    Two,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum PeerName {
    /// Any peer that keeps to the RFCs
    Rfc,
    /// Linux siw (Soft-iWARP)
    Siw,
}

impl PeerName {
    pub(crate) fn profile(self) -> Peer {
        match self {
            PeerName::Rfc => Peer::Rfc,
            PeerName::Siw => Peer::Siw,
        }
    }
}

impl Common {
    /// What a device is to be told.
    pub(crate) fn settings(&self) -> Settings {
        let revision = match self.mpa {
            Mpa::One => Revision::One,
            Mpa::Two => Revision::Two,
        };
        Settings::default()
            .crc(self.crc == Switch::On)
            .markers(self.markers == Switch::On)
            .fpdu_segments(self.fpdu_segments)
            .send_in_place(self.send_in_place)
            .revision(revision)
            .accept_revision(revision)
            .peer(self.peer.profile())
    }

    /// Where text goes: not to stdout when the capture goes there.
    pub(crate) fn output(&self) -> Output {
        match &self.pcap {
            Some(path) if path == Path::new("-") => Output::Stderr,
            _ => Output::Stdout,
        }
    }

    /// Opens the capture, if one is wanted.
    pub(crate) fn capture(&self) -> Result<Option<Recording>, Failure> {
        let Some(path) = &self.pcap else {
            return Ok(None);
        };
        let is_stdout = path == Path::new("-");
        if is_stdout {
            end_with_the_reader();
        }
        let capture = Capture::create(path).map_err(|error| {
            if is_stdout {
                end_if_unread(Some(&NOW));
            }
            Report::new(format!(
                "the capture file {} cannot be made: {error}",
                path.display()
            ))
            .advice("a directory that exists and that you may write to")
        })?;
        Ok(Some(Recording {
            path: path.clone(),
            capture,
        }))
    }
}

/// Without a wait.
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Ends the command when nobody reads stdout any more: the capture that goes there is written by the library, which goes
/// on without it.
fn end_with_the_reader() {
    let name = "uwarp-stdout".to_owned();
    let watch = || end_if_unread(None);
    if let Err(error) = std::thread::Builder::new().name(name).spawn(watch) {
        notice(format_args!(
            "uwarp: this command will not end by itself when nobody reads its capture any more: {error}"
        ));
    }
}

/// Waits until nobody reads stdout any more, no longer than `most`, and ends the command then.
fn end_if_unread(most: Option<&Timespec>) {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    while poll(&mut fds, most) == Err(Errno::INTR) {}
    // An error is that of a pipe, a hang-up that of a socket.
    if fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
        end_quietly();
    }
}

/// A capture that is being written.
pub(crate) struct Recording {
    path: PathBuf,
    pub(crate) capture: Capture,
}

impl Recording {
    /// Whether everything was written. A capture that was asked for and is not whole is a failure.
    pub(crate) fn finish(&self) -> Result<(), Failure> {
        if self.path == Path::new("-") {
            end_if_unread(Some(&NOW));
        }
        match self.capture.error() {
            None => Ok(()),
            Some(error) => Err(Report::new(format!(
                "the capture {} is not whole: {error}; all traffic went on without it",
                self.path.display()
            ))
            .into()),
        }
    }
}

/// The result of a command that may have made a capture.
pub(crate) fn finish(
    result: Result<(), Failure>,
    recording: Option<&Recording>,
) -> Result<(), Failure> {
    let recorded = recording.map_or(Ok(()), Recording::finish);
    result.and(recorded)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        common: Common,
    }

    fn settings(args: &[&str]) -> Settings {
        let words = std::iter::once(&"command").chain(args);
        Command::try_parse_from(words).unwrap().common.settings()
    }

    #[test]
    fn what_is_asked_for_reaches_the_device() {
        let usual = settings(&[]);
        assert!(usual.crc && !usual.markers && !usual.send_in_place);
        assert_eq!(usual.fpdu_segments, FpduSegments::ONE);
        assert_eq!(usual.revision, Revision::Two);
        let other = settings(&[
            "--crc",
            "off",
            "--markers",
            "on",
            "--fpdu-segments",
            "45",
            "--send-in-place",
            "--mpa",
            "1",
            "--peer",
            "siw",
        ]);
        assert!(!other.crc && other.markers && other.send_in_place);
        assert_eq!(other.fpdu_segments.get(), 45);
        assert_eq!(
            (other.revision, other.accept_revision),
            (Revision::One, Revision::One)
        );
        assert_eq!(other.peer, Peer::Siw);
    }
}

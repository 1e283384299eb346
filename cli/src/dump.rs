//! `uwarp dump`: a capture, frame by frame, and what in it breaks the RFCs.

mod json;
mod text;

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use uwarp_capture::decode::{Decoder, Frame};
use uwarp_capture::{ReadError, Reader};

use crate::common::PeerName;
use crate::failure::{Failure, Report};
use crate::output::{Output, notice};

/// Options of `uwarp dump`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    uwarp demo --pcap demo.pcapng\n  \
    uwarp dump demo.pcapng\n\n\
    A line has the seconds since the first packet, the number of the connection, from > to, what it is, and behind ** what \
    breaks the RFCs and the requirement that it breaks.\n\
    Exit codes: 0 nothing breaks the RFCs, 1 something does, 2 the file cannot be read, or not to its end.")]
pub(crate) struct Options {
    /// A pcapng or pcap file, of uwarp, tcpdump or Wireshark; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// All octets of each frame, field by field
    #[arg(short = 'x', long)]
    hex: bool,
    /// End after N frames
    #[arg(short = 'c', long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// Only the connection with this number, counted from 1 among those with MPA
    #[arg(long, value_name = "N")]
    conn: Option<NonZeroU64>,
    /// Only frames that break the RFCs
    #[arg(long)]
    findings: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    /// Whose Terminate Messages they are where they can be read both ways: by RFC 5040's layout, or by that of Linux siw
    #[arg(long, value_enum, default_value = "rfc")]
    peer: PeerName,
}

/// What was printed.
struct Printer<'a> {
    options: &'a Options,
    /// Of the first packet.
    began: Option<Duration>,
    frames: u64,
    /// Findings in the frames that were looked at.
    findings: u64,
}

/// Decodes the file.
///
/// # Errors
/// Something in it breaks the RFCs, or it cannot be read.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut reader = open(&options.file)?;
    let mut decoder = Decoder::new(options.peer.profile());
    let mut printer = Printer {
        options,
        began: None,
        frames: 0,
        findings: 0,
    };
    let damage = loop {
        if printer.is_full() {
            break None;
        }
        match reader.next_packet() {
            Ok(Some(packet)) => {
                printer.began.get_or_insert(packet.timestamp);
                printer.print(&decoder.packet(&packet))?;
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let rest = decoder.finish();
    printer.print(&rest)?;
    printer.summary(&decoder)?;
    if reader.cut_off() {
        notice("the file ends in the middle of a packet: what comes before it was read");
    }
    match (damage, printer.findings) {
        (Some(error), _) => Err(unreadable(&options.file, &error)),
        (None, 0) => Ok(()),
        // The last line has said how many.
        (None, _) => Err(Failure::Told),
    }
}

fn open(file: &Path) -> Result<Reader, Failure> {
    let reader = match file == Path::new("-") {
        true => Reader::new(io::stdin()),
        false => Reader::open(file),
    };
    reader.map_err(|error| unreadable(file, &error))
}

/// The file is not what it should be: exit code 2.
fn unreadable(file: &Path, error: &ReadError) -> Failure {
    let report = Report::new(format!("{}: {error}", file.display()));
    Failure::Usage(match error {
        ReadError::NotACapture => report
            .expected("a pcapng or pcap file")
            .advice("--pcap FILE of the other commands, tcpdump -w FILE, or dumpcap -w FILE"),
        ReadError::Damaged { .. } => report.fault("the file: what comes before is shown"),
        ReadError::Io(_) => report,
    })
}

impl Printer<'_> {
    fn is_full(&self) -> bool {
        self.options
            .count
            .is_some_and(|most| self.frames >= most.get())
    }

    fn print(&mut self, frames: &[Frame]) -> Result<(), Failure> {
        for frame in frames {
            let other = self
                .options
                .conn
                .is_some_and(|wanted| wanted.get() != frame.connection);
            if other || self.is_full() {
                continue;
            }
            self.findings += frame.findings.len() as u64;
            if self.options.findings && frame.findings.is_empty() {
                continue;
            }
            self.frames += 1;
            let since = frame.time.saturating_sub(self.began.unwrap_or_default());
            if self.options.json {
                Output::Stdout.line(json::frame(frame, self.options.hex))?;
                continue;
            }
            Output::Stdout.line(text::frame(frame, since))?;
            if self.options.hex {
                for line in text::fields(frame) {
                    Output::Stdout.line(line)?;
                }
            }
        }
        Ok(())
    }

    fn summary(&self, decoder: &Decoder) -> Result<(), Failure> {
        let wanted = |number| self.options.conn.is_none_or(|conn| conn.get() == number);
        let connections = decoder
            .connections()
            .iter()
            .filter(|connection| wanted(connection.number));
        // Those of all connections mean nothing for one.
        let totals = self.options.conn.is_none().then(|| decoder.totals());
        if self.options.json {
            return Output::Stdout.line(json::summary(totals, connections));
        }
        for line in text::summary(totals, connections) {
            Output::Stdout.line(line)?;
        }
        Ok(())
    }
}

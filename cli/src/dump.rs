//! `uwarp dump`: prints a capture frame by frame, with each violation of the RFCs.

mod json;
mod text;

use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use uwarp_capture::decode::{Decoder, Frame};
use uwarp_capture::{ReadError, Reader};
use uwarp_verbs::options::Chosen;

use crate::failure::{Failure, Report};
use crate::options::{chosen, options_of_table, with_help};
use crate::output::Output;

/// Options of `uwarp dump`.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  \
    uwarp demo --pcap demo.pcapng\n  \
    uwarp dump demo.pcapng\n\n\
    Each line shows the seconds since the first packet, the number of the connection, source > destination and the frame. \
    After ** it shows what breaks the RFCs and which requirement.\n\
    Exit codes: 0 nothing breaks the RFCs, 1 something does, 2 the file could not be read, or not to its end.")]
pub(crate) struct Options {
    /// A pcapng or pcap file, from uwarp, tcpdump or Wireshark; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show all bytes of each frame, field by field
    #[arg(short = 'x', long)]
    hex: bool,
    /// End after N frames
    #[arg(short = 'c', long, value_name = "N")]
    count: Option<NonZeroU64>,
    /// Show only the connection with this number, counted from 1 among those with MPA
    #[arg(long, value_name = "N")]
    conn: Option<NonZeroU64>,
    /// Show only frames that break the RFCs
    #[arg(long)]
    findings: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    peer: Sender,
}

/// Option for the sender of Terminate Messages.
#[derive(Debug)]
struct Sender(Chosen);

options_of_table!(
    Sender,
    with_help(&[(
        "peer",
        "Sender of Terminate Messages that can be read in two ways: by the layout of RFC 5040, or \
         by that of Linux siw",
    )]),
    chosen
);

/// Prints the frames that pass the filters, and counts them.
struct Printer<'a> {
    options: &'a Options,
    /// Time of the first packet.
    began: Option<Duration>,
    frames: u64,
    /// Number of findings in the frames that passed the filters.
    findings: u64,
}

/// Decodes the file and prints its frames and the summary.
///
/// # Errors
/// Something in the file breaks the RFCs (exit code 1), the file cannot be read, or the output
/// cannot be written (exit code 2).
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    decode(options).map_err(Failure::into_usage)
}

fn decode(options: &Options) -> Result<(), Failure> {
    let mut reader = open(&options.file)?;
    let mut decoder = Decoder::new(options.peer.0.settings.peer);
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
    if let Some(error) = damage {
        return Err(unreadable(&options.file, &error));
    }
    if reader.cut_off() {
        return Err(cut_off(&options.file));
    }
    printer.check_connection(decoder.totals().connections)?;
    match printer.findings {
        0 => Ok(()),
        // The last line of the output states the number of findings.
        _ => Err(Failure::Reported),
    }
}

/// Returns the name of the file for messages.
fn name(file: &Path) -> String {
    match file == Path::new("-") {
        true => "stdin".to_owned(),
        false => file.display().to_string(),
    }
}

fn open(file: &Path) -> Result<Reader, Failure> {
    let reader = match file == Path::new("-") {
        true => Reader::new(io::stdin()),
        false => Reader::open(file),
    };
    reader.map_err(|error| unreadable(file, &error))
}

/// Explains that the file cannot be read or is not a capture (exit code 2).
fn unreadable(file: &Path, error: &ReadError) -> Failure {
    let name = name(file);
    let report = Report::new(format!("{name}: {error}"));
    Failure::Usage(match error {
        ReadError::NotACapture => {
            let report = report.expected("a pcapng or pcap file");
            match file.extension().is_some_and(|ending| ending == "gz") {
                true => report.advice(format!("zcat {name} | uwarp dump -")),
                false => {
                    report.advice("use a file of --pcap FILE, tcpdump -w FILE or dumpcap -w FILE")
                }
            }
        }
        ReadError::Damaged { .. } => {
            report.fault("the file; all packets before that place are shown")
        }
        ReadError::Io(_) => report,
    })
}

/// Explains that the file ends within a packet (exit code 2).
fn cut_off(file: &Path) -> Failure {
    let what = format!("{}: the file ends in the middle of a packet", name(file));
    Failure::Usage(
        Report::new(what)
            .fault("the file; all packets before that place are shown")
            .advice("stop tcpdump or dumpcap with SIGINT, and copy the file after that"),
    )
}

impl Printer<'_> {
    fn is_full(&self) -> bool {
        self.options
            .count
            .is_some_and(|most| self.frames >= most.get())
    }

    /// Fails if the capture has too few `connections` to contain the selected one.
    fn check_connection(&self, connections: u64) -> Result<(), Failure> {
        match self.options.conn {
            // After `--count` frames, later packets were not read. The connection may be among
            // them.
            Some(wanted) if wanted.get() > connections && !self.is_full() => {
                let file = name(&self.options.file);
                let report = Report::new(format!("{file}: no connection has the number {wanted}"));
                Err(Failure::Usage(match connections {
                    0 => report.expected("a capture with MPA connections; this one has none"),
                    last => report.expected(format!("1 to {last}, the number of MPA connections")),
                }))
            }
            _ => Ok(()),
        }
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
        // Totals cover all connections. They would mislead if only one connection was selected.
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

//! `uwarp demo`: two endpoints in one process move data by every operation and verify it.
//!
//! Each endpoint has its own device, thread and end of the link. They share only the link. Each
//! endpoint sends its results over a channel, and one place prints them.

mod endpoint;
mod initiator;
mod plan;
mod responder;
mod shared;
mod table;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use clap::Args;
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::llp::{DeviceSpec, SpecError};
use uwarp_verbs::{Completion, Device, EndReason, Listener, Status};

use crate::common::{self, Common, Recording};
use crate::device;
use crate::failure::{Failure, Report};
use crate::output::{Output, wrapped};
use endpoint::{End, local};
use table::{Row, Table, Verdict};

/// Port on which B listens on the in-memory link.
const PORT: u16 = 7174;
const MTU: u16 = 1500;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Options of `uwarp demo`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Largest IP packet of the in-memory link in bytes [default: 1500]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..))]
    mtu: Option<u16>,
    /// The network: `memory` (smoltcp at both ends of a link in memory), or the kernel's TCP
    #[arg(
        long,
        value_name = "memory|tcp[:ADDR]",
        default_value = "memory",
        help_heading = "Protocol and capture",
        env = "UWARP_DEVICE",
        hide_env_values = true
    )]
    device: Network,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug)]
enum Network {
    Memory,
    Tcp(DeviceSpec),
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "memory" => Ok(Network::Memory),
            _ if text.starts_with("tcp") => match text.parse() {
                Ok(spec) => Ok(Network::Tcp(spec)),
                Err(error) => Err(SpecError::to_string(&error)),
            },
            _ => Err(
                "both ends of the demo are in one process; expected `memory`, `tcp` or `tcp:ADDR` \
                 (`uwarp rping` accepts every device)"
                    .to_owned(),
            ),
        }
    }
}

/// Runs the demo and finishes its capture, if it has one.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let recording = options.common.capture()?;
    let result = play(options, recording.as_ref());
    common::finish(result, recording.as_ref())
}

fn play(options: &Options, recording: Option<&Recording>) -> Result<(), Failure> {
    let started = Instant::now();
    let stage = Stage::build(options, recording)?;
    let mut story = Story {
        output: options.common.output(),
        rows: Vec::new(),
    };
    story.say("uwarp demo: real RDMA between two endpoints in this process.")?;
    story.say("No RDMA hardware, no root, no set-up.")?;

    let to = stage.listener.local_addr();
    let (found, from_b) = mpsc::channel();
    let given_up = Arc::new(AtomicBool::new(false));
    let (b, listener, b_asks) = (stage.b, stage.listener, Arc::clone(&given_up));
    let responder = thread::Builder::new()
        .name("responder".to_owned())
        .spawn(move || responder::run(&b, listener, &b_asks, &found))
        .map_err(|error| {
            Failure::because(format!("cannot start a thread for endpoint B: {error}"))
        })?;
    let a = initiator::run(&stage.a, to, stage.between, &mut story, &from_b);
    given_up.store(a.is_err(), Ordering::Relaxed);
    let b = responder
        .join()
        .unwrap_or_else(|_| Err(Failure::because("endpoint B panicked")));
    let (a, b) = match (a, b) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(a), Ok(_)) => return Err(a),
        (Ok(_), Err(b)) => return Err(b),
        (Err(a), Err(b)) => {
            // Both errors are reported, because one of them caused the other.
            b.print("demo");
            return Err(a);
        }
    };
    story.ending(&a, &b)?;
    story.close(started)
}

/// The devices of both endpoints and B's listener.
struct Stage {
    a: Device,
    b: Device,
    listener: Listener,
    /// Description of the link between the devices.
    between: &'static str,
}

impl Stage {
    fn build(options: &Options, recording: Option<&Recording>) -> Result<Stage, Failure> {
        // Both endpoints are this program, so no FPDU is overlooked. A wake-up of a slow machine
        // would only make the number of FPDUs in a capture depend on the machine.
        let settings = options.common.settings().wake_up(None);
        let (a, b, addr, between) = match &options.device {
            Network::Memory => {
                let memory = memory_settings(options, recording);
                let (a, b) = MemoryNetwork::pair(&memory).map_err(local)?;
                let host = memory.addresses[1][0];
                let open = |network| Device::open(Arc::new(network), settings.clone());
                (
                    open(a).map_err(local)?,
                    open(b).map_err(local)?,
                    SocketAddr::new(host, PORT),
                    "TCP/IP in user space, no kernel in between",
                )
            }
            Network::Tcp(tcp) => {
                if options.mtu.is_some() {
                    let report = Report::new(
                        "--mtu is for the in-memory link; the kernel's TCP has its own",
                    );
                    return Err(Failure::Usage(
                        report.advice("use either --mtu or --device tcp"),
                    ));
                }
                let host = *tcp.addresses().first().unwrap_or(&LOCALHOST);
                // Only A is captured, because B would record every packet a second time.
                (
                    device::open(tcp, settings.clone(), recording)?,
                    device::open(tcp, settings, None)?,
                    SocketAddr::new(host, 0),
                    "the TCP/IP of the kernel",
                )
            }
        };
        let listener = b
            .listen(addr)
            .map_err(|error| crate::explain::listen(&error, addr))?;
        Ok(Stage {
            a,
            b,
            listener,
            between,
        })
    }
}

/// Settings of the in-memory link.
fn memory_settings(options: &Options, recording: Option<&Recording>) -> MemorySettings {
    MemorySettings::default()
        .mtu(options.mtu.unwrap_or(MTU).into())
        .capture(recording.map(|recording| recording.capture.clone()))
}

/// Output of the demo while it runs, and the rows of the final table.
struct Story {
    output: Output,
    rows: Vec<Row>,
}

impl Story {
    fn say(&self, text: impl std::fmt::Display) -> Result<(), Failure> {
        self.output.line(text)
    }

    /// Starts a step and prints its title.
    fn step(&self, title: &str) -> Result<(), Failure> {
        self.output.line(format_args!("\n{title}"))
    }

    /// Adds a row to the final table.
    fn row(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Ends a step. Prints its description `what`, and the results of the last `rows` operations.
    fn done(&self, what: &str, rows: usize, since: Instant) -> Result<(), Failure> {
        self.say(wrapped("   ", what))?;
        let took = since.elapsed().as_secs_f64();
        for row in &self.rows[self.rows.len() - rows..] {
            self.say(format_args!(
                "   -> {}: {} ({took:.2} s)",
                row.operation, row.verdict
            ))?;
        }
        Ok(())
    }

    /// Prints how both sides saw the Write that must fail, and adds its row to the table.
    fn ending(&mut self, a: &End, b: &responder::Seen) -> Result<(), Failure> {
        let mut write = first(&a.sends);
        if a.sends.first().map(|done| done.status) == Some(Status::Success) {
            write +=
                " (on iWARP a Write completes when TCP has accepted it; a refusal comes later)";
        }
        let memory = match &b.untouched {
            Ok(()) => "unchanged",
            Err(what) => what,
        };
        let (at_a, at_b) = (a.reason.to_string(), b.end.reason.to_string());
        for (head, text) in [
            ("   A, completion of the Write:   ", &*write),
            ("   A, event of the connection:   ", &*at_a),
            ("   A, posted receive:            ", &*first(&a.receives)),
            ("   B, event of the connection:   ", &*at_b),
            (
                "   B, posted receive:            ",
                &*first(&b.end.receives),
            ),
            ("   B, memory:                    ", memory),
        ] {
            self.say(wrapped(head, text))?;
        }
        let verdict = judge(a, b);
        self.row(Row {
            operation: "Write beyond the region",
            messages: 1,
            bytes: initiator::BEYOND.into(),
            verdict,
        });
        Ok(())
    }

    /// Prints the table and the final result.
    fn close(&self, started: Instant) -> Result<(), Failure> {
        self.say("")?;
        self.say(Table(&self.rows))?;
        let wrong = self
            .rows
            .iter()
            .filter(|row| !row.verdict.is_good())
            .count();
        if wrong > 0 {
            let what = format!(
                "{wrong} of {} operations have a wrong result; see the table",
                self.rows.len()
            );
            return Err(Report::new(what)
                .fault("uwarp; this is a bug, please report it")
                .into());
        }
        self.say(format_args!(
            "\nAll results are correct. {:.2} s.",
            started.elapsed().as_secs_f64()
        ))
    }
}

/// Describes the first completion by its cause of failure, or by its status if it has no cause.
fn first(completions: &[Completion]) -> String {
    match completions.first() {
        None => "no completion".to_owned(),
        Some(Completion {
            cause: Some(cause), ..
        }) => cause.sentence(),
        Some(done) => done.status.to_string(),
    }
}

/// Checks that the Write beyond the region ended as RFC 5041 section 7.2 requires. B must answer
/// with a Terminate Message for a tagged buffer's bounds (layer 1, type 1, code 1) and place
/// nothing.
fn judge(a: &End, b: &responder::Seen) -> Verdict {
    let flushed = |done: &[Completion]| matches!(done, [one] if one.status == Status::WrFlush);
    let is_bounds_error = |terminate: &uwarp_verbs::Terminate| {
        (terminate.layer(), terminate.etype(), terminate.code()) == (1, 1, 1)
    };
    let wrong = match (&a.reason, &b.end.reason) {
        _ if b.untouched.is_err() => "B's memory has changed",
        _ if !(a.event && b.end.event) => "a side got no asynchronous event",
        (
            _,
            EndReason::TerminateSent {
                terminate: Some(sent),
                ..
            },
        ) if !is_bounds_error(sent) => "the code of B's Terminate is not 1/1/01",
        (EndReason::TerminateReceived { terminate, .. }, _) if !is_bounds_error(terminate) => {
            "the code of the Terminate that A got is not 1/1/01"
        }
        (
            EndReason::TerminateReceived { .. },
            EndReason::TerminateSent {
                terminate: Some(_), ..
            },
        ) => {
            if flushed(&a.receives) && flushed(&b.end.receives) {
                return Verdict::Refused;
            }
            "the posted receives were not flushed"
        }
        _ => "the connection did not end by B's Terminate",
    };
    Verdict::Wrong(wrong.to_owned())
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use uwarp_verbs::Access;

    use super::plan::Kind;
    use super::*;
    use crate::output::KEPT;

    /// Runs the last steps of a demo whose Reads returned `bytes`. Returns the result of the
    /// command and its output.
    fn ending_with(bytes: Vec<u8>) -> (Result<(), Failure>, String) {
        let (network, _) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
        let device = Device::open(Arc::new(network), uwarp_verbs::Settings::default()).unwrap();
        let region = device
            .alloc_pd()
            .unwrap()
            .register(bytes, Access::NONE)
            .unwrap();
        let mut story = Story {
            output: Output::Kept,
            rows: Vec::new(),
        };
        KEPT.take();
        story.row(initiator::row("RDMA Write A -> B", Verdict::Verified));
        let verdict = plan::verify(&region, Kind::Read).into();
        story.row(initiator::row("RDMA Read A <- B", verdict));
        story.done("All at once.", 1, Instant::now()).unwrap();
        let result = common::finish(story.close(Instant::now()), None);
        (result, KEPT.take())
    }

    #[test]
    fn one_wrong_byte_is_in_the_table_and_ends_the_command_with_exit_code_1() {
        let mut bytes = plan::filled(Kind::Read);
        let slot = plan::slots().last().unwrap();
        let at = slot.offset as usize + 70_000;
        let right = bytes[at];
        bytes[at] ^= 1;
        let (result, printed) = ending_with(bytes);

        let failure = result.unwrap_err();
        assert_eq!(failure.exit_code(), ExitCode::from(1));
        let Failure::Operation(report) = failure else {
            panic!("{failure:?}");
        };
        let report = report.to_string();
        assert!(
            report.starts_with("1 of 2 operations have a wrong result; see the table"),
            "{report}"
        );
        let wrong = format!(
            "WRONG: message 21 of 16777216 bytes: byte 70000 is {:#04x}, expected {right:#04x}",
            right ^ 1
        );
        let rows: Vec<_> = printed
            .lines()
            .filter(|line| line.contains(&wrong))
            .collect();
        assert!(rows[0].starts_with("   -> RDMA Read A <- B: "), "{printed}");
        assert!(rows[1].starts_with("  RDMA Read A <- B  "), "{printed}");
        assert!(!printed.contains("All results are correct"), "{printed}");
    }

    #[test]
    fn nothing_wrong_ends_the_command_in_good_order() {
        let (result, printed) = ending_with(plan::filled(Kind::Read));
        result.unwrap();
        assert!(!printed.contains("WRONG"), "{printed}");
        assert!(printed.contains("All results are correct"), "{printed}");
    }
}

//! `uwarp perf`: bandwidth, message rate and latency, with the flags and the output of perftest.

mod options;
mod perftest;
mod report;
mod table;

use std::env::VarError;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use uwarp_perf::{Client, Event, Figures, PerfError, Plan, Results, Row, Server};
use uwarp_verbs::Device;
use uwarp_verbs::environment::TOKEN;

use crate::address::Host;
use crate::common;
use crate::device::check_network;
use crate::explain;
use crate::failure::{Failure, Report};
use crate::output::{Output, notice, remark};
use crate::signals::catch_stop_signals;
pub(crate) use options::Options;
use options::TestName;
use perftest::no_effect;
pub(crate) use perftest::refusal;
use table::Table;

/// Runs the client or the server until it is done.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    if let Some(text) = options.ignored.refusal() {
        return Err(usage(text));
    }
    if let Some(text) = options.ignored.notice() {
        notice(text);
    }
    if options.server.is_none()
        && let Some(text) = no_effect(
            &options.report.client_only(),
            "at a server",
            "perftest's servers accept",
        )
    {
        notice(text);
    }
    let recording = options.common.capture()?;
    let device = options
        .device
        .open(options.common.settings(), recording.as_ref())?;
    let result = match (&options.server, options.test) {
        (Some(server), Some(test)) => client(options, &device, server, test),
        _ => serve(options, &device),
    };
    if result.is_err() {
        let _ = check_network(&device);
    }
    drop(device);
    common::finish(result, recording.as_ref())
}

fn usage(what: impl Into<String>) -> Failure {
    Failure::Usage(Report::new(what))
}

fn client(
    options: &Options,
    device: &Device,
    server: &Host,
    test: TestName,
) -> Result<(), Failure> {
    let plan = options.plan(test).map_err(usage)?;
    plan.check().map_err(|error| usage(error.to_string()))?;
    let from = options.bind.as_ref().map(Host::local).transpose()?;
    let from = from.or_else(|| options.device.source());
    let addr = server.server(options.port, from.map(|from| from.ip()))?;
    let session = Session {
        options,
        device,
        plan: &plan,
        output: options.common.output(),
        table: Table::new(&options.report),
    };
    let token = options.token.as_deref();
    let client = Client::connect_with(device, from, addr, &plan, token)
        .map_err(|error| failure(&error, Role::Client))?;
    let congestion = client.congestion_control();
    session.print_head(addr, congestion.as_deref())?;
    let rows = session.measure(&client);
    // Notifies the server even if this side has failed, because the server's part may have
    // succeeded.
    let ended = client.end().map_err(|error| failure(&error, Role::Client));
    let rows = rows?;
    ended?;
    session.finish(congestion, rows)
}

/// Runs the measurements of a client and prints their results.
struct Session<'a> {
    options: &'a Options,
    device: &'a Device,
    plan: &'a Plan,
    output: Output,
    table: Table,
}

impl Session<'_> {
    fn print_head(&self, peer: SocketAddr, congestion: Option<&str>) -> Result<(), Failure> {
        if self.options.report.json {
            return Ok(());
        }
        self.output
            .line(self.table.head(self.plan, peer, congestion, self.device))
    }

    /// Measures each size once, or repeats all sizes until a signal stops the run.
    fn measure(&self, client: &Client<'_>) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        let stop =
            if self.options.load.run_infinitely {
                let stop = catch_stop_signals();
                Some(stop.map_err(|error| {
                    Failure::because(format!("signals cannot be handled: {error}"))
                })?)
            } else {
                None
            };
        loop {
            for &size in &self.plan.sizes {
                let row = client
                    .measure(size)
                    .map_err(|error| failure(&error, Role::Client))?;
                self.print_row(&row)?;
                // An endless run compares only the latest row with the limits.
                if stop.is_some() {
                    rows.clear();
                }
                rows.push(row);
            }
            if stop
                .as_ref()
                .is_none_or(|stop| stop.load(Ordering::Relaxed))
            {
                return Ok(rows);
            }
        }
    }

    fn print_row(&self, row: &Row) -> Result<(), Failure> {
        let report = &self.options.report;
        if report.out_json {
            report::save(&report.out_json_file, self.plan, row, report.gigabits)?;
        }
        if report.json {
            return Ok(());
        }
        if let Some(list) = self.table.samples(row, report.unsorted, report.histogram) {
            self.output.line(list)?;
            self.output.line(self.table.columns(self.plan))?;
        }
        self.output.line(self.table.row(row))
    }

    fn finish(&self, congestion: Option<String>, rows: Vec<Row>) -> Result<(), Failure> {
        let limits = self.limits(&rows);
        if self.options.report.json {
            let results = Results::new(self.plan.clone(), congestion, rows);
            let text = serde_json::to_string_pretty(&results)
                .map_err(|error| Failure::because(error.to_string()))?;
            self.output.line(text)?;
        } else {
            self.output.line(table::RULE)?;
        }
        limits
    }

    /// Fails if no row reaches a given limit. As in perftest, one row that reaches it suffices.
    fn limits(&self, rows: &[Row]) -> Result<(), Failure> {
        let report = &self.options.report;
        let best = |of: fn(&Table, &Row) -> f64| {
            rows.iter()
                .map(|row| of(&self.table, row))
                .fold(0.0, f64::max)
        };
        let unit = self.table.unit();
        for (limit, best, what, unit, option) in [
            (
                report.limit_bw,
                best(Table::average),
                "bandwidth",
                unit,
                "-w",
            ),
            (
                report.limit_msgrate,
                best(Table::rate),
                "message rate",
                "Mpps",
                "-y",
            ),
        ] {
            if let Some(limit) = limit
                && best < limit
            {
                let text = format!("the {what} is {best:.6} {unit}, below the limit of {limit}");
                return Err(Report::new(format!("{text} ({option})")).into());
            }
        }
        Ok(())
    }
}

fn serve(options: &Options, device: &Device) -> Result<(), Failure> {
    let server = listen(options, device)?;
    let output = options.common.output();
    loop {
        let addrs: Vec<_> = server.local_addrs().map(|addr| addr.to_string()).collect();
        let hint = if server.local_addrs().all(|addr| addr.ip().is_loopback()) {
            "\n* Clients of this host only; use --bind 0.0.0.0 or --bind :: for other hosts, too"
        } else {
            ""
        };
        output.line(format_args!(
            "\n************************************\n\
             * Waiting for client to connect... *   {}\n\
             ************************************{hint}",
            addrs.join(" and ")
        ))?;
        let result = one_client(options, device, &server, output);
        match result {
            Err(failure) if options.persistent => {
                failure.print_remark("perf", None);
                remark(None, "uwarp perf: the server continues");
            }
            Ok(()) if options.persistent => {}
            other => return other,
        }
        check_network(device)?;
    }
}

/// Listens on the given address, on the device's address, or otherwise on loopback.
fn listen(options: &Options, device: &Device) -> Result<Server, Failure> {
    let token = server_token(options)?;
    let addr = match &options.bind {
        Some(host) => host.resolve(options.port, None)?,
        None if options.device.has_addresses() => {
            SocketAddr::new(options.device.listen_ip(), options.port)
        }
        None => {
            let listening = Server::listen_on_loopback(device, options.port);
            let server = listening.map_err(|error| {
                let port = options.port;
                Failure::because(format!("cannot listen on port {port} of loopback: {error}"))
            })?;
            return Ok(server.max_memory(options.max_memory).token(token));
        }
    };
    Server::listen(device, addr)
        .map(|server| server.max_memory(options.max_memory).token(token))
        .map_err(|error| Failure::because(format!("cannot listen on {addr}: {error}")))
}

/// Returns the token of a server. A client does not read the variable, which may be the secret of
/// an agent, because it would send it to any server.
fn server_token(options: &Options) -> Result<Option<String>, Failure> {
    let token = match &options.token {
        Some(token) => Some(token.clone()),
        None => match std::env::var(TOKEN) {
            Ok(token) => Some(token),
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                let report = Report::new(format!("{TOKEN} is not valid UTF-8"));
                return Err(Failure::Usage(report.advice("use letters and digits")));
            }
        },
    };
    match token {
        Some(token) if token.is_empty() => {
            let report = Report::new("the token is empty");
            Err(Failure::Usage(report.advice(
                "give a token, or neither --token nor UWARP_TOKEN to serve whoever comes first",
            )))
        }
        token => Ok(token),
    }
}

fn one_client(
    options: &Options,
    device: &Device,
    server: &Server,
    output: Output,
) -> Result<(), Failure> {
    let table = Table::new(&options.report);
    let mut written = Ok(());
    let served = server.serve_one(|event| {
        let printed = match event {
            Event::Begins {
                peer,
                plan,
                congestion,
            } => output.line(table.head(plan, peer, congestion, device)),
            Event::Row(row) => output.line(table.row(row)),
            Event::ForeignConnection(error) => {
                failure(error, Role::Server).print_remark("perf", None);
                remark(
                    None,
                    "uwarp perf: the connection was closed, and the server continues",
                );
                Ok(())
            }
            _ => Ok(()),
        };
        if written.is_ok() {
            written = printed;
        }
    });
    written?;
    served.map_err(|error| failure(&error, Role::Server))?;
    output.line(table::RULE)
}

/// Side of the test that this process runs.
#[derive(Clone, Copy)]
enum Role {
    Client,
    Server,
}

/// Advice for a peer that is perftest. Over uwarp, two perftest programs can connect only with
/// rdma_cm (-R).
fn instead_of_perftest(role: Role) -> &'static str {
    match role {
        Role::Client => {
            "run uwarp perf there; or perftest with -R on both sides, here: uwarp run -- ib_write_bw -R ADDRESS"
        }
        Role::Server => {
            "run uwarp perf TEST ADDRESS there; or perftest with -R on both sides, here: uwarp run -- ib_write_bw -R"
        }
    }
}

/// Turns an error of a test into a report.
fn failure(error: &PerfError, role: Role) -> Failure {
    match error {
        PerfError::Plan(error) => usage(error.to_string()),
        PerfError::Connect { addr, error } => {
            explain::connect(error, *addr, &explain::Server::perf(*addr)).into()
        }
        PerfError::Ended {
            peer,
            during,
            reason,
        } => explain::ended(*peer, during, reason).into(),
        PerfError::Perftest { .. } => Report::new(error.to_string())
            .expected("uwarp perf on both sides, or perftest on both")
            .fault("neither side: the two programs use the same port for different protocols")
            .advice(instead_of_perftest(role))
            .into(),
        PerfError::NothingMeasured { .. } => Report::new(error.to_string())
            .fault("the options given here")
            .advice("use a longer -D, a smaller -f, smaller messages (-s), or a smaller -Q")
            .into(),
        PerfError::Startup { peer, error } => Report::new(explain::with_addr(error, *peer))
            .fault("the peer")
            .into(),
        PerfError::Protocol { .. } => Report::new(error.to_string())
            .fault("the peer, which is iWARP but not uwarp perf of this version")
            .into(),
        other => Failure::because(other.to_string()),
    }
}

/// Sums both directions: average, peak and message rate. Returns `None` for latency tests.
fn both(row: &Row) -> Option<uwarp_perf::Bandwidth> {
    let Figures::Bandwidth(mut sum) = row.figures else {
        return None;
    };
    if let Some(opposite) = &row.opposite
        && let Figures::Bandwidth(its) = &opposite.figures
    {
        sum.peak = sum.peak.zip(its.peak).map(|(mine, its)| mine + its);
        sum.average += its.average;
        sum.rate += its.rate;
    }
    Some(sum)
}

/// Returns the number of messages in both directions.
fn messages(row: &Row) -> u64 {
    row.messages + row.opposite.as_ref().map_or(0, |its| its.messages)
}

//! Existing RDMA programs, such as rping and perftest, on uwarp with its default profile: without
//! `--peer siw`. Each connects many times, to siw or from siw. siw misses the first FPDU only
//! sometimes (Q7), so a single connection would show little.
//!
//! `ib_send_bw` runs with `--persona iwarp`: it exchanges credits by Writes if its own device is
//! iWARP, and takes for granted that the other side's is, too.

use uwarp_interop::{Failure, Outcome, PATIENCE, Result, Rig, Uwarp};

use crate::pair::Role;
use crate::programs::{self, we_serve};
use crate::{Case, Run};

/// Number of connections of each program.
const CONNECTIONS: usize = 50;
/// Environment variable that replaces [`CONNECTIONS`], for example by fewer in a shorter run.
const SAMPLE: &str = "UWARP_INTEROP_CONNECTIONS";
/// Port of the first server on siw. Each server has its own port, because the port of the previous
/// server may still be in use. The wire of these tests reaches every port of the guest.
const FIRST_PORT: u16 = 10_000;

/// A server and its client, with as little traffic as possible.
struct Program {
    words: programs::Program,
    /// Number of connections in one run.
    connects: usize,
    /// True if the server sends first. On uwarp such a server must wait for the client's first FPDU
    /// (RFC 5044 section 7.1.2, rule 4), which never arrives from siw. `--peer siw` lifts that
    /// rule.
    server_first: bool,
    /// Options for `uwarp run`.
    options: &'static [&'static str],
}

const fn program(name: &'static str, server: &'static str, client: &'static str) -> Program {
    let words = programs::Program {
        name,
        server,
        client,
        server_says: &[],
        client_says: &[],
    };
    Program {
        words,
        connects: 1,
        server_first: false,
        options: &[],
    }
}

/// Describes a program of perftest. It connects twice: to exchange parameters, and to measure.
const fn perftest(name: &'static str, server: &'static str, client: &'static str) -> Program {
    Program {
        connects: 2,
        ..program(name, server, client)
    }
}

const PROGRAMS: [Program; 10] = [
    program(
        "rping",
        "rping -s -a {address} -p {port} -C 2",
        "rping -c -a {address} -p {port} -C 2",
    ),
    // Only 5 simultaneous connections, because siw rejects some of 50.
    Program {
        connects: 5,
        server_first: true,
        ..program(
            "ucmatose",
            "ucmatose -p {port} -c 5 -C 5 -S 200",
            "ucmatose -s {address} -p {port} -c 5 -C 5 -S 200",
        )
    },
    program(
        "rdma_client",
        "rdma_server -p {port}",
        "rdma_client -s {address} -p {port}",
    ),
    program("textbook", "textbook {port}", "textbook {port} {address}"),
    perftest(
        "ib_write_bw",
        "ib_write_bw -R -F -p {port} -n 5",
        "ib_write_bw -R -F -p {port} -n 5 {address}",
    ),
    perftest(
        "ib_read_bw",
        "ib_read_bw -R -F -p {port} -n 5",
        "ib_read_bw -R -F -p {port} -n 5 {address}",
    ),
    Program {
        options: &["--persona", "iwarp"],
        ..perftest(
            "ib_send_bw",
            "ib_send_bw -R -F -p {port} -n 5",
            "ib_send_bw -R -F -p {port} -n 5 {address}",
        )
    },
    Program {
        server_first: true,
        ..perftest(
            "ib_write_lat",
            "ib_write_lat -R -F -p {port} -n 5",
            "ib_write_lat -R -F -p {port} -n 5 {address}",
        )
    },
    perftest(
        "ib_read_lat",
        "ib_read_lat -R -F -p {port} -n 5",
        "ib_read_lat -R -F -p {port} -n 5 {address}",
    ),
    perftest(
        "ib_send_lat",
        "ib_send_lat -R -F -p {port} -n 5",
        "ib_send_lat -R -F -p {port} -n 5 {address}",
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let connections = connections();
    let case = |role: Role, program: &'static Program, run: Box<Run>| Case {
        suite: "default profile",
        name: format!("{}::{}", role.name(), program.words.name),
        title: format!(
            "`{}` many times: {}",
            program.words.name,
            match role {
                Role::GuestServes => "server on siw, client on uwarp",
                Role::GuestConnects => "server on uwarp, client on siw",
            }
        ),
        run,
    };
    let to = (0..).zip(&PROGRAMS).map(|(number, program)| {
        let first_port = FIRST_PORT + 100 * number;
        let run = move |rig: &mut Rig| run(program, connections, first_port, rig);
        case(Role::GuestServes, program, Box::new(run))
    });
    let clients_first = PROGRAMS.iter().filter(|program| !program.server_first);
    let from = clients_first.map(|program| {
        let run = move |rig: &mut Rig| serve(program, connections, rig);
        case(Role::GuestConnects, program, Box::new(run))
    });
    to.chain(from).collect()
}

fn connections() -> usize {
    let number = std::env::var(SAMPLE).ok();
    number.map_or(CONNECTIONS, |number| {
        number
            .parse()
            .unwrap_or_else(|error| panic!("{SAMPLE}={number}: {error}"))
    })
}

/// Runs the server on our side, and starts it again for each run.
fn serve(program: &Program, connections: usize, rig: &mut Rig) -> Result<Outcome> {
    let runs = connections.div_ceil(program.connects);
    for run in 1..=runs {
        let during = |error: Failure| error.during(format!("run {run} of {runs}"));
        let said = we_serve(&program.words, rig, program.options).map_err(during)?;
        said.check(&program.words, Some(Role::GuestConnects))
            .map_err(during)?;
    }
    Ok(Outcome::Passed)
}

/// Runs the servers in the guest. A loop in the guest starts them, which saves a round trip for
/// each server. Their exit codes are not checked, because perftest may report its last message as
/// failed (Q25).
fn run(program: &Program, connections: usize, first_port: u16, rig: &mut Rig) -> Result<Outcome> {
    let runs = connections.div_ceil(program.connects);
    let Program {
        words: program,
        options,
        ..
    } = program;
    let address = rig.wire.guest_ip().to_string();
    let ports = first_port..first_port + u16::try_from(runs).unwrap_or(100);
    let server = filled(program.server, &address, "$port");
    let servers = format!(
        "for port in $(seq {} {}); do {server} >/dev/null 2>&1; done; true",
        ports.start,
        ports.end - 1
    );
    let device = rig.wire.device_argument()?;
    let textbook = rig.image.textbook().display().to_string();
    let mut servers = rig.guest.spawn(&servers)?;
    for (run, port) in (1..).zip(ports) {
        servers.wait_listening(port, PATIENCE)?;
        let client = filled(program.client, &address, &port.to_string());
        let mut arguments = vec!["run", "--device", &device];
        arguments.extend(*options);
        arguments.push("--");
        arguments.extend(client.split_whitespace().map(|word| match word {
            "textbook" => textbook.as_str(),
            word => word,
        }));
        let ended = Uwarp::start(&arguments)?.wait(PATIENCE);
        let output = ended.map_err(|error| error.during(format!("run {run} of {runs}")))?;
        if output.code != 0 && !program.lost_its_channel(&output) {
            return Err(Failure::new(format!(
                "run {run} of {runs}: '{client}' ended with {}:\n{}",
                output.code, output.text
            )));
        }
    }
    servers.wait(PATIENCE)?;
    Ok(Outcome::Passed)
}

fn filled(words: &str, address: &str, port: &str) -> String {
    let filled = words.replace("{port}", port);
    filled.replace("{address}", address)
}

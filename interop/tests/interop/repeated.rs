//! Programs of the distribution in the default profile: each connects to a server on siw again and again, without `--peer siw`.
//! siw overlooks the first FPDU now and then (Q7), so that one connection shows little.

use uwarp_interop::{Failure, Outcome, PATIENCE, Result, Rig, Uwarp};

use crate::Case;

/// Connections of each program.
const CONNECTIONS: usize = 50;
/// Port of the first server. Each has one of its own: that of the last one may still be listened on. The wire passes all ports on.
const FIRST_PORT: u16 = 10_000;

/// A server and its client, with as little traffic as they can have. `{port}` and `{address}` are the server's.
struct Program {
    name: &'static str,
    server: &'static str,
    client: &'static str,
    /// Connections of one run.
    connects: usize,
}

const fn program(name: &'static str, server: &'static str, client: &'static str) -> Program {
    Program {
        name,
        server,
        client,
        connects: 1,
    }
}

/// One of perftest, which connects twice: to agree on what it measures, and to measure it.
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
    // More at once is too much for siw, which rejects some of 50.
    Program {
        connects: 5,
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
    perftest(
        "ib_send_bw",
        "ib_send_bw -R -F -p {port} -n 5",
        "ib_send_bw -R -F -p {port} -n 5 {address}",
    ),
    perftest(
        "ib_write_lat",
        "ib_write_lat -R -F -p {port} -n 5",
        "ib_write_lat -R -F -p {port} -n 5 {address}",
    ),
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
    let of = |(number, program): (u16, &'static Program)| Case {
        suite: "default profile",
        name: program.name.to_owned(),
        title: format!(
            "`{}`: {CONNECTIONS} connections to siw in the default profile",
            program.name
        ),
        run: Box::new(move |rig| run(program, FIRST_PORT + 100 * number, rig)),
    };
    (0..).zip(&PROGRAMS).map(of).collect()
}

/// The server is started anew for each run, by the guest itself, which takes no round trip. How it ends is for other tests:
/// perftest's may report the message as failed that it has sent last (Q25).
fn run(program: &Program, first_port: u16, rig: &mut Rig) -> Result<Outcome> {
    let runs = CONNECTIONS / program.connects;
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
        let mut arguments = vec!["run", "--device", &device, "--"];
        arguments.extend(client.split_whitespace().map(|word| match word {
            "textbook" => textbook.as_str(),
            word => word,
        }));
        let ended = Uwarp::start(&arguments)?.wait(PATIENCE);
        let output = ended.map_err(|error| error.during(format!("run {run} of {runs}")))?;
        if output.code != 0 {
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

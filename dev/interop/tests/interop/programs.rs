//! Programs of the distribution, not recompiled. They use the drop-in library on our side, and
//! rdma-core with siw in the guest. Each runs with the server on either side.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use uwarp_interop::{Failure, Guest, Image, Outcome, Output, PATIENCE, Result, Rig, Uwarp, Wire};

use crate::Case;
use crate::pair::Role;

/// Name of the suite, in the tests' names and in the matrix.
pub(crate) const SUITE: &str = "programs";
/// Name of the textbook program, which prints the same output on every device.
const TEXTBOOK: &str = "textbook";
/// Options for programs that send many bytes at the start, and for servers that send first.
const FOR_SIW: &[&str] = &["--peer", "siw"];
/// Interval between attempts to connect to a port.
const LOOK: Duration = Duration::from_millis(20);

/// Output of perftest on siw after its results, if the peer closes right after its last message
/// (Q25). siw has sent the last message of perftest, but reports it as failed. perftest exits with
/// 1.
const CLOSED_EARLY: [&str; 2] = [
    "Bad wc status 2 ",
    "Failed to close connection between server and client",
];
const DEVIATION: &str = "siw may report its last message as failed although it was sent, if the peer closes (Q25); perftest prints that after its results";

/// Output of perftest's client on siw when its second connection is refused. The client then
/// crashes with [`CRASHED`], which is SIGSEGV.
const REFUSED: [&str; 2] = [
    "Failed to connect through RDMA CM.",
    "ERRNO: Connection refused.",
];
const CRASHED: i32 = 139;
const EARLY: &str = "a client that connects again before the server listens again crashes; the test starts both again";
/// Last output of rping in a race at its end. The main thread closes the event channel before the
/// event thread waits for the next event. The event thread then ends the process with
/// [`LOST_CHANNEL_STATUS`], after all pings. This is a fault of rping on any device
/// (dropin/MATRIX.md).
const LOST_CHANNEL: &str = "rdma_get_cm_event: Bad file descriptor";
const LOST_CHANNEL_STATUS: i32 = 255;
/// Maximum number of consecutive clients that may connect too early.
const TOO_EARLY: u32 = 3;
/// Maximum number of consecutive servers on siw that may lose a wake-up. This can happen if the
/// clients are also on siw.
const MOST_LOST: u32 = 3;

/// Commands of a server and its client. Each side replaces `{port}` and `{address}` by the port and
/// the address at which it reaches the server.
pub(crate) struct Program {
    /// Name, whose words are separated by hyphens.
    pub(crate) name: &'static str,
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    /// Text that the server's output must contain. Any white space counts as one space.
    pub(crate) server_says: &'static [&'static str],
    pub(crate) client_says: &'static [&'static str],
}

const PROGRAMS: &[Program] = &[
    Program {
        name: "rping",
        server: "rping -s -a {address} -p {port} -C 20 -V -v",
        client: "rping -c -a {address} -p {port} -C 20 -V -v",
        server_says: &["server ping data: rdma-ping-19"],
        client_says: &["ping data: rdma-ping-19"],
    },
    Program {
        name: "rping-64-KiB",
        server: "rping -s -a {address} -p {port} -C 20 -S 65535 -V",
        client: "rping -c -a {address} -p {port} -C 20 -S 65535 -V",
        server_says: &[],
        client_says: &[],
    },
    Program {
        name: "ucmatose",
        server: "ucmatose -p {port} -c 4 -C 20 -S 2000",
        client: "ucmatose -s {address} -p {port} -c 4 -C 20 -S 2000",
        server_says: &["data transfers complete", "return status 0"],
        client_says: &["data transfers complete", "return status 0"],
    },
    Program {
        name: "rdma_client",
        server: "rdma_server -p {port}",
        client: "rdma_client -s {address} -p {port}",
        server_says: &["rdma_server: end 0"],
        client_says: &["rdma_client: end 0"],
    },
    Program {
        name: TEXTBOOK,
        server: "textbook {port}",
        client: "textbook {port} {address}",
        server_says: &["lent 262144 bytes the client wrote"],
        client_says: &["they are equal"],
    },
    Program {
        name: "ib_write_bw",
        server: "ib_write_bw -R -F -p {port} -n 100",
        client: "ib_write_bw -R -F -p {port} -n 100 {address}",
        server_says: &["65536 100 "],
        client_says: &["65536 100 "],
    },
    Program {
        name: "ib_read_bw",
        server: "ib_read_bw -R -F -p {port} -n 100",
        client: "ib_read_bw -R -F -p {port} -n 100 {address}",
        server_says: &["65536 100 "],
        client_says: &["65536 100 "],
    },
    Program {
        name: "ib_send_bw",
        server: "ib_send_bw -R -F -p {port} -n 100",
        client: "ib_send_bw -R -F -p {port} -n 100 {address}",
        server_says: &["65536 100 "],
        client_says: &["65536 100 "],
    },
    Program {
        name: "ib_write_lat",
        server: "ib_write_lat -R -F -p {port} -n 100",
        client: "ib_write_lat -R -F -p {port} -n 100 {address}",
        server_says: &[" 2 100 "],
        client_says: &[" 2 100 "],
    },
    Program {
        name: "ib_read_lat",
        server: "ib_read_lat -R -F -p {port} -n 100",
        client: "ib_read_lat -R -F -p {port} -n 100 {address}",
        server_says: &[],
        client_says: &[" 2 100 "],
    },
    Program {
        name: "ib_send_lat",
        server: "ib_send_lat -R -F -p {port} -n 100",
        client: "ib_send_lat -R -F -p {port} -n 100 {address}",
        server_says: &[" 2 100 "],
        client_says: &[" 2 100 "],
    },
];

pub(crate) fn cases() -> Vec<Case> {
    let of = |program: &'static Program| {
        Role::BOTH.map(|role| Case {
            suite: SUITE,
            name: format!("{}::{}", role.name(), program.name),
            title: match role {
                Role::GuestServes => format!("`{}`: server on siw, client on uwarp", program.name),
                Role::GuestConnects => {
                    format!("`{}`: server on uwarp, client on siw", program.name)
                }
            },
            run: Box::new(move |rig| run(program, rig, role)),
        })
    };
    PROGRAMS.iter().flat_map(of).collect()
}

fn run(program: &Program, rig: &mut Rig, role: Role) -> Result<Outcome> {
    let said = match role {
        Role::GuestServes => guest_serves(program, rig)?,
        Role::GuestConnects => we_serve(program, rig, FOR_SIW)?,
    };
    said.check(program, Some(role))?;
    if program.name == TEXTBOOK {
        let alone = guest_alone(program, rig)?;
        alone.check(program, None)?;
        if said.all() != alone.all() {
            return Err(Failure::new(format!(
                "on uwarp and siw it said:\n{}\non siw alone:\n{}",
                said.all(),
                alone.all()
            )));
        }
    }
    Ok(match (program.is_perftest(), role) {
        (true, Role::GuestServes) => Outcome::Deviation(DEVIATION.to_owned()),
        (true, Role::GuestConnects) => Outcome::Deviation(format!("{DEVIATION}; {EARLY}")),
        (false, _) => Outcome::Passed,
    })
}

impl Program {
    fn is_perftest(&self) -> bool {
        self.name.starts_with("ib_")
    }

    /// Returns true if the second connection of this client was refused because the server did not
    /// listen again yet. perftest's server stops listening after the first connection, and nothing
    /// tells the client when it listens again. Between two hosts the server may be the slower side.
    /// The client crashes when it tries again by itself a tenth of a second later, because it then
    /// uses freed ids. `uwarp run` repeats a refused connect for the program, but rdma-core on siw
    /// does not.
    fn came_too_early(&self, client: &Result<Output>) -> bool {
        let refused = |output: &Output| {
            output.code == CRASHED && REFUSED.iter().all(|text| output.text.contains(text))
        };
        self.is_perftest() && client.as_ref().is_ok_and(refused)
    }

    /// Returns true if rping's event thread has ended the process after all pings.
    pub(crate) fn lost_its_channel(&self, output: &Output) -> bool {
        self.name.starts_with("rping")
            && output.code == LOST_CHANNEL_STATUS
            && output.text.contains(LOST_CHANNEL)
            && !output.text.contains(" failed")
    }

    /// Returns true if the program ended as perftest does on siw when the peer closed first.
    fn closed_early(&self, code: i32, flat: &str) -> bool {
        self.is_perftest() && code == 1 && CLOSED_EARLY.iter().all(|text| flat.contains(text))
    }
}

/// Outputs of the server and of the client.
pub(crate) struct Said {
    server: Output,
    client: Output,
}

impl Said {
    /// Checks that both programs ended well with the expected output. `role` is the role of the
    /// guest, or `None` if both ran in the guest.
    pub(crate) fn check(&self, program: &Program, role: Option<Role>) -> Result<()> {
        let sides = [
            (&self.server, program.server, program.server_says),
            (&self.client, program.client, program.client_says),
        ];
        let on_siw = role.map(|role| usize::from(role == Role::GuestConnects));
        for (side, (output, words, says)) in sides.into_iter().enumerate() {
            let flat: Vec<&str> = output.text.split_whitespace().collect();
            let flat = format!(" {} ", flat.join(" "));
            let missing = says.iter().find(|text| !flat.contains(**text));
            let well = output.code == 0
                || program.lost_its_channel(output)
                || (on_siw == Some(side) && program.closed_early(output.code, &flat));
            if !well || missing.is_some() {
                return Err(Failure::new(format!(
                    "'{words}' ended with {}, and its output should contain {says:?}:\n{}",
                    output.code,
                    self.all()
                )));
            }
        }
        Ok(())
    }

    fn all(&self) -> String {
        format!(
            "server:\n{}\nclient:\n{}",
            self.server.text, self.client.text
        )
    }
}

fn filled(words: &str, address: IpAddr, port: u16) -> String {
    let filled = words.replace("{port}", &port.to_string());
    filled.replace("{address}", &address.to_string())
}

/// Starts a program here, on the drop-in library.
fn ours(wire: &dyn Wire, image: &Image, words: &str, profile: &[&str]) -> Result<Uwarp> {
    let device = wire.device_argument()?;
    let textbook = image.textbook().display().to_string();
    let mut arguments = vec!["run", "--device", &device];
    arguments.extend(profile);
    arguments.push("--");
    arguments.extend(words.split_whitespace().map(|word| match word {
        TEXTBOOK => textbook.as_str(),
        word => word,
    }));
    Uwarp::start(&arguments)
}

fn guest_serves(program: &Program, rig: &mut Rig) -> Result<Said> {
    let port = rig.guest_port();
    let to = rig.wire.guest_addr(port);
    let words = filled(program.server, rig.wire.guest_ip(), port);
    let mut server = rig.guest.spawn(&words)?;
    server.wait_listening(port, PATIENCE)?;
    let words = filled(program.client, to.ip(), to.port());
    let client = ours(&*rig.wire, &rig.image, &words, FOR_SIW)?.wait(PATIENCE);
    both(server.wait(rest(&client)), client)
}

/// Runs the server here. `profile` has options for `uwarp run`.
pub(crate) fn we_serve(program: &Program, rig: &mut Rig, profile: &[&str]) -> Result<Said> {
    let mut early = 0;
    loop {
        // The port is below the range from which the system assigns ports.
        let port = 20_000 + rig.guest_port();
        let words = filled(program.server, rig.wire.our_ip(), port);
        let mut server = ours(&*rig.wire, &rig.image, &words, profile)?;
        let to = rig.wire.our_ip_for_guest();
        wait_listening(rig, &mut server, to, port)?;
        let client = rig.guest.run(&filled(program.client, to, port), PATIENCE);
        if program.came_too_early(&client) && early < TOO_EARLY {
            early += 1;
            continue;
        }
        return both(server.wait(rest(&client)), client);
    }
}

/// Runs both sides on siw, through the guest's own address. If a server loses a wake-up, runs it
/// again with its client.
fn guest_alone(program: &Program, rig: &mut Rig) -> Result<Said> {
    let mut lost = 0;
    loop {
        let (port, ip) = (rig.guest_port(), rig.wire.guest_ip());
        let mut server = rig.guest.spawn(&filled(program.server, ip, port))?;
        server.wait_listening(port, PATIENCE)?;
        let client = filled(program.client, ip, port);
        let client = server.guest().run(&client, PATIENCE);
        if client.is_err() && lost < MOST_LOST && leaves_unread(server.guest(), port) {
            lost += 1;
            continue;
        }
        return both(server.wait(rest(&client)), client);
    }
}

/// Returns true if a connection of this server has unread bytes. Bytes right after siw's Reply can
/// stay unread until more bytes arrive (Q7). If the unread bytes fill the window, as the bytes of a
/// client on siw do, no more can arrive. With `--peer siw`, our client waits briefly before it
/// sends.
fn leaves_unread(guest: &mut Guest, port: u16) -> bool {
    // In /proc/net/tcp, state 01 is ESTABLISHED. The lengths of the send queue and the receive
    // queue follow.
    let look =
        format!("grep -q ':{port:04X} [0-9A-F]*:[0-9A-F]* 01 [0-9A-F]*:0*[1-9A-F]' /proc/net/tcp");
    // If the command fails as well, the client's error shows the reason.
    guest.run(&look, PATIENCE).is_ok_and(|seen| seen.code == 0)
}

/// Returns the time limit for the server after the client has ended.
fn rest(client: &Result<Output>) -> Duration {
    match client {
        Ok(output) if output.code == 0 => PATIENCE,
        // After a failure, only the server's output is needed.
        _ => Duration::from_secs(2),
    }
}

fn both(server: Result<Output>, client: Result<Output>) -> Result<Said> {
    match (server, client) {
        (Ok(server), Ok(client)) => Ok(Said { server, client }),
        (Err(server), Ok(client)) => Err(Failure::new(format!(
            "server: {server}\nclient, which ended with {}:\n{}",
            client.code, client.text
        ))),
        (Ok(server), Err(client)) => Err(Failure::new(format!(
            "client: {client}\nserver, which ended with {}:\n{}",
            server.code, server.text
        ))),
        (Err(server), Err(client)) => {
            Err(Failure::new(format!("server: {server}\nclient: {client}")))
        }
    }
}

/// Waits until the guest can open a TCP connection to a server of ours, and closes that connection.
/// The server program does not notice it.
fn wait_listening(rig: &mut Rig, server: &mut Uwarp, to: IpAddr, port: u16) -> Result<()> {
    let probe = format!("timeout 5 nc {to} {port} </dev/null");
    let deadline = Instant::now() + PATIENCE;
    while rig.guest.run(&probe, PATIENCE)?.code != 0 {
        if server.reap()? || Instant::now() > deadline {
            return Err(Failure::new(format!(
                "the server does not listen, and said:\n{}",
                server.said()
            )));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

//! Programs of the distribution, not recompiled: on the drop-in library here, on rdma-core and siw in the guest. Each serves on either
//! side, and its client is on the other.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use uwarp_interop::{Failure, Guest, Image, Outcome, Output, PATIENCE, Result, Rig, Uwarp, Wire};

use crate::Case;
use crate::pair::Role;

/// In the names of the tests, and in the matrix.
pub(crate) const SUITE: &str = "programs";
/// The program of the textbooks. It says the same on every device.
const TEXTBOOK: &str = "textbook";
/// The profile for programs that begin with much, and for servers that speak first.
const FOR_SIW: &[&str] = &["--peer", "siw"];
/// How often a port is looked at that cannot be waited for.
const LOOK: Duration = Duration::from_millis(20);

/// Q25: what perftest says on siw, behind its results, when the peer closes right behind its answer: siw has sent the last message,
/// and reports it as failed. Then it ends with 1.
const CLOSED_EARLY: [&str; 2] = [
    "Bad wc status 2 ",
    "Failed to close connection between server and client",
];
const DEVIATION: &str = "siw may report its last message as failed although it was sent, if the peer closes (Q25); perftest prints that after its results";

/// What perftest's client says on siw when its second connection is refused, before it crashes of that (139: SIGSEGV).
const REFUSED: [&str; 2] = [
    "Failed to connect through RDMA CM.",
    "ERRNO: Connection refused.",
];
const CRASHED: i32 = 139;
const EARLY: &str = "a client that connects again before the server listens again crashes; the test starts both again";
/// rping's last words when its main thread has closed the event channel before its event thread
/// waits for the next event: that thread then ends the process with [`LOST_CHANNEL_STATUS`], after
/// all pings. A fault of rping on any device (dropin/MATRIX.md).
const LOST_CHANNEL: &str = "rdma_get_cm_event: Bad file descriptor";
const LOST_CHANNEL_STATUS: i32 = 255;
/// How many clients may come too early, one behind the other.
const TOO_EARLY: u32 = 3;
/// How many servers on siw may lose a wake-up, one behind the other, while their clients are on siw, too.
const MOST_LOST: u32 = 3;

/// A server and its client. `{port}` and `{address}` are the server's: to each as it knows them.
pub(crate) struct Program {
    /// Words with hyphens.
    pub(crate) name: &'static str,
    pub(crate) server: &'static str,
    pub(crate) client: &'static str,
    /// What they must have said; any white space is one space.
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

    /// Whether this client has connected once, and again before its server listened a second time. perftest's server stops listening
    /// when it has the first connection, and nothing tells the client that it listens again for the second; between two hosts the
    /// client need not be the slower one. Its own next try, a tenth of a second later, is what crashes: it is made with ids that
    /// were freed. `uwarp run` asks again for a program that connects; nobody does for one on siw.
    fn came_too_early(&self, client: &Result<Output>) -> bool {
        let refused = |output: &Output| {
            output.code == CRASHED && REFUSED.iter().all(|text| output.text.contains(text))
        };
        self.is_perftest() && client.as_ref().is_ok_and(refused)
    }

    /// Whether rping's event thread has ended it after all pings.
    pub(crate) fn lost_its_channel(&self, output: &Output) -> bool {
        self.name.starts_with("rping")
            && output.code == LOST_CHANNEL_STATUS
            && output.text.contains(LOST_CHANNEL)
            && !output.text.contains(" failed")
    }

    /// Whether this is how it ended on siw when the peer closed first.
    fn closed_early(&self, code: i32, flat: &str) -> bool {
        self.is_perftest() && code == 1 && CLOSED_EARLY.iter().all(|text| flat.contains(text))
    }
}

/// What both sides have left.
pub(crate) struct Said {
    server: Output,
    client: Output,
}

impl Said {
    /// That both ended well, and said what they should; `role` is the guest's.
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
                    "'{words}' ended with {}, and was to say {says:?}:\n{}",
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

/// `profile`: options of `uwarp run`.
pub(crate) fn we_serve(program: &Program, rig: &mut Rig, profile: &[&str]) -> Result<Said> {
    let mut early = 0;
    loop {
        // Below those that the system gives out.
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

/// siw on both sides, by the guest's own address. A server that has lost a wake-up is started again, with its client.
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

/// Q7: what comes right behind siw's Reply can lie unread until more comes, and none can come when it fills the window, as a
/// client on siw makes it. (A client of ours waits a moment, by `--peer siw`.) Whether a connection of this server has such bytes.
fn leaves_unread(guest: &mut Guest, port: u16) -> bool {
    // State 01 is ESTABLISHED; then come the lengths of the queues, to be sent and to be read.
    let look =
        format!("grep -q ':{port:04X} [0-9A-F]*:[0-9A-F]* 01 [0-9A-F]*:0*[1-9A-F]' /proc/net/tcp");
    // If this fails, too, the client's error tells why.
    guest.run(&look, PATIENCE).is_ok_and(|seen| seen.code == 0)
}

/// How long the server may take when the client has ended.
fn rest(client: &Result<Output>) -> Duration {
    match client {
        Ok(output) if output.code == 0 => PATIENCE,
        // What it has said is all that is of interest.
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

/// Waits until the guest can open a TCP connection to a server of ours, and closes it again, of which the program does not hear.
fn wait_listening(rig: &mut Rig, server: &mut Uwarp, to: IpAddr, port: u16) -> Result<()> {
    let probe = format!("timeout 5 nc {to} {port} </dev/null");
    let deadline = Instant::now() + PATIENCE;
    while rig.guest.run(&probe, PATIENCE)?.code != 0 {
        if server.has_ended()? || Instant::now() > deadline {
            return Err(Failure::new(format!(
                "the server does not listen, and said:\n{}",
                server.said()
            )));
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

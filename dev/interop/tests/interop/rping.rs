//! Debian's rping in the guest against `uwarp rping`, in both roles.

use std::time::Duration;

use uwarp_interop::{Failure, Outcome, PATIENCE, Result, Rig, Uwarp, Wire};

use crate::Case;

const COUNT: usize = 100;
/// Sizes of a ping. rping accepts 23 to 65535.
const SIZES: [usize; 5] = [23, 64, 1024, 4096, 65_535];
/// Time limit for all pings. A hundred pings of 64 KiB take seconds in the emulated guest. A run
/// that takes ten times longer is considered to hang.
const PINGS: Duration = Duration::from_secs(180);

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (guest_serves, role) in [(true, "guest_serves"), (false, "guest_connects")] {
        for size in SIZES {
            for crc in ["on", "off"] {
                let who = if guest_serves { "server" } else { "client" };
                cases.push(Case {
                    suite: "rping",
                    name: format!("{role}::size_{size}::crc_{crc}"),
                    title: format!("rping as {who}, {COUNT} pings of {size} bytes, CRC {crc}"),
                    run: Box::new(move |rig| {
                        if guest_serves {
                            serves(rig, size, crc)
                        } else {
                            connects(rig, size, crc)
                        }
                    }),
                });
            }
        }
    }
    cases
}

/// Returns the command for rping in the guest. It cuts the output lines, so that pings of 64 KiB do
/// not cross the control channel.
fn theirs(arguments: &str) -> String {
    format!("rping {arguments} >/tmp/rping 2>&1; code=$?; cut -c1-40 /tmp/rping; exit $code")
}

/// Starts `uwarp rping`.
fn ours(wire: &dyn Wire, arguments: &[&str], crc: &str) -> Result<Uwarp> {
    let device = wire.device_argument()?;
    let base = [
        "rping", "--peer", "siw", "--device", &device, "--crc", crc, "-d", "-v",
    ];
    Uwarp::start(&[&base, arguments].concat())
}

fn serves(rig: &mut Rig, size: usize, crc: &str) -> Result<Outcome> {
    let port = rig.guest_port();
    let to = rig.wire.guest_addr(port);
    let (ip, our_port) = (to.ip().to_string(), to.port().to_string());
    let (size_text, count) = (size.to_string(), COUNT.to_string());
    let guest_ip = rig.wire.guest_ip();
    let mut server = rig.guest.spawn(&theirs(&format!(
        "-s -a {guest_ip} -p {port} -C {COUNT} -S {size} -v -V"
    )))?;
    server.wait_listening(port, PATIENCE)?;
    let arguments = [
        "-c", "-a", &ip, "-p", &our_port, "-C", &count, "-S", &size_text, "-V",
    ];
    let client = ours(&*rig.wire, &arguments, crc)?.wait(PINGS)?;
    let server = server.wait(PATIENCE)?;
    check(
        "uwarp rping -c",
        client.code,
        &client.text,
        "ping data: ",
        size,
    )?;
    check(
        "rping -s",
        server.code,
        &server.text,
        "server ping data: ",
        size,
    )?;
    agreed(&client.text, crc)
}

fn connects(rig: &mut Rig, size: usize, crc: &str) -> Result<Outcome> {
    let ip = rig.wire.our_ip().to_string();
    let mut server = ours(&*rig.wire, &["-s", "-a", &ip, "-p", "0"], crc)?;
    let line = server.wait_for("rdma_listen ", PATIENCE)?;
    let port = line.rsplit(':').next().unwrap_or_default();
    let to = rig.wire.our_ip_for_guest();
    let command = theirs(&format!("-c -a {to} -p {port} -C {COUNT} -S {size} -v -V"));
    let client = rig.guest.run(&command, PINGS)?;
    let server = server.wait(PATIENCE)?;
    check("rping -c", client.code, &client.text, "ping data: ", size)?;
    check(
        "uwarp rping -s",
        server.code,
        &server.text,
        "server ping data: ",
        size,
    )?;
    agreed(&server.text, crc)
}

/// Checks that the program succeeded and printed every ping.
fn check(who: &str, code: i32, said: &str, label: &str, size: usize) -> Result<()> {
    let shown: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix(label))
        .collect();
    let as_it_should = shown.len() == COUNT
        && shown.iter().enumerate().all(|(number, text)| {
            let want = format!("rdma-ping-{number}: ");
            // The printed text of a ping may be cut, and a small ping has room for little text.
            text.starts_with(&want[..want.len().min(size - 1)])
        });
    if code == 0 && as_it_should {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{who} ended with {code} and showed {} of {COUNT} pings:\n{}",
        shown.len(),
        cut(said)
    )))
}

/// Checks whether CRCs were used. siw does not request them, so our setting decides.
fn agreed(said: &str, crc: &str) -> Result<Outcome> {
    if said.contains(&format!("MPA revision 2, CRC {crc}, ")) {
        return Ok(Outcome::Passed);
    }
    Err(Failure::new(format!(
        "CRC {crc} and MPA revision 2 should be negotiated:\n{}",
        cut(said)
    )))
}

/// Returns the last lines, each cut to 100 characters.
fn cut(said: &str) -> String {
    let lines: Vec<String> = said
        .lines()
        .map(|line| line.chars().take(100).collect())
        .collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

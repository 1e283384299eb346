//! Measures uwarp and Linux siw in the same virtual machine and in the same boot.
//!
//! The machine is the guest of the interop tests: QEMU without KVM, with an emulated processor. Its
//! figures can only be compared with each other.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use uwarp_interop::{Guest, Image, NetDevice, Unready};

use crate::machine;
use crate::process::Scratch;
use crate::programs;
use crate::report::{Output, Section};
use crate::rows::{self, Base, Row, Sample, Table, Unit};

/// Address of the guest.
const ADDRESS: &str = "192.0.2.2";
/// Maximum number of attempts to measure a value. siw sometimes loses the first message of a
/// connection, because of a wake-up that is too early. The client then waits forever.
const ATTEMPTS: usize = 3;

/// Options.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The command to measure
    #[arg(long, default_value = "target/release/uwarp")]
    uwarp: PathBuf,
    /// Rounds; each measures everything once, siw and uwarp by turns
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    output: Output,
}

const BANDWIDTH: Table = Table::new("Bandwidth", Unit::Bandwidth);
const LATENCY: Table = Table::new("Latency", Unit::Latency);

/// Tests that perftest and `uwarp perf` both have, with the same name and options: table, name,
/// size, and options.
#[rustfmt::skip]
const TESTS: [(&Table, &str, usize, &str); 13] = [
    (&BANDWIDTH, "write_bw",  64 << 10, "-n 1000 -t 16"),
    (&BANDWIDTH, "read_bw",   64 << 10, "-n 1000 -t 16 -o 16"),
    (&BANDWIDTH, "send_bw",   64 << 10, "-n 1000 -t 16 -r 64"),
    (&BANDWIDTH, "write_bw",  1 << 20,  "-n 100 -t 16"),
    (&BANDWIDTH, "read_bw",   1 << 20,  "-n 100 -t 16 -o 16"),
    (&BANDWIDTH, "send_bw",   1 << 20,  "-n 100 -t 16 -r 64"),
    (&BANDWIDTH, "write_bw",  4 << 10,  "-n 5000 -t 64"),
    (&BANDWIDTH, "read_bw",   4 << 10,  "-n 5000 -t 64 -o 64"),
    (&BANDWIDTH, "send_bw",   4 << 10,  "-n 5000 -t 64 -r 256"),
    (&BANDWIDTH, "write_bw",  8,        "-n 20000 -t 64"),
    (&LATENCY,   "write_lat", 8,        "-n 5000"),
    (&LATENCY,   "send_lat",  8,        "-n 5000"),
    (&LATENCY,   "read_lat",  8,        "-n 5000"),
];

/// Work of a row: whether uwarp has the CRC, or `None` for siw; and name, size and options of the
/// test.
type Work = (Option<bool>, &'static str, usize, &'static str);

/// Returns all rows. The programs of a test take turns.
fn all() -> Vec<Row<Work>> {
    let mut all = Vec::new();
    for &(table, test, size, options) in &TESTS {
        let mut add = |told: &str, bases: &[Base], crc| {
            let name = format!("`{test} -s {size}`, {told}");
            let work = (crc, test, size, options);
            all.push(Row::new(table, name, format!("`{options}`"), bases, work));
        };
        let siw = [Base::Ahead(
            format!("`{test} -s {size}`, siw, no CRC").into(),
        )];
        add("siw, no CRC", &[], None);
        add("uwarp, CRC off", &siw, Some(false));
        add("uwarp, CRC on", &siw, Some(true));
    }
    all
}

/// Returns the script for the guest's shell. It starts a server, waits for its listener, and prints
/// the output of a client. It does not probe the server by a connection, because such a probe can
/// crash siw.
fn script((crc, test, size, options): Work, port: u16) -> String {
    let rest = format!("-p {port} -s {size} {options}");
    let ours = format!("{rest} --device tcp:{ADDRESS}");
    let off = if crc == Some(false) { " --crc off" } else { "" };
    let (server, client) = match crc {
        None => (
            format!("ib_{test} -R {rest} -F"),
            format!("ib_{test} -R {rest} -F {ADDRESS}"),
        ),
        Some(_) => (
            format!("uwarp perf {test} {ours}{off}"),
            format!("uwarp perf {test} {ADDRESS} {ours}{off}"),
        ),
    };
    format!(
        "{server} >/tmp/server.log 2>&1 &\n\
         server=$!\n\
         tries=0\n\
         until grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp; do\n\
         \ttries=$((tries + 1))\n\
         \t[ $tries -lt 500 ] && kill -0 $server 2>/dev/null || {{ kill -9 $server 2>/dev/null; cat /tmp/server.log; exit 9; }}\n\
         \tusleep 20000\n\
         done\n\
         timeout 40 {client} 2>&1\n\
         code=$?\n\
         [ $code = 0 ] || cat /tmp/server.log\n\
         kill -9 $server 2>/dev/null\n\
         exit $code\n"
    )
}

/// Measures all selected rows, and writes the report.
pub(crate) fn run(options: &Options) -> io::Result<()> {
    match measure(options) {
        Ok(section) => options.output.publish(&[section]),
        Err(Unready::Missing(why)) => {
            println!("SKIPPED: {why}");
            Ok(())
        }
        Err(Unready::Failed(why)) => Err(io::Error::other(why)),
    }
}

fn measure(options: &Options) -> Result<Section, Unready> {
    let failed = |error: &dyn Display| Unready::Failed(error.to_string());
    let mut programs = vec![options.uwarp.clone()];
    for (_, test, ..) in TESTS {
        let path = PathBuf::from(format!("/usr/bin/ib_{test}"));
        if !path.exists() {
            let why = format!("{} is not installed (Debian: perftest)", path.display());
            return Err(Unready::Missing(why));
        }
        if !programs.contains(&path) {
            programs.push(path);
        }
    }
    let scratch = Scratch::new("siw").map_err(|error| failed(&error))?;
    let image = Image::find()?.with_programs(&programs, &scratch.0)?;
    let forward = Vec::new();
    let wire = NetDevice::User { forward };
    let addresses = [format!("{ADDRESS}/24")];
    let (mut guest, _agent) =
        Guest::boot(&image, &wire, &addresses, None).map_err(|failure| failed(&failure))?;
    let mut rows = all();
    let (mut port, mut trouble) = (20_000, None);
    rows::run(&mut rows, options.rounds, |work, _| {
        let mut value = Err(String::new());
        for _ in 0..ATTEMPTS {
            // A guest in trouble is not used any more.
            if let Some(trouble) = &trouble {
                return Err(io::Error::other(format!(
                    "the guest is in trouble: {trouble}"
                )));
            }
            port += 1;
            value = once(&mut guest, *work, port);
            trouble = guest.trouble();
            if value.is_ok() {
                break;
            }
        }
        value.map_err(io::Error::other)
    });
    if let Some(trouble) = trouble {
        return Err(failed(&format!("the guest is in trouble: {trouble}")));
    }
    let (about, guest) = (
        machine::about(options.rounds, ""),
        image.versions.join(", "),
    );
    let about = format!("{about} Guest: {guest}.");
    Ok(Section::of_rows("Beside Linux siw", &about, &rows))
}

fn once(guest: &mut Guest, work: Work, port: u16) -> Result<Sample, String> {
    let output = guest
        .run(&script(work, port), Duration::from_secs(90))
        .map_err(|failure| failure.to_string())?;
    let value = programs::perftest(&output.text).filter(|_| output.code == 0);
    value.map(Sample::of).ok_or_else(|| {
        let mut lines = output.text.lines();
        let last = lines.rfind(|line| !line.trim().is_empty());
        let last = last.unwrap_or("nothing was said").trim();
        format!("exit code {}: {last}", output.code)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(crc: Option<bool>, at: usize) -> Work {
        let (_, test, size, options) = TESTS[at];
        (crc, test, size, options)
    }

    #[test]
    fn the_client_of_each_has_the_address_where_it_takes_it() {
        let siw = script(work(None, 0), 20_001);
        let client = "timeout 40 ib_write_bw -R -p 20001 -s 65536 -n 1000 -t 16 -F 192.0.2.2";
        assert!(siw.contains(client));
        assert!(siw.contains(":4E21 00000000:0000 0A"));
        let ours = script(work(Some(false), 10), 20_001);
        let client = "timeout 40 uwarp perf write_lat 192.0.2.2 -p 20001 -s 8 -n 5000 --device tcp:192.0.2.2 --crc off";
        assert!(ours.contains(client));
        let ours = script(work(Some(true), 10), 20_001);
        assert!(!ours.contains("--crc off"));
    }

    #[test]
    fn uwarp_is_compared_with_siw_at_the_same_size() {
        let all = all();
        rows::assert_complete(&all);
        assert_eq!(all.len(), 3 * TESTS.len());
        for [siw, off, on] in all.as_chunks().0 {
            assert_eq!(siw.work.0, None);
            for ours in [off, on] {
                assert!(ours.bases[0].includes(&siw.name), "{}", ours.name);
            }
        }
    }
}

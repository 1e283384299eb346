//! QEMU's live migration over `rdma:`. The guest continues to write to its memory while QEMU sends
//! the memory to the target.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{Row, Way, row};
use crate::process::{Place, Running, TIMEOUT, free_port};

const PACKAGES: &[&str] = &["qemu-system-x86"];
const FILES: &[&str] = &["qemu-system-x86_64"];

pub(super) const ROWS: &[Row] = &[row("qemu-migration", PACKAGES, FILES, Way::Own(run))];

/// Variable with the number of successive migrations; 1 by default.
const MIGRATIONS: &str = "UWARP_MIGRATIONS";
/// Interval between two queries of the state of a machine.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Boot sector of the guest. It adds 1 to each byte from 0x20000 to 0x90000 in an endless loop.
const CODE: [u8; 30] = [
    0xfa, // cli
    0x31, 0xc0, 0x8e, 0xd8, // ds = 0
    0xbb, 0x00, 0x20, // again: bx = 0x2000
    0x8e, 0xc3, // next: es = bx
    0x31, 0xf6, // si = 0
    0x26, 0xfe, 0x04, // byte: inc [es:si]
    0x46, 0x75, 0xfa, // inc si; jnz byte
    0x81, 0xc3, 0x00, 0x10, // bx += 0x1000
    0x81, 0xfb, 0x00, 0x90, 0x72, 0xec, // cmp bx, 0x9000; jb next
    0xeb, 0xe7, // jmp again
];

fn boot_sector() -> Vec<u8> {
    let mut sector = CODE.to_vec();
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector
}

fn run(place: Place<'_>) -> Result<String, String> {
    let count = match std::env::var(MIGRATIONS) {
        Ok(text) => text
            .parse()
            .map_err(|error| format!("{MIGRATIONS} is '{text}': {error}"))?,
        Err(_) => 1,
    };
    let disk = place.prefix.scratch().join("boot");
    fs::write(&disk, boot_sector()).map_err(|error| error.to_string())?;
    (1..=count).try_for_each(|number| {
        migrate(place, &disk).map_err(|error| format!("migration {number} of {count}: {error}"))
    })?;
    Ok(format!("{count} migrations"))
}

/// Starts two machines and migrates the guest of the first to the second.
fn migrate(place: Place<'_>, disk: &Path) -> Result<(), String> {
    let number = free_port()?;
    let uri = format!(r#"{{"uri":"rdma:127.0.0.1:{number}"}}"#);
    let mut target = Machine::start(
        place,
        disk,
        &format!("target-{number}"),
        &["-incoming", "defer"],
    )?;
    let mut source = Machine::start(place, disk, &format!("source-{number}"), &[])?;
    target.ask("migrate-incoming", &uri)?;
    let parameters = r#"{"max-bandwidth":1000000000,"downtime-limit":2000}"#;
    source.ask("migrate-set-parameters", parameters)?;
    let saved = place.prefix.scratch().join(format!("saved-{number}"));
    let deadline = Instant::now() + TIMEOUT;
    while source.boot_memory(&saved)? != boot_sector() {
        if Instant::now() > deadline {
            return Err(source.running.words("did not boot"));
        }
        thread::sleep(POLL_INTERVAL);
    }
    source.ask("migrate", &uri)?;
    for machine in [&mut source, &mut target] {
        machine.until_migrated()?;
    }
    // The guest continues on the target, in the transferred memory.
    if !target
        .ask("query-status", "{}")?
        .contains(r#""running": true"#)
    {
        return Err(target.running.words("has no guest that runs"));
    }
    if target.boot_memory(&saved)? != boot_sector() {
        return Err("the guest's code came over with wrong bytes".to_owned());
    }
    for mut machine in [source, target] {
        machine.ask("quit", "{}")?;
        machine.running.end()?;
    }
    Ok(())
}

/// A virtual machine, and its control socket (QMP).
struct Machine {
    running: Running,
    control: BufReader<UnixStream>,
}

impl Machine {
    fn start(place: Place<'_>, disk: &Path, name: &str, more: &[&str]) -> Result<Self, String> {
        let socket = place.prefix.scratch().join(name);
        let drive = format!("file={},format=raw,if=ide,snapshot=on", disk.display());
        let control = format!("unix:{},server=on,wait=off", socket.display());
        let words = [
            "qemu-system-x86_64",
            "-accel",
            "tcg",
            "-m",
            "64",
            "-nodefaults",
            "-display",
            "none",
            "-drive",
            &drive,
            "-qmp",
            &control,
        ];
        let mut running = place.start(&[&words, more].concat())?;
        let mut stream = None;
        running.wait_until("took commands", |_| {
            stream = UnixStream::connect(&socket).ok();
            stream.is_some()
        })?;
        let stream = stream.ok_or("no stream")?;
        stream
            .set_read_timeout(Some(TIMEOUT))
            .map_err(|error| error.to_string())?;
        let mut machine = Machine {
            running,
            control: BufReader::new(stream),
        };
        machine.ask("qmp_capabilities", "{}")?;
        Ok(machine)
    }

    /// Runs a command and returns the line with the answer.
    fn ask(&mut self, command: &str, arguments: &str) -> Result<String, String> {
        let text = format!("{{\"execute\":\"{command}\",\"arguments\":{arguments}}}\n");
        let failed = |machine: &Self, error: &dyn std::fmt::Display| {
            let what = format!("did not answer '{command}' ({error})");
            Err(machine.running.words(&what))
        };
        if let Err(error) = self.control.get_mut().write_all(text.as_bytes()) {
            return failed(self, &error);
        }
        // QEMU sends a greeting first, and may send events before the answer. Skip both.
        loop {
            let mut line = String::new();
            match self.control.read_line(&mut line) {
                Ok(0) => return failed(self, &"it has closed the socket"),
                Ok(_) if line.contains(r#""return""#) => return Ok(line),
                Ok(_) if line.contains(r#""error":"#) => return failed(self, &line.trim()),
                Ok(_) => {}
                Err(error) => return failed(self, &error),
            }
        }
    }

    /// Returns the contents of the memory where the boot sector is loaded. QEMU writes the contents
    /// to `file` first.
    fn boot_memory(&mut self, file: &Path) -> Result<Vec<u8>, String> {
        let path = file.display();
        let range = format!(r#"{{"val":31744,"size":512,"filename":"{path}"}}"#);
        self.ask("pmemsave", &range)?;
        fs::read(file).map_err(|error| error.to_string())
    }

    fn until_migrated(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let said = self.ask("query-migrate", "{}")?;
            if said.contains(r#""status": "completed""#) {
                return Ok(());
            }
            let failed = [r#""status": "failed""#, r#""status": "cancelled""#];
            if failed.iter().any(|status| said.contains(status)) || Instant::now() > deadline {
                return Err(self.running.words(&format!("did not migrate: {said}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

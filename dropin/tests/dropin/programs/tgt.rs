//! iSCSI over RDMA (iSER): tgt serves a disk, and libiscsi's programs write, read and compare.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use super::{Row, Way, check, row};
use crate::packages;
use crate::process::{Place, free_port};

const PACKAGES: &[&str] = &["tgt", "libiscsi-bin"];
const FILES: &[&str] = &["tgtd", "libiscsi.so.7"];

const TARGET: &str = "iqn.2026-11.test:disk";
const INITIATOR: &str = "iqn.2026-11.test:initiator";

pub(super) const ROWS: &[Row] = &[row("tgt-libiscsi", PACKAGES, FILES, Way::Own(run))];

/// Tests of libiscsi, in which the target both writes to the initiator's memory and reads from it.
/// `Verify10` reads data and sends it back, and the target compares it with its disk. The last test
/// fills blocks with the byte [`WRITTEN`].
const TESTS: [&str; 4] = [
    "SCSI.Read10.Simple",
    "SCSI.Verify10.Simple",
    "SCSI.Verify10.Mismatch",
    "SCSI.Write10.Simple",
];
const WRITTEN: u8 = 0xa6;
const BLOCK: usize = 512;

/// libiscsi (1.19) uses memory from `malloc` as the head of a list of connections, and does not
/// clear it. If the memory is not zero, the program crashes with SIGSEGV. With
/// `MALLOC_PERTURB_=165` the crash is certain. `malloc` fills memory with the complement of this
/// variable (`mallopt(3)`, `M_PERTURB`), so the value 255 clears the memory. This also applies to
/// memory that our library allocates in that process.
const CLEARED: &str = "MALLOC_PERTURB_=255";

fn run(place: Place<'_>) -> Result<String, String> {
    // tgt also serves iSCSI over TCP, which needs a separate port: by default both services would
    // use the same number.
    let (tcp, port) = (free_port()?, free_port()?);
    let scratch = place.prefix.scratch();
    let disk = scratch.join(format!("disk-{port}"));
    let bytes: Vec<u8> = (0..8 << 20).map(|at: usize| (at / 7) as u8).collect();
    let made = fs::write(&disk, bytes)
        .and_then(|()| fs::set_permissions(&disk, Permissions::from_mode(0o666)));
    made.map_err(|error| format!("{}: {error}", disk.display()))?;
    // Socket on which tgtd takes commands from tgtadm. tgtd appends a number to the name.
    let socket = scratch.join(format!("tgtd-{port}"));
    let control = format!("TGT_IPC_SOCKET={}", socket.display());

    let portal = format!("portal=127.0.0.1:{tcp}");
    // The default size of the memory pool is 1 GiB.
    let iser = format!("port={port},pool_sz_mb=64");
    let [tgtd, tgtadm] = ["tgtd", "tgtadm"].map(|name| packages::program(name).unwrap_or_default());
    let [tgtd, tgtadm] = [&tgtd, &tgtadm].map(|path| path.to_str().unwrap_or_default());
    let words = [
        "env", &control, tgtd, "-f", "--iscsi", &portal, "--iser", &iser,
    ];
    let mut target = place.start(&words)?;
    target.until_listening(port)?;
    let ready = socket.with_extension("0");
    target.wait_until("listened to tgtadm", |_| ready.exists())?;

    let administer = |words: &[&str]| {
        let first = [
            "env", &control, tgtadm, "--lld", "iser", "--tid", "1", "--mode",
        ];
        place.start(&[&first[..], words].concat())?.end()
    };
    let path = disk.to_str().ok_or("the path is not UTF-8")?;
    administer(&["target", "--op", "new", "-T", TARGET])?;
    administer(&["logicalunit", "--op", "new", "--lun", "1", "-b", path])?;
    // Over iSER tgt needs both the address and the name of an initiator on its lists. With only one
    // of them, tgt reports "target not found".
    administer(&["target", "--op", "bind", "-I", "ALL"])?;
    administer(&["target", "--op", "bind", "-Q", INITIATOR])?;

    let url = format!("iser://127.0.0.1:{port}/{TARGET}/1");
    let ask = |words: &[&str]| {
        let said = place
            .start(&[&["env", CLEARED], words, &["-i", INITIATOR, &url]].concat())?
            .end();
        said.map_err(|error| format!("{error}\n{}", target.words("was the target")))
    };
    let mut all = ask(&["iscsi-inq"])?;
    check(&all, &["Vendor:IET", "Product:VIRTUAL-DISK"])?;
    for test in TESTS {
        let test = format!("--test={test}");
        let said = ask(&["iscsi-test-cu", "--dataloss", &test])?;
        let ran = said.contains("passed") && !said.contains("FAILED") && !said.contains("SKIPPED");
        if !ran {
            return Err(format!("{test} did not pass:\n{said}"));
        }
        all += &said;
    }
    let now = fs::read(&disk).map_err(|error| error.to_string())?;
    match now[BLOCK..256 * BLOCK].iter().all(|byte| *byte == WRITTEN) {
        true => Ok(all),
        false => Err("what was written is not on the disk".to_owned()),
    }
}

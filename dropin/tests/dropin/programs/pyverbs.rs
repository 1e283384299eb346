//! Runs an example of pyverbs, and rdma-core's own test suite for it.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use super::{Row, Way, row};
use crate::prefix::said;
use crate::process::{Place, unprivileged};

const PACKAGES: &[&str] = &["python3-pyverbs", "iproute2", "util-linux"];
const EXAMPLE: &str = "/usr/share/doc/python3-pyverbs/examples/ib_devices.py";
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
const RUNNER: &str = include_str!("../../py/suite.py");
/// Script that runs in a new network namespace. The suite's tests of librdmacm identify their
/// device by the address to which they bind, which must not be a loopback address. `$1` is the
/// command `uwarp`, `$2` the runner, `$3` the suite, and `$4` the persona.
const SCRIPT: &str = r#"set -e
ip link set lo up
ip addr add 192.0.2.1/32 dev lo
exec "$1" run --persona "$4" -- /usr/bin/python3 -B "$2" "$3" 192.0.2.1
"#;
/// Outcomes of the tests that were not skipped, in the persona `roce`. The failing tests:
///
/// * `test_imported_rc_ex_rdma_write` needs the descriptor of a context (`cmd_fd`) that another
///   process imports.
/// * `async_traffic` of librdmacm expects an acknowledgement timeout, which TCP does not have.
/// * `external_qp` expects the event `CONNECT_RESPONSE`, which uwarp does not have, and `udp` needs
///   UD ids of librdmacm.
/// * `test_mr_rereg_addr` and `test_mr_rereg_pd` expect that a Send fails because the receive at
///   the peer has no memory any more. A Send completes when TCP has taken it (5040-5.5-06).
/// * `test_mr_rereg_access` expects the access error of a Write that was posted first of all.
///
/// `async_write` of librdmacm passes or fails by chance in both personas. Its target reads the
/// memory as soon as the Write has completed at the sender. A Write of such a connection completes
/// when TCP has accepted its bytes (5040-5.5-06). Its data may be placed later.
pub(crate) const KNOWN: &str = include_str!("../../../names/pyverbs-44.txt");
/// The same in the persona `iwarp`. Most failing tests connect queue pairs by number, which it does
/// not do (`ibv_modify_qp` to RTR: `EOPNOTSUPP`).
const KNOWN_IN_IWARP: &str = include_str!("../../../names/pyverbs-44-iwarp.txt");

pub(super) const ROWS: &[Row] = &[
    row(
        "pyverbs-devices",
        PACKAGES,
        &[EXAMPLE],
        Way::Alone {
            words: "/usr/bin/python3 /usr/share/doc/python3-pyverbs/examples/ib_devices.py",
            says: &["uwarp0"],
        },
    ),
    row("pyverbs-suite", PACKAGES, &[SUITE], Way::Apart(in_roce)),
    row(
        "pyverbs-suite-iwarp",
        PACKAGES,
        &[SUITE],
        Way::Apart(in_iwarp),
    ),
];

fn in_roce(place: Place<'_>) -> Result<String, String> {
    suite(place, "roce", KNOWN)
}

fn in_iwarp(place: Place<'_>) -> Result<String, String> {
    suite(place, "iwarp", KNOWN_IN_IWARP)
}

/// Runs the suite in this persona, and checks that the outcomes are the known ones.
fn suite(place: Place<'_>, persona: &str, known: &str) -> Result<String, String> {
    let scratch = place.prefix.scratch();
    let tests = scratch.join(format!("tests-{persona}"));
    let runner = scratch.join(format!("suite-{persona}.py"));
    std::fs::write(&runner, RUNNER).map_err(|error| error.to_string())?;
    unpack(&tests)?;
    let [tests, runner] = [&tests, &runner].map(|path| path.display().to_string());
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", SCRIPT, "sh"]);
    command.arg(place.prefix.uwarp());
    command.args([&runner, &tests]).arg(persona);
    let said = place.spawn(&mut command, "python3".to_owned())?.end()?;
    let outcomes = |outcome: &str, text: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(outcome));
        lines.map(str::to_owned).collect()
    };
    let missing: Vec<_> = outcomes("ok ", known)
        .difference(&outcomes("ok ", &said))
        .cloned()
        .collect();
    let either = outcomes("either ", known);
    let ran: BTreeSet<_> = &outcomes("ok ", &said) | &outcomes("failed ", &said);
    let skipped: Vec<_> = either.difference(&ran).cloned().collect();
    let may_fail = &outcomes("failed ", known) | &either;
    let new: Vec<_> = outcomes("failed ", &said)
        .difference(&may_fail)
        .cloned()
        .collect();
    let better: Vec<_> = outcomes("failed ", known)
        .intersection(&outcomes("ok ", &said))
        .cloned()
        .collect();
    if [&missing, &skipped, &new, &better]
        .iter()
        .all(|names| names.is_empty())
    {
        return Ok(said);
    }
    Err(format!(
        "do not pass: {missing:?}\ndid not run: {skipped:?}\nfail, and are not known to: {new:?}\npass, and names/pyverbs-44*.txt does not know: {better:?}\n{said}"
    ))
}

/// Copies the suite, and decompresses its longer files, which Debian compresses.
fn unpack(to: &Path) -> Result<(), String> {
    said(Command::new("cp").args(["-r", SUITE]).arg(to))?;
    let script = "gunzip -f \"$1\"/*.gz && chmod -R a+rX \"$1\"";
    said(Command::new("sh").args(["-c", script, "sh"]).arg(to)).map(drop)
}

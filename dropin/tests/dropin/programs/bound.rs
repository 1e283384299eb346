//! Checks for which addresses an id has a device after `rdma_bind_addr` (`tests/c/bound.c`). As in
//! the kernel, an id has no device if it is bound to a loopback address and has no peer.

use super::{Row, Way, row};
use crate::c;
use crate::process::{Place, unprivileged};

const PACKAGES: &[&str] = &[
    "librdmacm-dev",
    "libibverbs-dev",
    "gcc",
    "iproute2",
    "util-linux",
];

pub(super) const ROWS: &[Row] = &[row("bound-addresses", PACKAGES, &[], Way::Apart(run))];

/// Script that runs in a new network namespace. `$1` is the command `uwarp`, and `$2` the program.
const SCRIPT: &str = r#"set -e
ip link set lo up
ip link add uw0 type veth peer name uw1
ip addr add 192.0.2.1/24 dev uw0
exec "$1" run -- "$2" 192.0.2.1
"#;

fn run(place: Place<'_>) -> Result<String, String> {
    let program = c::compile(place.prefix, "cc", "bound.c", &["-lrdmacm", "-libverbs"])?;
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", SCRIPT, "sh"]);
    command.arg(place.prefix.uwarp()).arg(program);
    let said = place.spawn(&mut command, "bound".to_owned())?.end()?;
    let due =
        "at 0.0.0.0: none\nat 127.0.0.1: none\nat 192.0.2.1: a device\nto 127.0.0.1: a device\n";
    match said == due {
        true => Ok(said),
        false => Err(said),
    }
}

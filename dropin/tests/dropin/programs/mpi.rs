//! Open MPI over libfabric's verbs (`tests/c/mpi.c`), in a network namespace of its own with an Ethernet: `ofi_rxm` takes no loopback.

use super::{Row, Way, check, row};
use crate::c;
use crate::process::{Place, unprivileged};

const PACKAGES: &[&str] = &[
    "openmpi-bin",
    "libopenmpi-dev",
    "libfabric1",
    "gcc",
    "iproute2",
];

pub(super) const ROWS: &[Row] = &[row(
    "openmpi-4-ranks",
    PACKAGES,
    &["libfabric.so.1"],
    Way::Own(run),
)];

/// `$1` is the command, `$2` the program.
const SCRIPT: &str = "set -e
ip link set lo up
ip link add uw0 type veth peer name uw1
ip addr add 192.0.2.1/24 dev uw0
ip link set uw0 up
ip link set uw1 up
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec \"$1\" run -- mpirun -n 4 --oversubscribe --mca pml cm --mca mtl ofi \
  --mca mtl_ofi_provider_include 'verbs;ofi_rxm' --mca btl self --mca osc pt2pt --mca plm isolated \"$2\"
";

fn run(place: Place<'_>) -> Result<String, String> {
    let program = c::compile(place.prefix, "mpicc", "mpi.c", &[])?;
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", SCRIPT, "sh"]);
    command.arg(place.prefix.uwarp()).arg(program);
    let said = place.spawn(&mut command, "mpirun".to_owned())?.end()?;
    check(&said, &["4 ranks: messages, sum, one-sided: all right"])?;
    Ok(said)
}

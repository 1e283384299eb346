//! Open MPI over libfabric's verbs (`tests/c/mpi.c`): two ranks in each of two network namespaces,
//! connected by an Ethernet link.

use super::{Row, Way, check, row};
use crate::c;
use crate::process::{Place, unprivileged};

const PACKAGES: &[&str] = &[
    "openmpi-bin",
    "libopenmpi-dev",
    "libfabric1",
    "gcc",
    "iproute2",
    "util-linux",
];

pub(super) const ROWS: &[Row] = &[row(
    "openmpi-4-ranks",
    PACKAGES,
    &["libfabric.so.1"],
    Way::Apart(run),
)];

/// Script that runs in a new network namespace and creates a second one. `$1` is the command
/// `uwarp`, and `$2` the program. A sleeping process keeps the second namespace alive. That
/// namespace has its own host name, so that Open MPI treats it as another machine. Open MPI enters
/// the namespace with a script that replaces `ssh`.
const SCRIPT: &str = r#"set -e
unshare -n -u sh -c 'hostname uwarp-other; exec sleep 120' &
other=$!
trap 'kill $other' EXIT
until [ "$(nsenter -t $other -n -u hostname)" = uwarp-other ]; do sleep 0.01; done
there() { nsenter -t $other -n -u "$@"; }
ip link set lo up
there ip link set lo up
ip link add uw0 type veth peer name uw1
ip link set uw1 netns $other
ip addr add 192.0.2.1/24 dev uw0
there ip addr add 192.0.2.2/24 dev uw1
ip link set uw0 up
there ip link set uw1 up
agent=$(mktemp)
cat > "$agent" <<EOF
#!/bin/sh
shift
exec nsenter -t $other -n -u sh -c "\$*"
EOF
chmod +x "$agent"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"$1" run -- mpirun --timeout 50 --host 192.0.2.1:2,192.0.2.2:2 -n 4 --bind-to none --mca plm rsh --mca plm_rsh_agent "$agent" \
  --mca oob_tcp_if_include 192.0.2.0/24 --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'verbs;ofi_rxm' \
  --mca btl self --mca osc pt2pt "$2"
"#;

fn run(place: Place<'_>) -> Result<String, String> {
    let program = c::compile(place.prefix, "mpicc", "mpi.c", &[])?;
    let mut command = unprivileged("unshare".as_ref());
    command.args(["-Urn", "sh", "-c", SCRIPT, "sh"]);
    command.arg(place.prefix.uwarp()).arg(program);
    let said = place.spawn(&mut command, "mpirun".to_owned())?.end()?;
    let due = "4 ranks in 2 networks: messages, sum, one-sided: all right";
    check(&said, &[due])?;
    Ok(said)
}

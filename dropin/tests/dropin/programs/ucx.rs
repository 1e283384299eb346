//! UCX over its transports for RDMA devices, and MPI over UCX. UCX looks for the device in
//! `/sys/class/infiniband` and `/dev/infiniband`, which needs `--preload`. `ud_verbs` also connects
//! `rc_verbs`.

use super::{Row, Way, check};
use crate::c;
use crate::process::Place;

const FLAGS: &[&str] = &["--preload"];

/// Creates a row of `ucx_perftest`, over the transports in `UCX_TLS`, for a test with its options.
/// In the matrix, `$name` is its name. `$client` is part of the client's environment, `$options`
/// are options of both sides, and the client says `$says`.
macro_rules! perftest {
    ($client:literal, $options:literal, $says:literal, $name:literal, $transports:literal, $test:literal) => {
        Row {
            name: $name,
            packages: &["ucx-utils"],
            files: &["ucx_perftest", "libuct_ib.so.0"],
            flags: FLAGS,
            needs_roce: true,
            way: Way::Pair {
                server: concat!(
                    "env UCX_TLS=",
                    $transports,
                    ",tcp,self UCX_NET_DEVICES=uwarp0:1,lo ucx_perftest ",
                    $options,
                    " -p {port}"
                ),
                client: concat!(
                    "env UCX_TLS=",
                    $transports,
                    ",tcp,self UCX_NET_DEVICES=uwarp0:1,lo ",
                    $client,
                    " ucx_perftest ",
                    $options,
                    " -p {port} 127.0.0.1 -n 1000 -w 100 -t ",
                    $test
                ),
                says: &["Final:                  1000", $says],
            },
        }
    };
}

/// Creates all rows of `ucx_perftest`, with the same environment, options and output.
macro_rules! perftests {
    ($client:literal, $options:literal, $says:literal) => {
        &[
            perftest!($client, $options, $says, "ucx-tag_lat", "rc_v", "tag_lat"),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-tag_bw",
                "rc_v",
                "tag_bw -s 65536"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-tag_bw-1-MiB",
                "rc_v",
                "tag_bw -s 1048576"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-stream_bw",
                "rc_v",
                "stream_bw -s 4096"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ucp_am_bw",
                "rc_v",
                "ucp_am_bw -s 4096"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ucp_put_bw",
                "rc_v",
                "ucp_put_bw -s 65536"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ucp_get",
                "rc_v",
                "ucp_get -s 65536"
            ),
            perftest!($client, $options, $says, "ucx-ucp_add", "rc_v", "ucp_add"),
            perftest!($client, $options, $says, "ucx-ucp_fadd", "rc_v", "ucp_fadd"),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ucp_cswap",
                "rc_v",
                "ucp_cswap"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ud-tag_lat",
                "ud_v",
                "tag_lat"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ud-tag_bw",
                "ud_v",
                "tag_bw -s 4096"
            ),
            perftest!(
                $client,
                $options,
                $says,
                "ucx-ud-ucp_am_bw",
                "ud_v",
                "ucp_am_bw -s 4096"
            ),
        ]
    };
}

macro_rules! mpi {
    ($name:literal, $packages:expr, $run:ident) => {
        Row {
            name: $name,
            packages: $packages,
            files: &[],
            flags: FLAGS,
            needs_roce: true,
            way: Way::Own($run),
        }
    };
}

const OPEN_MPI: &[&str] = &["openmpi-bin", "libopenmpi-dev", "gcc"];
const MPICH: &[&str] = &["mpich", "libmpich-dev", "gcc"];

pub(super) const PERFTESTS: &[Row] = perftests!("", "", "");

/// The same for a `ucx_perftest` that was built with MPI, whose option `-P 0` makes it connect by
/// TCP. UCX prints on which transport and device each protocol is, since version 1.15.
pub(super) const PERFTESTS_WITH_MPI: &[Row] =
    perftests!("UCX_PROTO_INFO=y", "-P 0", "_verbs/uwarp0:1");

pub(super) const MPI: &[Row] = &[
    mpi!("openmpi-ucx-2-ranks", OPEN_MPI, open_mpi_2),
    mpi!("openmpi-ucx-4-ranks", OPEN_MPI, open_mpi_4),
    mpi!("mpich-ucx-2-ranks", MPICH, mpich_2),
    mpi!("mpich-ucx-4-ranks", MPICH, mpich_4),
];

fn open_mpi_2(place: Place<'_>) -> Result<String, String> {
    open_mpi(place, "2")
}

fn open_mpi_4(place: Place<'_>) -> Result<String, String> {
    open_mpi(place, "4")
}

/// Open MPI with messages and one-sided operations by UCX.
fn open_mpi(place: Place<'_>, ranks: &str) -> Result<String, String> {
    let words = "mpirun.openmpi --timeout 300 --oversubscribe --bind-to none --mca pml ucx --mca osc ucx \
                 --mca btl self -n";
    mpi(place, "mpicc.openmpi", words, ranks)
}

fn mpich_2(place: Place<'_>) -> Result<String, String> {
    mpich(place, "2")
}

fn mpich_4(place: Place<'_>) -> Result<String, String> {
    mpich(place, "4")
}

/// MPICH, whose only network here is UCX.
fn mpich(place: Place<'_>, ranks: &str) -> Result<String, String> {
    mpi(place, "mpicc.mpich", "mpiexec.mpich -n", ranks)
}

/// Runs `tests/c/mpi.c`, which compares all data.
fn mpi(place: Place<'_>, compiler: &str, words: &str, ranks: &str) -> Result<String, String> {
    let program = c::compile(place.prefix, compiler, "mpi.c", &[])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let settings = "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
                    UCX_TLS=rc_v,tcp,self UCX_NET_DEVICES=uwarp0:1,lo";
    // The UCX of the roots prints where each protocol is (see `PERFTESTS_WITH_MPI`).
    let (verbose, device) = match place.prefix.root() {
        Some(_) => ("UCX_PROTO_INFO=y", "rc_verbs/uwarp0:1"),
        None => ("", ""),
    };
    let parts = [settings, verbose, words];
    let command = parts.iter().flat_map(|part| part.split_whitespace());
    let command: Vec<_> = command.chain([ranks, program]).collect();
    let said = place.start(&command)?.end()?;
    let due = format!("{ranks} ranks in 1 networks: messages, sum, one-sided: all right");
    check(&said, &[&due, device])?;
    Ok(said)
}

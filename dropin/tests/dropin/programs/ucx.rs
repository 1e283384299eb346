//! UCX over its transports for RDMA devices, and MPI over UCX. UCX looks for the device in
//! `/sys/class/infiniband` and `/dev/infiniband`, which needs `--preload`. `ud_verbs` also connects
//! `rc_verbs`.

use super::{Row, Way, check};
use crate::c;
use crate::process::Place;

const FLAGS: &[&str] = &["--persona", "roce", "--preload"];

/// Creates a row of `ucx_perftest`, over the transports in `UCX_TLS`, for a test with its options.
/// In the matrix, `$name` is its name.
macro_rules! perftest {
    ($name:literal, $transports:literal, $test:literal) => {
        Row {
            name: $name,
            packages: &["ucx-utils"],
            files: &["ucx_perftest", "libuct_ib.so.0"],
            flags: FLAGS,
            way: Way::Pair {
                server: concat!(
                    "env UCX_TLS=",
                    $transports,
                    ",tcp,self UCX_NET_DEVICES=uwarp0:1,lo ucx_perftest -p {port}"
                ),
                client: concat!(
                    "env UCX_TLS=",
                    $transports,
                    ",tcp,self UCX_NET_DEVICES=uwarp0:1,lo ucx_perftest -p {port} 127.0.0.1 \
                     -n 1000 -w 100 -t ",
                    $test
                ),
                says: &["Final:                  1000"],
            },
        }
    };
}

macro_rules! mpi {
    ($name:literal, $packages:expr, $run:ident) => {
        Row {
            name: $name,
            packages: $packages,
            files: &[],
            flags: FLAGS,
            way: Way::Own($run),
        }
    };
}

const OPEN_MPI: &[&str] = &["openmpi-bin", "libopenmpi-dev", "gcc"];
const MPICH: &[&str] = &["mpich", "libmpich-dev", "gcc"];

pub(super) const ROWS: &[Row] = &[
    perftest!("ucx-tag_lat", "rc_v", "tag_lat"),
    perftest!("ucx-tag_bw", "rc_v", "tag_bw -s 65536"),
    perftest!("ucx-tag_bw-1-MiB", "rc_v", "tag_bw -s 1048576"),
    perftest!("ucx-stream_bw", "rc_v", "stream_bw -s 4096"),
    perftest!("ucx-ucp_am_bw", "rc_v", "ucp_am_bw -s 4096"),
    perftest!("ucx-ucp_put_bw", "rc_v", "ucp_put_bw -s 65536"),
    perftest!("ucx-ucp_get", "rc_v", "ucp_get -s 65536"),
    perftest!("ucx-ucp_add", "rc_v", "ucp_add"),
    perftest!("ucx-ucp_fadd", "rc_v", "ucp_fadd"),
    perftest!("ucx-ucp_cswap", "rc_v", "ucp_cswap"),
    perftest!("ucx-ud-tag_lat", "ud_v", "tag_lat"),
    perftest!("ucx-ud-tag_bw", "ud_v", "tag_bw -s 4096"),
    perftest!("ucx-ud-ucp_am_bw", "ud_v", "ucp_am_bw -s 4096"),
    mpi!("openmpi-ucx-2-ranks", OPEN_MPI, open_mpi_2),
    mpi!("openmpi-ucx-4-ranks", OPEN_MPI, open_mpi_4),
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
    let words = "mpirun --timeout 300 --oversubscribe --bind-to none --mca pml ucx --mca osc ucx \
                 --mca btl self -n";
    mpi(place, "mpicc.openmpi", words, ranks)
}

/// MPICH, whose only network here is UCX.
fn mpich_4(place: Place<'_>) -> Result<String, String> {
    mpi(place, "mpicc.mpich", "mpiexec.mpich -n", "4")
}

/// Runs `tests/c/mpi.c`, which compares all data.
fn mpi(place: Place<'_>, compiler: &str, words: &str, ranks: &str) -> Result<String, String> {
    let program = c::compile(place.prefix, compiler, "mpi.c", &[])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let settings = "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
                    UCX_TLS=rc_v,tcp,self UCX_NET_DEVICES=uwarp0:1,lo";
    let command = settings.split_whitespace().chain(words.split_whitespace());
    let command: Vec<_> = command.chain([ranks, program]).collect();
    let said = place.start(&command)?.end()?;
    let due = format!("{ranks} ranks in 1 networks: messages, sum, one-sided: all right");
    check(&said, &[&due])?;
    Ok(said)
}

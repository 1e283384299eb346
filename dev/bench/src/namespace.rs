//! A network namespace for the benchmark. No other traffic uses its loopback device. All its
//! programs have the same congestion control, even those without an option for it.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::process;

/// Environment variable that is set for the program in the namespace.
const INSIDE: &str = "UWARP_BENCH_NAMESPACE";

/// Shell script that brings the loopback device up, sets the congestion control `$0`, and executes
/// the program in `$@`.
const PREPARE: &str = "ip link set lo up || exit 1; \
    echo \"$0\" > /proc/sys/net/ipv4/tcp_congestion_control; exec \"$@\"";

/// Returns true if this program runs in its own namespace, which [`enter`] has created.
pub(crate) fn is_own() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Executes this program again in its own namespace, with the same arguments. This call returns
/// only if the program already runs in such a namespace, or if none can be created.
pub(crate) fn enter(congestion: &str) -> io::Result<()> {
    if is_own() {
        return Ok(());
    }
    // The first attempt needs root. The second uses a new user namespace.
    for options in [&["-n"][..], &["-U", "-r", "-n"]] {
        let command = |program: &[String]| {
            let mut command = Command::new("unshare");
            let shell = ["sh", "-c", PREPARE, congestion];
            command.args(options).args(shell).args(program);
            command
        };
        let within = Duration::from_secs(10);
        if process::output(&mut command(&["true".to_owned()]), within).is_ok() {
            let mut program = vec![std::env::current_exe()?.to_string_lossy().into_owned()];
            program.extend(std::env::args().skip(1));
            return Err(command(&program).env(INSIDE, "1").exec());
        }
    }
    eprintln!(
        "uwarp-bench: no network namespace can be had (unshare, ip); it measures in that of the machine"
    );
    Ok(())
}

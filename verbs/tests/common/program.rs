//! Helper for tests that start their own binary.

use std::process::Command;

/// Returns a command that starts this test binary again. Under QEMU's user emulation (`./ci.sh
/// aarch64`) the kernel cannot start the binary directly.
pub(crate) fn this_program() -> Command {
    let program = std::env::current_exe().unwrap();
    if std::env::var_os("QEMU_LD_PREFIX").is_none() {
        return Command::new(program);
    }
    let emulator = format!("qemu-{}-static", std::env::consts::ARCH);
    let mut command = Command::new(emulator);
    command.arg(program);
    command
}

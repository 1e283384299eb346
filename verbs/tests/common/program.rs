//! Tests that start themselves.

use std::process::Command;

/// This test binary again, in a process of its own. Under QEMU's user emulation (`./ci.sh aarch64`) the kernel cannot start it.
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

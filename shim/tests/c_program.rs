//! Runs a C program that uses two devices in one process (`c/program.c`).

fn main() {
    // SAFETY: the program is called once, by the main thread, before any other thread exists.
    #[expect(unsafe_code, reason = "it is a C function")]
    let status = unsafe { uwarp_shim::program_main() };
    std::process::exit(status);
}

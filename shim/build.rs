//! Compiles the C program that the test runs.

fn main() {
    println!("cargo::rerun-if-changed=c");
    cc::Build::new()
        .file("c/program.c")
        .std("c11")
        .warnings(true)
        .extra_warnings(true)
        .warnings_into_errors(true)
        .compile("program");
}

//! The uwarp command.
fn main() {}

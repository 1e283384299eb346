//! Memory of this process and of the kernel, as reported by the kernel.

use std::fs::read_to_string;

/// Returns the memory of this process in bytes, as its proportional set size.
pub(super) fn own() -> f64 {
    let text = read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    1024.0 * field(&text, "Pss:")
}

/// Returns the bytes of kernel objects (including sockets, files and watches) and of TCP's buffers,
/// for the whole machine.
pub(super) fn kernel() -> f64 {
    let text = read_to_string("/proc/meminfo").unwrap_or_default();
    let sockets = read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = sockets.lines().find(|line| line.starts_with("TCP:"));
    1024.0 * field(&text, "Slab:") + 4096.0 * tcp.map_or(0.0, |line| field(line, "mem"))
}

/// Returns the number that follows the word `name`.
fn field(text: &str, name: &str) -> f64 {
    let mut words = text.split_whitespace().skip_while(|word| *word != name);
    words
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(f64::NAN)
}

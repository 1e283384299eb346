//! Traffic between two devices in one thread, for `uwarp-bench instructions`. It uses kernel TCP
//! over 127.0.0.1, no thread of the library, and a clock that stands still. So every run executes
//! the same instructions.
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*sender_turn_counted*' traffic write 64 1 1000
//! ```
//!
//! Arguments: the kind, the size of a message in bytes, the number of messages in a post, and the
//! number of messages. The same number of messages is sent first as a warm-up, by functions that
//! are not counted.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program")]

mod pair;

use pair::{Pair, Result, What};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [what, size, list, count] = &args[..] else {
        return Err("arguments: write|read|send|ping|idle SIZE LIST COUNT".into());
    };
    let what = match what.as_str() {
        "write" => What::Write,
        "read" => What::Read,
        "send" => What::Send,
        "ping" => What::Ping,
        "idle" => What::Idle,
        _ => return Err("write, read, send, ping or idle".into()),
    };
    let mut pair = Pair::new(what, size.parse()?, list.parse()?)?;
    let count: u64 = count.parse()?;
    pair.warm(count)?;
    pair.counted(count)?;
    println!("{} messages", pair.done);
    Ok(())
}

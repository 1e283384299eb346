//! Output of all commands to stdout and stderr. Each text is written in one call. If the reader has
//! closed the output, the process ends without a message and with exit status 141.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::IpAddr;

use uwarp_verbs::llp::remove_socket_files;
use uwarp_verbs::messages;

use crate::failure::Failure;

/// Exit status after the reader closed stdout or stderr (`| head`). A shell shows the same status
/// for a program that SIGPIPE ended: 128 plus the number of the signal.
const CLOSED_PIPE: i32 = 141;

/// Destination of a command's output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Output {
    /// Standard output.
    Stdout,
    /// Standard error, because the capture goes to standard output.
    Stderr,
    /// Text in [`KEPT`], for tests.
    #[cfg(test)]
    Kept,
}

#[cfg(test)]
thread_local! {
    /// Text that this thread has written to [`Output::Kept`].
    pub(crate) static KEPT: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

impl Output {
    /// Writes one or more lines. Lines of different threads do not mix. Ends the process if the
    /// reader has closed the output.
    ///
    /// # Errors
    /// The output cannot be written, for example because the disk is full.
    pub(crate) fn line(self, text: impl Display) -> Result<(), Failure> {
        let text = format!("{text}\n");
        let written = match self {
            Output::Stdout => write(io::stdout().lock(), &text),
            Output::Stderr => write(io::stderr().lock(), &text),
            #[cfg(test)]
            Output::Kept => {
                KEPT.with_borrow_mut(|kept| kept.push_str(&text));
                Ok(())
            }
        };
        written.map_err(|error| Failure::because(format!("the output cannot be written: {error}")))
    }
}

fn write(mut to: impl Write, text: &str) -> io::Result<()> {
    exit_if_closed(to.write_all(text.as_bytes()).and_then(|()| to.flush()))
}

/// Ends the process if the write failed because its reader has closed the output.
pub(crate) fn exit_if_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => end_quietly(),
        other => other,
    }
}

/// Ends the process as SIGPIPE would, but removes the socket files first.
pub(crate) fn end_quietly() -> ! {
    remove_socket_files();
    std::process::exit(CLOSED_PIPE)
}

/// Writes a line to stderr. A failure is ignored, because there is no other place to report it.
pub(crate) fn notice(text: impl Display) {
    let _ = write(io::stderr().lock(), &format!("{text}\n"));
}

/// Writes a line of a server that continues, about `peer` if it is given. Never blocks: the line is
/// dropped and counted if stderr does not accept it at once, or if there were too many.
pub(crate) fn remark(peer: Option<IpAddr>, text: impl Display) {
    let _ = exit_if_closed(messages::print(peer, &format!("{text}\n")).map(drop));
}

/// Breaks `text` between words into lines of at most `WIDTH` columns. The first line follows
/// `head`; the others are indented by its width.
pub(crate) fn wrapped(head: &str, text: &str) -> String {
    const WIDTH: usize = 100;
    let mut out = head.to_owned();
    let mut column = head.len();
    for (index, word) in text.split(' ').enumerate() {
        if index > 0 && column + 1 + word.len() > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(head.len()));
            column = head.len();
        } else if index > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.len();
    }
    out
}

/// Formats `1234567` as `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_goes_on_below_its_own_beginning() {
        let text = wrapped("  A: ", &"word ".repeat(30));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("  A: word") && lines[0].len() <= 100);
        assert!(lines[1].starts_with("     word"));
        assert_eq!(wrapped("x ", "short"), "x short");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let groups = [0, 999, 1000, 16_777_216].map(grouped);
        assert_eq!(groups, ["0", "999", "1,000", "16,777,216"]);
    }
}

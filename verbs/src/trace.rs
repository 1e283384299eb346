//! Trace of failed connections on standard error, switched on by `UWARP_TRACE`.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::engine::Connection;
use crate::qp::inner::Addrs;

const VARIABLE: &str = "UWARP_TRACE";

/// Returns true if the environment requests a trace of connections that end in error. The variable
/// is read once per process, and an unknown value is reported then.
pub(crate) fn errors_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        let value = value.to_string_lossy();
        let (wanted, unknown) = read(&value);
        if let Some(unknown) = unknown {
            write_blocking(&format!(
                "{VARIABLE}={value}: \"{unknown}\" is unknown; the only value is \"errors\", which prints the last frames of a connection that ends in error\n"
            ));
        }
        wanted
    })
}

/// Parses a list of words. Returns true if it contains `errors`, and the first unknown word.
fn read(value: &str) -> (bool, Option<&str>) {
    let words = || {
        let words = value.split(',').map(str::trim);
        words.filter(|word| !word.is_empty())
    };
    let wanted = words().any(|word| word == "errors");
    (wanted, words().find(|word| *word != "errors"))
}

/// Describes how a connection ended in error, and lists its last frames. Returns `None` if the
/// connection is open or ended gracefully.
pub(crate) fn end(conn: &Connection, addrs: Option<Addrs>) -> Option<String> {
    let reason = conn.end.as_ref().filter(|reason| !reason.is_orderly())?;
    let cause = reason.cause();
    let mut text = format!("uwarp: QP {}", conn.ctx.qp_num);
    if let Some(Addrs { local, peer }) = addrs {
        let _ = write!(text, ", {local} to {peer}");
    }
    let _ = write!(
        text,
        ": {reason}\n  caused by: {}; layer: {}",
        cause.who(),
        cause.layer()
    );
    if let Some(code) = cause.code() {
        let _ = write!(text, "; code: {code}");
    }
    if let Some(requirement) = cause.requirement() {
        let _ = write!(text, "; {requirement}");
    }
    let _ = writeln!(text, "\n  {}", conn.flight_record());
    Some(text)
}

/// Number of bytes that a writable pipe accepts without blocking.
const AT_ONCE: usize = 4096;

/// Writes as much as standard error accepts without blocking. Returns the rest, which is to be
/// written by [`write_blocking`] when no lock is held.
pub(crate) fn write_nonblocking(text: String) -> Option<String> {
    write_nonblocking_to(std::io::stderr(), text)
}

/// Bypasses the lock of [`std::io::Stderr`], because a blocked thread may hold it.
fn write_nonblocking_to(to: impl AsFd, mut text: String) -> Option<String> {
    let now = Timespec::default();
    while !text.is_empty() {
        let mut fds = [PollFd::new(&to, PollFlags::OUT)];
        match poll(&mut fds, Some(&now)) {
            Ok(0) => return Some(text),
            Err(Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        let part = text.as_bytes();
        match rustix::io::write(&to, part.get(..AT_ONCE).unwrap_or(part)) {
            Ok(written) => text = String::from_utf8_lossy(&part[written..]).into_owned(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Some(text),
            // The text cannot be written, for example because the reader is gone.
            Err(_) => return None,
        }
    }
    None
}

/// Writes to standard error. Errors are ignored, because they are not errors of the connection.
pub(crate) fn write_blocking(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_asked_for_by_name_and_what_is_unknown_is_found() {
        assert_eq!(read(""), (false, None));
        assert_eq!(read("errors"), (true, None));
        assert_eq!(read(" errors ,"), (true, None));
        assert_eq!(read("error"), (false, Some("error")));
        assert_eq!(read("frames,errors"), (true, Some("frames")));
    }

    #[test]
    fn what_is_written_at_once_never_blocks_and_the_rest_is_kept() {
        use std::io::{Read, Write, pipe};
        // A pipe holds 64 KiB, which is less than the text.
        let (mut reader, mut writer) = pipe().unwrap();
        let text = "0123456789".repeat(10_000);
        let rest = write_nonblocking_to(&writer, text.clone()).unwrap();
        assert!(!rest.is_empty() && rest.len() < text.len());
        assert_eq!(
            write_nonblocking_to(&writer, rest.clone()),
            Some(rest.clone())
        );
        let mut begun = vec![0; text.len() - rest.len()];
        reader.read_exact(&mut begun).unwrap();
        assert_eq!(write_nonblocking_to(&writer, rest.clone()), None);
        writer.flush().unwrap();
        drop(writer);
        let mut all = String::from_utf8(begun).unwrap();
        reader.read_to_string(&mut all).unwrap();
        assert_eq!(all, text);
    }

    #[test]
    fn what_nobody_reads_any_more_is_dropped() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(write_nonblocking_to(&writer, String::from("words")), None);
    }
}

//! `UWARP_TRACE`: what is written to standard error although no program asked for it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::OnceLock;

use crate::engine::Connection;
use crate::qp::inner::Addrs;

const VARIABLE: &str = "UWARP_TRACE";

/// Whether the environment asks for the record of connections that end in error. It is read once in a process; a
/// value that means nothing is told then.
pub(crate) fn errors_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let value = std::env::var_os(VARIABLE).unwrap_or_default();
        let value = value.to_string_lossy();
        let (wanted, unknown) = read(&value);
        if let Some(unknown) = unknown {
            say(&format!(
                "{VARIABLE}={value}: \"{unknown}\" is not known; the one thing that can be asked for is \"errors\", the last frames of a connection that ends in error\n"
            ));
        }
        wanted
    })
}

/// Whether `errors` is in the list, and the first of what else is.
fn read(value: &str) -> (bool, Option<&str>) {
    let words = || {
        let words = value.split(',').map(str::trim);
        words.filter(|word| !word.is_empty())
    };
    let wanted = words().any(|word| word == "errors");
    (wanted, words().find(|word| *word != "errors"))
}

/// Writes how a connection ended and what went over it last, if it ended in error.
pub(crate) fn tell_end(conn: &Connection, addrs: Option<Addrs>) {
    let Some(reason) = conn.end.as_ref().filter(|reason| !reason.is_orderly()) else {
        return;
    };
    let cause = reason.cause();
    let mut text = format!("uwarp: QP {}", conn.ctx.qp_num);
    if let Some(Addrs { local, peer }) = addrs {
        let _ = write!(text, ", {local} to {peer}");
    }
    let _ = write!(
        text,
        ": {reason}\n  whose doing: {}; layer: {}",
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
    say(&text);
}

/// One write. Nobody may be there to read it, which is no error of the connection.
fn say(text: &str) {
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
}

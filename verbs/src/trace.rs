//! Trace of failed connections on standard error, switched on by `UWARP_TRACE`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::OnceLock;

use uwarp_engine::connection::Connection;

use crate::completion::CqOfQueue;
use crate::environment::{TRACE, variable};
use crate::messages;

/// Addresses of the two ends of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addrs {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// Returns true if the environment requests a trace of connections that end in error. The variable
/// is read once per process, and an unknown value is reported then.
pub(crate) fn errors_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        let value = variable(TRACE).unwrap_or_default();
        let value = value.to_string_lossy();
        let (wanted, unknown) = read(&value);
        if let Some(unknown) = unknown {
            let _ = messages::print(None, &format!(
                "{TRACE}={value}: \"{unknown}\" is unknown; the only value is \"errors\", which prints the last frames of a connection that ends in error\n"
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
pub(crate) fn end(conn: &Connection<CqOfQueue>, addrs: Option<Addrs>) -> Option<String> {
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

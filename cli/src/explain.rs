//! Errors of the library as reports to a person: whose doing, and what to try with this command.

use std::net::SocketAddr;

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{Cause, ConnectError, DeviceError, EndReason, StartupError};

use crate::failure::Report;

/// Why there is no connection to `to`, where this command is to run: `server`.
pub(crate) fn connect(error: &ConnectError, to: SocketAddr, server: &str) -> Report {
    let cause = Cause::from(error);
    match error {
        ConnectError::Llp { error } => tcp(error, to, server),
        ConnectError::Startup { error, .. } => startup(error, to),
        ConnectError::Rejected { .. } => with_hint(
            Report::new(error.to_string())
                .fault("the program at the peer: it is iWARP and does not want this connection"),
            &cause,
        ),
        ConnectError::Ended { reason, .. } => with_hint(
            Report::new(format!("{to}: {}", without_hint(reason))).fault(cause.who().to_string()),
            &cause,
        ),
        other => Report::new(other.to_string()),
    }
}

/// What to try, if anything.
fn with_hint(report: Report, cause: &Cause) -> Report {
    match cause.hint() {
        Some(hint) => report.advice(hint),
        None => report,
    }
}

/// All that it says, but for what to try, which has a line of its own.
fn without_hint(reason: &EndReason) -> String {
    let text = reason.to_string();
    let hint = reason.cause().hint();
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    text.strip_suffix(&hint).unwrap_or(&text).to_owned()
}

fn tcp(error: &LlpError, to: SocketAddr, server: &str) -> Report {
    let cause = Cause::from(*error);
    let report = Report::new(cause.sentence());
    match error {
        LlpError::Refused { .. } => report
            .expected(format!("an iWARP server at {to}"))
            .fault("the server, which does not run there, or the address given here")
            .advice(format!("there: {server}")),
        _ => with_hint(report.fault(cause.who().to_string()), &cause),
    }
}

/// `startup failed: the peer sent ...` as `the peer at ADDR sent ...`.
pub(crate) fn with_addr(error: &StartupError, addr: SocketAddr) -> String {
    let sentence = Cause::from(*error).sentence();
    let text = sentence
        .split_once(": ")
        .map_or(&*sentence, |(_title, text)| text);
    match text.strip_prefix("the peer ") {
        Some(rest) => format!("the peer at {addr} {rest}"),
        None => format!("{addr}: {text}"),
    }
}

fn startup(error: &StartupError, to: SocketAddr) -> Report {
    let report = Report::new(with_addr(error, to));
    if error.may_retry_with_revision_1() {
        return report
            .expected("an MPA Reply")
            .fault("the peer: not iWARP, or it knows MPA revision 1 only")
            .advice("again with --mpa 1");
    }
    match error {
        StartupError::NotMpa { .. } => report
            .expected("an iWARP endpoint, which answers with the key 'MPA ID Rep Frame'")
            .fault("the address or the port given here: another kind of server has it")
            .advice("the port that the iWARP server listens on (rping: 7174)"),
        StartupError::TimedOut { .. } => report
            .expected("an MPA Reply")
            .fault("the peer: it took the TCP connection, then said nothing; it may not be iWARP")
            .advice("the port that the iWARP server listens on (rping: 7174)"),
        StartupError::UnsupportedRevision { .. } => report
            .fault("nobody: the two speak different revisions")
            .advice("--mpa 1 or --mpa 2"),
        _ => {
            let cause = Cause::from(*error);
            with_hint(report.fault(cause.who().to_string()), &cause)
        }
    }
}

/// Why `addr` cannot be listened on.
pub(crate) fn listen(error: &DeviceError, addr: SocketAddr) -> Report {
    Report::new(format!("cannot listen on {addr}: {error}"))
}

/// Why a connection that stood has ended, and whose doing that was.
pub(crate) fn ended(peer: SocketAddr, during: &str, reason: &EndReason) -> Report {
    let cause = reason.cause();
    let what = without_hint(reason);
    let report = Report::new(format!("{peer}, {during}: {what}")).fault(cause.who().to_string());
    match reason {
        EndReason::TerminateReceived { terminate, .. } if terminate.if_siw().is_some() => {
            report.advice("--peer siw, if the peer is the Linux siw driver")
        }
        _ => with_hint(report, &cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_verbs::{Peer, Terminate};

    fn told(peer: Peer, header: &[u8]) -> String {
        let terminate = Terminate::parse_from(peer, header).unwrap();
        let cause = terminate.into();
        let reason = EndReason::TerminateReceived { terminate, cause };
        ended("192.0.2.2:7174".parse().unwrap(), "in a ping", &reason).to_string()
    }

    #[test]
    fn a_terminate_that_siw_means_otherwise_comes_with_the_option_that_settles_it() {
        let text = told(Peer::Rfc, &[0x20, 0x06, 0, 0]);
        assert!(
            text.contains("from Linux siw it would mean: unexpected opcode"),
            "{text}"
        );
        assert!(
            text.ends_with("try: --peer siw, if the peer is the Linux siw driver"),
            "{text}"
        );
        for (peer, header) in [
            (Peer::Siw, [0x20, 0x06, 0, 0]),
            (Peer::Rfc, [0x02, 0x02, 0, 0]),
            (Peer::Rfc, [0x20, 0x02, 0, 0]),
        ] {
            let text = told(peer, &header);
            assert!(!text.contains("--peer"), "{text}");
        }
    }

    #[test]
    fn no_connection_in_words_with_what_to_try_once() {
        let to = "192.0.2.2:7174".parse().unwrap();
        let rejected = |private_data: &[u8]| ConnectError::Rejected {
            addr: to,
            private_data: private_data.to_vec(),
            peer_ird: None,
            peer_ord: None,
            ord_needed: None,
        };
        for (error, words) in [
            (
                ConnectError::Llp {
                    error: LlpError::Refused { addr: to },
                },
                "cannot connect: nothing listens at 192.0.2.2:7174: the connection was refused
  expected: an iWARP server at 192.0.2.2:7174
  at fault: the server, which does not run there, or the address given here
  try: there: uwarp rping -s -a 192.0.2.2 -p 7174",
            ),
            (
                ConnectError::Llp {
                    error: LlpError::Unreachable { addr: to },
                },
                "cannot connect: 192.0.2.2:7174 cannot be reached from here: no route to it
  at fault: the network
  try: check the address and the network",
            ),
            (
                ConnectError::Startup {
                    addr: to,
                    error: StartupError::RequestInsteadOfReply,
                },
                "the peer at 192.0.2.2:7174 sent an MPA Request, not an MPA Reply: both sides are connecting (initiators), and one has to listen
  at fault: the peer's program
  try: let one side listen and the other connect",
            ),
            (
                rejected(b""),
                "192.0.2.2:7174 rejected the connection
  at fault: the program at the peer: it is iWARP and does not want this connection
  try: look at the peer's side: its program does not want this connection, decided too late, or a limit of its device is reached",
            ),
            (
                rejected(b"not today"),
                "192.0.2.2:7174 rejected the connection and said \"not today\" (9 octets)
  at fault: the program at the peer: it is iWARP and does not want this connection
  try: read its private data, which may say why",
            ),
            (
                ConnectError::Ended {
                    addr: to,
                    reason: Box::new(EndReason::ConnectTimedOut),
                },
                "192.0.2.2:7174: cannot connect: TCP did not connect in time
  at fault: the network
  try: check the address; the host is down, or a firewall drops the packets; the limit is a setting (timeouts.connect)",
            ),
        ] {
            let server = "uwarp rping -s -a 192.0.2.2 -p 7174";
            assert_eq!(connect(&error, to, server).to_string(), words);
        }
    }

    #[test]
    fn an_end_says_once_what_to_try() {
        let peer = "192.0.2.2:7174".parse().unwrap();
        assert_eq!(
            ended(peer, "in a ping", &EndReason::CloseTimedOut).to_string(),
            "192.0.2.2:7174, in a ping: the peer did not close its side in time, and the connection was reset
  at fault: the peer's program
  try: look at the peer's program: it hangs, or leaves connections open"
        );
    }
}

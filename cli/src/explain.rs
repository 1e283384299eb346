//! Errors of the library as reports to a person: whose doing, and what to try with this command.

use std::net::SocketAddr;

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{ConnectError, DeviceError, EndReason, StartupError};

use crate::failure::Report;

/// Why there is no connection to `to`.
pub(crate) fn connect(error: &ConnectError, to: SocketAddr) -> Report {
    match error {
        ConnectError::Llp { error } => tcp(error, to),
        ConnectError::Startup { error, .. } => startup(error, to),
        ConnectError::Ended { reason, .. } if matches!(**reason, EndReason::ConnectTimedOut) => {
            Report::new(format!("{to}: {reason}")).fault("the network, or the host there")
        }
        ConnectError::Rejected { .. } => Report::new(error.to_string())
            .fault("the program at the peer: it is iWARP and does not want this connection"),
        other => Report::new(other.to_string()),
    }
}

fn tcp(error: &LlpError, to: SocketAddr) -> Report {
    let report = Report::new(error.to_string());
    match error {
        LlpError::Refused { .. } => report
            .expected(format!("an iWARP server at {to}"))
            .fault("the server, which does not run there, or the address given here")
            .advice(format!(
                "there: uwarp rping -s -a {} -p {}",
                to.ip(),
                to.port()
            )),
        LlpError::Reset { .. } => report.fault("the peer"),
        LlpError::TimedOut { .. } | LlpError::Unreachable { .. } => {
            report.fault("the network, or the host there")
        }
        _ => report,
    }
}

/// `the peer sent ...` as `the peer at ADDR sent ...`.
pub(crate) fn with_addr(error: &StartupError, addr: SocketAddr) -> String {
    let text = error.to_string();
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
        _ => report.fault("the peer"),
    }
}

/// Why `addr` cannot be listened on.
pub(crate) fn listen(error: &DeviceError, addr: SocketAddr) -> Report {
    Report::new(format!("cannot listen on {addr}: {error}"))
}

/// Why a connection that stood has ended, and whose doing that was.
pub(crate) fn ended(peer: SocketAddr, during: &str, reason: &EndReason) -> Report {
    let cause = reason.cause();
    let report = Report::new(format!("{peer}, {during}: {reason}")).fault(cause.who().to_string());
    match reason {
        EndReason::TerminateReceived { terminate, .. } if terminate.if_siw().is_some() => {
            report.advice("--peer siw, if the peer is the Linux siw driver")
        }
        _ => report,
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
}

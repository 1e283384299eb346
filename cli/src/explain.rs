//! Turns errors of the library into reports, which say whose fault it is and what to try with this
//! command.

use std::net::{IpAddr, SocketAddr};

use uwarp_verbs::llp::LlpError;
use uwarp_verbs::{Cause, ConnectError, DeviceError, EndReason, StartupError};

use crate::failure::Report;

/// Description of a server that a command connects to, for its error reports.
pub(crate) struct Server {
    /// Shell command that starts the server.
    start: String,
    /// Name and default port of the server, if it has a default port.
    usual: Option<(&'static str, u16)>,
}

impl Server {
    /// Describes a server of `uwarp rping` at this address.
    pub(crate) fn rping(at: SocketAddr) -> Self {
        Server {
            start: format!("uwarp rping -s -a {} -p {}", host(at), at.port()),
            usual: Some(("rping", 7174)),
        }
    }

    /// Describes the other end of the demo, in the same process.
    pub(crate) fn demo() -> Self {
        Server {
            start: "uwarp demo".into(),
            usual: None,
        }
    }

    /// Describes a server of `uwarp perf` at this address.
    pub(crate) fn perf(at: SocketAddr) -> Self {
        let bind = if at.ip().is_loopback() {
            String::new()
        } else {
            format!(" --bind {}", host(at))
        };
        Server {
            start: format!("uwarp perf -p {}{bind}", at.port()),
            usual: Some(("uwarp perf", 18515)),
        }
    }

    fn port_hint(&self) -> String {
        let usual = self.usual.map(|(name, port)| format!(" ({name}: {port})"));
        let usual = usual.unwrap_or_default();
        format!("use the port that the server listens on{usual}")
    }
}

/// Formats the address without its port, for a command that runs on the server's machine. A
/// link-local address needs a zone of that machine. This machine does not know that zone, so a
/// placeholder replaces it.
fn host(addr: SocketAddr) -> String {
    match addr.ip() {
        IpAddr::V6(ip) if ip.is_unicast_link_local() => format!("{ip}%INTERFACE"),
        ip => ip.to_string(),
    }
}

/// Explains why the connection to `to` failed.
pub(crate) fn connect(error: &ConnectError, to: SocketAddr, server: &Server) -> Report {
    let cause = Cause::from(error);
    match error {
        ConnectError::Llp { error } => tcp(error, to, server),
        ConnectError::Startup { error, .. } => startup(error, to, server),
        ConnectError::Rejected { .. } => with_hint(
            Report::new(error.to_string())
                .fault("the peer's program, which speaks iWARP and refuses this connection"),
            &cause,
        ),
        ConnectError::Ended { reason, .. } => with_hint(
            Report::new(format!("{to}: {}", without_hint(reason))).fault(cause.who().to_string()),
            &cause,
        ),
        other => Report::new(other.to_string()),
    }
}

/// Adds the hint of the cause as advice, if the cause has a hint.
fn with_hint(report: Report, cause: &Cause) -> Report {
    match cause.hint() {
        Some(hint) => report.advice(hint),
        None => report,
    }
}

/// Returns the text of the reason without its hint. The report has a separate line for the hint.
fn without_hint(reason: &EndReason) -> String {
    let text = reason.to_string();
    let hint = reason.cause().hint();
    let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
    text.strip_suffix(&hint).unwrap_or(&text).to_owned()
}

fn tcp(error: &LlpError, to: SocketAddr, server: &Server) -> Report {
    let cause = Cause::from(*error);
    let report = Report::new(cause.sentence());
    match error {
        LlpError::Refused { .. } => report
            .expected(format!("an iWARP server at {to}"))
            .fault("the server, which does not run there, or the address given here")
            .advice(format!("start it there: {}", server.start)),
        LlpError::FamilyMismatch { .. } => {
            with_hint(report.fault("the two addresses given here"), &cause)
        }
        LlpError::ZoneMissing { .. } | LlpError::AddressUnavailable { .. } => {
            with_hint(report.fault("the address given here"), &cause)
        }
        _ => with_hint(report.fault(cause.who().to_string()), &cause),
    }
}

/// Turns `startup failed: the peer sent ...` into `the peer at ADDR sent ...`. Other texts become
/// `ADDR: text`.
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

fn startup(error: &StartupError, to: SocketAddr, server: &Server) -> Report {
    let report = Report::new(with_addr(error, to));
    if error.may_retry_with_revision_1() {
        return report
            .expected("an MPA Reply")
            .fault("the peer, which is not iWARP or knows MPA revision 1 only")
            .advice("try again with --mpa 1");
    }
    match error {
        StartupError::NotMpa { .. } => report
            .expected("an iWARP endpoint, which answers with the key 'MPA ID Rep Frame'")
            .fault("the address or the port given here, which belongs to another kind of server")
            .advice(server.port_hint()),
        StartupError::TimedOut { .. } => report
            .expected("an MPA Reply")
            .fault(
                "the peer, which accepted the TCP connection and sent nothing; it may not be iWARP",
            )
            .advice(server.port_hint()),
        StartupError::UnsupportedRevision { .. } => report
            .fault("neither side: they use different MPA revisions")
            .advice("use --mpa 1 or --mpa 2"),
        _ => {
            let cause = Cause::from(*error);
            with_hint(report.fault(cause.who().to_string()), &cause)
        }
    }
}

/// Explains why this command cannot listen on `addr`.
pub(crate) fn listen(error: &DeviceError, addr: SocketAddr) -> Report {
    Report::new(format!("cannot listen on {addr}: {error}"))
}

/// Explains why the agent cannot listen on `addr` for its controllers.
pub(crate) fn listen_for_controllers(error: LlpError, addr: SocketAddr) -> Report {
    let cause = Cause::from(error);
    let text = cause.sentence();
    let fact = text.split_once(": ").map_or(&*text, |(_title, fact)| fact);
    let report = Report::new(format!("controllers cannot be served on {addr}: {fact}"));
    match error {
        LlpError::AddressInUse { .. } => report
            .fault("the address and the port given here")
            .advice("use another port (--control or -p) or another address (-a)"),
        LlpError::ZoneMissing { .. } | LlpError::AddressUnavailable { .. } => {
            with_hint(report.fault("the address given here"), &cause)
        }
        _ => with_hint(report.fault(cause.who().to_string()), &cause),
    }
}

/// Explains why an established connection ended, and whose fault that was.
pub(crate) fn ended(peer: SocketAddr, during: &str, reason: &EndReason) -> Report {
    let cause = reason.cause();
    let what = without_hint(reason);
    let report = Report::new(format!("{peer}, {during}: {what}")).fault(cause.who().to_string());
    match reason {
        EndReason::TerminateReceived { terminate, .. } if terminate.if_siw().is_some() => {
            report.advice("use --peer siw if the peer is the Linux siw driver")
        }
        _ => with_hint(report, &cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uwarp_verbs::{Peer, Terminate};

    fn report_of(peer: Peer, header: &[u8]) -> String {
        let terminate = Terminate::parse_from(peer, header).unwrap();
        let cause = terminate.into();
        let reason = EndReason::TerminateReceived { terminate, cause };
        ended("192.0.2.2:7174".parse().unwrap(), "in a ping", &reason).to_string()
    }

    #[test]
    fn a_terminate_that_siw_means_otherwise_comes_with_the_option_that_settles_it() {
        let text = report_of(Peer::Rfc, &[0x20, 0x06, 0, 0]);
        assert!(
            text.contains("from Linux siw it would mean: unexpected opcode"),
            "{text}"
        );
        assert!(
            text.ends_with("try: use --peer siw if the peer is the Linux siw driver"),
            "{text}"
        );
        for (peer, header) in [
            (Peer::Siw, [0x20, 0x06, 0, 0]),
            (Peer::Rfc, [0x02, 0x02, 0, 0]),
            (Peer::Rfc, [0x20, 0x02, 0, 0]),
        ] {
            let text = report_of(peer, &header);
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
  try: start it there: uwarp rping -s -a 192.0.2.2 -p 7174",
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
                ConnectError::Llp {
                    error: LlpError::FamilyMismatch {
                        local: "::1".parse().unwrap(),
                        peer: to.ip(),
                    },
                },
                "network error: cannot connect from ::1, an IPv6 address, to 192.0.2.2, an IPv4 address
  at fault: the two addresses given here
  try: use two addresses of one family",
            ),
            (
                ConnectError::Llp {
                    error: LlpError::ZoneMissing {
                        addr: "fe80::1".parse().unwrap(),
                    },
                },
                "network error: fe80::1 is a link-local address, and its zone is missing: which link it is on
  at fault: the address given here
  try: add the interface of that link to the address, as in fe80::1%eth0",
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
  at fault: the peer's program, which speaks iWARP and refuses this connection
  try: check the peer: its program does not want this connection or decided too late, or its device has reached a limit",
            ),
            (
                rejected(b"not today"),
                "192.0.2.2:7174 rejected the connection and said \"not today\" (9 bytes)
  at fault: the peer's program, which speaks iWARP and refuses this connection
  try: read its private data, which may say why",
            ),
            (
                ConnectError::Ended {
                    addr: to,
                    reason: Box::new(EndReason::ConnectTimedOut),
                },
                "192.0.2.2:7174: cannot connect: TCP did not connect in time
  at fault: the network
  try: check the address: the host may be down, or a firewall may drop the packets; the limit is a setting (timeouts.connect)",
            ),
        ] {
            assert_eq!(connect(&error, to, &Server::rping(to)).to_string(), words);
        }
    }

    #[test]
    fn the_port_that_is_named_is_that_of_the_server_that_was_meant() {
        let to = "192.0.2.2:80".parse().unwrap();
        let error = ConnectError::Startup {
            addr: to,
            error: StartupError::TimedOut {
                received: 0,
                peer: uwarp_mpa::Role::Responder,
            },
        };
        let said = |server: &Server| connect(&error, to, server).to_string();
        assert!(said(&Server::rping(to)).ends_with("(rping: 7174)"));
        assert!(said(&Server::perf(to)).ends_with("(uwarp perf: 18515)"));
    }

    #[test]
    fn a_server_of_perf_for_another_host_is_bound_to_its_address() {
        let start = |at: &str| Server::perf(at.parse().unwrap()).start;
        assert_eq!(start("127.0.0.1:18515"), "uwarp perf -p 18515");
        assert_eq!(start("192.0.2.2:7"), "uwarp perf -p 7 --bind 192.0.2.2");
    }

    #[test]
    fn a_server_at_a_link_local_address_is_started_with_a_zone_of_its_own_machine() {
        let at = "[fe80::1%3]:7".parse().unwrap();
        let perf = Server::perf(at).start;
        assert_eq!(perf, "uwarp perf -p 7 --bind fe80::1%INTERFACE");
        let rping = Server::rping(at).start;
        assert_eq!(rping, "uwarp rping -s -a fe80::1%INTERFACE -p 7");
    }

    #[test]
    fn controllers_that_cannot_be_served_come_with_what_helps_against_that_error() {
        let addr = "[fe80::1]:7175".parse().unwrap();
        for (error, words) in [
            (
                LlpError::AddressInUse { addr },
                "use another port (--control or -p) or another address (-a)",
            ),
            (
                LlpError::ZoneMissing {
                    addr: "fe80::1".parse().unwrap(),
                },
                "add the interface of that link to the address, as in fe80::1%eth0",
            ),
            (
                LlpError::AddressUnavailable { addr },
                "use an address of this machine (a listener may also use 0.0.0.0 or [::])",
            ),
            (
                LlpError::PermissionDenied {
                    op: "listen on this address",
                },
                "choose a port of 1024 or above, or run with the privilege",
            ),
        ] {
            let text = listen_for_controllers(error, addr).to_string();
            assert!(text.starts_with("controllers cannot be served on [fe80::1]:7175: "));
            assert!(text.ends_with(&format!("\n  try: {words}")), "{text}");
            assert_eq!(text.matches(words).count(), 1, "{text}");
        }
    }

    #[test]
    fn an_end_says_once_what_to_try() {
        let peer = "192.0.2.2:7174".parse().unwrap();
        assert_eq!(
            ended(peer, "in a ping", &EndReason::PeerDisconnect).to_string(),
            "192.0.2.2:7174, in a ping: the connection was closed by the peer
  at fault: the peer's program
  try: if that was too early, check the peer's program: it ended or closed the connection"
        );
    }
}

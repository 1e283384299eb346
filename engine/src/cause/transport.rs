//! Causes from TCP, its link and MPA startup, with the texts of the crates that report them.

use std::fmt;

use crate::llp::LlpError;
use uwarp_mpa::StartupError;
use uwarp_rdmap::{Requirement, TerminateCode};

use super::parts::{Account, CauseCode, Layer, Who};

/// Classifies a failed MPA startup. The codes are those of RFC 5044 section 8, and are never sent.
pub(super) fn startup(error: &StartupError) -> Account {
    let (who, requirement, hint) = startup_row(error);
    let code = TerminateCode {
        layer: 2,
        etype: 0,
        code: error.code().code(),
    };
    Account::new("startup failed", who, Layer::Mpa)
        .terminate(Some(code))
        .against(Some(requirement))
        .hint(hint)
}

/// Returns the fact without the advice.
pub(super) fn startup_fact(error: &StartupError) -> String {
    let words = error.to_string();
    match words.split_once(": try again") {
        Some((fact, _)) => fact.to_owned(),
        None => words,
    }
}

fn startup_row(error: &StartupError) -> (Who, Requirement, &'static str) {
    const PORT: &str = "check the address and the port: another kind of server may use it, or the peer is not an iWARP endpoint";
    const STACK: &str =
        "report it to the vendor of the peer's iWARP stack, with a capture (`--pcap`)";
    const KEY: Requirement = Requirement::new(
        "5044-7.1.1-04",
        "each side checks the Key of the other's frame",
    );
    const REVISION: Requirement =
        Requirement::new("5044-7.1.1-14", "both sides speak a common MPA revision");
    const LENGTH: Requirement = Requirement::new(
        "5044-7.1.1-16",
        "PD_Length is the length of the private data, and at most 512",
    );
    const IN_TIME: Requirement =
        Requirement::new("5044-7.1.2-22", "the startup frames arrive in time");
    const UNWANTED: Requirement = Requirement::new(
        "5044-7.1.2-05",
        "a responder that does not want the connection answers with R = 1",
    );
    const ROLES: Requirement = Requirement::new(
        "5044-7.1.2-17",
        "one side is the initiator, the other the responder",
    );
    const ENHANCED: Requirement = Requirement::new(
        "6581-6-04",
        "with S = 1 the private data begins with IRD and ORD",
    );
    const ANSWER: Requirement = Requirement::new(
        "6581-10-01",
        "an enhanced Request gets an enhanced Reply, and any other Request gets a Reply that is not enhanced",
    );
    const FIRST: Requirement = Requirement::new(
        "6581-9.2-09",
        "the initiator sends an RTR indication after it has received the Reply",
    );
    const CLOSED: Requirement = Requirement::new(
        "5044-8-01",
        "the TCP connection is closed only when both sides are done",
    );
    const CLOSED_ENHANCED: Requirement = Requirement::new(
        "6581-10-05",
        "an initiator may try once more without the additions of RFC 6581",
    );
    match error {
        StartupError::NotMpa { .. } => (Who::PeerProgram, KEY, PORT),
        StartupError::RequestInsteadOfReply | StartupError::ReplyInsteadOfRequest => (
            Who::PeerProgram,
            ROLES,
            "let one side listen and the other connect",
        ),
        StartupError::UnsupportedRevision { .. } => (
            Who::PeerStack,
            REVISION,
            "choose an MPA revision that both sides support (Settings::revision, `--mpa 1`)",
        ),
        StartupError::PrivateDataTooLong { .. } => (Who::PeerStack, LENGTH, STACK),
        StartupError::EnhancedDataMissing { .. } => (Who::PeerStack, ENHANCED, STACK),
        StartupError::EnhancedMismatch { .. } => (
            Who::PeerStack,
            ANSWER,
            "connect with MPA revision 1 (Settings::revision, `--mpa 1`), and report it to the vendor of the peer's iWARP stack",
        ),
        StartupError::TrailingBytes { .. } => (Who::PeerStack, LENGTH, STACK),
        StartupError::RtrMissing => (
            Who::PeerStack,
            FIRST,
            "check whether the peer's program hangs; the time limit is a setting (timeouts.rtr, timeouts.first_fpdu)",
        ),
        StartupError::NoPlace { of_peer: true, .. } => (
            Who::PeerProgram,
            IN_TIME,
            "answer connection requests sooner, or raise the limit in the settings (limits.per_peer.max_half_open)",
        ),
        StartupError::NoPlace { of_peer: false, .. } => (
            Who::Program,
            IN_TIME,
            "answer connection requests sooner, or raise the limit in the settings (limits.max_half_open)",
        ),
        StartupError::Displaced {
            of_listener: true, ..
        } => (
            Who::PeerProgram,
            IN_TIME,
            "look for peers that connect and send nothing, or raise the limit in the settings (limits.max_startup)",
        ),
        StartupError::Displaced {
            of_listener: false, ..
        } => (
            Who::PeerProgram,
            IN_TIME,
            "look for peers that connect and send nothing, or raise the limit in the settings (limits.max_half_open)",
        ),
        StartupError::TooManyConnections { of_peer: true, .. } => (
            Who::PeerProgram,
            UNWANTED,
            "end some of its connections, or raise the limit in the settings (limits.per_peer.max_qp)",
        ),
        StartupError::TooManyConnections { of_peer: false, .. } => (
            Who::Program,
            UNWANTED,
            "end some connections, or raise the limit in the settings (limits.max_qp)",
        ),
        StartupError::TooManyStagErrors { .. } => (
            Who::PeerProgram,
            UNWANTED,
            "look at why the peer's accesses are refused, or raise the limit in the settings (limits.per_peer.max_stag_errors)",
        ),
        StartupError::Closed { .. } if error.may_retry_with_revision_1() => (
            Who::PeerStack,
            CLOSED_ENHANCED,
            "connect with MPA revision 1 (Settings::revision, `--mpa 1`), or set retry_with_revision_1",
        ),
        StartupError::Closed { .. } => (
            Who::PeerProgram,
            CLOSED,
            "check the peer's program: it ended, or gave up the connection",
        ),
        StartupError::TimedOut { received: 0, .. } => (Who::PeerProgram, IN_TIME, PORT),
        StartupError::TimedOut { .. } => (
            Who::PeerProgram,
            IN_TIME,
            "check whether the host is up, and whether its program hangs; the time limit is a setting (timeouts.reply, timeouts.request)",
        ),
    }
}

/// Writes the fact of a TCP error. Omits the advice after the last semicolon of the error's own
/// text, because the cause has this advice as its hint.
pub(super) fn llp_fact(error: &LlpError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let words = error.to_string();
    let fact = match error {
        // The whole text is kept, because its advice names the interface and commands.
        LlpError::TimedOut { addr } => {
            return write!(f, "no answer from {addr} for as long as TCP waits");
        }
        LlpError::Refused { .. }
        | LlpError::Unreachable { .. }
        | LlpError::Reset { .. }
        | LlpError::Broken { .. }
        | LlpError::AddressInUse { .. }
        | LlpError::AddressUnavailable { .. }
        | LlpError::FamilyMismatch { .. }
        | LlpError::ZoneMissing { .. }
        | LlpError::PermissionDenied { .. }
        | LlpError::Exhausted { .. }
        | LlpError::Misuse { .. }
        | LlpError::LinkDown { .. }
        | LlpError::KernelHasAddress { .. }
        | LlpError::DuplicateAddress { .. }
        | LlpError::Io { .. } => words.rsplit_once("; ").map(|(fact, _)| fact),
    };
    f.write_str(fact.unwrap_or(&words))
}

/// Returns originator and hint.
pub(super) fn llp(error: &LlpError) -> Account {
    const LOST: &str = "connection lost";
    const CANNOT: &str = "cannot connect";
    const NETWORK: &str = "network error";
    let (title, who, hint) = match error {
        LlpError::Refused { .. } => (
            CANNOT,
            Who::PeerProgram,
            "check the address and the port, and that the server has been started",
        ),
        LlpError::Unreachable { .. } => (CANNOT, Who::Network, "check the address and the network"),
        LlpError::TimedOut { .. } => (
            "the peer vanished",
            Who::Network,
            "check whether the host is up, and whether a firewall drops the packets",
        ),
        LlpError::Reset { .. } => (
            LOST,
            Who::PeerProgram,
            "check the peer's program and its log",
        ),
        LlpError::Broken { .. } => (
            LOST,
            Who::PeerProgram,
            "connect again, if the peer is still there",
        ),
        LlpError::AddressInUse { .. } => (
            NETWORK,
            Who::Program,
            "choose another port, stop the program that uses it, or wait a minute",
        ),
        LlpError::AddressUnavailable { .. } => (
            NETWORK,
            Who::Program,
            "use an address of this machine (a listener may also use 0.0.0.0 or [::])",
        ),
        LlpError::FamilyMismatch { .. } => {
            (NETWORK, Who::Program, "use two addresses of one family")
        }
        LlpError::ZoneMissing { .. } => (
            NETWORK,
            Who::Program,
            "add the interface of that link to the address, as in fe80::1%eth0",
        ),
        LlpError::PermissionDenied { .. } => (
            NETWORK,
            Who::Program,
            "choose a port of 1024 or above, or run with the privilege",
        ),
        LlpError::Exhausted { .. } => (NETWORK, Who::Program, "close some, or raise the limit"),
        LlpError::Misuse { .. } => (
            NETWORK,
            Who::Program,
            "check the settings of the device and the call that failed",
        ),
        LlpError::LinkDown { .. } => (
            NETWORK,
            Who::Network,
            "bring the link up, then open the device again",
        ),
        LlpError::KernelHasAddress { .. } => (
            NETWORK,
            Who::Network,
            "remove the address from the kernel (`ip addr del`), or give this device another address",
        ),
        LlpError::DuplicateAddress { .. } => {
            (NETWORK, Who::Network, "give one of the two another address")
        }
        LlpError::Io { .. } => (
            NETWORK,
            Who::Network,
            "look up the error number in errno(3), and check the system's log",
        ),
    };
    let account = Account::new(title, who, Layer::Tcp).hint(hint);
    Account {
        code: errno(error),
        ..account
    }
}

fn errno(error: &LlpError) -> Option<CauseCode> {
    match error {
        LlpError::Io { errno, .. } => Some(CauseCode::System(*errno)),
        LlpError::LinkDown { errno, .. } if *errno != 0 => Some(CauseCode::System(*errno)),
        _ => None,
    }
}

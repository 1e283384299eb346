//! Causes for a completion status without further information.

use super::parts::{Account, Layer, Who};
use crate::status::Status;

/// Returns the status in words, without the title before the colon.
pub(super) fn sentence(status: Status) -> &'static str {
    let words = status.as_str();
    words
        .split_once(": ")
        .map_or(words, |(_, sentence)| sentence)
}

pub(super) fn account(status: Status) -> Account {
    let words = status.as_str();
    let title = words.split_once(": ").map_or("", |(title, _)| title);
    let (who, layer) = row(status);
    let account = Account::new(title, who, layer).status(status);
    match status.hint() {
        Some(hint) => account.hint(hint),
        None => account,
    }
}

fn row(status: Status) -> (Who, Layer) {
    match status {
        Status::Success => (Who::Library, Layer::Verbs),
        Status::LocalLength
        | Status::LocalQpOperation
        | Status::LocalProtection
        | Status::WrFlush
        | Status::WindowBind => (Who::Program, Layer::Verbs),
        Status::BadResponse => (Who::PeerStack, Layer::Rdmap),
        Status::LocalAccess => (Who::PeerProgram, Layer::Ddp),
        Status::RemoteInvalidRequest => (Who::Program, Layer::Rdmap),
        Status::RemoteAccess => (Who::Program, Layer::Ddp),
        Status::RemoteOperation => (Who::PeerStack, Layer::Rdmap),
        Status::RetryExceeded => (Who::Network, Layer::Tcp),
        Status::ReceiverNotReady => (Who::PeerProgram, Layer::Ddp),
        Status::RemoteAbort => (Who::PeerProgram, Layer::Rdmap),
        Status::Fatal => (Who::Library, Layer::Verbs),
        Status::ResponseTimeout => (Who::PeerProgram, Layer::Rdmap),
        Status::General => (Who::Library, Layer::Verbs),
    }
}

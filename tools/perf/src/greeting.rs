//! First message of each side, which identifies the program and the version of the protocol.
//!
//! Since version 5, perftest starts with an exchange of versions. First the client, then the server
//! sends 16 bytes of text, padded with zeros. perftest uses the same default port as this protocol.
//! Therefore this protocol starts in the same format, and each of the two programs can name the
//! other.

use crate::perftest;

/// Length of a greeting in bytes: perftest's `MAX_VERSION`.
pub(crate) const LEN: usize = 16;

/// Name and version of this protocol.
const OURS: &str = "uwarp perf 3";

/// Returns the greeting of this side.
pub(crate) fn ours() -> [u8; LEN] {
    let mut greeting = [0; LEN];
    greeting[..OURS.len()].copy_from_slice(OURS.as_bytes());
    greeting
}

/// Kind of sender whose first message is not this protocol's greeting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mismatch {
    /// uwarp perf with another version of this protocol. The text has its name and version.
    OtherVersion(String),
    /// perftest. The text has its version.
    Perftest(String),
    /// Another program.
    Unknown,
}

/// Checks that the peer speaks this protocol.
pub(crate) fn check(message: &[u8]) -> Result<(), Mismatch> {
    if message == ours() {
        return Ok(());
    }
    if message.len() != LEN {
        return Err(Mismatch::Unknown);
    }
    if let Some(version) = perftest::version(message) {
        return Err(Mismatch::Perftest(version.to_owned()));
    }
    let text = message.split(|byte| *byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(text) {
        Ok(text) if text.starts_with("uwarp perf ") => Err(Mismatch::OtherVersion(text.to_owned())),
        _ => Err(Mismatch::Unknown),
    }
}

/// Returns name and version of this side's protocol, for messages.
pub(crate) const fn name() -> &'static str {
    OURS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_tells_this_protocol_another_version_perftest_and_others_apart() {
        assert_eq!(check(&ours()), Ok(()));
        let other = check(b"uwarp perf 2\0\0\0\0");
        assert_eq!(
            other,
            Err(Mismatch::OtherVersion("uwarp perf 2".to_owned()))
        );
        let perftest = check(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(perftest, Err(Mismatch::Perftest("6.06".to_owned())));
        // An advert of rping, text of another length, and bytes that are not text.
        for unknown in [&[0; 16][..], b"hello", b"", &[0xff; 16]] {
            assert_eq!(check(unknown), Err(Mismatch::Unknown));
        }
    }
}

//! The first message of each side, by which it knows what the other one is.
//!
//! Since version 5 perftest begins with an exchange of versions: 16 bytes of text, zeros after it, the client first.
//! Its port is ours, too. So this protocol begins in the same form: each of the two programs can name the other.

use crate::perftest;

/// Bytes of a greeting: perftest's `MAX_VERSION`.
pub(crate) const LEN: usize = 16;

/// Name and version of this protocol.
const OURS: &str = "uwarp perf 3";

/// The greeting of this side.
pub(crate) fn ours() -> [u8; LEN] {
    let mut greeting = [0; LEN];
    greeting[..OURS.len()].copy_from_slice(OURS.as_bytes());
    greeting
}

/// What the first message of a peer says about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stranger {
    /// uwarp perf with another version of this protocol: its name and version.
    OtherVersion(String),
    /// perftest, and its version.
    Perftest(String),
    /// Neither.
    Unknown,
}

/// Whether the peer speaks this protocol.
pub(crate) fn check(message: &[u8]) -> Result<(), Stranger> {
    if message == ours() {
        return Ok(());
    }
    if message.len() != LEN {
        return Err(Stranger::Unknown);
    }
    if let Some(version) = perftest::version(message) {
        return Err(Stranger::Perftest(version.to_owned()));
    }
    let text = message.split(|byte| *byte == 0).next().unwrap_or_default();
    match std::str::from_utf8(text) {
        Ok(text) if text.starts_with("uwarp perf ") => Err(Stranger::OtherVersion(text.to_owned())),
        _ => Err(Stranger::Unknown),
    }
}

/// The version that this side speaks, for words.
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
            Err(Stranger::OtherVersion("uwarp perf 2".to_owned()))
        );
        let perftest = check(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(perftest, Err(Stranger::Perftest("6.06".to_owned())));
        // rping's advert, and text of any other length.
        for unknown in [&[0; 16][..], b"hello", b"", &[0xff; 16]] {
            assert_eq!(check(unknown), Err(Stranger::Unknown));
        }
    }
}

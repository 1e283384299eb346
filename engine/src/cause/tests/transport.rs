//! Tests of each [`Cause`] that comes from TCP, its link, MPA startup or FPDUs.

use super::samples::{llp, startup};
use super::*;

#[test]
fn tcp_and_startup_in_words() {
    let framing = every!(DeframeError {
        DeframeError::BadCrc { .. } => [
            DeframeError::BadCrc { expected: 1, got: 2, position: 100 }
        ],
        DeframeError::MarkerMismatch { .. } => [
            DeframeError::MarkerMismatch { expected: 100, got: 96, position: 512 }
        ],
        DeframeError::LengthTooLong { .. } => [
            DeframeError::LengthTooLong { len: 65000, position: 100 }
        ],
    });
    let text = [
        table("TCP and the link below", llp(), &[]),
        table("MPA startup", startup(), &[]),
        table("FPDUs", framing.into_iter().map(Cause::framing), &[]),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn what_to_try_is_not_in_the_sentence_of_tcp_as_well() {
    for error in llp() {
        let cause = Cause::from(error);
        let Some(hint) = cause.hint() else { continue };
        let sentence = cause.sentence();
        for words in hint.split([',', ';']) {
            assert!(!sentence.contains(words), "{cause}");
        }
    }
}

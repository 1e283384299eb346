//! Ping data of rping.

use std::fmt::Write;

/// Returns the bytes of ping `number`: its label, letters, and a final zero. The first letter
/// advances by one with each ping.
pub(super) fn ping(number: u32, size: usize) -> Vec<u8> {
    const LETTERS: std::ops::RangeInclusive<u8> = b'A'..=b'z';
    let mut bytes = format!("rdma-ping-{number}: ").into_bytes();
    bytes.truncate(size);
    let skip = number as usize % LETTERS.count();
    bytes.extend(LETTERS.cycle().skip(skip).take(size - bytes.len()));
    if let Some(last) = bytes.last_mut() {
        *last = 0;
    }
    bytes
}

/// Returns the length of the text in `bytes`, up to the zero.
pub(super) fn text_len(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len())
}

/// Returns the text in `bytes`, as rping prints it. Bytes other than printable ASCII are shown as
/// `\xNN`, because they come from the peer and could disturb a terminal.
pub(super) fn printable(bytes: &[u8]) -> String {
    let text = &bytes[..text_len(bytes)];
    let mut out = String::with_capacity(text.len());
    for byte in text {
        match byte {
            b' '..=b'~' => out.push(char::from(*byte)),
            _ => {
                let _ = write!(out, "\\x{byte:02x}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ping_text_is_that_of_rping() {
        let text = |number, size| printable(&ping(number, size));
        assert_eq!(
            text(0, 64),
            "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"
        );
        assert_eq!(text(1, 26), "rdma-ping-1: BCDEFGHIJKLM");
        assert_eq!(text(1, 23), "rdma-ping-1: BCDEFGHIJ");
        assert_eq!(text(1_234_567_890, 23), "rdma-ping-1234567890: ");
        assert!(text(57, 64).starts_with("rdma-ping-57: zABC"));
        assert!(text(58, 64).starts_with("rdma-ping-58: ABCD"));
        for size in [23, 64, 65_535] {
            let bytes = ping(u32::MAX, size);
            assert_eq!((bytes.len(), text_len(&bytes)), (size, size - 1));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_numbers() {
        assert_eq!(printable(b"a\\b\x1b[2J\xff\0rest"), "a\\b\\x1b[2J\\xff");
        assert_eq!(text_len(b"abc"), 3);
    }
}

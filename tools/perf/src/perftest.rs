//! First bytes that perftest sends, by which it is recognized.
//!
//! Without `-R` and `-z`, two perftest programs first talk over TCP. The client sends 16 bytes with
//! its version (`exchange_versions`). With `--dont_xchg_versions` the client sends the numbers of
//! its QP as text instead (`ethernet_write_keys`). The server reads any 16 bytes, and sends its own
//! version. With `-R` or `-z` the same 16 bytes are the payload of Sends over an rdma_cm
//! connection.

/// Returns the version of perftest, if these bytes are perftest's version message.
pub(crate) fn version(first: &[u8]) -> Option<&str> {
    let end = first.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&first[..end]).ok()?;
    let (major, minor) = text.split_once('.')?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let is_version = is_number(major) && minor.split('.').all(is_number);
    is_version.then_some(text)
}

/// Returns true if these bytes start like the numbers of a perftest QP, in the format
/// `%04x:%04x:%06x:`: LID, number of Reads, and QP number.
pub(crate) fn is_key_exchange(first: &[u8]) -> bool {
    let form = *b"xxxx:xxxx:xxxxxx:";
    first.len() >= form.len()
        && first.iter().zip(form).all(|(byte, form)| match form {
            b'x' => byte.is_ascii_hexdigit(),
            colon => *byte == colon,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perftest_is_known_by_its_version_or_by_its_keys() {
        assert_eq!(version(b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"), Some("6.06"));
        assert_eq!(version(b"25.01.1\0"), Some("25.01.1"));
        for other in [
            &b"6.06"[..],
            b"\0\0\0\0",
            b"6\0",
            b".\0",
            b"6.\0",
            b"HTTP/1.1\0",
            b"uwarp perf 3\0",
        ] {
            assert_eq!(version(other), None, "{}", other.escape_ascii());
        }
        assert!(is_key_exchange(b"0000:0001:000011:a1b2c3:"));
        assert!(!is_key_exchange(b"0000:0001:"));
        assert!(!is_key_exchange(b"GET / HTTP/1.1\r\nHost: "));
    }
}

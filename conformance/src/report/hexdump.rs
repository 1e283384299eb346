//! Hexadecimal dump of bytes, sixteen per line, in the format of `hexdump -C`.

use crate::words::many;

/// Formats at most `most` bytes. Each line begins with `indent`.
pub(super) fn hexdump(bytes: &[u8], indent: &str, most: usize) -> String {
    let mut text = String::new();
    for (line, chunk) in bytes[..bytes.len().min(most)].chunks(16).enumerate() {
        let digits: Vec<String> = chunk.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown: String = chunk
            .iter()
            .map(|byte| match byte {
                0x20..=0x7e => char::from(*byte),
                _ => '.',
            })
            .collect();
        text.push_str(&format!(
            "{indent}{:04x}  {:<47}  {shown}\n",
            line * 16,
            digits.join(" ")
        ));
    }
    if bytes.len() > most {
        text.push_str(&format!(
            "{indent}... {} in all\n",
            many(bytes.len(), "byte")
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_place_bytes_and_characters() {
        let text = hexdump(b"MPA ID Req Frame\x40\x02", "  ", 64);
        assert_eq!(
            text,
            "  0000  4d 50 41 20 49 44 20 52 65 71 20 46 72 61 6d 65  MPA ID Req Frame\n  \
             0010  40 02                                            @.\n"
        );
        assert!(hexdump(&[0; 100], "", 32).ends_with("... 100 bytes in all\n"));
    }
}

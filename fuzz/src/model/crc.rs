//! CRC32C by its definition: the polynomial 0x1EDC6F41 with reflected bits (RFC 3385, RFC 5044
//! section 4.4).

/// CRC remainder of each byte value.
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut remainder = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            remainder = remainder >> 1 ^ if remainder & 1 == 1 { 0x82F6_3B78 } else { 0 };
            bit += 1;
        }
        table[byte] = remainder;
        byte += 1;
    }
    table
}

/// Computes the CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        crc >> 8 ^ TABLE[usize::from(crc as u8 ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_examples_of_rfc_3720() {
        assert_eq!(super::crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(super::crc32c(&[0xFF; 32]), 0x62A8_AB43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(super::crc32c(&ascending), 0x46DD_794E);
    }
}

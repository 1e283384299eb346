//! CRC32C of iSCSI (RFC 3720 section 12.1). It is implemented again here, because the suite shares
//! no code with the stack that it checks.

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82F6_3B78
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Computes the CRC32C of these bytes.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        crc >> 8 ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 5044 Figures 5 and 6: FPDUs with 24 zero bytes as payload. The CRC bytes are in
    /// transmission order.
    #[test]
    fn the_examples_of_rfc_5044_come_out() {
        let figure_5: [u8; 20] = [
            0, 0, 0, 0, 0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        ];
        let bytes = [&figure_5[..], &[0; 4], &[0; 24]].concat();
        assert_eq!(crc32c(&bytes).to_le_bytes(), [0x52, 0x23, 0x99, 0x83]);
        // The same FPDU with a Marker after the MO.
        let figure_6: [u8; 24] = [
            0, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x14,
        ];
        let bytes = [&figure_6[..], &[0; 24]].concat();
        assert_eq!(crc32c(&bytes).to_le_bytes(), [0x84, 0x92, 0x58, 0x98]);
    }
}

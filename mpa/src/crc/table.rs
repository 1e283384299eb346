//! CRC32C by table, eight bytes per step.

/// Polynomial of RFC 3720 section 12.1, reflected.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `TABLES[n][byte]`: contribution of `byte` when `n` more bytes follow it.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let previous = tables[n - 1][byte];
            tables[n][byte] = (previous >> 8) ^ tables[0][(previous & 0xFF) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// Adds `bytes` to the CRC register `state` and returns the new value.
pub(super) fn advance(mut state: u32, bytes: &[u8]) -> u32 {
    let (eights, rest) = bytes.as_chunks::<8>();
    for eight in eights {
        let [s0, s1, s2, s3] = state.to_le_bytes();
        let [o0, o1, o2, o3, o4, o5, o6, o7] = *eight;
        state = TABLES[7][usize::from(s0 ^ o0)]
            ^ TABLES[6][usize::from(s1 ^ o1)]
            ^ TABLES[5][usize::from(s2 ^ o2)]
            ^ TABLES[4][usize::from(s3 ^ o3)]
            ^ TABLES[3][usize::from(o4)]
            ^ TABLES[2][usize::from(o5)]
            ^ TABLES[1][usize::from(o6)]
            ^ TABLES[0][usize::from(o7)];
    }
    for &byte in rest {
        let [low, ..] = state.to_le_bytes();
        state = (state >> 8) ^ TABLES[0][usize::from(low ^ byte)];
    }
    state
}

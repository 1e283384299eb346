//! Message that tells the peer where it may read or write, in the format of rping.

use uwarp_verbs::MemoryRegion;

/// Length of an advert in bytes.
pub(crate) const ADVERT_LEN: usize = 16;

/// Address, key and length of memory that the peer may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Advert {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u32,
}

impl Advert {
    /// Describes a whole region. A length above `u32::MAX` is stated as `u32::MAX`.
    pub(crate) fn of(region: &MemoryRegion) -> Self {
        let remote = region.remote();
        let len = u32::try_from(remote.len).unwrap_or(u32::MAX);
        Advert {
            addr: remote.addr,
            rkey: remote.rkey,
            len,
        }
    }

    /// Serializes address, key and length, in this order and in network byte order.
    pub(crate) fn emit(&self) -> [u8; ADVERT_LEN] {
        let mut bytes = [0; ADVERT_LEN];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(crate) fn parse(bytes: [u8; ADVERT_LEN]) -> Self {
        let all = u128::from_be_bytes(bytes);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the fields are cut out of the whole"
        )]
        Advert {
            addr: (all >> 64) as u64,
            rkey: (all >> 32) as u32,
            len: all as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advert_is_16_bytes_in_network_order() {
        let advert = Advert {
            addr: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            len: 0x0d0e_0f10,
        };
        let bytes: Vec<u8> = (1..=16).collect();
        assert_eq!(advert.emit().as_slice(), bytes);
        assert_eq!(Advert::parse(advert.emit()), advert);
    }
}

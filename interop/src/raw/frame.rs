//! Frames, byte by byte: nothing here stops a frame from being wrong.

/// A frame of MPA startup (RFC 5044 section 7.1.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupFrame {
    /// `MPA ID Req Frame` or `MPA ID Rep Frame`.
    pub key: [u8; 16],
    /// M, C, R, and S of RFC 6581, from the highest bit on.
    pub flags: u8,
    /// Rev.
    pub revision: u8,
    /// Its length is `PD_Length`.
    pub private_data: Vec<u8>,
}

/// The key of an MPA Request.
pub const REQUEST: [u8; 16] = *b"MPA ID Req Frame";
/// The key of an MPA Reply.
pub const REPLY: [u8; 16] = *b"MPA ID Rep Frame";

/// M: Markers, please.
pub const M: u8 = 0x80;
/// C: CRC, please.
pub const C: u8 = 0x40;
/// R: rejected.
pub const R: u8 = 0x20;
/// S: private data begins with IRD and ORD (RFC 6581 section 6).
pub const S: u8 = 0x10;

impl StartupFrame {
    /// A frame with these fields.
    #[must_use]
    pub fn new(key: [u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Self {
        StartupFrame {
            key,
            flags,
            revision,
            private_data: private_data.to_vec(),
        }
    }

    /// A frame of revision 2 with IRD and ORD, and their bits A to D.
    #[must_use]
    pub fn enhanced(key: [u8; 16], flags: u8, ird: u16, ord: u16) -> Self {
        let depths = [ird.to_be_bytes(), ord.to_be_bytes()].concat();
        StartupFrame::new(key, flags | S, 2, &depths)
    }

    /// As it goes over the wire. Private data beyond what `PD_Length` can say is there nevertheless.
    #[must_use]
    pub fn octets(&self) -> Vec<u8> {
        let len = u16::try_from(self.private_data.len()).unwrap_or(u16::MAX);
        let mut octets = self.key.to_vec();
        octets.extend([self.flags, self.revision]);
        octets.extend(len.to_be_bytes());
        octets.extend(&self.private_data);
        octets
    }
}

/// The CRC field of an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crc {
    /// As RFC 5044 section 4.4 has it.
    Right,
    /// One bit is another.
    Wrong,
    /// Zero, for connections without CRC.
    Zero,
}

/// An FPDU without Markers around `ulpdu`.
///
/// # Panics
/// If the ULPDU is longer than an FPDU can hold.
#[must_use]
pub fn fpdu(ulpdu: &[u8], crc: Crc) -> Vec<u8> {
    let len = u16::try_from(ulpdu.len()).expect("a ULPDU has at most 65535 bytes");
    let mut octets = len.to_be_bytes().to_vec();
    octets.extend(ulpdu);
    octets.resize(octets.len().next_multiple_of(4), 0);
    octets.extend(match crc {
        Crc::Right => crc32c(&octets),
        Crc::Wrong => (u32::from_le_bytes(crc32c(&octets)) ^ 1).to_le_bytes(),
        Crc::Zero => [0; 4],
    });
    octets
}

/// CRC32C in its order on the wire. Bit by bit: slow, and not the one under test.
#[must_use]
pub fn crc32c(octets: &[u8]) -> [u8; 4] {
    let mut crc = !0_u32;
    for octet in octets {
        crc ^= u32::from(*octet);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0x82f6_3b78 };
        }
    }
    (!crc).to_le_bytes()
}

/// The header of an untagged segment: DDP (RFC 5041 section 4.3) with RDMAP's bytes in it.
#[derive(Clone, Copy, Debug)]
pub struct Untagged {
    /// T, L, and the DDP version.
    pub ddp: u8,
    /// RDMAP version and opcode.
    pub rdmap: u8,
    /// The STag that a Send with Invalidate names.
    pub invalidate: u32,
    /// Queue Number.
    pub qn: u32,
    /// Message Sequence Number.
    pub msn: u32,
    /// Message Offset.
    pub mo: u32,
}

/// The header of a tagged segment (RFC 5041 section 4.2).
#[derive(Clone, Copy, Debug)]
pub struct Tagged {
    /// T, L, and the DDP version.
    pub ddp: u8,
    /// RDMAP version and opcode.
    pub rdmap: u8,
    /// STag.
    pub stag: u32,
    /// Tagged Offset.
    pub to: u64,
}

/// The last segment of an untagged message, of DDP version 1.
pub const LAST: u8 = 0x41;
/// A segment of an untagged message that goes on.
pub const MORE: u8 = 0x01;
/// The last segment of a tagged message.
pub const TAGGED_LAST: u8 = 0xc1;
/// A segment of a tagged message that goes on.
pub const TAGGED_MORE: u8 = 0x81;

impl Untagged {
    /// A Send of one segment.
    #[must_use]
    pub fn send(msn: u32) -> Self {
        Untagged {
            ddp: LAST,
            rdmap: 0x43,
            invalidate: 0,
            qn: 0,
            msn,
            mo: 0,
        }
    }

    /// The ULPDU.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let mut octets = vec![self.ddp, self.rdmap];
        for field in [self.invalidate, self.qn, self.msn, self.mo] {
            octets.extend(field.to_be_bytes());
        }
        octets.extend(payload);
        octets
    }
}

impl Tagged {
    /// A Write of one segment.
    #[must_use]
    pub fn write(stag: u32, to: u64) -> Self {
        Tagged {
            ddp: TAGGED_LAST,
            rdmap: 0x40,
            stag,
            to,
        }
    }

    /// A Read Response of one segment.
    #[must_use]
    pub fn read_response(stag: u32, to: u64) -> Self {
        Tagged {
            rdmap: 0x42,
            ..Tagged::write(stag, to)
        }
    }

    /// The ULPDU.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let mut octets = vec![self.ddp, self.rdmap];
        octets.extend(self.stag.to_be_bytes());
        octets.extend(self.to.to_be_bytes());
        octets.extend(payload);
        octets
    }
}

/// A Read Request as the ULPDU (RFC 5040 section 4.4). The sink is `stag`, `to`.
#[must_use]
pub fn read_request(msn: u32, sink: (u32, u64), len: u32, source: (u32, u64)) -> Vec<u8> {
    let header = Untagged {
        rdmap: 0x41,
        qn: 1,
        ..Untagged::send(msn)
    };
    let mut fields = sink.0.to_be_bytes().to_vec();
    fields.extend(sink.1.to_be_bytes());
    fields.extend(len.to_be_bytes());
    fields.extend(source.0.to_be_bytes());
    fields.extend(source.1.to_be_bytes());
    header.with(&fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fpdu_and_the_crc_are_those_of_the_rfcs() {
        // The CRC is that of iSCSI: RFC 3720 section B.4.
        assert_eq!(crc32c(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(crc32c(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let octets = fpdu(&Tagged::write(0x0102_0304, 5).with(&[9]), Crc::Zero);
        assert_eq!(
            octets,
            [
                0, 15, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 9, 0, 0, 0, 0, 0, 0, 0
            ]
        );
    }

    #[test]
    fn a_startup_frame_says_its_length() {
        let octets = StartupFrame::enhanced(REQUEST, C, 4, 1).octets();
        assert_eq!(&octets[..16], b"MPA ID Req Frame");
        assert_eq!(octets[16..], [0x50, 2, 0, 4, 0, 4, 0, 1]);
    }
}

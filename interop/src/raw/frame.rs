//! Builders for frames, byte by byte. They do not prevent invalid frames.

/// A startup frame of MPA (RFC 5044 section 7.1.1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StartupFrame {
    /// `MPA ID Req Frame` or `MPA ID Rep Frame`.
    pub key: [u8; 16],
    /// Flags M, C, R and, with RFC 6581, S, from the highest bit down.
    pub flags: u8,
    /// Field Rev, the revision of the protocol.
    pub revision: u8,
    /// Private Data. Its length is the field PD_Length.
    pub private_data: Vec<u8>,
}

/// Key of an MPA Request.
pub const REQUEST: [u8; 16] = *b"MPA ID Req Frame";
/// Key of an MPA Reply.
pub const REPLY: [u8; 16] = *b"MPA ID Rep Frame";

/// Flag M: the sender wants Markers.
pub const M: u8 = 0x80;
/// Flag C: the sender wants CRCs.
pub const C: u8 = 0x40;
/// Flag R: the sender rejects the connection.
pub const R: u8 = 0x20;
/// Flag S: the Private Data begins with IRD and ORD (RFC 6581 section 6).
pub const S: u8 = 0x10;

impl StartupFrame {
    /// Creates a frame with these fields.
    #[must_use]
    pub fn new(key: [u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Self {
        StartupFrame {
            key,
            flags,
            revision,
            private_data: private_data.to_vec(),
        }
    }

    /// Creates a frame of revision 2 with IRD and ORD, both including their flags A to D.
    #[must_use]
    pub fn enhanced(key: [u8; 16], flags: u8, ird: u16, ord: u16) -> Self {
        let depths = [ird.to_be_bytes(), ord.to_be_bytes()].concat();
        StartupFrame::new(key, flags | S, 2, &depths)
    }

    /// Returns the bytes of the frame. Private Data is written whole, even if PD_Length cannot
    /// express its length.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let len = u16::try_from(self.private_data.len()).unwrap_or(u16::MAX);
        let mut bytes = self.key.to_vec();
        bytes.extend([self.flags, self.revision]);
        bytes.extend(len.to_be_bytes());
        bytes.extend(&self.private_data);
        bytes
    }
}

/// Content of the CRC field of an FPDU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crc {
    /// Correct CRC (RFC 5044 section 4.4).
    Right,
    /// Correct CRC with one bit inverted.
    Wrong,
    /// Zero, for connections without CRC.
    Zero,
}

/// Builds an FPDU without Markers around `ulpdu`.
///
/// # Panics
/// If the ULPDU is longer than 65535 bytes.
#[must_use]
pub fn fpdu(ulpdu: &[u8], crc: Crc) -> Vec<u8> {
    let len = u16::try_from(ulpdu.len()).expect("a ULPDU has at most 65535 bytes");
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend(ulpdu);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(match crc {
        Crc::Right => crc32c(&bytes),
        Crc::Wrong => (u32::from_le_bytes(crc32c(&bytes)) ^ 1).to_le_bytes(),
        Crc::Zero => [0; 4],
    });
    bytes
}

/// Computes the CRC32C in its byte order on the wire. It works bit by bit, which is slow but
/// independent of the code under test.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0x82f6_3b78 };
        }
    }
    (!crc).to_le_bytes()
}

/// Header of an untagged segment: DDP (RFC 5041 section 4.3), with RDMAP's control byte and STag.
#[derive(Clone, Copy, Debug)]
pub struct Untagged {
    /// DDP control: flags T and L, and the DDP version.
    pub ddp: u8,
    /// RDMAP control: version and opcode.
    pub rdmap: u8,
    /// STag that a Send with Invalidate invalidates.
    pub invalidate: u32,
    /// Queue Number.
    pub qn: u32,
    /// Message Sequence Number.
    pub msn: u32,
    /// Message Offset.
    pub mo: u32,
}

/// Header of a tagged segment (RFC 5041 section 4.2).
#[derive(Clone, Copy, Debug)]
pub struct Tagged {
    /// DDP control: flags T and L, and the DDP version.
    pub ddp: u8,
    /// RDMAP control: version and opcode.
    pub rdmap: u8,
    /// STag.
    pub stag: u32,
    /// Tagged Offset.
    pub to: u64,
}

/// DDP control byte of the last segment of an untagged message.
pub const LAST: u8 = 0x41;
/// DDP control byte of the other segments of an untagged message.
pub const MORE: u8 = 0x01;
/// DDP control byte of the last segment of a tagged message.
pub const TAGGED_LAST: u8 = 0xc1;
/// DDP control byte of the other segments of a tagged message.
pub const TAGGED_MORE: u8 = 0x81;

impl Untagged {
    /// Creates the header of a Send that has one segment.
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

    /// Returns the ULPDU with this header and payload.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![self.ddp, self.rdmap];
        for field in [self.invalidate, self.qn, self.msn, self.mo] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(payload);
        bytes
    }
}

impl Tagged {
    /// Creates the header of a Write that has one segment.
    #[must_use]
    pub fn write(stag: u32, to: u64) -> Self {
        Tagged {
            ddp: TAGGED_LAST,
            rdmap: 0x40,
            stag,
            to,
        }
    }

    /// Creates the header of a Read Response that has one segment.
    #[must_use]
    pub fn read_response(stag: u32, to: u64) -> Self {
        Tagged {
            rdmap: 0x42,
            ..Tagged::write(stag, to)
        }
    }

    /// Returns the ULPDU with this header and payload.
    #[must_use]
    pub fn with(&self, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![self.ddp, self.rdmap];
        bytes.extend(self.stag.to_be_bytes());
        bytes.extend(self.to.to_be_bytes());
        bytes.extend(payload);
        bytes
    }
}

/// Builds the ULPDU of a Read Request (RFC 5040 section 4.4). `sink` and `source` are pairs of STag
/// and TO.
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
        let bytes = fpdu(&Tagged::write(0x0102_0304, 5).with(&[9]), Crc::Zero);
        assert_eq!(
            bytes,
            [
                0, 15, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5, 9, 0, 0, 0, 0, 0, 0, 0
            ]
        );
    }

    #[test]
    fn a_startup_frame_says_its_length() {
        let bytes = StartupFrame::enhanced(REQUEST, C, 4, 1).bytes();
        assert_eq!(&bytes[..16], b"MPA ID Req Frame");
        assert_eq!(bytes[16..], [0x50, 2, 0, 4, 0, 4, 0, 1]);
    }
}

//! The MPA Request and Reply Frames: parser and writer (RFC 5044 section 7.1.1, RFC 6581 sections 6
//! and 9).

use alloc::vec::Vec;

use super::error::{ConfigError, FirstBytes, StartupError, check_depth};
use super::negotiated::Role;
use super::options::{Model, NO_AUTO, RtrKinds};
use crate::mutants::mutate;

/// Maximum length in bytes of the Private Data of a frame, enhanced connection data included. A
/// receiver buffers a frame until it is complete, so it has room for all Private Data
/// (5044-7.1.2-19).
pub const MAX_PRIVATE_DATA: usize = 512;

/// Length in bytes of the part before the Private Data.
pub(super) const FIXED: usize = 20;
/// Length in bytes of the enhanced connection data at the start of the Private Data.
const ENHANCED: usize = 4;

const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

const FLAG_MARKERS: u8 = 0x80;
const FLAG_CRC: u8 = 0x40;
const FLAG_REJECTED: u8 = 0x20;
const FLAG_ENHANCED: u8 = 0x10;

const PEER_TO_PEER: u16 = 0x8000;
const RTR_SEND: u16 = 0x4000;
const RTR_WRITE: u16 = 0x8000;
const RTR_READ: u16 = 0x4000;

/// Kind of a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Sent by the initiator.
    Request,
    /// Sent by the responder.
    Reply,
}

impl FrameKind {
    const fn key(self) -> [u8; 16] {
        match self {
            Self::Request => REQUEST_KEY,
            Self::Reply => REPLY_KEY,
        }
    }

    /// Returns the key to send.
    fn key_sent(self) -> [u8; 16] {
        match self {
            Self::Request => mutate!(REQUEST_KEY, RequestKeyWrong => REPLY_KEY),
            Self::Reply => mutate!(REPLY_KEY, ReplyKeyWrong => REQUEST_KEY),
        }
    }

    /// Returns the role that sends this frame.
    pub(super) const fn sender(self) -> Role {
        match self {
            Self::Request => Role::Initiator,
            Self::Reply => Role::Responder,
        }
    }
}

/// Enhanced connection data (RFC 6581 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Enhanced {
    /// The connection model (flags A to D).
    pub model: Model,
    /// Depth of the sender's inbound RDMA Read queue; [`NO_AUTO`] if it is not negotiated.
    pub ird: u16,
    /// Depth of the sender's outbound RDMA Read queue; [`NO_AUTO`] if it is not negotiated.
    pub ord: u16,
}

impl Enhanced {
    fn parse(bytes: [u8; ENHANCED]) -> Self {
        let [a, b, c, d] = bytes;
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        let model = if first & PEER_TO_PEER != 0 {
            Model::PeerToPeer(RtrKinds {
                send: first & RTR_SEND != 0,
                write: second & RTR_WRITE != 0,
                read: second & RTR_READ != 0,
            })
        } else {
            Model::ClientServer // 6581-9.2-14
        };
        Self {
            model,
            ird: first & NO_AUTO,
            ord: second & NO_AUTO,
        }
    }

    fn emit(&self) -> [u8; ENHANCED] {
        let (mut first, mut second) =
            mutate!((self.ird, self.ord), DepthsSwapped => (self.ord, self.ird));
        if let Model::PeerToPeer(kinds) = self.model {
            first |= PEER_TO_PEER;
            if kinds.send {
                first |= RTR_SEND;
            }
            if kinds.write {
                second |= RTR_WRITE;
            }
            if kinds.read {
                second |= RTR_READ;
            }
        }
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// A startup frame, without its reserved bits, which are ignored (5044-7.1.1-10, -11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartupFrame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: true if the sender wants to receive Markers.
    pub markers: bool,
    /// C: true if the sender wants CRCs.
    pub crc: bool,
    /// R: true if the sender rejects the connection. It has no meaning in a Request.
    pub rejected: bool,
    /// Value of the Rev field, which may be any number.
    pub revision: u8,
    /// Enhanced connection data; present if S is set.
    pub enhanced: Option<Enhanced>,
    /// The ULP's Private Data.
    pub private_data: Vec<u8>,
}

/// Result of [`StartupFrame::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The frame is incomplete. It has at least this many bytes.
    Need(usize),
    /// A complete frame, and its length in bytes.
    Frame(StartupFrame, usize),
}

impl StartupFrame {
    /// Parses a frame of the given kind at the start of `bytes`.
    ///
    /// Bytes that cannot be the start of such a frame are refused at the first wrong byte, even if
    /// the frame is incomplete. The Rev field is not checked here, but S is ignored below revision
    /// 2.
    ///
    /// # Errors
    /// The bytes are not the start of such a frame.
    pub fn parse(kind: FrameKind, bytes: &[u8]) -> Result<Parsed, StartupError> {
        check_key(kind, bytes)?;
        let Some((fixed, rest)) = bytes.split_first_chunk::<FIXED>() else {
            return Ok(Parsed::Need(FIXED));
        };
        let [.., flags, revision, high, low] = *fixed;
        let len = u16::from_be_bytes([high, low]);
        let data_len = usize::from(len);
        if mutate!(data_len > MAX_PRIVATE_DATA, PdLengthNotChecked => false)
            || mutate!(false, StartupReservedChecked => flags & 0x0F != 0)
            || mutate!(false, RequestRejectedBitChecked => flags & FLAG_REJECTED != 0)
        {
            return Err(StartupError::PrivateDataTooLong { len });
        }
        // In revision 1 this bit is reserved and ignored.
        let is_enhanced = revision >= 2 && flags & FLAG_ENHANCED != 0;
        if is_enhanced && data_len < ENHANCED {
            return Err(StartupError::EnhancedDataMissing { len });
        }
        let Some(mut data) = rest.get(..data_len) else {
            return Ok(Parsed::Need(FIXED + data_len));
        };
        let mut enhanced = None;
        if is_enhanced && let Some((words, ulp)) = data.split_first_chunk::<ENHANCED>() {
            enhanced = Some(Enhanced::parse(*words));
            data = ulp;
        }
        let frame = Self {
            kind,
            markers: flags & FLAG_MARKERS != 0,
            crc: flags & FLAG_CRC != 0,
            rejected: flags & FLAG_REJECTED != 0,
            revision,
            enhanced,
            private_data: data.to_vec(),
        };
        Ok(Parsed::Frame(frame, FIXED + data_len))
    }

    /// Returns the bytes of the frame.
    ///
    /// # Errors
    /// The frame cannot be written: too much Private Data, an IRD or ORD above 14 bits, or enhanced
    /// connection data below revision 2.
    pub fn emit(&self) -> Result<Vec<u8>, ConfigError> {
        let reserved = if self.enhanced.is_some() { ENHANCED } else { 0 };
        let private_data = self.private_data.as_slice();
        let private_data =
            mutate!(private_data, PrivateDataCut => &private_data[..private_data.len().min(256)]);
        let (len, max) = (private_data.len(), MAX_PRIVATE_DATA - reserved);
        let pd_length = match u16::try_from(len + reserved) {
            Ok(pd_length) if len <= max => pd_length,
            _ => return Err(ConfigError::PrivateDataTooLong { len, max }),
        };
        if let Some(enhanced) = &self.enhanced {
            if self.revision < 2 {
                return Err(ConfigError::EnhancedNeedsRevisionTwo {
                    revision: self.revision,
                });
            }
            check_depth(enhanced.ird)?;
            check_depth(enhanced.ord)?;
        }
        let flags = [
            (self.markers, FLAG_MARKERS),
            (self.crc, FLAG_CRC),
            (self.rejected, FLAG_REJECTED),
            (self.enhanced.is_some(), FLAG_ENHANCED),
        ];
        let flags = flags
            .iter()
            .filter(|(set, _)| *set)
            .fold(0, |all, (_, flag)| all | flag);
        let mut bytes = Vec::with_capacity(FIXED + usize::from(pd_length));
        bytes.extend_from_slice(&self.kind.key_sent());
        bytes.extend_from_slice(&[flags | mutate!(0, StartupReservedSet => 1), self.revision]);
        let pd_length = mutate!(pd_length, PdLengthShort => pd_length - u16::from(len > 0));
        bytes.extend_from_slice(&pd_length.to_be_bytes());
        if let Some(enhanced) = &self.enhanced {
            bytes.extend_from_slice(&enhanced.emit());
        }
        bytes.extend_from_slice(private_data);
        Ok(bytes)
    }
}

/// Checks the received part of the key.
fn check_key(kind: FrameKind, bytes: &[u8]) -> Result<(), StartupError> {
    let differs = |key: [u8; 16]| key.iter().zip(bytes).position(|(k, o)| k != o);
    let Some(at) = mutate!(differs(kind.key()), KeyNotChecked => None) else {
        return Ok(());
    };
    let (other, error) = match kind {
        FrameKind::Reply => (REQUEST_KEY, StartupError::RequestInsteadOfReply),
        FrameKind::Request => (REPLY_KEY, StartupError::ReplyInsteadOfRequest),
    };
    // The two keys differ in one letter. If the bytes match the other key up to this letter, the
    // peer is sending the other kind of frame (5044-7.1.2-17).
    if bytes.starts_with(&other[..=at]) {
        return Err(error);
    }
    let peer = kind.sender();
    Err(StartupError::NotMpa {
        first: FirstBytes::of(bytes, &[]),
        peer,
    })
}

#[cfg(test)]
mod tests;

//! Meaning of a startup frame (RFC 5044 section 7.1, RFC 6581 sections 6 and 9), read at fixed
//! offsets.

/// Value of IRD or ORD that means "no automatic negotiation". It is also the mask of the 14 bits of
/// these fields.
pub const NO_AUTO: u16 = 0x3FFF;

const KEYS: [&[u8; 16]; 2] = [b"MPA ID Req Frame", b"MPA ID Rep Frame"];

/// Configuration of the side that receives the frame. A responder uses only `highest`.
#[derive(Clone, Copy, Debug)]
pub struct Side {
    /// True for an initiator, which waits for a Reply. False for a responder, which waits for a
    /// Request.
    pub initiator: bool,
    /// Highest revision that the side accepts.
    pub highest: u8,
    /// True if the side's own Request had enhanced connection data.
    pub enhanced: bool,
    /// True if the side wants CRCs.
    pub crc: bool,
    /// True if the side wants Markers.
    pub markers: bool,
    /// IRD of the side.
    pub ird: u16,
    /// ORD of the side.
    pub ord: u16,
    /// Upper limit of `ird`.
    pub max_ird: u16,
    /// RTR kinds (Send, Write, Read) that the side can send; `None` in the client-server model.
    pub rtr: Option<[bool; 3]>,
}

/// IRD, ORD and, in the peer-to-peer model, the RTR kinds.
pub type Depths = (u16, u16, Option<[bool; 3]>);

/// Fields of a startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Flag M: the sender of the frame wants Markers.
    pub markers: bool,
    /// Flag C: the sender of the frame wants CRCs.
    pub crc: bool,
    /// Field Rev, the revision of the protocol.
    pub revision: u8,
    /// Enhanced connection data. Present if flag S is set.
    pub enhanced: Option<Depths>,
    /// Private Data, without the enhanced connection data.
    pub private_data: Vec<u8>,
}

/// Reason for a failed startup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of errors")]
pub enum Trouble {
    NotMpa,
    OtherFrame,
    Revision,
    TooLong,
    NoRoomForEnhanced,
    EnhancedMismatch,
}

/// Result of receiving a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of parameters")]
pub enum Verdict {
    Incomplete,
    Wrong(Trouble),
    Asked(Frame),
    Rejected {
        ord_needed: Option<u16>,
        private_data: Vec<u8>,
    },
    /// The sides cannot agree. Holds the MPA error code.
    Impossible(u8),
    Accepted {
        crc: bool,
        tx_markers: bool,
        rx_markers: bool,
        ird: u16,
        ord: u16,
        /// RTR kind: 0 is Send, 1 is Write, 2 is Read.
        rtr: Option<usize>,
        private_data: Vec<u8>,
    },
}

/// Returns the length of the frame at the start of `bytes`, and the length of its Private Data.
/// Returns `None` if the length field is not complete.
#[must_use]
pub fn needed(bytes: &[u8]) -> Option<(usize, usize)> {
    let data = usize::from(*bytes.get(18)?) << 8 | usize::from(*bytes.get(19)?);
    Some((20 + data, data))
}

/// Returns how `side` must react to `bytes`.
#[must_use]
pub fn judge(side: &Side, bytes: &[u8]) -> Verdict {
    let frame = match read(side, bytes) {
        Ok(Some(frame)) => frame,
        Ok(None) => return Verdict::Incomplete,
        Err(trouble) => return Verdict::Wrong(trouble),
    };
    if !side.initiator {
        return Verdict::Asked(frame);
    }
    if bytes[16] & 0x20 != 0 {
        let ord = frame.enhanced.map(|(_, ord, _)| ord);
        return Verdict::Rejected {
            ord_needed: ord.filter(|ord| *ord < NO_AUTO && *ord > side.ird),
            private_data: frame.private_data,
        };
    }
    if frame.enhanced.is_some() != side.enhanced {
        return Verdict::Wrong(Trouble::EnhancedMismatch);
    }
    let mut ird = if side.ird == NO_AUTO {
        side.max_ird
    } else {
        side.ird
    };
    let mut ord = side.ord;
    let mut rtr = None;
    if let Some((their_ird, their_ord, their_rtr)) = frame.enhanced {
        if their_ird != NO_AUTO && their_ird < ord {
            ord = their_ird;
        }
        if their_ord != NO_AUTO && their_ord > ird {
            if their_ord > side.max_ird {
                return Verdict::Impossible(6);
            }
            ird = their_ord;
        }
        match agreed_rtr(side, their_rtr, their_ird) {
            Ok(kind) => rtr = kind,
            Err(code) => return Verdict::Impossible(code),
        }
        if rtr == Some(2) && ord == 0 {
            ord = 1;
        }
    }
    Verdict::Accepted {
        crc: side.crc || frame.crc,
        tx_markers: frame.markers,
        rx_markers: side.markers,
        ird,
        ord,
        rtr,
        private_data: frame.private_data,
    }
}

/// Selects the kind of the RTR indication, if there is one. Returns the MPA error code if the sides
/// cannot agree.
fn agreed_rtr(
    side: &Side,
    their_rtr: Option<[bool; 3]>,
    their_ird: u16,
) -> Result<Option<usize>, u8> {
    match (side.rtr, their_rtr) {
        (None, None) => Ok(None),
        (Some(ours), Some(theirs)) => {
            // A Write is preferred because it costs least. A Read is the second choice, and needs
            // an IRD above 0.
            let usable = |kind: usize| ours[kind] && theirs[kind] && (kind != 2 || their_ird > 0);
            let kind = [1, 2, 0].into_iter().find(|kind| usable(*kind));
            kind.map(Some).ok_or(7)
        }
        _ => Err(7),
    }
}

fn read(side: &Side, bytes: &[u8]) -> Result<Option<Frame>, Trouble> {
    let start = &bytes[..bytes.len().min(16)];
    let (right, other) = if side.initiator {
        (KEYS[1], KEYS[0])
    } else {
        (KEYS[0], KEYS[1])
    };
    if !right.starts_with(start) {
        // The keys differ only at index 9. A peer whose first ten bytes match the other key has
        // sent the other frame.
        let ninth = bytes.get(..10).is_some_and(|first| first == &other[..10]);
        return Err(if ninth {
            Trouble::OtherFrame
        } else {
            Trouble::NotMpa
        });
    }
    let Some(&revision) = bytes.get(17) else {
        return Ok(None);
    };
    if revision < 1 || revision > side.highest {
        return Err(Trouble::Revision);
    }
    let Some((len, data)) = needed(bytes) else {
        return Ok(None);
    };
    let enhanced = revision == 2 && bytes[16] & 0x10 != 0;
    if data > 512 {
        return Err(Trouble::TooLong);
    }
    if enhanced && data < 4 {
        return Err(Trouble::NoRoomForEnhanced);
    }
    let Some(frame) = bytes.get(..len) else {
        return Ok(None);
    };
    let depths = enhanced.then(|| {
        let ird = u16::from_be_bytes([frame[20], frame[21]]);
        let ord = u16::from_be_bytes([frame[22], frame[23]]);
        let rtr = [ird & 0x4000 != 0, ord & 0x8000 != 0, ord & 0x4000 != 0];
        (
            ird & NO_AUTO,
            ord & NO_AUTO,
            (ird & 0x8000 != 0).then_some(rtr),
        )
    });
    Ok(Some(Frame {
        markers: frame[16] & 0x80 != 0,
        crc: frame[16] & 0x40 != 0,
        revision,
        enhanced: depths,
        private_data: frame[if enhanced { 24 } else { 20 }..].to_vec(),
    }))
}

//! Segments that the suite sends. A function for each kind of message builds a correct segment.
//! Methods then change single fields to invalid values.

use std::fmt;

use super::value::{Data, Msn, Stag, To};
use crate::wire::fpdu::{CrcField, FpduForm, MarkerForm};
use crate::wire::segment::opcode;
use crate::words::many;

/// Address fields of a segment, for the tagged or the untagged layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Addressing {
    Tagged {
        stag: Stag,
        to: To,
    },
    Untagged {
        invalidate: Stag,
        qn: u32,
        msn: Msn,
        mo: u32,
    },
}

/// A DDP Segment to send in one FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutSegment {
    /// Value of T on the wire. The layout of the header depends on `addressing`, not on this flag.
    pub(crate) t: bool,
    pub(crate) last: bool,
    pub(crate) ddp_reserved: u8,
    pub(crate) ddp_version: u8,
    pub(crate) rdmap_version: u8,
    pub(crate) rdmap_reserved: u8,
    pub(crate) opcode: u8,
    pub(crate) addressing: Addressing,
    pub(crate) data: Data,
    /// Truncates the ULPDU to this many bytes.
    pub(crate) cut: Option<usize>,
    /// Number of zero bytes appended to the data.
    pub(crate) extra: usize,
    pub(crate) form: FpduForm,
}

fn tagged(opcode: u8, stag: Stag, to: To, data: Data) -> OutSegment {
    out(opcode, true, Addressing::Tagged { stag, to }, data)
}

fn untagged(opcode: u8, qn: u32, data: Data) -> OutSegment {
    let addressing = Addressing::Untagged {
        invalidate: Stag::Is(0),
        qn,
        msn: Msn::Next,
        mo: 0,
    };
    out(opcode, false, addressing, data)
}

fn out(opcode: u8, t: bool, addressing: Addressing, data: Data) -> OutSegment {
    OutSegment {
        t,
        last: true,
        ddp_reserved: 0,
        ddp_version: 1,
        rdmap_version: 1,
        rdmap_reserved: 0,
        opcode,
        addressing,
        data,
        cut: None,
        extra: 0,
        form: FpduForm::default(),
    }
}

/// Builds an RDMA Write of one segment.
pub(crate) fn write(stag: Stag, to: To, data: impl Into<Data>) -> OutSegment {
    tagged(opcode::WRITE, stag, to, data.into())
}

/// Builds an RDMA Read Response of one segment.
pub(crate) fn read_response(stag: Stag, to: To, data: impl Into<Data>) -> OutSegment {
    tagged(opcode::READ_RESPONSE, stag, to, data.into())
}

/// Builds the correct Read Response, in one segment, to the target's Read Request with the number
/// `read`, counted from 0.
pub(crate) fn answer_read(read: usize, data: impl Into<Data>) -> OutSegment {
    read_response(Stag::Sink(read), To::Sink(read, 0), data)
}

/// Builds a Send of one segment.
pub(crate) fn send(data: impl Into<Data>) -> OutSegment {
    untagged(opcode::SEND, 0, data.into())
}

/// Builds a Send with SE.
pub(crate) fn send_se(data: impl Into<Data>) -> OutSegment {
    untagged(opcode::SEND_SE, 0, data.into())
}

/// Builds a Send with Invalidate.
pub(crate) fn send_invalidate(stag: Stag, data: impl Into<Data>) -> OutSegment {
    untagged(opcode::SEND_INVALIDATE, 0, data.into()).invalidate(stag)
}

/// Builds a Send with SE and Invalidate.
pub(crate) fn send_se_invalidate(stag: Stag, data: impl Into<Data>) -> OutSegment {
    untagged(opcode::SEND_SE_INVALIDATE, 0, data.into()).invalidate(stag)
}

/// SinkSTag of the suite's Read Requests.
pub(crate) const SINK_STAG: u32 = 0x5157_1a00;
/// SinkTO of the suite's Read Requests.
pub(crate) const SINK_TO: u64 = 0x1234_5678_9abc_0000;

/// Builds a Read Request with the sink [`SINK_STAG`] and [`SINK_TO`].
pub(crate) fn read_request(stag: Stag, to: To, size: u32) -> OutSegment {
    read_request_to(Stag::Is(SINK_STAG), To::Is(SINK_TO), stag, to, size)
}

/// Builds a Read Request with this sink.
pub(crate) fn read_request_to(
    sink_stag: Stag,
    sink_to: To,
    src_stag: Stag,
    src_to: To,
    size: u32,
) -> OutSegment {
    let data = Data::ReadRequest {
        sink_stag,
        sink_to,
        size,
        src_stag,
        src_to,
    };
    untagged(opcode::READ_REQUEST, 1, data)
}

/// Builds a Terminate with these bytes as its payload.
pub(crate) fn terminate(bytes: impl Into<Data>) -> OutSegment {
    untagged(opcode::TERMINATE, 2, bytes.into())
}

/// Builds Immediate Data (RFC 7306).
pub(crate) fn immediate(bytes: impl Into<Data>) -> OutSegment {
    untagged(opcode::IMMEDIATE, 0, bytes.into())
}

/// Builds Immediate Data with SE.
pub(crate) fn immediate_se(bytes: impl Into<Data>) -> OutSegment {
    untagged(opcode::IMMEDIATE_SE, 0, bytes.into())
}

/// Builds an Atomic Request (RFC 7306 section 5.2.1). Its header is a [`Data::Atomic`].
pub(crate) fn atomic(header: Data) -> OutSegment {
    untagged(opcode::ATOMIC_REQUEST, 1, header)
}

/// Builds a FetchAdd with Request Identifier `id`.
pub(crate) fn fetch_add(id: u32, stag: Stag, to: To, add: u64, mask: u64) -> OutSegment {
    atomic(Data::Atomic {
        opcode: 0,
        id,
        stag,
        to,
        data: add,
        mask,
        compare: 0,
        compare_mask: u64::MAX,
    })
}

/// Builds a CmpSwap without masks, with Request Identifier `id`.
pub(crate) fn compare_swap(id: u32, stag: Stag, to: To, compare: u64, swap: u64) -> OutSegment {
    atomic(Data::Atomic {
        opcode: 2,
        id,
        stag,
        to,
        data: swap,
        mask: u64::MAX,
        compare,
        compare_mask: u64::MAX,
    })
}

/// Builds the correct Atomic Response to the target's Atomic Request with the number `request`,
/// counted from 0.
pub(crate) fn answer_atomic(request: usize, value: u64) -> OutSegment {
    untagged(
        opcode::ATOMIC_RESPONSE,
        3,
        Data::AtomicResponse {
            request,
            flip: 0,
            value,
        },
    )
}

impl OutSegment {
    /// Clears L, because more segments of this message follow.
    pub(crate) fn more(mut self) -> Self {
        self.last = false;
        self
    }

    /// Sets the 4 reserved bits of DDP Control.
    pub(crate) fn ddp_reserved(mut self, bits: u8) -> Self {
        self.ddp_reserved = bits;
        self
    }

    pub(crate) fn ddp_version(mut self, version: u8) -> Self {
        self.ddp_version = version;
        self
    }

    pub(crate) fn rdmap_version(mut self, version: u8) -> Self {
        self.rdmap_version = version;
        self
    }

    /// Sets the 2 reserved bits of RDMAP Control.
    pub(crate) fn rdmap_reserved(mut self, bits: u8) -> Self {
        self.rdmap_reserved = bits;
        self
    }

    pub(crate) fn opcode(mut self, opcode: u8) -> Self {
        self.opcode = opcode;
        self
    }

    /// Sets the Invalidate STag field.
    pub(crate) fn invalidate(mut self, stag: Stag) -> Self {
        if let Addressing::Untagged { invalidate, .. } = &mut self.addressing {
            *invalidate = stag;
        }
        self
    }

    pub(crate) fn qn(mut self, value: u32) -> Self {
        if let Addressing::Untagged { qn, .. } = &mut self.addressing {
            *qn = value;
        }
        self
    }

    pub(crate) fn msn(mut self, value: Msn) -> Self {
        if let Addressing::Untagged { msn, .. } = &mut self.addressing {
            *msn = value;
        }
        self
    }

    pub(crate) fn mo(mut self, value: u32) -> Self {
        if let Addressing::Untagged { mo, .. } = &mut self.addressing {
            *mo = value;
        }
        self
    }

    /// Replaces the bytes after the DDP Header.
    pub(crate) fn payload(mut self, data: impl Into<Data>) -> Self {
        self.data = data.into();
        self
    }

    /// Truncates the ULPDU to its first `len` bytes.
    pub(crate) fn cut(mut self, len: usize) -> Self {
        self.cut = Some(len);
        self
    }

    /// Appends `len` surplus zero bytes to the ULPDU.
    pub(crate) fn extra(mut self, len: usize) -> Self {
        self.extra = len;
        self
    }

    pub(crate) fn crc(mut self, crc: CrcField) -> Self {
        self.form.crc = crc;
        self
    }

    /// Sets the value of the PAD bytes.
    pub(crate) fn pad(mut self, byte: u8) -> Self {
        self.form.pad = byte;
        self
    }

    pub(crate) fn marker(mut self, marker: MarkerForm) -> Self {
        self.form.marker = marker;
        self
    }
}

impl fmt::Display for OutSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", opcode::name(self.opcode))?;
        match &self.addressing {
            Addressing::Tagged { stag, to } => write!(f, " to {to}, {stag}")?,
            Addressing::Untagged { qn, msn, mo, .. } => {
                write!(f, " on QN {qn}")?;
                match msn {
                    Msn::Next => {}
                    Msn::Off(off) => write!(f, ", MSN {off:+} from the expected one")?,
                    Msn::Is(msn) => write!(f, ", MSN {msn}")?,
                }
                if *mo != 0 {
                    write!(f, ", MO {mo}")?;
                }
            }
        }
        write!(f, ", {}", self.data)?;
        if self.extra != 0 {
            write!(f, " and {} more", self.extra)?;
        }
        if let Some(len) = self.cut {
            write!(f, ", cut to a ULPDU of {len}", len = many(len, "byte"))?;
        }
        if !self.last {
            write!(f, ", L=0")?;
        }
        if self.form != FpduForm::default() {
            write!(f, ", in a malformed FPDU")?;
        }
        Ok(())
    }
}

//! Splits a frame into its fields: position, name and value.

use uwarp_ddp::Header;
use uwarp_rdmap::READ_REQUEST_HEADER;

use super::frame::{Content, Frame};
use super::segment::Segment;
use super::startup::{ENHANCED, Startup};
use crate::fpdu::{MARKER_INTERVAL, MARKER_LEN};

/// A field in the bytes of a [`Frame`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name of the field in the RFC.
    pub name: &'static str,
    /// Offset of the field in [`Frame::bytes`].
    pub at: usize,
    /// Bytes of the field, without the Markers inside it.
    pub bytes: Vec<u8>,
    /// Meaning of the bytes.
    pub value: Value,
}

/// Meaning of the bytes of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A quantity.
    Number(u64),
    /// A number that identifies something, such as an STag.
    Name(u64),
    /// Names of flags, or the explanation of a code.
    Words(String),
    /// Bytes without further meaning: payload, padding or a checksum.
    Bytes,
}

impl Frame {
    /// Returns the fields of the frame in the order in which they begin. A Marker inside a field
    /// follows that field. Bytes that do not form a whole frame are one field.
    pub fn fields(&self) -> Vec<Field> {
        let (framing, position) = match self.framing {
            Some((framing, position)) => (framing.markers, position),
            None => (false, 0),
        };
        let mut cursor = Cursor {
            bytes: &self.bytes,
            at: 0,
            markers: framing.then_some(position),
            fields: Vec::new(),
        };
        match &self.content {
            Content::Startup(startup) => cursor.startup(startup),
            Content::Fpdu { ulpdu, segment } => cursor.fpdu(*ulpdu, segment.as_ref()),
            Content::Bytes | Content::Event(_) => None,
        };
        cursor.markers = None;
        let rest = self.bytes.len().saturating_sub(cursor.at);
        if rest > 0 {
            cursor.take(rest, "bytes");
        }
        cursor.fields.sort_by_key(|field| field.at);
        cursor.fields
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Offset of the frame in Full Operation, if its direction has Markers.
    markers: Option<u64>,
    fields: Vec<Field>,
}

impl Cursor<'_> {
    /// Reads the next bytes as a field. Markers before and inside the field become fields of their
    /// own. Returns `None` if there are too few bytes.
    fn take(&mut self, len: usize, name: &'static str) -> Option<Vec<u8>> {
        self.marker();
        let at = self.at;
        let mut taken = Vec::with_capacity(len);
        while taken.len() < len {
            self.marker();
            let count = (len - taken.len()).min(self.to_marker());
            taken.extend_from_slice(self.bytes.get(self.at..self.at + count)?);
            self.at += count;
        }
        self.fields.push(Field {
            name,
            at,
            bytes: taken.clone(),
            value: Value::Bytes,
        });
        Some(taken)
    }

    /// Returns the number of bytes up to the next Marker.
    fn to_marker(&self) -> usize {
        self.markers.map_or(usize::MAX, |base| {
            (MARKER_INTERVAL - (base + self.at as u64) % MARKER_INTERVAL) as usize
        })
    }

    fn marker(&mut self) {
        let is_due = self.to_marker() == MARKER_INTERVAL as usize;
        if is_due
            && let Some(bytes) = self.bytes.get(self.at..self.at + MARKER_LEN)
            && let [_, _, high, low] = bytes
        {
            self.fields.push(Field {
                name: "Marker",
                at: self.at,
                bytes: bytes.to_vec(),
                value: Value::Words(format!("FPDUPTR {}", u16::from_be_bytes([*high, *low]))),
            });
            self.at += MARKER_LEN;
        }
    }

    fn describe(&mut self, words: impl Into<String>) -> Option<()> {
        self.fields.last_mut()?.value = Value::Words(words.into());
        Some(())
    }

    /// Reads a field of up to 8 bytes as a number.
    fn number(&mut self, len: usize, name: &'static str) -> Option<()> {
        let bytes = self.take(len, name)?;
        let number = bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.fields.last_mut()?.value = match name {
            "ULPDU_Length" | "PD_Length" | "Rev" | "QN" | "MSN" | "MO" | "RDMARDSZ"
            | "DDP Segment Length" => Value::Number(number),
            _ => Value::Name(number),
        };
        Some(())
    }

    fn bytes(&mut self, len: usize, name: &'static str) -> Option<()> {
        if len > 0 {
            self.take(len, name)?;
        }
        Some(())
    }

    fn startup(&mut self, startup: &Startup) -> Option<()> {
        let key = self.take(16, "Key")?;
        self.describe(String::from_utf8_lossy(&key))?;
        self.take(1, "M C R S Res")?;
        let flags = [
            (startup.markers(), "M"),
            (startup.crc(), "C"),
            (startup.rejected(), "R"),
            (startup.is_enhanced(), "S"),
        ];
        self.describe(set(&flags))?;
        self.number(1, "Rev")?;
        self.number(2, "PD_Length")?;
        if let Some(enhanced) = startup.enhanced {
            self.take(ENHANCED, "IRD and ORD")?;
            self.describe(enhanced.to_string())?;
        }
        self.bytes(self.bytes.len() - self.at, "Private Data")
    }

    fn fpdu(&mut self, ulpdu: u16, segment: Option<&Segment>) -> Option<()> {
        self.number(2, "ULPDU_Length")?;
        match segment {
            None => self.bytes(usize::from(ulpdu), "ULPDU")?,
            Some(segment) => self.segment(segment)?,
        }
        let pad = (2 + usize::from(ulpdu)).next_multiple_of(4) - 2 - usize::from(ulpdu);
        self.bytes(pad, "PAD")?;
        self.bytes(4, "CRC")
    }

    fn segment(&mut self, segment: &Segment) -> Option<()> {
        self.take(1, "DDP Control")?;
        let (ddp, rdmap) = (segment.ddp_control, segment.rdmap_control);
        let flags = [(ddp & 0x80 != 0, "T"), (ddp & 0x40 != 0, "L")];
        let flags = set(&flags);
        self.describe(format!("{flags} DV {}", ddp & 3).trim_start())?;
        self.take(1, "RDMAP Control")?;
        match segment.opcode() {
            Some(opcode) => self.describe(format!("RV {} {opcode}", rdmap >> 6))?,
            None => self.describe(format!("RV {} opcode {:#x}", rdmap >> 6, rdmap & 15))?,
        }
        if let Header::Tagged(_) = segment.header {
            self.number(4, "STag")?;
            self.number(8, "TO")?;
            return self.bytes(segment.len as usize, "payload");
        }
        self.number(4, "Invalidate STag")?;
        for name in ["QN", "MSN", "MO"] {
            self.number(4, name)?;
        }
        let begin = self.fields.len();
        self.body(segment);
        let taken: usize = self.fields[begin..]
            .iter()
            .filter(|field| field.name != "Marker")
            .map(|field| field.bytes.len())
            .sum();
        self.bytes((segment.len as usize).saturating_sub(taken), "payload")
    }

    /// Reads the fields of the RDMAP header after an untagged DDP header.
    fn body(&mut self, segment: &Segment) -> Option<()> {
        use super::Body;
        let numbers: &[(usize, &'static str)] = match &segment.body {
            Body::Payload => &[],
            Body::Immediate(_) => &[(8, "Immediate Data")],
            Body::ReadRequest(_) => &[
                (4, "SinkSTag"),
                (8, "SinkTO"),
                (4, "RDMARDSZ"),
                (4, "SrcSTag"),
                (8, "SrcTO"),
            ],
            Body::AtomicRequest(_) => &[
                (4, "AOpCode"),
                (4, "Request Identifier"),
                (4, "Remote STag"),
                (8, "Remote TO"),
                (8, "Add or Swap Data"),
                (8, "Add or Swap Mask"),
                (8, "Compare Data"),
                (8, "Compare Mask"),
            ],
            Body::AtomicResponse(_) => &[
                (4, "Original Request Identifier"),
                (8, "Original Remote Data Value"),
            ],
            Body::Terminate(terminate) => {
                self.take(4, "Terminate Control")?;
                let code = terminate.reason();
                self.describe(format!("{code} {}: {}", code.kind(), code.name()))?;
                return self.terminated(segment);
            }
        };
        for (len, name) in numbers {
            self.number(*len, name)?;
        }
        Some(())
    }

    /// Reads the headers that a Terminate Message quotes.
    fn terminated(&mut self, segment: &Segment) -> Option<()> {
        let super::Body::Terminate(terminate) = &segment.body else {
            return None;
        };
        let ddp = terminate.ddp_bytes().map_or(0, <[u8]>::len);
        if ddp > 0 || terminate.segment_len().is_some() {
            self.number(2, "DDP Segment Length")?;
        }
        self.bytes(ddp, "Terminated DDP Header")?;
        match terminate.rdma_header() {
            Some(_) => self.bytes(READ_REQUEST_HEADER, "Terminated RDMA Header"),
            None => Some(()),
        }
    }
}

/// Returns the names of the flags that are set.
fn set(flags: &[(bool, &str)]) -> String {
    let names: Vec<&str> = flags
        .iter()
        .filter(|(set, _)| *set)
        .map(|(_, name)| *name)
        .collect();
    names.join(" ")
}

#[cfg(test)]
#[path = "fields/tests.rs"]
mod tests;

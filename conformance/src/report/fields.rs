//! Splits sent and received data into the fields of the protocols: bytes, name and meaning.

use crate::run::{LogEntry, Who};
use crate::wire::segment::opcode;
use crate::wire::startup::{Enhanced, REPLY_KEY, REQUEST_KEY};
use crate::wire::terminate::describe;
use crate::words::many;

/// Maximum number of payload bytes in the description of a field.
const PAYLOAD: usize = 32;

/// A field of a frame, header or FPDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    /// Offset of the field in the data of the log entry.
    pub(super) at: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) name: &'static str,
    pub(super) says: String,
}

/// Splits the data of a log entry into fields. Received data that does not consist of whole frames
/// or FPDUs becomes one field, because its boundaries are not known.
pub(super) fn fields_of(entry: &LogEntry) -> Vec<Field> {
    let fields = fields(&entry.bytes, entry.markers);
    let is_torn = fields.last().is_some_and(|last| last.name == BYTES);
    if entry.who != Who::Target || !is_torn {
        return fields;
    }
    let mut cursor = Cursor {
        bytes: &entry.bytes,
        at: 0,
        markers: None,
        fields: Vec::new(),
    };
    cursor.rest();
    cursor.fields
}

/// Name of the field for bytes that do not form a whole FPDU.
const BYTES: &str = "bytes";

/// Splits `bytes` into fields. `markers`: offset of the bytes since the start of Full Operation, if
/// this direction uses Markers.
fn fields(bytes: &[u8], markers: Option<u64>) -> Vec<Field> {
    let mut cursor = Cursor {
        bytes,
        at: 0,
        markers,
        fields: Vec::new(),
    };
    if bytes.starts_with(&REQUEST_KEY[..9]) {
        cursor.startup();
    } else {
        while cursor.at < bytes.len() && cursor.fpdu().is_some() {}
    }
    cursor.rest();
    cursor.fields
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    markers: Option<u64>,
    fields: Vec<Field>,
}

impl Cursor<'_> {
    /// Takes the next `len` bytes as a field. A Marker before or inside the field becomes a field
    /// of its own. Returns `None` if fewer bytes are left.
    fn take(&mut self, len: usize, name: &'static str) -> Option<Vec<u8>> {
        let mut taken = Vec::new();
        let mut at = self.at;
        while taken.len() < len {
            let begin = self.at;
            self.marker();
            if self.at != begin && taken.is_empty() {
                at = self.at;
            }
            // Takes bytes up to the next Marker or the end of the field.
            let room = self.markers.map_or(usize::MAX, |base| {
                let next = 512 - (base + self.at as u64) % 512;
                usize::try_from(next).unwrap_or(usize::MAX)
            });
            let count = (len - taken.len()).min(room);
            taken.extend_from_slice(self.bytes.get(self.at..self.at + count)?);
            self.at += count;
        }
        self.fields.push(Field {
            at,
            bytes: taken.clone(),
            name,
            says: String::new(),
        });
        Some(taken)
    }

    fn marker(&mut self) {
        let Some(base) = self.markers else {
            return;
        };
        if (base + self.at as u64).is_multiple_of(512)
            && let Some([a, b, c, d]) = self.bytes.get(self.at..self.at + 4)
        {
            self.fields.push(Field {
                at: self.at,
                bytes: vec![*a, *b, *c, *d],
                name: "Marker",
                says: format!("FPDUPTR {}", u16::from_be_bytes([*c, *d])),
            });
            self.at += 4;
        }
    }

    fn describe(&mut self, text: impl Into<String>) {
        if let Some(field) = self.fields.last_mut() {
            field.says = text.into();
        }
    }

    fn number(&mut self, len: usize, name: &'static str) -> Option<u64> {
        let bytes = self.take(len, name)?;
        let number = bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.describe(
            if matches!(
                name,
                "STag" | "SinkSTag" | "SrcSTag" | "Invalidate STag" | "TO" | "SinkTO" | "SrcTO"
            ) {
                format!("{number:#x}")
            } else {
                number.to_string()
            },
        );
        Some(number)
    }

    fn startup(&mut self) -> Option<()> {
        let key = self.take(16, "Key")?;
        self.describe(match key.as_slice() {
            key if key == REQUEST_KEY => "MPA ID Req Frame",
            key if key == REPLY_KEY => "MPA ID Rep Frame",
            _ => "neither Key",
        });
        let flags = self.take(1, "M C R S Res")?[0];
        let names = [(0x80, "M"), (0x40, "C"), (0x20, "R"), (0x10, "S")];
        let set: Vec<&str> = names
            .iter()
            .filter(|(bit, _)| flags & bit != 0)
            .map(|(_, name)| *name)
            .collect();
        self.describe(set.join(" "));
        self.number(1, "Rev")?;
        self.number(2, "PD_Length")?;
        if flags & 0x10 != 0 {
            let bytes = self.take(4, "IRD and ORD")?;
            if let Some(data) = Enhanced::parse(&bytes) {
                let bits = [
                    (data.a, "A "),
                    (data.b, "B "),
                    (data.c, "C "),
                    (data.d, "D "),
                ];
                let set: String = bits
                    .iter()
                    .filter(|(set, _)| *set)
                    .map(|(_, name)| *name)
                    .collect();
                self.describe(format!("{set}IRD {}, ORD {}", data.ird, data.ord));
            }
        }
        let left = self.bytes.len() - self.at;
        self.payload(left, "Private Data")
    }

    fn payload(&mut self, len: usize, name: &'static str) -> Option<()> {
        if len == 0 {
            return Some(());
        }
        self.take(len, name)?;
        if let Some(field) = self.fields.last_mut()
            && len > PAYLOAD
        {
            field.bytes.truncate(PAYLOAD);
            field.says = format!(
                "{len}, the first {PAYLOAD} are shown",
                len = many(len, "byte")
            );
        }
        Some(())
    }

    fn fpdu(&mut self) -> Option<()> {
        let ulpdu = usize::try_from(self.number(2, "ULPDU_Length")?).ok()?;
        let header = self.header(ulpdu)?;
        self.payload(ulpdu.checked_sub(header)?, "payload")?;
        let pad = (2 + ulpdu).next_multiple_of(4) - 2 - ulpdu;
        self.payload(pad, "PAD")?;
        self.take(4, "CRC")?;
        Some(())
    }

    /// Takes the DDP and RDMAP headers. Returns their total length in bytes, without Markers.
    fn header(&mut self, ulpdu: usize) -> Option<usize> {
        let ddp = self.take(1, "DDP Control")?[0];
        let bit = |set: u8, name: &'static str| if ddp & set != 0 { name } else { "" };
        self.describe(format!(
            "{}{}DV {}",
            bit(0x80, "T "),
            bit(0x40, "L "),
            ddp & 3
        ));
        let rdmap = self.take(1, "RDMAP Control")?[0];
        let code = rdmap & 15;
        self.describe(format!("RV {}, {}", rdmap >> 6, opcode::name(code)));
        if ddp & 0x80 != 0 {
            self.number(4, "STag")?;
            self.number(8, "TO")?;
            return Some(14);
        }
        self.number(4, "Invalidate STag")?;
        for name in ["QN", "MSN", "MO"] {
            self.number(4, name)?;
        }
        let more: &[(usize, &'static str)] = match code {
            opcode::READ_REQUEST if ulpdu == 46 => &[
                (4, "SinkSTag"),
                (8, "SinkTO"),
                (4, "RDMARDSZ"),
                (4, "SrcSTag"),
                (8, "SrcTO"),
            ],
            opcode::ATOMIC_REQUEST if ulpdu == 70 => &[
                (4, "AOpCode"),
                (4, "Request Identifier"),
                (4, "STag"),
                (8, "TO"),
                (8, "Add or Swap Data"),
                (8, "Add or Swap Mask"),
                (8, "Compare Data"),
                (8, "Compare Mask"),
            ],
            opcode::ATOMIC_RESPONSE if ulpdu == 30 => &[
                (4, "Original Request Identifier"),
                (8, "Original Remote Data"),
            ],
            opcode::TERMINATE if ulpdu >= 22 => {
                let kind = self.take(4, "Terminate Control")?;
                let code = describe(kind[0] >> 4, kind[0] & 15, kind[1]);
                self.describe(format!("{code}, HdrCt {:03b}", kind[2] >> 5));
                return self.terminated(kind[2], ulpdu - 22).map(|len| 22 + len);
            }
            _ => &[],
        };
        for (len, name) in more {
            self.number(*len, name)?;
        }
        Some(18 + more.iter().map(|(len, _)| len).sum::<usize>())
    }

    /// Takes the headers that M, D and R of a Terminate announce, as far as they fit into `room`
    /// bytes. Returns their total length.
    fn terminated(&mut self, hdrct: u8, room: usize) -> Option<usize> {
        let [m, d, r] = [0x80, 0x40, 0x20].map(|bit| hdrct & bit != 0);
        let mut len = 0;
        if m || d {
            if room < 2 {
                return Some(0);
            }
            self.number(2, "DDP Segment Length")?;
            len = 2;
        }
        let is_tagged = || Some(self.bytes.get(self.at)? & 0x80 != 0);
        let header = if d && is_tagged() == Some(true) {
            14
        } else {
            18
        };
        for (there, bytes, name) in [
            (d, header, "Terminated DDP Header"),
            (r, 28, "Terminated RDMA Header"),
        ] {
            if there && room >= len + bytes {
                self.take(bytes, name)?;
                len += bytes;
            }
        }
        Some(len)
    }

    /// Takes the remaining bytes as one field. They do not form a whole FPDU.
    fn rest(&mut self) {
        let left = self.bytes.get(self.at..).map_or(0, <[u8]>::len);
        self.markers = None;
        self.payload(left, BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::fpdu::{FpduForm, Framing};
    use crate::wire::startup::request;

    fn names(bytes: &[u8], markers: Option<u64>) -> Vec<&'static str> {
        fields(bytes, markers)
            .iter()
            .map(|field| field.name)
            .collect()
    }

    #[test]
    fn a_request_has_its_fields() {
        let mut frame = request().enhanced(Enhanced::client_server(4, 8));
        frame.private_data.extend_from_slice(b"hello");
        let fields = fields(&frame.bytes(), None);
        assert_eq!(fields[1].says, "C S");
        assert_eq!(fields[4].says, "IRD 4, ORD 8");
        assert_eq!((fields[5].name, fields[5].at), ("Private Data", 24));
    }

    #[test]
    fn every_byte_is_in_one_field_with_markers_too() {
        for markers in [None, Some(0), Some(508)] {
            let mut framing = Framing::new(true, markers.is_some());
            framing.position = markers.unwrap_or(0);
            let mut ulpdu = vec![0xc1, 0x40];
            ulpdu.resize(600, 7);
            let wire = framing.seal(&ulpdu, &FpduForm::default());
            let mut bytes = 0;
            for field in fields(&wire, markers) {
                bytes += match field.says.strip_suffix(" bytes, the first 32 are shown") {
                    Some(len) => len.parse().unwrap(),
                    None => field.bytes.len(),
                };
            }
            assert_eq!(bytes, wire.len());
        }
    }

    #[test]
    fn a_terminate_has_what_its_bits_announce_and_no_more_than_there_is() {
        let terminate = |rest: usize| {
            let mut ulpdu = vec![0x41, 0x47];
            ulpdu.resize(18, 0);
            ulpdu.extend_from_slice(&[0x12, 0x01, 0xc0, 0]);
            ulpdu.resize(22 + rest, 0x41);
            Framing::new(true, false).seal(&ulpdu, &FpduForm::default())
        };
        let whole = names(&terminate(20), None);
        assert!(whole.ends_with(&["DDP Segment Length", "Terminated DDP Header", "CRC"]));
        for rest in 0..20 {
            let names = names(&terminate(rest), None);
            assert!(!names.contains(&"Terminated DDP Header"), "{names:?}");
            assert_eq!(names.last(), Some(&"CRC"), "{names:?}");
        }
    }

    #[test]
    fn a_reply_is_a_startup_frame_too() {
        let bytes = crate::wire::startup::reply().bytes();
        assert_eq!(names(&bytes, None)[0], "Key");
    }

    #[test]
    fn what_came_and_is_no_fpdu_is_not_read_as_one() {
        let mut entry = LogEntry {
            who: Who::Target,
            connection: 0,
            at: 0,
            text: String::new(),
            bytes: b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            markers: None,
        };
        assert_eq!(fields_of(&entry).len(), 1);
        entry.who = Who::Suite;
        assert!(fields_of(&entry).len() > 1);
    }

    #[test]
    fn what_is_no_fpdu_is_shown_as_bytes() {
        assert_eq!(
            names(b"GET / HTTP/1.1\r\n\r\n", None).last(),
            Some(&"bytes")
        );
    }
}

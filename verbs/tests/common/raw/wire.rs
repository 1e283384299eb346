//! Encoders for MPA, DDP and RDMAP, written from the RFCs. They share no code with the crates under
//! test, and can build invalid messages.

/// Computes the CRC32C of iSCSI (RFC 3720 section 12.1), four bits at a time.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    const fn table() -> [u32; 16] {
        let mut table = [0; 16];
        let mut nibble = 0;
        while nibble < 16 {
            let mut crc = nibble as u32;
            let mut bit = 0;
            while bit < 4 {
                crc = if crc & 1 == 1 {
                    crc >> 1 ^ 0x82F6_3B78
                } else {
                    crc >> 1
                };
                bit += 1;
            }
            table[nibble] = crc;
            nibble += 1;
        }
        table
    }
    const TABLE: [u32; 16] = table();
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        crc = crc >> 4 ^ TABLE[crc as usize & 15];
        crc = crc >> 4 ^ TABLE[crc as usize & 15];
    }
    !crc
}

pub(crate) const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
pub(crate) const REPLY: &[u8; 16] = b"MPA ID Rep Frame";

/// Flags of a startup frame.
pub(crate) const MARKERS: u8 = 0x80;
pub(crate) const CRC: u8 = 0x40;
pub(crate) const REJECT: u8 = 0x20;
pub(crate) const ENHANCED: u8 = 0x10;

/// Returns a startup frame with a correct PD_Length.
pub(crate) fn startup(key: &[u8; 16], flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    startup_claiming(
        key,
        flags,
        revision,
        private_data.len() as u16,
        private_data,
    )
}

/// Returns a startup frame with any PD_Length.
pub(crate) fn startup_claiming(
    key: &[u8; 16],
    flags: u8,
    revision: u8,
    len: u16,
    private_data: &[u8],
) -> Vec<u8> {
    [
        &key[..],
        &[flags, revision],
        &len.to_be_bytes(),
        private_data,
    ]
    .concat()
}

/// Bits of the two words of enhanced connection data (RFC 6581 section 9).
pub(crate) const PEER_TO_PEER: u16 = 0x8000;
pub(crate) const RTR_SEND: u16 = 0x4000;
pub(crate) const RTR_WRITE: u16 = 0x8000;
pub(crate) const RTR_READ: u16 = 0x4000;

/// Returns enhanced connection data. The first word contains IRD, and the second ORD.
pub(crate) fn words(first: u16, second: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
    [a, b, c, d]
}

/// FPDU encoder of one direction of a connection.
#[derive(Clone)]
pub(crate) struct Fpdus {
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    /// Number of bytes since Full Operation began.
    pub(crate) position: usize,
    /// Error that is added to every FPDUPTR. It is 0 in a correct encoder.
    pub(crate) marker_lie: u16,
}

impl Fpdus {
    pub(crate) fn new(crc: bool, markers: bool) -> Self {
        Fpdus {
            crc,
            markers,
            position: 0,
            marker_lie: 0,
        }
    }

    /// Returns the FPDU for `ulpdu`.
    pub(crate) fn seal(&mut self, ulpdu: &[u8]) -> Vec<u8> {
        self.seal_claiming(ulpdu.len() as u16, ulpdu)
    }

    /// Returns an FPDU for `ulpdu` with any ULPDU_Length. PAD and CRC fit the actual bytes, not the
    /// length field.
    pub(crate) fn seal_claiming(&mut self, len: u16, ulpdu: &[u8]) -> Vec<u8> {
        let mut body = [&len.to_be_bytes()[..], ulpdu].concat();
        body.resize(body.len().next_multiple_of(4), 0);
        let mut out = Vec::new();
        let mut begin = None;
        for word in body.chunks(4) {
            self.marker(&mut out, begin);
            begin.get_or_insert(out.len());
            out.extend_from_slice(word);
        }
        self.marker(&mut out, begin);
        let crc = if self.crc { crc32c(&out) } else { 0 };
        out.extend_from_slice(&crc.to_le_bytes());
        self.position += out.len();
        out
    }

    /// Appends a Marker if one is due. `begin` is the offset of ULPDU_Length in `out`.
    fn marker(&self, out: &mut Vec<u8>, begin: Option<usize>) {
        if self.markers && (self.position + out.len()).is_multiple_of(512) {
            let pointer = begin.map_or(0, |begin| out.len() - begin) as u16;
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&(pointer + self.marker_lie).to_be_bytes());
        }
    }
}

/// RDMAP opcodes.
pub(crate) const WRITE: u8 = 0;
pub(crate) const READ_REQUEST: u8 = 1;
pub(crate) const READ_RESPONSE: u8 = 2;
pub(crate) const SEND: u8 = 3;
pub(crate) const SEND_INVALIDATE: u8 = 4;
pub(crate) const SEND_SOLICITED_INVALIDATE: u8 = 6;
pub(crate) const TERMINATE: u8 = 7;
pub(crate) const IMMEDIATE: u8 = 8;
pub(crate) const IMMEDIATE_SOLICITED: u8 = 9;
pub(crate) const ATOMIC_REQUEST: u8 = 10;
pub(crate) const ATOMIC_RESPONSE: u8 = 11;

/// A tagged DDP Segment. Tests may set every field.
#[derive(Clone)]
pub(crate) struct Tagged {
    pub(crate) last: bool,
    /// T flag on the wire.
    pub(crate) t: bool,
    pub(crate) ddp_version: u8,
    pub(crate) rdmap_version: u8,
    pub(crate) opcode: u8,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    pub(crate) payload: Vec<u8>,
}

impl Tagged {
    pub(crate) fn new(opcode: u8, stag: u32, to: u64, payload: &[u8]) -> Self {
        let payload = payload.to_vec();
        Tagged {
            last: true,
            t: true,
            ddp_version: 1,
            rdmap_version: 1,
            opcode,
            stag,
            to,
            payload,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let head = control(
            self.t,
            self.last,
            self.ddp_version,
            self.rdmap_version,
            self.opcode,
        );
        [
            &head[..],
            &self.stag.to_be_bytes(),
            &self.to.to_be_bytes(),
            &self.payload,
        ]
        .concat()
    }
}

/// An untagged DDP Segment. Tests may set every field.
#[derive(Clone)]
pub(crate) struct Untagged {
    pub(crate) last: bool,
    /// T flag on the wire.
    pub(crate) t: bool,
    pub(crate) ddp_version: u8,
    pub(crate) rdmap_version: u8,
    pub(crate) opcode: u8,
    /// STag to invalidate, or 0.
    pub(crate) word: u32,
    pub(crate) qn: u32,
    pub(crate) msn: u32,
    pub(crate) mo: u32,
    pub(crate) payload: Vec<u8>,
}

impl Untagged {
    pub(crate) fn new(opcode: u8, qn: u32, msn: u32, payload: &[u8]) -> Self {
        let payload = payload.to_vec();
        Untagged {
            last: true,
            t: false,
            ddp_version: 1,
            rdmap_version: 1,
            opcode,
            word: 0,
            qn,
            msn,
            mo: 0,
            payload,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = control(
            self.t,
            self.last,
            self.ddp_version,
            self.rdmap_version,
            self.opcode,
        )
        .to_vec();
        for word in [self.word, self.qn, self.msn, self.mo] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&self.payload);
        out
    }
}

fn control(t: bool, last: bool, ddp_version: u8, rdmap_version: u8, opcode: u8) -> [u8; 2] {
    [
        u8::from(t) << 7 | u8::from(last) << 6 | ddp_version,
        rdmap_version << 6 | opcode,
    ]
}

/// The 28 bytes after the DDP header of a Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy)]
pub(crate) struct ReadHeader {
    pub(crate) sink_stag: u32,
    pub(crate) sink_to: u64,
    pub(crate) len: u32,
    pub(crate) source_stag: u32,
    pub(crate) source_to: u64,
}

impl ReadHeader {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.sink_stag.to_be_bytes().to_vec();
        out.extend_from_slice(&self.sink_to.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&self.source_stag.to_be_bytes());
        out.extend_from_slice(&self.source_to.to_be_bytes());
        out
    }
}

/// The 52 bytes after the DDP header of an Atomic Request (RFC 7306 section 5.2.1).
#[derive(Clone, Copy)]
pub(crate) struct AtomicHeader {
    pub(crate) code: u32,
    pub(crate) id: u32,
    pub(crate) stag: u32,
    pub(crate) to: u64,
    /// Data, data mask, compare data, and compare mask.
    pub(crate) words: [u64; 4],
}

impl AtomicHeader {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [self.code, self.id, self.stag] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        for word in [self.to].iter().chain(&self.words) {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out
    }
}

/// Error code of a Terminate Message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code {
    pub(crate) layer: u8,
    pub(crate) etype: u8,
    pub(crate) code: u8,
}

impl Code {
    pub(crate) const fn rdmap(etype: u8, code: u8) -> Self {
        Code {
            layer: 0,
            etype,
            code,
        }
    }

    pub(crate) const fn ddp(etype: u8, code: u8) -> Self {
        Code {
            layer: 1,
            etype,
            code,
        }
    }

    pub(crate) const fn mpa(code: u8) -> Self {
        Code {
            layer: 2,
            etype: 0,
            code,
        }
    }

    /// Returns the ULPDU of a Terminate about `offending`, with the headers that RFC 5040 Figure 10
    /// requires. All errors but LLP and catastrophic ones carry the DDP header. Remote Protection
    /// Errors also carry the header of a Read Request, because section 4.8 defines that part for
    /// Read Requests only.
    pub(crate) fn about(self, offending: &[u8]) -> Vec<u8> {
        if self.layer == 2 {
            return self.bare();
        }
        let ddp = self.layer == 1 || self.layer == 0 && self.etype != 0;
        let ddp_header = if offending[0] & 0x80 != 0 { 14 } else { 18 };
        let read = self.layer == 0 && self.etype == 1 && offending[1] & 0x0F == READ_REQUEST;
        let mut header = vec![self.layer << 4 | self.etype, self.code, 0, 0];
        if ddp {
            header[2] |= 0xC0; // M and D
            header.extend_from_slice(&(offending.len() as u16).to_be_bytes());
            header.extend_from_slice(&offending[..ddp_header]);
        }
        if read {
            header[2] |= 0x20; // R
            header.extend_from_slice(&offending[18..46]);
        }
        Untagged::new(TERMINATE, 2, 1, &header).bytes()
    }

    /// Returns the ULPDU of a Terminate without headers.
    pub(crate) fn bare(self) -> Vec<u8> {
        let header = [self.layer << 4 | self.etype, self.code, 0, 0];
        Untagged::new(TERMINATE, 2, 1, &header).bytes()
    }
}

/// Shows the code in the usual notation, for example `0/1/02`.
impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}/{:x}/{:02x}", self.layer, self.etype, self.code)
    }
}

/// Returns bytes that are not all equal.
pub(crate) fn filler(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + seed) * 31 % 251) as u8).collect()
}

#[test]
fn figures_5_and_6_of_rfc_5044_come_out() {
    let mut fpdus = Fpdus::new(true, true);
    let figure5 = fpdus.seal(&Untagged::new(SEND, 0, 1, &[0; 24]).bytes());
    assert_eq!(figure5[..8], [0, 0, 0, 0, 0, 0x2A, 0x41, 0x43]);
    assert_eq!(figure5[48..], [0x52, 0x23, 0x99, 0x83]);
    // In Figure 6 a Marker is between the DDP header and the payload.
    let mut fpdus = Fpdus {
        position: 512 - 20,
        ..fpdus
    };
    let figure6 = fpdus.seal(&Untagged::new(SEND, 0, 2, &[0; 24]).bytes());
    assert_eq!(figure6[20..24], [0, 0, 0, 0x14]);
    assert_eq!(figure6[48..], [0x84, 0x92, 0x58, 0x98]);
}

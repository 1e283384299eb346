//! Writes pcapng files (draft-ietf-opsawg-pcapng) whose content the input chooses, and parses the
//! TCP/IP headers of packets.

use std::net::SocketAddr;

use crate::input::Input;

/// A packet, with its metadata in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in uwarp_capture::Packet")]
pub struct Written {
    pub interface: u32,
    pub link: u16,
    pub nanoseconds: u128,
    /// The two low bits of `epb_flags`.
    pub direction: u32,
    pub original_len: usize,
    pub comments: Vec<String>,
    pub data: Vec<u8>,
}

/// A section of a file. Numbers are written in its byte order.
struct Section {
    big: bool,
    bytes: Vec<u8>,
    /// Link type and timestamp exponent of each interface.
    interfaces: Vec<(u16, u8)>,
}

impl Section {
    fn put16(&mut self, value: u16) {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.bytes.extend_from_slice(&bytes);
    }

    fn put32(&mut self, value: u32) {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.bytes.extend_from_slice(&bytes);
    }

    fn padded(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        self.put16(code);
        self.put16(value.len() as u16);
        self.padded(value);
    }

    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Self)) {
        let mut inner = Self {
            big: self.big,
            bytes: Vec::new(),
            interfaces: Vec::new(),
        };
        body(&mut inner);
        let len = inner.bytes.len() as u32 + 12;
        self.put32(kind);
        self.put32(len);
        self.bytes.extend_from_slice(&inner.bytes);
        self.put32(len);
    }

    fn begin(&mut self, big: bool) {
        self.big = big;
        self.interfaces.clear();
        self.block(0x0A0D_0D0A, |section| {
            section.put32(0x1A2B_3C4D);
            section.put16(1);
            section.put16(0);
            section.put32(u32::MAX);
            section.put32(u32::MAX);
        });
    }

    fn interface(&mut self, link: u16, exponent: u8) {
        self.interfaces.push((link, exponent));
        self.block(1, |section| {
            section.put16(link);
            section.put16(0);
            section.put32(0);
            section.option(2, b"eth0");
            section.option(9, &[exponent]);
            section.option(0, &[]);
        });
    }
}

/// Writes a file whose blocks the input chooses. Also returns its packets.
pub fn file(input: &mut Input<'_>) -> (Vec<u8>, Vec<Written>) {
    let mut section = Section {
        big: false,
        bytes: Vec::new(),
        interfaces: Vec::new(),
    };
    let mut packets = Vec::new();
    section.begin(input.flags()(0));
    while !input.is_empty() && packets.len() < 32 {
        match input.u8() % 8 {
            0 => section.begin(input.flags()(0)),
            1 | 2 => section.interface(
                [1, 101, 228, 113, 147][input.choice(5)],
                [6, 9, 3, 0][input.choice(4)],
            ),
            // A block of an unknown type, which readers skip.
            3 => section.block(0x0BAD, |section| section.padded(&[7; 5])),
            _ if section.interfaces.is_empty() => {}
            4 => packets.push(simple(input, &mut section)),
            _ => packets.push(enhanced(input, &mut section)),
        }
    }
    (section.bytes, packets)
}

fn enhanced(input: &mut Input<'_>, section: &mut Section) -> Written {
    let interface = input.choice(section.interfaces.len());
    let (link, exponent) = section.interfaces[interface];
    let (units, more) = (input.u32(), input.flags());
    let data = input.slice(600);
    let direction = if more(0) { 1 + u32::from(more(1)) } else { 0 };
    let original_len = data.len() + if more(2) { 1000 } else { 0 };
    let comments = if more(3) {
        vec!["the first".to_owned(), "ü".to_owned()]
    } else {
        Vec::new()
    };
    section.block(6, |section| {
        section.put32(interface as u32);
        section.put32(0);
        section.put32(units);
        section.put32(data.len() as u32);
        section.put32(original_len as u32);
        section.padded(data);
        for comment in &comments {
            section.option(1, comment.as_bytes());
        }
        if direction > 0 {
            let flags = direction | 0x20;
            let bytes = if section.big {
                flags.to_be_bytes()
            } else {
                flags.to_le_bytes()
            };
            section.option(2, &bytes);
        }
        section.option(0, &[]);
    });
    Written {
        interface: interface as u32,
        link,
        nanoseconds: u128::from(units) * 10_u128.pow(9 - u32::from(exponent)),
        direction,
        original_len,
        comments,
        data: data.to_vec(),
    }
}

fn simple(input: &mut Input<'_>, section: &mut Section) -> Written {
    let data = input.slice(300);
    section.block(3, |section| {
        section.put32(data.len() as u32);
        section.padded(data);
    });
    Written {
        interface: 0,
        link: section.interfaces[0].0,
        nanoseconds: 0,
        direction: 0,
        original_len: data.len(),
        comments: Vec::new(),
        data: data.to_vec(),
    }
}

/// Fields of a TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in uwarp_capture::TcpSegment")]
pub struct Segment {
    pub source: SocketAddr,
    pub destination: SocketAddr,
    pub seq: u32,
    /// FIN, SYN, RST, PSH and ACK, at their bits in the header.
    pub flags: u8,
    pub window: u16,
    pub payload: Vec<u8>,
}

/// Parses a TCP segment over IPv4 without options or fragments, or over IPv6 without extension
/// headers, if all lengths fit. Returns `None` for any other packet, which may still hold a
/// segment.
#[must_use]
pub fn tcp(link: u16, data: &[u8]) -> Option<Segment> {
    let ip = match link {
        1 => {
            let kind = data.get(12..14)?;
            (kind == [8, 0] || kind == [0x86, 0xDD]).then_some(&data[14..])?
        }
        101 | 228 | 229 => data,
        _ => return None,
    };
    let number = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
    let ethernet = |kind: [u8; 2]| link != 1 || data[12..14] == kind;
    let (header, len) = match ip.first()? {
        0x45 if ip.len() >= 20 && ethernet([8, 0]) => (20, number(2)),
        byte if byte >> 4 == 6 && ip.len() >= 40 && ethernet([0x86, 0xDD]) => (40, 40 + number(4)),
        _ => return None,
    };
    let whole = if header == 20 {
        ip[9] == 6 && number(6) & 0x3FFF == 0
    } else {
        ip[6] == 6 && number(4) > 0
    };
    let tcp = ip.get(header..len)?;
    let offset = usize::from(*tcp.get(12)? >> 4) * 4;
    if !whole || tcp.len() < 20 || offset < 20 || offset > tcp.len() {
        return None;
    }
    let address = |at: usize, port: usize| {
        let port = u16::from_be_bytes([tcp[port], tcp[port + 1]]);
        if header == 20 {
            let bytes: [u8; 4] = ip[at..at + 4].try_into().expect("4 bytes");
            SocketAddr::from((bytes, port))
        } else {
            let bytes: [u8; 16] = ip[at..at + 16].try_into().expect("16 bytes");
            SocketAddr::from((bytes, port))
        }
    };
    let (source, destination) = if header == 20 { (12, 16) } else { (8, 24) };
    Some(Segment {
        source: address(source, 0),
        destination: address(destination, 2),
        seq: u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]),
        flags: tcp[13] & 0x1F,
        window: u16::from_be_bytes([tcp[14], tcp[15]]),
        payload: tcp[offset..].to_vec(),
    })
}

//! Reader for captures in the pcapng and pcap formats, in either byte order, with timestamps in any
//! unit.

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::time::Duration;

use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{
    Block, EnhancedPacketBlock, IDB_MAGIC, InterfaceDescriptionBlock, LegacyPcapBlock, OptionCode,
    PcapBlockOwned, PcapError, PcapHeader, SimplePacketBlock, create_reader,
};
use thiserror::Error;

use crate::Direction;

/// Initial size of the buffer for blocks. Under a fuzzer it is small, because clearing a large
/// buffer would take most of the time.
const BUFFER: usize = if cfg!(fuzzing) { 16 * 1024 } else { 512 * 1024 };
/// Maximum size of the buffer. A larger block counts as damaged.
const MAX_BUFFER: usize = BUFFER << if cfg!(fuzzing) { 3 } else { 7 };

/// Length in bytes of a block without content: its type, and its length twice.
const MIN_BLOCK: u32 = 12;

const SECTION_HEADER_MAGIC: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];
const EPB_FLAGS: OptionCode = OptionCode(2);

/// Reason why a capture, or the rest of it, cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The file does not begin with a pcapng or pcap header.
    #[error("this is neither a pcapng nor a pcap file: it does not begin with their file header")]
    NotACapture,
    /// The bytes at `offset` are not a valid block. The start of the next block is therefore
    /// unknown.
    #[error("the capture is damaged: there is no readable block at byte {offset}")]
    Damaged {
        /// Offset in bytes from the beginning of the file.
        offset: u64,
    },
    /// The operating system could not open or read the file.
    #[error("the capture cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// A packet of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Time since 1970-01-01 00:00 UTC. Zero if the file has no timestamp for the packet.
    pub timestamp: Duration,
    /// Index of the interface in the current section of the file. 0 in a pcap file.
    pub interface: u32,
    /// Link type of the interface, as registered at tcpdump.org, such as 1 for Ethernet and 101 for
    /// raw IP.
    pub link: u16,
    /// Direction of the packet, if the file records it.
    pub direction: Direction,
    /// Length on the wire. It is larger than the length of `data` if the packet was truncated.
    pub original_len: usize,
    /// Comments on the packet, if the file has any.
    pub comments: Vec<String>,
    /// Captured bytes of the packet, beginning with the link-layer header.
    pub data: Vec<u8>,
}

/// Description of an interface from the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceInfo {
    /// Name of the interface, if the file contains one.
    pub name: Option<String>,
    /// Link type of the interface, as registered at tcpdump.org.
    pub link: u16,
    /// Number of timestamp units per second.
    units: u64,
    /// Number of seconds to add to every timestamp.
    offset: i64,
}

/// Iterates over the packets of a capture.
///
/// A capture may have been cut off in the middle of a packet. Then the iteration ends after the
/// last whole packet, and [`Reader::cut_off`] returns true. The iteration also ends after an error.
pub struct Reader {
    blocks: Box<dyn PcapReaderIterator + Send>,
    interfaces: Vec<InterfaceInfo>,
    /// Function that decodes the length of a block in the byte order of the section. `None` for a
    /// pcap file, which has no sections.
    order: Option<fn([u8; 4]) -> u32>,
    /// Size of the buffer of the parser.
    room: usize,
    cut_off: bool,
    ended: bool,
}

/// Result of reading a block.
enum Step {
    Packet(Packet),
    /// The block is not a packet. Reading continues.
    Other,
    End,
    CutOff,
    NeedsMore,
    NeedsRoom,
    Damaged,
    ReadFailed,
}

impl Reader {
    /// Opens the capture at `path`.
    ///
    /// # Errors
    /// If the file cannot be opened or read, or it is not a capture.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        Self::new(File::open(path)?)
    }

    /// Reads a capture from any `source`.
    ///
    /// # Errors
    /// If `source` cannot be read, or it is not a capture.
    pub fn new(mut source: impl Read + Send + 'static) -> Result<Self, ReadError> {
        let start = read_file_header(&mut source)?;
        // At first, the parser makes only one read, and a pipe may return fewer bytes than the
        // parser needs. Therefore the header is read here.
        let source = Cursor::new(start).chain(source);
        let blocks = create_reader(BUFFER, source).map_err(|_| ReadError::NotACapture)?;
        Ok(Self {
            blocks,
            interfaces: Vec::new(),
            order: None,
            room: BUFFER,
            cut_off: false,
            ended: false,
        })
    }

    /// Returns the next packet, or `None` at the end of the capture.
    ///
    /// # Errors
    /// If the source cannot be read, or the file is damaged.
    pub fn next_packet(&mut self) -> Result<Option<Packet>, ReadError> {
        while !self.ended {
            match self.step() {
                Step::Packet(packet) => return Ok(Some(packet)),
                Step::Other => {}
                Step::End => self.ended = true,
                Step::CutOff => {
                    self.ended = true;
                    self.cut_off = true;
                }
                Step::NeedsMore => self.refill()?,
                Step::NeedsRoom => self.grow()?,
                Step::Damaged => return Err(self.damaged()),
                Step::ReadFailed => return Err(self.read_failed()),
            }
        }
        Ok(None)
    }

    /// Returns true if the capture ended in the middle of a block.
    pub fn cut_off(&self) -> bool {
        self.cut_off
    }

    /// Returns the interfaces seen so far in the current section, in the order of
    /// [`Packet::interface`].
    pub fn interfaces(&self) -> &[InterfaceInfo] {
        &self.interfaces
    }

    /// Returns true if the next block states a length that is shorter than a block without content.
    /// For some kinds of blocks the parser would subtract from this length without a check.
    fn is_too_short(&self) -> bool {
        let length = self.blocks.data().get(4..8).and_then(<[u8]>::first_chunk);
        matches!((self.order, length), (Some(order), Some(length)) if order(*length) < MIN_BLOCK)
    }

    fn step(&mut self) -> Step {
        if self.is_too_short() {
            return Step::Damaged;
        }
        let (len, step) = match self.blocks.next() {
            Ok((len, block)) => {
                if let PcapBlockOwned::NG(Block::SectionHeader(header)) = &block {
                    self.order = Some(match header.big_endian() {
                        true => u32::from_be_bytes,
                        false => u32::from_le_bytes,
                    });
                }
                (len, interpret(&block, &mut self.interfaces))
            }
            Err(PcapError::Eof) => return Step::End,
            Err(PcapError::UnexpectedEof) => return Step::CutOff,
            Err(PcapError::Incomplete(_)) => return Step::NeedsMore,
            Err(PcapError::BufferTooSmall) => return Step::NeedsRoom,
            Err(PcapError::ReadError) => return Step::ReadFailed,
            Err(_) => return Step::Damaged,
        };
        // A damaged block remains in the buffer, so that its offset can be reported.
        if !matches!(step, Step::Damaged) {
            self.blocks.consume(len);
        }
        step
    }

    fn refill(&mut self) -> Result<(), ReadError> {
        let before = self.blocks.data().len();
        if self.blocks.refill().is_err() {
            return Err(self.read_failed());
        }
        if self.blocks.data().len() == before && !self.blocks.reader_exhausted() {
            self.grow()?;
        }
        Ok(())
    }

    /// Enlarges the buffer when it is full. It grows only as bytes arrive, so a block that claims a
    /// large length does not cause a large allocation.
    ///
    /// A block that does not fit into the largest buffer counts as cut off if the source ends
    /// before the buffer is full. Otherwise it counts as damaged. The result does not depend on the
    /// sizes of the reads.
    fn grow(&mut self) -> Result<(), ReadError> {
        let mut before = None;
        while before != Some(self.blocks.data().len()) {
            before = Some(self.blocks.data().len());
            if self.blocks.refill().is_err() {
                return Err(self.read_failed());
            }
        }
        if self.blocks.reader_exhausted() {
            return Ok(());
        }
        self.room *= 2;
        if self.room > MAX_BUFFER || !self.blocks.grow(self.room) {
            return Err(self.damaged());
        }
        Ok(())
    }

    fn damaged(&mut self) -> ReadError {
        self.ended = true;
        ReadError::Damaged {
            offset: self.blocks.consumed() as u64,
        }
    }

    fn read_failed(&mut self) -> ReadError {
        self.ended = true;
        read_failed()
    }
}

/// Returns a read error with a generic text, because the parser does not keep the reason.
fn read_failed() -> ReadError {
    ReadError::Io(io::Error::other("a read failed in the middle of the file"))
}

impl Iterator for Reader {
    type Item = Result<Packet, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.next_packet().transpose();
        self.ended |= matches!(item, Some(Err(_)));
        item
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("interfaces", &self.interfaces)
            .field("cut_off", &self.cut_off)
            .finish_non_exhaustive()
    }
}

/// Reads the file header: for pcapng as many bytes as the header claims, for pcap 24 bytes.
fn read_file_header(source: &mut impl Read) -> Result<Vec<u8>, ReadError> {
    let mut start = Vec::new();
    source.by_ref().take(12).read_to_end(&mut start)?;
    let Some([magic @ .., l0, l1, l2, l3, o0, _, _, _]) = start.first_chunk::<12>() else {
        return Err(ReadError::NotACapture);
    };
    let len = if *magic != SECTION_HEADER_MAGIC {
        24
    } else if *o0 == 0x4D {
        u32::from_le_bytes([*l0, *l1, *l2, *l3])
    } else {
        u32::from_be_bytes([*l0, *l1, *l2, *l3])
    };
    // No valid header is longer, so no more bytes are read.
    let rest = u64::from(len.min(BUFFER as u32 / 2)).saturating_sub(12);
    source.by_ref().take(rest).read_to_end(&mut start)?;
    Ok(start)
}

fn interpret(block: &PcapBlockOwned<'_>, interfaces: &mut Vec<InterfaceInfo>) -> Step {
    match block {
        PcapBlockOwned::LegacyHeader(header) => {
            interfaces.push(legacy_interface(header));
            Step::Other
        }
        PcapBlockOwned::Legacy(packet) => legacy_packet(packet, interfaces),
        PcapBlockOwned::NG(Block::SectionHeader(_)) => {
            interfaces.clear();
            Step::Other
        }
        PcapBlockOwned::NG(Block::InterfaceDescription(description)) => {
            interfaces.push(interface(description));
            Step::Other
        }
        PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => enhanced_packet(packet, interfaces),
        PcapBlockOwned::NG(Block::SimplePacket(packet)) => simple_packet(packet, interfaces),
        PcapBlockOwned::NG(_) => Step::Other,
    }
}

fn legacy_interface(header: &PcapHeader) -> InterfaceInfo {
    let units = if header.is_nanosecond_precision() {
        1_000_000_000
    } else {
        1_000_000
    };
    InterfaceInfo {
        name: None,
        // The upper half of the field has another meaning (draft-ietf-opsawg-pcap).
        link: header.network.0 as u16,
        units,
        offset: 0,
    }
}

fn interface(description: &InterfaceDescriptionBlock<'_>) -> InterfaceInfo {
    let name = description.if_name().and_then(Result::ok);
    // The parser always reads the offset as little-endian, and does not support time units that are
    // powers of two.
    let offset = match description.block_type {
        IDB_MAGIC => description.if_tsoffset,
        _ => description.if_tsoffset.swap_bytes(),
    };
    InterfaceInfo {
        name: name.map(str::to_owned),
        link: description.linktype.0 as u16,
        units: time_stamp_units(description.if_tsresol).unwrap_or(1_000_000),
        offset,
    }
}

/// Returns the number of units per second for a value of `if_tsresol`. It is a power of ten, or of
/// two if the top bit is set.
fn time_stamp_units(resolution: u8) -> Option<u64> {
    let (base, exponent) = match resolution {
        0x80.. => (2_u64, resolution & 0x7F),
        _ => (10, resolution),
    };
    base.checked_pow(u32::from(exponent))
}

fn legacy_packet(packet: &LegacyPcapBlock<'_>, interfaces: &[InterfaceInfo]) -> Step {
    let Some(interface) = interfaces.first() else {
        return Step::Damaged;
    };
    let units = u64::from(packet.ts_sec)
        .saturating_mul(interface.units)
        .saturating_add(u64::from(packet.ts_usec));
    Step::Packet(Packet {
        timestamp: interface.time(units),
        interface: 0,
        link: interface.link,
        direction: Direction::Unknown,
        original_len: packet.origlen as usize,
        comments: Vec::new(),
        data: packet.data.to_vec(),
    })
}

fn enhanced_packet(packet: &EnhancedPacketBlock<'_>, interfaces: &[InterfaceInfo]) -> Step {
    let Some(interface) = interfaces.get(packet.if_id as usize) else {
        return Step::Damaged;
    };
    let mut direction = Direction::Unknown;
    let mut comments = Vec::new();
    for option in &packet.options {
        match (option.code, option.as_bytes()) {
            (EPB_FLAGS, Ok(&[a, b, c, d])) => {
                let flags = if packet.big_endian() {
                    u32::from_be_bytes([a, b, c, d])
                } else {
                    u32::from_le_bytes([a, b, c, d])
                };
                direction = Direction::from_flags(flags);
            }
            (OptionCode::Comment, Ok(text)) => {
                comments.push(String::from_utf8_lossy(text).into_owned());
            }
            _ => {}
        }
    }
    let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
    Step::Packet(Packet {
        timestamp: interface.time(units),
        interface: packet.if_id,
        link: interface.link,
        direction,
        original_len: packet.origlen as usize,
        comments,
        data: packet.packet_data().to_vec(),
    })
}

/// Reads a packet without time and options. It belongs to the first interface of the section.
fn simple_packet(packet: &SimplePacketBlock<'_>, interfaces: &[InterfaceInfo]) -> Step {
    let Some(interface) = interfaces.first() else {
        return Step::Damaged;
    };
    Step::Packet(Packet {
        timestamp: Duration::ZERO,
        interface: 0,
        link: interface.link,
        direction: Direction::Unknown,
        original_len: packet.origlen as usize,
        comments: Vec::new(),
        data: packet.packet_data().to_vec(),
    })
}

impl InterfaceInfo {
    /// Converts a timestamp in units of this interface to the time since 1970. A value out of range
    /// becomes the nearest valid time.
    fn time(&self, units: u64) -> Duration {
        let nanoseconds = i128::from(units) * 1_000_000_000 / i128::from(self.units)
            + i128::from(self.offset) * 1_000_000_000;
        let seconds = u64::try_from(nanoseconds.max(0) / 1_000_000_000).unwrap_or(u64::MAX);
        let rest = (nanoseconds.max(0) % 1_000_000_000) as u32;
        Duration::new(seconds, rest)
    }
}

#[cfg(test)]
#[path = "reader/tests.rs"]
mod tests;
